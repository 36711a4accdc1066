"""JSON Schema validation, by the library made for it, loaded when it is first needed."""

from functools import lru_cache
from importlib import import_module

import msgspec

from loopwright.model.record import JsonValue
from loopwright.runtime.senses import compiled

DETAIL_CHARS = 500


def schema_problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """Why a value does not fit a schema: the first problem with its place, or None.

    Nothing fits a schema that cannot be used. What a schema refers to must be inside it: nothing
    is ever fetched.
    """
    try:
        validator = _validator(msgspec.json.encode(schema))
        errors = sorted(validator.iter_errors(value), key=lambda e: list(map(str, e.absolute_path)))
    except Exception as error:  # of the schema: unknown type, bad pattern, reference to nowhere
        said = str(error).partition("\n")[0][:DETAIL_CHARS]
        return f"the schema itself cannot be used: {type(error).__name__.lstrip('_')}: {said}"
    if not errors:
        return None
    first = errors[0]
    place = "/".join(str(part) for part in first.absolute_path) or "the value itself"
    return f"{place}: {_clip(first.message)}"


def _clip(text: str) -> str:
    """A message quotes the value, which may be long: its end says what is wrong with it."""
    half = DETAIL_CHARS // 2
    return text if len(text) <= DETAIL_CHARS else f"{text[:half]} … {text[-half:]}"


@lru_cache(maxsize=128)
def _validator(schema: bytes):  # type: ignore[no-untyped-def]
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
    return linear(loaded, registry=known)


# The library matches with `re`, which a pattern can keep busy for ever while every run of this
# process stands still. These match in time linear in the text.


def _pattern(validator, pattern, instance, schema):  # type: ignore[no-untyped-def]
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield _problem(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator, patterns, instance, schema):  # type: ignore[no-untyped-def]
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator, allowed, instance, schema):  # type: ignore[no-untyped-def]
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [n for n in instance if n not in known and not any(_found(p, n) for p in patterns)]
    if allowed is False and extra:
        yield _problem(f"Additional properties are not allowed: {', '.join(map(repr, extra))}")
    elif validator.is_type(allowed, "object"):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern, ignore_case=False).search(text) is not None


def _problem(message: str) -> Exception:
    error: Exception = import_module("jsonschema").ValidationError(message)
    return error
