"""The JSON Schema for editors, and how sure a dialect is of a file."""

import jsonschema
import pytest

from loopwright.dialects import native
from loopwright.syntax.document import Document
from loopwright.syntax.validation import HIDDEN


def test_the_schema_is_draft_7_and_complete() -> None:
    """A valid draft-07 schema with a title, examples that fit, and no word that is refused."""
    schema = native.json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema["title"]
    for example in schema["examples"]:
        jsonschema.Draft7Validator(schema).validate(example)
        assert native.lower(Document.plain(example, file="example"))[1] == []
    assert HIDDEN not in str(schema)
    assert "no_progress" not in schema["definitions"]["LoopLimitsSpec"]["properties"]


def test_every_property_is_described() -> None:
    """An editor has something to show for each key."""
    schema = native.json_schema()
    for model in (schema, *schema["definitions"].values()):
        for name, one in model.get("properties", {}).items():
            assert "description" in one or name == "kind", name


@pytest.mark.parametrize(
    "value",
    [
        {"name": "x", "repeat": {"max": 0}},
        {"name": "x", "unknown": 1},
        {"repeat": {"max": 1}},
        {"name": "x", "budget": {"time": 5}},
    ],
)
def test_the_schema_refuses_what_is_wrong(value: object) -> None:
    """Ranges, unknown keys and missing keys are seen by an editor too."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(native.json_schema()).validate(value)


@pytest.mark.parametrize(
    ("value", "score"),
    [
        pytest.param({"name": "x", "goal": "y"}, 50, id="its-words"),
        pytest.param({"name": "x"}, 10, id="any-mapping"),
        pytest.param(["x"], 0, id="no-mapping"),
    ],
)
def test_recognise(value: object, score: int) -> None:
    """Native claims its own words, and weakly what nobody else claims."""
    assert native.recognise(value) == score
