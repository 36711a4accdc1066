"""The JSON Schema of a loop definition, for editors; generated from the surface."""

from typing import cast

from loopwright.dialects.coqui.surface import Definition
from loopwright.model.record import JsonValue
from loopwright.syntax.fields import HIDDEN

_EXAMPLE: JsonValue = {
    "name": "docs-review",
    "description": "A writer and a reviewer take turns",
    "roles": [
        {"name": "write", "role": "coder", "prompt": "Write the page that the goal asks for."},
        {"name": "review", "role": "reviewer", "prompt": "Read it as a newcomer would."},
    ],
    "termination_condition": {
        "type": "evaluation_bound",
        "value": {"criteria": "A newcomer can follow it", "max_review_rounds": 3},
    },
}


def json_schema() -> dict[str, JsonValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, JsonValue]", Definition.model_json_schema(ref_template=template))
    definitions = cast("dict[str, JsonValue]", made.pop("$defs", {}))
    head: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Coqui loop definition",
    }
    return {
        **made,
        **head,
        "examples": [_EXAMPLE],
        "definitions": {name: _shown(one) for name, one in definitions.items()},
    }


def _shown(definition: JsonValue) -> JsonValue:
    """Without words that are known and refused."""
    assert isinstance(definition, dict)
    properties = definition.get("properties")
    if not isinstance(properties, dict):
        return definition
    kept = {
        name: one
        for name, one in properties.items()
        if not (isinstance(one, dict) and HIDDEN in one)
    }
    return {**definition, "properties": kept}
