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
    return {**made, **head, "examples": [_EXAMPLE], "definitions": definitions}
