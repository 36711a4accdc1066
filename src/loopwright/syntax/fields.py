"""What the fields of every language share: how one says what is wrong with it, and a few kinds."""

from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, JsonValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from loopwright.syntax.characters import check_text

T = TypeVar("T")
Text = TypeVar("Text", bound=str)

HIDDEN = "x-hidden"
"""Marks what the JSON Schema of a language does not show: words that are known and refused."""
HIDE = WithJsonSchema({HIDDEN: True})


def keys_of(model: type[BaseModel]) -> frozenset[str]:
    """The keys that a mapping may have, as they are written."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def fault(code: str, message: str, *, hint: str | None = None) -> PydanticCustomError:
    """The error to raise; `code` is the slug that the author sees."""
    # The message goes in as a value: braces in it are the author's, not placeholders.
    context = {"text": message, "hint": hint} if hint else {"text": message}
    return PydanticCustomError(code.replace("-", "_"), "{text}", context)


def visible(text: Text) -> Text:
    """The text, if a reader sees all of it."""
    problem = check_text(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text


def leads_away(schema: JsonValue) -> bool:
    """Whether a JSON Schema refers to anything outside of itself."""
    if isinstance(schema, list):
        return any(leads_away(one) for one in schema)
    if not isinstance(schema, dict):
        return False
    target = schema.get("$ref", "#")
    away = isinstance(target, str) and not target.startswith("#")
    return away or any(leads_away(one) for one in schema.values())


class _NotNull:
    """Leave it out or give it a value: an empty key is no way to say "the default"."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        inner: CoreSchema = schema["schema"] if schema["type"] == "nullable" else schema
        return inner


Maybe: TypeAlias = Annotated[T | None, _NotNull()]
