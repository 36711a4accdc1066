"""What the fields of every language share."""

from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, JsonValue

from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.validation import Maybe, fault, leads_away, ref_loop, validate, visible


def _refuse(value: str) -> str:
    if value == "bad":
        raise fault("no-good", "{braces} stay", hint="take another")
    if value == "worse":
        raise fault("no-good", "nothing helps")
    return value


class _Model(BaseModel):
    word: Annotated[str, AfterValidator(visible), AfterValidator(_refuse)] = "x"
    perhaps: Maybe[int] = None


def found(value: JsonValue) -> list[Diagnostic]:
    return validate(_Model, Document.plain(value, file="x"))[1]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("bad", ("no-good", "{braces} stay", "take another")),
        ("worse", ("no-good", "nothing helps", None)),
    ],
)
def test_a_field_says_what_is_wrong(word: str, expected: tuple[str, str, str | None]) -> None:
    """Code, message and hint arrive as they were given, braces and all."""
    (one,) = found({"word": word})
    assert (one.code, one.message, one.hint) == expected


def test_hidden_characters_are_refused() -> None:
    """A word of which a reader does not see all is refused by name."""
    (one,) = found({"word": "a\u200bb"})
    assert one.code == "hidden-character"


@pytest.mark.parametrize(
    ("value", "codes"),
    [({}, []), ({"perhaps": 3}, []), ({"perhaps": None}, ["wrong-type"])],
    ids=["left out", "given", "null"],
)
def test_what_may_be_left_out_may_not_be_null(value: JsonValue, codes: list[str]) -> None:
    """An empty key is no way to say "the default"."""
    assert [one.code for one in found(value)] == codes


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/definitions/x"}, False),
        ({"items": [{"$ref": "https://x.test/s.json"}]}, True),
        ({"properties": {"a": {"$ref": "other.json"}}}, True),
        ({"$ref": 3}, False),
        (True, False),
    ],
)
def test_schemas_that_lead_away(schema: JsonValue, expected: bool) -> None:
    """A reference to anything but the schema itself is found, however deep."""
    assert leads_away(schema) is expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        pytest.param({"type": "object"}, None, id="no reference"),
        pytest.param({"$ref": "#"}, "#", id="itself"),
        pytest.param({"properties": {"a": {"$ref": "#"}}}, None, id="a tree"),
        pytest.param({"items": [{"$ref": "#"}], "$ref": 3}, None, id="a list, and no text"),
        pytest.param(
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}},
            None,
            id="a chain with an end",
        ),
        pytest.param(
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "#/$defs/a",
            id="a circle",
        ),
        pytest.param(
            {"$defs": {"a/b": {"anyOf": [{"not": {"$ref": "#/$defs/a~1b"}}]}}},
            "#/$defs/a~1b",
            id="by way of others",
        ),
        pytest.param(
            {"$defs": {"a": {"dependentSchemas": {"x": {"$ref": "#/$defs/a"}}}}},
            "#/$defs/a",
            id="depending on a field",
        ),
        pytest.param(
            {"$ref": "#/a", "a": {"anyOf": [{"type": "string"}, {"not": {}}]}}, None, id="others"
        ),
        pytest.param({"allOf": [{"$ref": "#/nowhere/at/all"}]}, None, id="nowhere"),
        pytest.param({"allOf": [{"$ref": "#name"}], "x": 1}, None, id="by an anchor"),
        pytest.param(
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/b"}}},
            "#/$defs/b",
            id="into a circle",
        ),
        pytest.param(
            {"$ref": "#/a", "a": {"allOf": [{"$ref": "#/b"}, {"$ref": "#/c"}]}, "b": {}, "c": {}},
            None,
            id="two ways, both with an end",
        ),
        pytest.param(
            {"$ref": "#/a", "a": {"allOf": [{"$ref": "#/a"}, {"$ref": "#/b"}]}, "b": {}},
            "#/a",
            id="two ways, one with an end",
        ),
    ],
)
def test_references_that_lead_back(schema: JsonValue, expected: str | None) -> None:
    """Only where the same value would be looked at again and again; a tree is fine."""
    assert ref_loop(schema) == expected
