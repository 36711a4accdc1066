"""Errors of pydantic as problems for the author of a definition.

The location of an error mixes keys of the document with labels of union branches, and a label may
look like a key. Only the schema of the model distinguishes them, so both are traversed together.
For a union, only the problems of the branch that the author meant are reported.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypedDict, cast, get_args

from pydantic_core.core_schema import ErrorType

from loopwright.syntax.document import Value, clip, did_you_mean, has, one_of, show, suggest

Schema: TypeAlias = dict[str, Any]
Loc: TypeAlias = tuple[str | int, ...]

_ANYTHING: Schema = {"type": "any"}
# Schemas that add nothing to a location, and the name under which they contain the next one.
_WRAPPERS = {
    "chain": "steps",
    "custom-error": "schema",
    "dataclass": "schema",
    "default": "schema",
    "definitions": "schema",
    "function-after": "schema",
    "function-before": "schema",
    "function-wrap": "schema",
    "json-or-python": "json_schema",
    "lax-or-strict": "strict_schema",
    "model": "schema",
    "nullable": "schema",
}
_LISTS = frozenset({"frozenset", "generator", "list", "set"})
_KEY_LABEL = "[key]"


class UnionBranch(NamedTuple):
    """One path through a union: which union (`loc`), where in the document, which branch."""

    loc: Loc
    path: Loc
    label: str


@dataclass(frozen=True, slots=True)
class SchemaPlace:
    """The target of a location. `known`: the fields of the mapping that its last key belongs to."""

    path: Loc = ()
    schema: Schema | None = None
    known: tuple[str, ...] = ()
    branches: tuple[UnionBranch, ...] = ()
    on_key: bool = False


class SchemaMap:
    """The core schema of one model, for looking up places."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: dict[str, Schema] = {}
        self._schema = schema
        self.opened(schema)

    def place(self, loc: Loc, value: object) -> SchemaPlace:
        """The place of an error; a location that the schema does not explain is taken by
        its keys.
        """
        found = self._follow(self._schema, loc, at=0, place=SchemaPlace())
        return found or _by_keys(loc, value)

    def opened(self, schema: Schema) -> Schema:
        """The schema without the wrappers around it."""
        while True:
            kind = schema["type"]
            for one in schema.get("definitions", ()):
                self._definitions[one["ref"]] = one
            if kind == "definition-ref":
                schema = self._definitions.get(schema["schema_ref"], _ANYTHING)
            elif kind in _WRAPPERS:
                inner = schema[_WRAPPERS[kind]]
                schema = inner[0] if isinstance(inner, list) else inner
            else:
                return schema

    def fields_of_choices(self, union: Schema) -> tuple[str, ...]:
        """All fields of the branches of a tagged union."""
        choices = [self.opened(one) for one in union.get("choices", {}).values()]
        return tuple(dict.fromkeys(name for one in choices for name in known_fields(one)))

    def _follow(
        self, schema: Schema, loc: Loc, *, at: int, place: SchemaPlace
    ) -> SchemaPlace | None:
        schema = self.opened(schema)
        if at == len(loc):
            return replace(place, schema=schema)
        part = loc[at]
        kind = schema["type"]
        if kind == "union":
            return self._through_union(schema, loc, at=at, place=place)
        if kind == "tagged-union":
            inner = next((s for tag, s in schema["choices"].items() if str(tag) == str(part)), None)
            return self._follow(inner, loc, at=at + 1, place=place) if inner else None
        if isinstance(part, str) and "fields" in schema:
            return self._through_fields(schema, loc, at=at, place=place)
        step = replace(place, path=(*place.path, part), known=())
        if kind == "dict":
            return self._through_dict(schema, loc, at=at, place=step)
        if isinstance(part, int):
            return self._follow(_item(schema, part), loc, at=at + 1, place=step)
        return None

    def _through_fields(
        self, schema: Schema, loc: Loc, *, at: int, place: SchemaPlace
    ) -> SchemaPlace | None:
        part = loc[at]
        known = known_fields(schema)
        step = replace(place, path=(*place.path, part), known=known)
        for name, one in _fields(schema):
            if part == name or part in _accepted(name, one):
                return self._follow(one["schema"], loc, at=at + 1, place=step)
        return step if at + 1 == len(loc) else None

    def _through_dict(
        self, schema: Schema, loc: Loc, *, at: int, place: SchemaPlace
    ) -> SchemaPlace | None:
        if loc[at + 1 :] == (_KEY_LABEL,):
            keys = self.opened(schema.get("keys_schema", _ANYTHING))
            return replace(place, schema=keys, on_key=True)
        return self._follow(schema.get("values_schema", _ANYTHING), loc, at=at + 1, place=place)

    def _through_union(
        self, schema: Schema, loc: Loc, *, at: int, place: SchemaPlace
    ) -> SchemaPlace | None:
        label = str(loc[at])
        branch = UnionBranch(loc[:at], place.path, label)
        step = replace(place, branches=(*place.branches, branch))
        # A branch is named after its type; if that is ambiguous, the rest of the location decides:
        # most branches cannot contain it.
        choices = [one[0] if isinstance(one, tuple) else one for one in schema["choices"]]
        for choice in sorted(choices, key=lambda one: not self._is_named(one, label)):
            found = self._follow(choice, loc, at=at + 1, place=step)
            if found:
                return found
        return None

    def _is_named(self, schema: Schema, label: str) -> bool:
        """Whether a label fits: `Foo`, `constrained-int`, `function-after[check(), Foo]`."""
        names = "|".join(re.escape(name) for name in self._names(schema))
        return re.search(rf"(?:^|[\s-])(?:{names})(?:[\[\]]|$)", label) is not None

    def _names(self, schema: Schema) -> Iterator[str]:
        while schema["type"] in _WRAPPERS or schema["type"] == "definition-ref":
            if "cls" in schema:
                yield schema["cls"].__name__
            if schema["type"] == "definition-ref":
                schema = self._definitions.get(schema["schema_ref"], _ANYTHING)
            else:
                inner = schema[_WRAPPERS[schema["type"]]]
                schema = inner[0] if isinstance(inner, list) else inner
        yield schema["type"]


