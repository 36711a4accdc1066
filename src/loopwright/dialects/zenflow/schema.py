"""JSON Schema of a workflow, for editors; generated from the surface."""

from typing import cast

from loopwright.dialects.zenflow.rules import MAX_STEPS
from loopwright.dialects.zenflow.surface import ZenflowWorkflow
from loopwright.model.record import JsonValue

_EXAMPLE: JsonValue = {
    "name": "refine",
    "agents": {
        "writer": {"description": "Writes the text."},
        "judge": {
            "description": "Says whether the text is good.",
            "resultSchema": {
                "type": "object",
                "required": ["done"],
                "properties": {"done": {"type": "boolean"}},
            },
        },
    },
    "steps": [
        {
            "id": "draft",
            "agent": "writer",
            "instructions": "Improve the text.",
            "loop": {"maxIterations": 5, "untilAgent": "judge"},
        }
    ],
}


def json_schema() -> dict[str, JsonValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, JsonValue]", ZenflowWorkflow.model_json_schema(ref_template=template))
    definitions = cast("dict[str, dict[str, JsonValue]]", made.pop("$defs", {}))
    loop = definitions["LoopSpec"]
    loop["anyOf"] = [{"required": ["maxIterations"]}, {"required": ["forEach"]}]
    properties = cast("dict[str, dict[str, JsonValue]]", made["properties"])
    # Not stated by the surface, because each missing key has its own code.
    properties["name"] |= {"minLength": 1}
    properties["steps"] = {
        "type": "array",
        "items": {"$ref": "#/definitions/StepSpec"},
        "minItems": 1,
        "maxItems": MAX_STEPS,
        "description": "The steps.",
    }
    head: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ZenFlow workflow",
        "required": ["name", "steps"],
    }
    return {**made, **head, "examples": [_EXAMPLE], "definitions": cast("JsonValue", definitions)}
