"""What a pydantic error means to the author of a definition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypedDict, get_args

from pydantic_core.core_schema import ErrorType

from loopwright.syntax.document import Value
from loopwright.syntax.schema_walk import Branch, Loc, Place, Schema, SchemaMap
from loopwright.syntax.words import clip, did_you_mean, one_of, show

_BUILT_IN = frozenset(get_args(ErrorType))
_MOST_KNOWN_SHOWN = 12

_TYPES = {
    "bool": "true or false",
    "dataclass": "a mapping",
    "dict": "a mapping",
    "float": "a number",
    "frozen_set": "a list",
    "int": "a whole number",
    "list": "a list",
    "mapping": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "none": "null",
    "set": "a list",
    "string": "text",
    "tuple": "a list",
}
_TYPE_ERRORS = {f"{name}_type": words for name, words in _TYPES.items()} | {
    "int_from_float": "a whole number",
    "none_required": "null",
}
_RANGE_ERRORS = {
    "greater_than": "gt",
    "greater_than_equal": "ge",
    "less_than": "lt",
    "less_than_equal": "le",
    "multiple_of": "multiple_of",
}
_LENGTH_ERRORS = {
    "string_too_long": ("text", "character", "max_length"),
    "string_too_short": ("text", "character", "min_length"),
    "too_long": ("a collection", "entry", "max_length"),
    "too_short": ("a collection", "entry", "min_length"),
}
_VALUE_ERRORS = frozenset({"literal_error", "enum"})
_UNKNOWN_FIELD = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})


class RawError(TypedDict, total=False):
    """One entry of `ValidationError.errors()`, as far as it is used."""

    type: str
    loc: Loc
    msg: str
    input: object
    ctx: dict[str, object]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, still without its position.

    `expected` holds what would have been right, so that the branches of a union can be put into
    one sentence. `misfit`: the value is of another type altogether.
    """

    code: str
    path: Loc
    message: str = ""
    hint: str | None = None
    expected: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()
    on_key: bool = False
    misfit: bool = False
    value: object = None
    shown: str | None = None

    def text(self) -> str:
        """The message: what must be there, and what is."""
        if not self.expected:
            return self.message
        name = name_place(self.path)
        if self.on_key:
            name = f"a key of {name_place(self.path[:-1])}"
        return f"{name} must be {one_of(self.expected)}, not {self.shown or show(self.value)}"

    def advice(self) -> str | None:
        """The hint, with a near miss where there is one."""
        if self.hint or not self.known:
            return self.hint
        if self.code == "unknown-field":
            near = did_you_mean(str(self.path[-1]), self.known)
            few = len(self.known) <= _MOST_KNOWN_SHOWN
            return near or (f"known here: {', '.join(self.known)}" if few else None)
        return did_you_mean(self.value, self.known) if isinstance(self.value, str) else None


def name_place(path: Loc) -> str:
    """The last key of a path, with the indices behind it: `all[0]`."""
    name = ""
    for part in reversed(path):
        if isinstance(part, str):
            return clip(part) + name
        name = f"[{part}]{name}"
    return f"item {name}" if name else "the definition"


def explain(error: RawError, schemas: SchemaMap, value: Value) -> list[Finding]:
    """The findings of one error (nearly always one)."""
    place = schemas.place(error["loc"], value)
    kind = error["type"]
    blank = Finding(
        "bad-value",
        place.path,
        known=place.known,
        branches=place.branches,
        on_key=place.on_key,
        value=place.path[-1] if place.on_key else error.get("input"),
    )
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _tag_problem(error, blank, schemas, place)
    if kind in _UNKNOWN_FIELD:
        return [replace(blank, code="unknown-field", message=clip(_last(place)), on_key=True)]
    if kind in _MISSING:
        return [replace(blank, code="missing-field", message=f"{clip(_last(place))} is required")]
    blank = replace(blank, known=())
    for explained in (_type_problem, _range_problem, _length_problem, _value_problem):
        found = explained(error, blank, place.schema or {})
        if found:
            return [found]
    return [_other_problem(error, blank) if kind in _BUILT_IN else _own_problem(error, blank)]


def _last(place: Place) -> str:
    return str(place.path[-1]) if place.path else "the definition"


def _type_problem(error: RawError, blank: Finding, schema: Schema) -> Finding | None:
    words = _TYPE_ERRORS.get(error["type"])
    if words is None:
        return None
    if words in ("a whole number", "a number"):
        words += _bounds(schema)
    return replace(blank, code="wrong-type", expected=(words,), misfit=True)


def _range_problem(error: RawError, blank: Finding, schema: Schema) -> Finding | None:
    bound = _RANGE_ERRORS.get(error["type"])
    if bound is None:
        return None
    ctx = error.get("ctx", {})
    limits = schema if bound in schema else {bound: ctx.get(bound)}
    words = "a whole number" if schema.get("type") == "int" else "a number"
    return replace(blank, code="out-of-range", expected=(words + _bounds(limits),))