def known_fields(schema: Schema) -> tuple[str, ...]:
    """The keys that a mapping may have, as people write them."""
    return tuple(key for name, one in _fields(schema) for key in _accepted(name, one))


def _fields(schema: Schema) -> list[tuple[str, Schema]]:
    fields = schema.get("fields", ())
    if isinstance(fields, dict):
        return list(fields.items())
    return [(one["name"], one) for one in fields]


def _accepted(name: str, one: Schema) -> Sequence[str]:
    alias = one.get("validation_alias")
    if alias is None:
        return (name,)
    if isinstance(alias, str):
        return (alias,)
    paths = alias if isinstance(alias[0], list) else [alias]
    return tuple(path[0] for path in paths if isinstance(path[0], str))


def _item(schema: Schema, index: int) -> Schema:
    items = schema.get("items_schema", _ANYTHING)
    if schema["type"] in _LISTS and isinstance(items, dict):
        return items
    if schema["type"] != "tuple":
        return _ANYTHING
    variadic = schema.get("variadic_item_index")
    if variadic is not None and index >= variadic:
        index = variadic
    found: Schema = items[index] if index < len(items) else _ANYTHING
    return found


def _by_keys(loc: Loc, value: object) -> SchemaPlace:
    path: list[str | int] = []
    for part in loc:
        if has(value, part):
            value = cast("Any", value)[part]
            path.append(part)
    return SchemaPlace(tuple(path))


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
    """One entry of `ValidationError.errors()`, with the fields that are used."""

    type: str
    loc: Loc
    msg: str
    input: object
    ctx: dict[str, object]


