"""What the fields of every language share."""

from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, JsonValue

from loopwright.syntax import Diagnostic, Document, validate
from loopwright.syntax.fields import Maybe, fault, leads_away, visible


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
