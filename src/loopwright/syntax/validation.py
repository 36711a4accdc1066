"""Validation of a document against a pydantic model, and field types that all dialects share.

Every problem is reported with its position, in one report.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import BaseModel, GetCoreSchemaHandler, JsonValue, ValidationError, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from loopwright.syntax.document import (
    MAX_PROBLEMS,
    Diagnostic,
    Document,
    Path,
    Value,
    check_text,
    has,
    in_order,
)
from loopwright.syntax.schema_errors import RawError, SchemaFinding, SchemaMap, explain, keep_best

Model = TypeVar("Model", bound=BaseModel)

# A long list of wrong items says the same thing over and over: these are enough to read.
_MOST_ERRORS = 1_000


def validate(
    model: type[Model], document: Document, *, root: Path = (), context: object = None
) -> tuple[Model | None, list[Diagnostic]]:
    """The model created from the value at `root`, or all problems of it.

    Strict: nothing is coerced. An error raised by the model as `PydanticCustomError` keeps its type
    as code (`cap_required` becomes `cap-required`); its context may contain `at`, a path below the
    place of the error, and `hint`. The model's own validators receive `context`.
    """
    found, value = _value_at(document.value, root)
    if not found:
        return None, [document.error("missing-field", f"{root[-1]} is required", at=root)]
    try:
        # As JSON, where strict means the types of JSON: a list is valid for a tuple or a set.
        written = json.dumps(value)
        return model.model_validate_json(written, strict=True, context=context), []
    except ValidationError as error:
        raw = cast("list[RawError]", error.errors(include_url=False))
    schemas = SchemaMap(cast("dict[str, object]", model.__pydantic_core_schema__))
    findings = [one for entry in raw[:_MOST_ERRORS] for one in explain(entry, schemas, value)]
    return None, _located(document, tuple(root), keep_best(findings))


def _value_at(value: Value, path: Path) -> tuple[bool, Value]:
    for part in path:
        if not has(value, part):
            return False, None
        value = cast("Any", value)[part]
    return True, value


def _located(
    document: Document, root: tuple[str | int, ...], findings: Sequence[SchemaFinding]
) -> list[Diagnostic]:
    def position(one: SchemaFinding) -> tuple[int, int]:
        path = (*root, *one.path)
        return document.key_at(path) if one.on_key else document.at(path)

    # Positions before words: looking for similar words is the expensive part.
    first = sorted(findings, key=position)[:MAX_PROBLEMS]
    return in_order(
        document.error(
            one.code, one.text(), at=(*root, *one.path), on_key=one.on_key, hint=one.advice()
        )
        for one in first
    )


T = TypeVar("T")
Text = TypeVar("Text", bound=str)

HIDDEN = "x-hidden"
"""Marks what the JSON Schema of a language does not show: reserved keys."""
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
    """The text, if all of it is visible to a reader."""
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
"""Keys whose schemas are applied to the same value, and not to a part of it."""


def ref_loop(schema: JsonValue) -> str | None:
    """A reference by which a JSON Schema leads back to itself without consuming a part of the
    value: validation would never end. None if there is no such reference.
    """
    targets = dict.fromkeys(_refs(schema))
    onward = {one: {*_onward(_at(schema, one))} & targets.keys() for one in targets}
    users: dict[str, list[str]] = {one: [] for one in targets}
    for one, leads in onward.items():
        for target in leads:
            users[target].append(one)
    # References without further references are removed; what remains are cycles and paths into
    # them.
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
    """The references to which a schema passes the same value."""
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
    """The target of a local reference; nothing if it is not local."""
    found = whole
    for part in target.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if target == "#" or target.startswith("#/") else None


class _NotNull:
    """Omit it or give it a value: an empty key does not mean "the default"."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        inner: CoreSchema = schema["schema"] if schema["type"] == "nullable" else schema
        return inner


Maybe: TypeAlias = Annotated[T | None, _NotNull()]


def check_references(schema: dict[str, JsonValue], *, definitions: str) -> dict[str, JsonValue]:
    """Refuse a JSON Schema that refers to another document, or endlessly to itself."""
    if leads_away(schema):
        hint = f"copy it into {definitions} and refer to #/{definitions}/NAME"
        raise fault("remote-ref", "a $ref must stay inside the schema", hint=hint)
    circle = ref_loop(schema)
    if circle is not None:
        hint = "let it lead into properties or items, so that each round is about a part"
        raise fault("ref-loop", f"$ref {circle} leads back to itself", hint=hint)
    return schema