def _bounds(schema: Schema) -> str:
    low, high = schema.get("ge"), schema.get("le")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    parts = [f"{words[key]} {schema[key]}" for key in words if schema.get(key) is not None]
    if schema.get("multiple_of") is not None:
        parts.append(f"divisible by {schema['multiple_of']}")
    return f" {' and '.join(parts)}" if parts else ""


def _length_problem(error: RawError, blank: Finding, schema: Schema) -> Finding | None:
    if error["type"] not in _LENGTH_ERRORS:
        return None
    what, unit, bound = _LENGTH_ERRORS[error["type"]]
    limits = schema if bound in schema else error.get("ctx", {})
    if what != "text":
        what, unit = ("a mapping", "key") if isinstance(blank.value, dict) else ("a list", "item")
    low, high = limits.get("min_length"), limits.get("max_length")
    if low and high is not None:
        size = f"{low} to {high} {unit}s"
    else:
        most = high is not None
        count = high if most else low
        size = f"at {'most' if most else 'least'} {count} {unit}{'' if count == 1 else 's'}"
    found = len(blank.value) if isinstance(blank.value, str | list | dict) else 0
    expected = (f"{what} of {size}",)
    return replace(blank, code="out-of-range", expected=expected, shown=f"of {found}")


def _value_problem(error: RawError, blank: Finding, schema: Schema) -> Finding | None:
    if error["type"] not in _VALUE_ERRORS:
        return None
    values = _values(schema)
    if not values:
        expected: tuple[str, ...] = (str(error.get("ctx", {}).get("expected", error["msg"])),)
    else:
        expected = tuple(show(one) for one in values)
    misfit = bool(values) and type(blank.value) not in {type(one) for one in values}
    known = tuple(one for one in values if isinstance(one, str))
    return replace(blank, code="unknown-value", expected=expected, known=known, misfit=misfit)


def _values(schema: Schema) -> list[object]:
    found: Sequence[object] = schema.get("expected") or schema.get("members") or ()
    return [one.value if isinstance(one, Enum) else one for one in found]


def _other_problem(error: RawError, blank: Finding) -> Finding:
    if error["type"] == "string_pattern_mismatch":
        words = f"text that matches {error.get('ctx', {}).get('pattern')}"
        return replace(blank, code="bad-format", expected=(words,))
    if error["type"] == "finite_number":
        return replace(blank, code="not-finite", expected=("a finite number",))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return replace(blank, message=f"{name_place(blank.path)}: {message}")


def _own_problem(error: RawError, blank: Finding) -> Finding:
    """An error of the model's own: its type is the code, its context may aim and advise."""
    ctx = error.get("ctx", {})
    at, hint = ctx.get("at", ()), ctx.get("hint")
    below = (
        (at,) if isinstance(at, str | int) else tuple(at) if isinstance(at, list | tuple) else ()
    )
    return replace(
        blank,
        code=error["type"].replace("_", "-"),
        path=(*blank.path, *below),
        message=error["msg"],
        hint=str(hint) if hint else None,
    )


def _tag_problem(
    error: RawError, blank: Finding, schemas: SchemaMap, place: Place
) -> list[Finding]:
    """No branch of a tagged union was chosen: the tag is absent, unknown, or computed."""
    union = place.schema or {}
    tags = tuple(str(tag) for tag in union.get("choices", {}))
    by = union.get("discriminator")
    if not isinstance(blank.value, dict):
        return [replace(blank, code="wrong-type", expected=("a mapping",), misfit=True, known=())]
    if callable(by):
        return _unchosen(blank, blank.value, schemas.fields_of_choices(union), tags)
    key = str(by) if isinstance(by, str) else str(error.get("ctx", {}).get("discriminator", ""))
    path = (*blank.path, key.strip("'"))
    if error["type"] == "union_tag_not_found":
        message = f"{path[-1]} is required: {one_of([show(tag) for tag in tags])}"
        return [replace(blank, code="missing-field", path=path, message=message, known=())]
    value = blank.value.get(path[-1])
    expected = tuple(show(tag) for tag in tags)
    found = replace(blank, code="unknown-value", path=path, expected=expected)
    return [replace(found, known=tags, value=value)]


def _unchosen(
    blank: Finding, value: dict[str, object], known: tuple[str, ...], tags: tuple[str, ...]
) -> list[Finding]:
    unknown = [
        replace(
            blank,
            code="unknown-field",
            path=(*blank.path, key),
            message=clip(key),
            known=known,
            on_key=True,
        )
        for key in value
        if key not in known
    ]
    message = f"{name_place(blank.path)} needs one of: {', '.join(tags)}"
    return unknown or [replace(blank, code="missing-field", message=message, known=())]
