"""The JSON Schema of the native language, for editors; generated from the surface."""

from typing import TypeAlias, cast

from loopwright.dialects.native.surface import Definition
from loopwright.model.record import JsonValue
from loopwright.syntax.fields import HIDDEN

Node: TypeAlias = dict[str, JsonValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "name": "fix-tests",
    "agent": "claude",
    "goal": "Make the failing test suite pass.",
    "repeat": {
        "max": 10,
        "until": {"all": [{"signal": "DONE"}, {"command": ["pytest", "-q"]}]},
        "memory": "progress-log",
    },
    "budget": {"usd": 5, "time": "2h"},
}


def json_schema() -> Node:
    """Draft 7, which every editor knows."""
    made = cast("Node", Definition.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    return {
        "$schema": _DRAFT,
        "title": "Loopwright definition",
        **{key: value for key, value in tidy.items() if key != "title"},
        "examples": [_EXAMPLE],
        "definitions": _tidied(definitions),
    }


def _tidied(value: JsonValue) -> JsonValue:
    """Without the words that are known and refused, and without titles that say nothing."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if not _is_hidden(one)}
    is_properties = "type" not in kept and all(isinstance(one, dict) for one in kept.values())
    if not is_properties:
        kept = {key: one for key, one in kept.items() if (key, one) != ("default", None)}
        kept.pop("title", None)
        if "$ref" in kept and len(kept) > 1:  # draft 7 reads nothing that stands beside a $ref
            kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}


def _is_hidden(value: JsonValue) -> bool:
    return isinstance(value, dict) and HIDDEN in value
