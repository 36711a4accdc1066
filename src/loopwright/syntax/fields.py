"""What the fields of every language share: how one says what is wrong with it, and a few kinds."""

from collections.abc import Iterator
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


_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keys whose schemas are held against the same value, and not against a part of it."""


def ref_loop(schema: JsonValue) -> str | None:
    """A reference by which a JSON Schema leads back to itself without looking at anything in
    between: no value could ever be held against it. None when there is no such reference.
    """
    targets = dict.fromkeys(_refs(schema))
    onward = {one: {*_onward(_at(schema, one))} & targets.keys() for one in targets}
    users: dict[str, list[str]] = {one: [] for one in targets}
    for one, leads in onward.items():
        for target in leads:
            users[target].append(one)
    # What leads nowhere is left out; what is left then are circles and ways into them.
    ends = [one for one, leads in onward.items() if not leads]
    while ends:
        end = ends.pop()
        del onward[end]
        for user in users[end]:
            onward[user].discard(end)
            if not onward[user]:
                ends.append(user)
    return next(iter(onward), None)


def _refs(part: JsonValue) -> Iterator[str]:
    """Every reference of a schema."""
    if isinstance(part, list):
        for one in part:
            yield from _refs(one)
    elif isinstance(part, dict):
        target = part.get("$ref")
        if isinstance(target, str):
            yield target
        for one in part.values():
            yield from _refs(one)


def _onward(part: JsonValue) -> Iterator[str]:
    """The references that a schema hands the same value on to."""
    if isinstance(part, list):
        for one in part:
            yield from _onward(one)
    elif isinstance(part, dict):
        target = part.get("$ref")
        if isinstance(target, str):
            yield target
        for key in _IN_PLACE:
            inner = part.get(key)
            if key == "dependentSchemas":
                inner = list(inner.values()) if isinstance(inner, dict) else None
            yield from _onward(inner)


def _at(whole: JsonValue, target: str) -> JsonValue:
    """What a local reference points at; nothing for one that is none."""
    found = whole
    for part in target.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if target == "#" or target.startswith("#/") else None


class _NotNull:
    """Leave it out or give it a value: an empty key is no way to say "the default"."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        inner: CoreSchema = schema["schema"] if schema["type"] == "nullable" else schema
        return inner


Maybe: TypeAlias = Annotated[T | None, _NotNull()]
