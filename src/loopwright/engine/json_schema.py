"""JSON Schema validation, by a library that is imported when it is first needed."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Protocol, TypeAlias, cast

import msgspec

from loopwright.engine.services import compiled
from loopwright.model.record import JsonValue

DETAIL_CHARS = 500

Schema: TypeAlias = dict[str, JsonValue]


class _Problem(Protocol):
    """An error of the library about a value."""

    message: str
    absolute_path: Iterable[str | int]


Found: TypeAlias = Iterator[_Problem]


class _Validator(Protocol):
    """A validator of the library."""

    def iter_errors(self, instance: JsonValue) -> Found: ...

    def descend(
        self,
        instance: JsonValue,
        schema: JsonValue,
        path: str | int | None = None,
        schema_path: str | int | None = None,
    ) -> Found: ...


def schema_problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """Why a value does not match a schema: the first problem with its place, or None.

    Nothing matches an invalid schema. References must be inside the schema: nothing is ever
    fetched.
    """
    try:
        validator = _validator(msgspec.json.encode(_without_hidden_patterns(schema, value)))
        errors = sorted(validator.iter_errors(value), key=lambda e: list(map(str, e.absolute_path)))
    except Exception as error:  # of the schema: unknown type, bad pattern, unresolved reference
        detail = str(error).partition("\n")[0][:DETAIL_CHARS]
        return f"the schema itself cannot be used: {type(error).__name__.lstrip('_')}: {detail}"
    if not errors:
        return None
    first = errors[0]
    place = "/".join(str(part) for part in first.absolute_path) or "the value itself"
    return f"{place}: {_clip(first.message)}"


def _clip(text: str) -> str:
    """A message quotes the value, which may be long: the explanation is at its end."""
    half = DETAIL_CHARS // 2
    return text if len(text) <= DETAIL_CHARS else f"{text[:half]} … {text[-half:]}"


@lru_cache(maxsize=128)
def _validator(schema: bytes) -> _Validator:
    # Importing the library costs 60 ms of start-up, and most runs have no schema.
    jsonschema = import_module("jsonschema")
    known = import_module("jsonschema_specifications").REGISTRY
    loaded = msgspec.json.decode(schema)
    kind = jsonschema.validators.validator_for(loaded, jsonschema.Draft202012Validator)
    kind.check_schema(loaded)
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    linear = jsonschema.validators.extend(kind, ours)
    # Without this, a part with a `$schema` of its own is checked without these functions.
    linear.evolve = import_module("attrs").evolve
    return cast(_Validator, linear(loaded, registry=known))


# The library matches with `re`, in which a pattern can run for ever and block every run of this
# process. These functions match in linear time.


def _pattern(validator: _Validator, pattern: str, instance: JsonValue, _: Schema) -> Found:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield _problem(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: _Validator, patterns: Schema, instance: JsonValue, _: Schema
) -> Found:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: _Validator, allowed: JsonValue, instance: JsonValue, schema: Schema
) -> Found:
    if not isinstance(instance, dict):
        return
    known, patterns = _mapping(schema.get("properties")), _mapping(schema.get("patternProperties"))
    extra = [n for n in instance if n not in known and not any(_found(p, n) for p in patterns)]
    if allowed is False and extra:
        yield _problem(f"Additional properties are not allowed: {', '.join(map(repr, extra))}")
    elif isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)


def _without_hidden_patterns(schema: Schema, value: JsonValue) -> Schema:
    """The schema, with `patternProperties` written as `properties` for the names in the value.
    Otherwise the library would match the patterns itself to find unevaluated properties.
    """
    text = msgspec.json.encode(schema)
    if b'"unevaluatedProperties"' not in text or b'"patternProperties"' not in text:
        return schema
    return _mapping(_spelled_out(schema, sorted(_names(value))))


def _spelled_out(schema: JsonValue, names: list[str]) -> JsonValue:
    if isinstance(schema, list):
        return [_spelled_out(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _spelled_out(one, names) for key, one in schema.items()}
    patterns = made.pop("patternProperties", None)
    if not isinstance(patterns, dict):
        return made if patterns is None else {**made, "patternProperties": patterns}
    known = _mapping(made.get("properties"))
    for name in names:
        fitting = [inner for pattern, inner in patterns.items() if _found(pattern, name)]
        if fitting:
            known = {**known, name: {"allOf": [known.get(name, True), *fitting]}}
    return {**made, "properties": known}


def _names(value: JsonValue) -> set[str]:
    """The names of all properties in a value."""
    if isinstance(value, list):
        return {name for one in value for name in _names(one)}
    if not isinstance(value, dict):
        return set()
    return {*value, *(name for one in value.values() for name in _names(one))}


def _mapping(value: JsonValue) -> Schema:
    return value if isinstance(value, dict) else {}


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern, ignore_case=False).search(text) is not None


def _problem(message: str) -> _Problem:
    return cast(_Problem, import_module("jsonschema").ValidationError(message))