@dataclass(frozen=True, slots=True)
class SchemaFinding:
    """One problem, still without its position.

    `expected` is what would have been right, so that the branches of a union can be put into one
    sentence. `misfit`: the value has a different type.
    """

    code: str
    path: Loc
    message: str = ""
    hint: str | None = None
    expected: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    branches: tuple[UnionBranch, ...] = ()
    on_key: bool = False
    misfit: bool = False
    value: object = None
    shown: str | None = None

    def text(self) -> str:
        """The message: what is required, and what was found."""
        if not self.expected:
            return self.message
        name = name_place(self.path)
        if self.on_key:
            name = f"a key of {name_place(self.path[:-1])}"
        return f"{name} must be {one_of(self.expected)}, not {self.shown or show(self.value)}"

    def advice(self) -> str | None:
        """The hint, with a similar word if there is one."""
        if self.hint or not self.known:
            return self.hint
        if self.code == "unknown-field":
            near = did_you_mean(str(self.path[-1]), self.known)
            few = len(self.known) <= _MOST_KNOWN_SHOWN
            return near or (f"known here: {', '.join(self.known)}" if few else None)
        return did_you_mean(self.value, self.known) if isinstance(self.value, str) else None


def name_place(path: Loc) -> str:
    """The last key of a path, with its indexes: `all[0]`."""
    name = ""
    for part in reversed(path):
        if isinstance(part, str):
            return clip(part) + name
        name = f"[{part}]{name}"
    return f"item {name}" if name else "the definition"


def explain(error: RawError, schemas: SchemaMap, value: Value) -> list[SchemaFinding]:
    """The findings of one error (nearly always one)."""
    place = schemas.place(error["loc"], value)
    kind = error["type"]
    blank = SchemaFinding(
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


def _last(place: SchemaPlace) -> str:
    return str(place.path[-1]) if place.path else "the definition"


def _type_problem(error: RawError, blank: SchemaFinding, schema: Schema) -> SchemaFinding | None:
    words = _TYPE_ERRORS.get(error["type"])
    if words is None:
        return None
    if words in ("a whole number", "a number"):
        words += _bounds(schema)
    return replace(blank, code="wrong-type", expected=(words,), misfit=True)


def _range_problem(error: RawError, blank: SchemaFinding, schema: Schema) -> SchemaFinding | None:
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


def _length_problem(error: RawError, blank: SchemaFinding, schema: Schema) -> SchemaFinding | None:
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


def _value_problem(error: RawError, blank: SchemaFinding, schema: Schema) -> SchemaFinding | None:
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


def _other_problem(error: RawError, blank: SchemaFinding) -> SchemaFinding:
    if error["type"] == "string_pattern_mismatch":
        words = f"text that matches {error.get('ctx', {}).get('pattern')}"
        return replace(blank, code="bad-format", expected=(words,))
    if error["type"] == "finite_number":
        return replace(blank, code="not-finite", expected=("a finite number",))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return replace(blank, message=f"{name_place(blank.path)}: {message}")


def _own_problem(error: RawError, blank: SchemaFinding) -> SchemaFinding:
    """An error of the model itself: its type is the code, its context may have a path and a
    hint.
    """
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
    error: RawError, blank: SchemaFinding, schemas: SchemaMap, place: SchemaPlace
) -> list[SchemaFinding]:
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
    blank: SchemaFinding, value: dict[str, object], known: tuple[str, ...], tags: tuple[str, ...]
) -> list[SchemaFinding]:
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


_ABOUT_KEYS = ("unknown-field", "missing-field")


def keep_best(findings: Sequence[SchemaFinding], *, level: int = 0) -> list[SchemaFinding]:
    """The findings without those of the less likely branches of every union."""
    kept: list[SchemaFinding] = []
    unions: dict[Loc, dict[str, list[SchemaFinding]]] = {}
    for one in findings:
        if len(one.branches) <= level:
            kept.append(one)
        else:
            branch = one.branches[level]
            unions.setdefault(branch.loc, {}).setdefault(branch.label, []).append(one)
    for branches in unions.values():
        union = next(iter(branches.values()))[0].branches[level]
        candidates = [keep_best(found, level=level + 1) for found in branches.values()]
        kept.extend(_choose(union, candidates))
    return _without_explained(kept)


