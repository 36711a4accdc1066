"""The JSON Schema of a workflow, for editors; generated from the surface."""

from typing import TypeAlias, cast

from loopwright.dialects.archon.surface import Workflow
from loopwright.model.record import JsonValue
from loopwright.syntax.fields import HIDDEN

Node: TypeAlias = dict[str, JsonValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "name": "fix-tests",
    "description": "Repair what the tests complain about",
    "nodes": [
        {"id": "setup", "bash": "git status --short"},
        {
            "id": "fix",
            "depends_on": ["setup"],
            "loop": {
                "prompt": "Repair one failing test. State: $setup.output",
                "until": "TESTS_PASS",
                "until_bash": "npm test",
                "max_iterations": 8,
            },
        },
    ],
}


def json_schema() -> Node:
    """Draft 7, which every editor knows."""
    made = cast("Node", Workflow.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    head: Node = {"$schema": _DRAFT, "title": "Archon workflow"}
    return {**tidy, **head, "examples": [_EXAMPLE], "definitions": _tidied(definitions)}


def _tidied(value: JsonValue) -> JsonValue:
    """Without the words that are known and refused."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if not _is_hidden(one)}
    if "$ref" in kept and len(kept) > 1:  # draft 7 reads nothing that stands beside a $ref
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}


def _is_hidden(value: JsonValue) -> bool:
    return isinstance(value, dict) and HIDDEN in value
