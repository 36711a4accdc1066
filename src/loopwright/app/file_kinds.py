"""Files of other systems that are no definitions, and what they are instead.

Some of them use words of a definition (`agent`, `nodes`), so that a dialect would claim them and
report errors about a file that was never meant to run.
"""

from typing import NamedTuple

from loopwright.model.record import JsonValue

CODE = "not-a-definition"


class FileKind(NamedTuple):
    """What a file is, and what can be done with it."""

    name: str
    hint: str


SUITE = FileKind("an evaluation suite", "`loopwright eval FILE` reads files of cases")
CATALOG = FileKind("a list of models", "models and their prices are in the settings")
CANVAS = FileKind(
    "a template of a canvas with several assistants",
    "run the assistants that it was made into: export the workspace, or take one assistant",
)


def other_kind(value: JsonValue) -> FileKind | None:
    """What a document is that is not a definition; None if it may be one."""
    if not isinstance(value, dict):
        return None
    if _is_suite(value):
        return SUITE
    if value.get("kind") == "ModelCatalog" and isinstance(value.get("models"), list):
        return CATALOG
    return CANVAS if _is_canvas(value) else None


def _is_suite(value: dict[str, JsonValue]) -> bool:
    """Cases with an input and what is expected of the answer."""
    cases = value.get("cases")
    return isinstance(cases, list) and any(
        isinstance(one, dict) and "input" in one and ("expect" in one or "evaluators" in one)
        for one in cases
    )


def _is_canvas(value: dict[str, JsonValue]) -> bool:
    """Cards with a place on a canvas, and lines between them."""
    nodes = value.get("nodes")
    return (
        isinstance(value.get("edges"), list)
        and isinstance(nodes, list)
        and bool(nodes)
        and all(
            isinstance(one, dict) and {"key", "type", "position"} <= one.keys() for one in nodes
        )
    )
