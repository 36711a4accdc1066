"""Errors as every interface reports them: one problem object as in RFC 9457.

The command line, HTTP, the socket and tool calls each parse input with a library of their own. What
these refuse is written here, from the JSON Schema of the input, in the words in which problems of
definitions are written:

    unknown-field   NAME is not a known field
    missing-field   NAME is required
    wrong-type      NAME must be a whole number from 1 to 1000, not "x"
    out-of-range    NAME must be a whole number from 1 to 1000, not 0
    unknown-value   NAME must be "a" or "b", not "c"
    bad-format      NAME must be text that matches ^[a-z]+$, not "X"

NAME is the parameter. Where an interface spells it otherwise (`--max`, `max_iterations`), the hint
says so.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

import msgspec

from loopwright.errors import (
    CannotServe,
    Conflict,
    DefinitionError,
    InputError,
    LoopwrightError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    ServerDraining,
    ServerFailed,
    StorageError,
    Unreachable,
)
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, clip, did_you_mean, one_of, show


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """What went wrong, for the caller."""

    exit: int
    status: int
    code: str
    title: str
    detail: str
    hint: str | None = None
    errors: list[dict[str, str | int | None]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """The problem as RFC 9457 has it."""
        found: dict[str, object] = {
            "type": f"urn:loopwright:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            found["errors"] = self.errors
        if self.hint:
            found["hint"] = self.hint
        return found

    def as_lines(self) -> list[str]:
        """The problem as a person reads it."""
        if self.lines:
            return self.lines
        hint = f"\n  {self.hint}" if self.hint else ""
        return [f"error: {self.detail}{hint}"]


_QUOTED = re.compile(r"`[^`]*`|(?<!\w)'[^'\n]*'(?!\w)")
_FLAG = re.compile(r"(?P<tick>`?)(?<![\w-])--(?P<name>[a-z][a-z-]*)")
_FIELDS = {"input": "inputs", "label": "labels"}
"""Options of the command line that other interfaces call otherwise."""


def without_flags(text: str) -> str:
    """A text for interfaces other than the command line: an option is written as the parameter of
    the same name (`--allow-unknown-cost` is `allow_unknown_cost`). A whole command in backticks
    stays, since it names its own position, and so does text of people.
    """
    if "--" not in text:
        return text
    parts: list[str] = []
    end = 0
    for quoted in _QUOTED.finditer(text):
        if not quoted[0].startswith("`--"):
            parts += [_FLAG.sub(_as_parameter, text[end : quoted.start()]), quoted[0]]
            end = quoted.end()
    return "".join([*parts, _FLAG.sub(_as_parameter, text[end:])])


def _as_parameter(found: re.Match[str]) -> str:
    name = _FIELDS.get(found["name"], found["name"].replace("-", "_"))
    return f"`{name}" if found["tick"] else f"`{name}`"


def neutral(problem: "ProblemReport") -> "ProblemReport":
    """A problem for interfaces other than the command line."""
    errors = [
        {
            key: without_flags(value) if isinstance(value, str) else value
            for key, value in one.items()
        }
        for one in problem.errors
    ]
    hint = None if problem.hint is None else without_flags(problem.hint)
    return replace(problem, detail=without_flags(problem.detail), hint=hint, errors=errors)


def rendered(found: Iterable[Diagnostic]) -> list[str]:
    """Findings as lines for interfaces other than the command line."""
    return [without_flags(one.render()) for one in found]


def problem_words(error: LoopwrightError) -> str:
    """A refusal as one line for agents: code, message and remedy, the same as over HTTP."""
    problem = neutral(known_problem(error))
    hint = f" ({problem.hint})" if problem.hint else ""
    found = [p for p in getattr(error, "problems", ()) if hasattr(p, "render")]
    lines = rendered(found)
    return "\n".join([f"{problem.code}: {problem.detail}{hint}", *lines])


_KINDS: list[tuple[type[LoopwrightError], int, int, str]] = [
    (DefinitionError, 2, 422, "The definition is not valid"),
    (InputError, 2, 422, "The request is not valid"),
    (NotFound, 2, 404, "Not found"),
    (Conflict, 8, 409, "The state does not allow it"),
    (NotSignedIn, 6, 401, "Not signed in"),
    (NotAllowed, 6, 403, "Not allowed"),
    (Unreachable, 7, 502, "The server cannot be reached"),
    (ServerFailed, 1, 502, "The server failed"),
    (CannotServe, 1, 503, "The server cannot start"),
    (ServerDraining, 1, 503, "Not now"),
    (StorageError, 1, 503, "The data directory cannot be used"),
    (LoopwrightError, 2, 400, "This cannot be done as asked"),
]
_WRONG_REQUESTS = ("ambiguous", "bad-decision")  # the state allows something else that was meant


def known_problem(error: LoopwrightError) -> ProblemReport:
    """The problem report for an exception of the product."""
    exit_code, status, title = next(
        (code, status, title) for kind, code, status, title in _KINDS if isinstance(error, kind)
    )
    if error.code in _WRONG_REQUESTS:
        exit_code = 2
    found = [p for p in getattr(error, "problems", ()) if hasattr(p, "render")]
    return ProblemReport(
        exit=exit_code,
        status=status,
        code=error.code,
        title=title,
        detail=error.message,
        hint=error.hint,
        errors=[p.as_dict() for p in found],
        lines=[p.render() for p in found],
    )


Schema: TypeAlias = Mapping[str, JsonValue]
Place: TypeAlias = tuple[str | int, ...]

_ALIASES = {"input": "inputs", "label": "labels", "max_iterations": "max"}
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_REFERENCE = "#/$defs/"
_MOST_NAMES = 40


def parameter_name(spelling: str) -> str:
    """The name of a parameter, however an interface spells it: `--max`, `max_iterations` and `max`
    are one parameter.
    """
    name = _CAPITAL.sub(r"_\1", spelling.removeprefix("--")).replace("-", "_")
    name = name.lower() if name != spelling else name
    return _ALIASES.get(name, name)


def unknown_input(spelling: str, known: Iterable[str] = (), *, code: str = "") -> InputError:
    """A parameter that does not exist."""
    names = [*known][:_MOST_NAMES]
    hint = did_you_mean(spelling, names) or (f"known here: {', '.join(names)}" if names else None)
    name = clip(parameter_name(spelling))
    return InputError(f"{name} is not a known field", code=code or "unknown-field", hint=hint)


def missing_input(spelling: str, *, hint: str | None = None) -> InputError:
    """A parameter that must be given."""
    name = clip(parameter_name(spelling))
    return InputError(
        f"{name} is required", code="missing-field", hint=hint or _spelling_hint(spelling, name)
    )


def wrong_input(spelling: str, schema: Schema, value: object) -> InputError | None:
    """The problem of a value, or None if the schema allows it."""
    return next(_SchemaWalk({}).problems(schema, value, (spelling,)), None)


def wrong_choice(spelling: str, value: str, allowed: Iterable[str]) -> InputError:
    """A value that is none of those that are allowed."""
    found = wrong_input(spelling, {"enum": [*allowed]}, value)
    assert found is not None, f"{value} is allowed"
    return found


def find_problem(schema: Schema, value: object, names: Mapping[str, str] = {}) -> InputError | None:
    """The first problem of a whole request against its schema. `names` has the parameters of fields
    that this request calls otherwise.
    """
    found = schema.get("$defs")
    walk = _SchemaWalk(found if isinstance(found, Mapping) else {}, names)
    return next(walk.problems(schema, value, ()), None)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
NO_CONTROL = "leave it out; tabs and line ends are fine"


def control_character(text: str) -> str | None:
    """The problem of a text with a control character, which no interface accepts in texts."""
    found = _CONTROL.search(text)
    if found is None:
        return None
    return f"U+{ord(found[0]):04X} is a control character, which a text must not contain"


def request_problem(kind: type[msgspec.Struct], value: object, why: str) -> InputError:
    """The problem of a request that msgspec has refused; `why` is its own message."""
    found = find_problem(_schema_of(kind), value)
    return found or InputError(f"the request is not valid: {clip(why)}", code="bad-value")


@lru_cache(maxsize=256)
def _schema_of(kind: type[msgspec.Struct]) -> Schema:
    return msgspec.json.schema(kind)


def value_of_text(text: str, schema: Schema) -> JsonValue:
    """A text of a command line or an address as the value that it represents, if it is one."""
    wanted = _types(schema)
    if wanted & {"integer", "number"}:
        try:
            value: JsonValue = json.loads(text)
        except ValueError:
            return text
        return value if isinstance(value, int | float) else text
    if "boolean" in wanted and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    return text


def query_problem(
    kind: type[msgspec.Struct], given: Mapping[str, object], why: str, *, unknown: str
) -> InputError:
    """The problem of parameters of an address, which are all texts."""
    schema = _schema_of(kind)
    walk = _SchemaWalk(_as_mapping(schema.get("$defs")), unknown=unknown, with_index=False)
    known = _as_mapping(walk.resolved(schema).get("properties"))
    read = {
        name: value_of_text(value, walk.resolved(_as_mapping(known.get(name))))
        if isinstance(value, str)
        else value
        for name, value in given.items()
    }
    found = next(walk.problems(schema, read, ()), None)
    return found or InputError(f"the request is not valid: {clip(why)}", code="bad-value")


@dataclass(frozen=True, slots=True)
class _SchemaWalk:
    """A walk through a schema along with a value."""

    defs: Schema
    names: Mapping[str, str] = field(default_factory=dict)
    unknown: str = "unknown-field"
    with_index: bool = True

    def resolved(self, schema: Schema) -> Schema:
        while isinstance(target := schema.get("$ref"), str):
            schema = _as_mapping(self.defs.get(target.removeprefix(_REFERENCE)))
        return schema

    def problems(self, schema: Schema, value: object, place: Place) -> Iterator[InputError]:
        schema = self.resolved(schema)
        branches = schema.get("anyOf")
        if isinstance(branches, list):
            yield from self._of_branches([_as_mapping(one) for one in branches], value, place)
            return
        code = _misfit(schema, value)
        if code:
            yield self._refused(code, [schema], value, place)
        elif isinstance(value, dict):
            yield from self._of_object(schema, value, place)
        elif isinstance(value, list | tuple):
            items = _as_mapping(schema.get("items"))
            for n, one in enumerate(value):
                yield from self.problems(items, one, (*place, n))

    def _of_branches(
        self, branches: list[Schema], value: object, place: Place
    ) -> Iterator[InputError]:
        resolved = [self.resolved(one) for one in branches]
        found = [next(self.problems(one, value, place), None) for one in resolved]
        if None in found:
            return
        wanted = [one for one in resolved if one.get("type") != "null"]
        fitting = [one for one in wanted if _misfit(one, value) != "wrong-type"]
        if len(fitting or wanted) == 1:
            yield from self.problems((fitting or wanted)[0], value, place)
        else:
            yield self._refused("wrong-type", wanted, value, place)

    def _of_object(
        self, schema: Schema, value: Mapping[str, object], place: Place
    ) -> Iterator[InputError]:
        known, more = _as_mapping(schema.get("properties")), schema.get("additionalProperties")
        required = schema.get("required")
        for name in value:
            if name not in known and more is False:
                yield self._at(unknown_input(name, known, code=self.unknown), (*place, name))
        for needed in required if isinstance(required, list) else ():
            if needed not in value:
                yield self._at(self._missing(str(needed)), (*place, str(needed)))
        for name, one in value.items():
            inner = known.get(name, more)
            if isinstance(inner, Mapping):
                yield from self.problems(inner, one, (*place, name))

    def _missing(self, spelling: str) -> InputError:
        name = self.names.get(spelling)
        return missing_input(spelling) if name is None else _renamed(missing_input(name), spelling)

    def _refused(self, code: str, schemas: list[Schema], value: object, place: Place) -> InputError:
        spelling = next((one for one in reversed(place) if isinstance(one, str)), "")
        name = self.names.get(spelling) or parameter_name(spelling) or "the request"
        shown = _shown(code, value)
        expected = one_of(
            [word for one in schemas for word in _expected_words(one)] or ["another value"]
        )
        known = [str(one) for schema in schemas for one in _allowed(schema)]
        near = did_you_mean(value, known) if isinstance(value, str) else None
        index = _index_of(place) if self.with_index else ""
        error = InputError(
            f"{clip(name)}{index} must be {expected}, not {shown}",
            code=code,
            hint=near or (_spelling_hint(spelling, name) if spelling else None),
        )
        return self._at(error, place)

    def _at(self, error: InputError, place: Place) -> InputError:
        error.pointer = "".join(f"/{clip(str(one))}" for one in place)
        return error


def _renamed(error: InputError, spelling: str) -> InputError:
    error.hint = f"here it is `{spelling}`"
    return error


def _spelling_hint(spelling: str, name: str) -> str | None:
    return None if spelling == name else f"here it is `{clip(spelling)}`"


def _index_of(place: Place) -> str:
    last = place[-1] if place else ""
    return f"[{last}]" if isinstance(last, int) else ""


def _allowed(schema: Schema) -> list[JsonValue]:
    found = schema.get("enum")
    return found if isinstance(found, list) else []


def _as_mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _types(schema: Schema) -> set[str]:
    """The JSON types that a schema allows at its top."""
    found = schema.get("type")
    types = {str(one) for one in found} if isinstance(found, list) else {str(found or "")}
    branches = schema.get("anyOf")
    for one in branches if isinstance(branches, list) else ():
        types |= _types(_as_mapping(one))
    return types - {""}


_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "array": (list, tuple),
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}


def _is_of(kind: str, value: object) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _JSON_TYPES.get(kind, object))


def _misfit(schema: Schema, value: object) -> str:
    """The code of what is wrong with a value itself, not with what is in it; empty if nothing."""
    types = _types(schema)
    allowed = schema.get("enum")
    if isinstance(allowed, list):
        return "" if value in allowed else _of_choice(allowed, value)
    if types and not any(_is_of(kind, value) for kind in types):
        return "wrong-type"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "" if _is_within(schema, value, "imum") else "out-of-range"
    if isinstance(value, str):
        if not _is_within(schema, len(value), "Length"):
            return "out-of-range"
        pattern = schema.get("pattern")
        fits = not isinstance(pattern, str) or re.search(pattern, value) is not None
        return "" if fits else "bad-format"
    if isinstance(value, list | tuple):
        return "" if _is_within(schema, len(value), "Items") else "out-of-range"
    if isinstance(value, dict):
        return "" if _is_within(schema, len(value), "Properties") else "out-of-range"
    return ""


def _of_choice(allowed: list[JsonValue], value: object) -> str:
    alike = type(value) in {type(one) for one in allowed}
    return "unknown-value" if alike else "wrong-type"


def _is_within(schema: Schema, size: float, bound: str) -> bool:
    low, high = schema.get(f"min{bound}"), schema.get(f"max{bound}")
    return not (
        (isinstance(low, int | float) and size < low)
        or (isinstance(high, int | float) and size > high)
    )


_NOUNS = {
    "array": ("a list", "Items", "item"),
    "object": ("a mapping", "Properties", "key"),
    "string": ("text", "Length", "character"),
}


def _expected_words(schema: Schema) -> list[str]:
    """What the schema allows, in words."""
    allowed = schema.get("enum")
    if isinstance(allowed, list):
        return sorted(show(one) for one in allowed if one is not None)
    if "anyOf" in schema:
        branches = schema["anyOf"]
        found = (
            [_expected_words(_as_mapping(one)) for one in branches]
            if isinstance(branches, list)
            else []
        )
        return [word for words in found for word in words]
    order = ("boolean", "integer", "number", "string", "array", "object")
    return [_kind_words(kind, schema) for kind in order if kind in _types(schema)]


def _kind_words(kind: str, schema: Schema) -> str:
    match kind:
        case "boolean":
            return "true or false"
        case "integer" | "number":
            return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(schema)}"
        case "string" if isinstance(schema.get("pattern"), str):
            return f"text that matches {schema['pattern']}"
        case _:
            noun, bound, unit = _NOUNS[kind]
            return f"{noun}{_size(schema, bound, unit)}"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"


def _size(schema: Schema, bound: str, unit: str) -> str:
    low, high = schema.get(f"min{bound}"), schema.get(f"max{bound}")
    if low and high is not None:
        return f" of {low} to {high} {unit}s"
    count = high if high is not None else low
    if not count:
        return ""
    word = "most" if high is not None else "least"
    return f" of at {word} {count} {unit}{'' if count == 1 else 's'}"


def _shown(code: str, value: object) -> str:
    if code == "out-of-range" and isinstance(value, str | list | tuple | dict):
        return f"of {len(value)}"
    return show(list(value) if isinstance(value, tuple) else value)