def _choose(union: UnionBranch, candidates: list[list[SchemaFinding]]) -> list[SchemaFinding]:
    ranked = sorted(candidates, key=lambda found: _rank(union.path, found))
    best = ranked[0]
    if all(one.path == union.path and one.expected for one in best):
        return [_in_one_sentence(best[0], union.path, candidates)]
    fit = _rank(union.path, best)
    equal = [found for found in ranked if _rank(union.path, found)[:3] == fit[:3]]
    return _about_keys(union.path, equal) if len(equal) > 1 and fit[1] + fit[2] else best


def _rank(path: Loc, findings: list[SchemaFinding]) -> tuple[int, int, int, int, int, int]:
    """Lower is likelier: the type matches, the keys match, then how far the check got."""
    here = [one for one in findings if one.path == path]
    below = [one.code for one in findings if len(one.path) == len(path) + 1]
    misfit = 2 if any(one.misfit for one in here) else int(any(one.expected for one in here))
    unknown, missing = (below.count(code) for code in _ABOUT_KEYS)
    # A problem with the whole value comes from a rule that runs when all its fields are valid.
    fields_right = any(not one.expected for one in here)
    depth = max(len(one.path) for one in findings)
    return misfit, unknown, missing, int(not fields_right), -depth, len(findings)


def _in_one_sentence(
    best: SchemaFinding, path: Loc, candidates: list[list[SchemaFinding]]
) -> SchemaFinding:
    here = [one for found in candidates for one in found if one.path == path]
    expected = dict.fromkeys(words for one in here for words in one.expected)
    no_type_fits = best.misfit and any(one.code == "wrong-type" for one in here)
    code = "wrong-type" if no_type_fits else best.code
    return replace(best, code=code, expected=tuple(expected))


def _about_keys(path: Loc, equal: list[list[SchemaFinding]]) -> list[SchemaFinding]:
    """Several branches match equally badly: report the problem for all, and everything they
    accept.
    """
    every = [one for found in equal for one in found]
    here = [one for one in every if one.code in _ABOUT_KEYS and one.path[:-1] == path]
    refused = {one.path[-1]: one for one in reversed(here) if one.code == "unknown-field"}
    if refused:
        known = tuple(dict.fromkeys(name for one in here for name in one.known))
        unknown = [replace(one, known=known) for key, one in refused.items() if key not in known]
        elsewhere = [one for key, one in refused.items() if key in known]
        shared = [one for one in equal[0] if all(_holds(found, one) for found in equal)]
        return unknown + ([_excluding(elsewhere)] if elsewhere else []) + shared
    if len(here) < len(every):
        return equal[0]
    names = one_of(list(dict.fromkeys(str(one.path[-1]) for one in here)))
    return [replace(here[0], message=f"{names} is required")]


def _excluding(findings: list[SchemaFinding]) -> SchemaFinding:
    """Each key is right in some branch, but no branch has them all."""
    *others, last = sorted({str(one.path[-1]) for one in findings})
    message = f"{', '.join(others)} and {last} exclude each other"
    return replace(findings[-1], code="mutually-exclusive", message=message, known=())


def _holds(findings: list[SchemaFinding], wanted: SchemaFinding) -> bool:
    alike = ((one.code, one.path) == (wanted.code, wanted.path) for one in findings)
    return wanted.code not in _ABOUT_KEYS and any(alike)


def _without_explained(findings: list[SchemaFinding]) -> list[SchemaFinding]:
    """A missing field is not reported if an unknown one beside it is a misspelling of it."""
    missing = {one.path for one in findings if one.code == "missing-field" and one.path}
    if not missing:
        return findings
    beside = {path[:-1] for path in missing}
    explained = {
        (*one.path[:-1], suggest(str(one.path[-1]), one.known))
        for one in findings
        if one.code == "unknown-field" and one.path[:-1] in beside
    }
    return [one for one in findings if one.code != "missing-field" or one.path not in explained]
