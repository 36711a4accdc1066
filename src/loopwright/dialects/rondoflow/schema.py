"""The JSON Schema of an assistant document, for editors; generated from the surface."""

from typing import cast

from loopwright.dialects.rondoflow.surface import Assistant
from loopwright.model.record import JsonValue

_EXAMPLE: JsonValue = {
    "name": "Fixer",
    "persona": "You repair failing tests.",
    "loopEnabled": True,
    "loopCriteria": {"type": "test_pass", "value": "npm test"},
    "maxIterations": 10,
}


def json_schema() -> dict[str, JsonValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, JsonValue]", Assistant.model_json_schema(ref_template=template))
    definitions = made.pop("$defs", {})
    head: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "RondoFlow assistant",
    }
    one: JsonValue = {"$ref": "#/definitions/Assistant"}
    several: JsonValue = {"type": "array", "items": one, "minItems": 1}
    named = {**cast("dict[str, JsonValue]", definitions), "Assistant": made}
    agents: JsonValue = {
        "type": "object",
        "required": ["agents"],
        "properties": {"agents": several},
    }
    data: JsonValue = {"anyOf": [one, several, agents]}
    response: JsonValue = {
        "type": "object",
        "required": ["success", "data"],
        "properties": {"data": data},
    }
    bundle: JsonValue = {"type": "object", "required": ["bundle"], "properties": {"bundle": agents}}
    kinds: JsonValue = [one, several, agents, response, bundle]
    return {**head, "anyOf": kinds, "examples": [_EXAMPLE], "definitions": named}
