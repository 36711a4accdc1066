"""CEL, the Common Expression Language: compile expressions, evaluate them, and convert values.

`compile_cel` returns a `Program` or the problems of the text; `Program.evaluate` returns an
answer and never raises. The evaluator is a C++ library that is slow to load: no other module
may import this one at the top level; it is loaded by name when an expression is met.

The language is standard CEL with optional fields (`steps.?review.?result`), and step ids may
have hyphens after a dot. `has(steps.a.result)` is an error while step `a` is missing, as CEL
defines it: use `'a' in steps` to test for the step.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Literal, Protocol, TypeAlias

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from loopwright.model.record import JsonValue
from loopwright.syntax.cel_source import (
    CelProblem,
    CelToken,
    WrittenExpression,
    apply,
    edits,
    explain,
    free_names,
    growth,
    loop_variables,
    loops,
    references,
    rewrite_ids,
    step_problem,
    tokens,
)

MAX_DEPTH = 200
MAX_VALUES = 200_000
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
# The evaluator cuts a text at the first and refuses the others.
_UNFIT = re.compile("[\0\ud800-\udfff]")

_WORDS = {
    "BOOL": "true or false",
    "BYTES": "bytes",
    "DOUBLE": "a number",
    "DURATION": "a duration",
    "DYN": "any value",
    "ERROR": "an optional value",
    "INT": "a whole number",
    "LIST": "a list",
    "MAP": "a mapping",
    "NULL": "null",
    "STRING": "a text",
    "TIMESTAMP": "a time",
    "TYPE": "a type",
    "UINT": "a whole number",
    "optional_type": "an optional value",
}


BrokenCode: TypeAlias = Literal["error", "not-a-bool", "not-a-list", "too-much-work"]


@dataclass(frozen=True, slots=True)
class Truth:
    """The expression says yes or no."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Items:
    """The expression gives a list, in plain JSON values."""

    values: list[JsonValue]


@dataclass(frozen=True, slots=True)
class Missing:
    """The expression asked for something that is not there."""

    message: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The expression has no value for any other reason."""

    message: str
    code: BrokenCode = "error"


Value: TypeAlias = Truth | Items | Missing | Broken


class Unfit(Exception):
    """A value that cannot be converted; says why."""

    def __init__(self, message: str, code: BrokenCode = "error") -> None:
        super().__init__(message)
        self.code: BrokenCode = code


class CelValue(Protocol):
    """A value of the evaluator. `value` of a null must never be called: see `from_cel`."""

    def type(self) -> object: ...

    def value(self) -> object: ...


def type_name(cel_type: str) -> str:
    """The name of a CEL type for readers."""
    base = cel_type.partition("<")[0]
    return _WORDS.get(base, base)


def to_cel(value: object, *, longest: int | None = None, depth: int = 0) -> object:
    """A JSON value in the form of the evaluator, in plain dicts and lists.

    Characters that it cannot represent (NUL, unpaired surrogates) become U+FFFD. `longest` limits
    each text.
    """
    if isinstance(value, str):
        return _text(value, longest)
    if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        raise Unfit(f"a number of {value.bit_length()} bits does not fit into 64")
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        raise Unfit(f"a value is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {
            _text(_key(k), longest): to_cel(v, longest=longest, depth=depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_cel(v, longest=longest, depth=depth + 1) for v in value]
    raise Unfit(f"{type(value).__name__} is not a JSON value")


def from_cel(value: CelValue) -> JsonValue:
    """A value of the evaluator as plain JSON.

    Converts the value piece by piece and checks the type first: the evaluator releases a reference
    to None that it does not own whenever it converts a null, and before Python 3.12 this ends the
    process sooner or later.
    """
    return _Reader().read(value)


def with_key_order(values: JsonValue, sources: Iterable[JsonValue]) -> JsonValue:
    """Values of an expression with the keys of their mappings in the order of the input, which the
    evaluator does not keep. Keys of a new mapping are sorted.
    """
    orders: dict[frozenset[str], dict[tuple[str, ...], list[dict[str, JsonValue]]]] = {}
    waiting: list[JsonValue] = [*sources]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            orders.setdefault(frozenset(value), {}).setdefault(tuple(value), []).append(value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return _in_order(values, orders)


def _in_order(
    value: JsonValue,
    orders: dict[frozenset[str], dict[tuple[str, ...], list[dict[str, JsonValue]]]],
) -> JsonValue:
    if isinstance(value, list):
        return [_in_order(one, orders) for one in value]
    if not isinstance(value, dict):
        return value
    known = orders.get(frozenset(value), {})
    keys = next(iter(known), tuple(sorted(value)))
    if len(known) > 1:  # the same keys in several orders: use the order of the mapping itself
        keys = next((order for order, found in known.items() if value in found), keys)
    return {key: _in_order(value[key], orders) for key in keys}


class _Reader:
    def __init__(self) -> None:
        self._left = MAX_VALUES

    def read(self, value: CelValue) -> JsonValue:
        self._left -= 1
        if self._left < 0:
            raise Unfit(f"it has more than {MAX_VALUES} parts", "too-much-work")
        kind = str(value.type())
        if kind == "NULL":
            return None
        if kind in {"BOOL", "STRING", "INT", "UINT", "DOUBLE"}:
            return _scalar(value.value())
        content = value.value() if kind.startswith(("LIST", "MAP")) else None
        if isinstance(content, list):
            return [self.read(part) for part in content]
        if isinstance(content, dict):
            return {_key(key): self.read(part) for key, part in content.items()}
        raise Unfit(f"{type_name(kind)} is not a JSON value; string(…) makes a text of most values")


def _text(text: str, longest: int | None) -> str:
    if longest is not None and len(text) > longest:
        raise Unfit(
            f"it joins values in a loop, with a text of {len(text)} characters at hand "
            f"(here at most {longest})",
            "too-much-work",
        )
    if text.isascii() and "\0" not in text:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _UNFIT.sub("\ufffd", text)
    return text.replace("\0", "\ufffd")


def _scalar(value: object) -> JsonValue:
    if isinstance(value, float) and not isfinite(value):
        raise Unfit(f"{value} is not a JSON number")
    if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        raise Unfit(f"the number {value} does not fit into 64 bits with a sign")
    assert isinstance(value, bool | int | float | str)
    return value


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise Unfit("a mapping has a key that is not text")


__all__ = [
    "MAX_LENGTH",
    "VARIABLES",
    "Broken",
    "CelProblem",
    "Items",
    "Missing",
    "Program",
    "Truth",
    "Value",
    "compile_cel",
    "rewrite_ids",
]

Wants: TypeAlias = Literal["bool", "list"]

MAX_LENGTH = 4_096
MAX_GROWTH = 100
MAX_MESSAGE = 200
# Characters in one text, divided by the number of plus signs, where a loop may join it with others:
# the evaluator stops after 10,000 iterations and copies the text in each.
MAX_JOINED = 65_536

VARIABLES = ("steps", "iteration", "item", "index", "content", "result", "status")
_TYPES = {
    "steps": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
    "iteration": cel.Type.INT,
    "index": cel.Type.INT,
    "content": cel.Type.STRING,
    "status": cel.Type.STRING,
}
# The value of a variable without a value. Created each time: the values are mutable.
_ABSENT = {"iteration": int, "index": int, "content": str, "status": str, "result": dict}

_RESULT_KINDS = {"bool": ("BOOL",), "list": ("LIST",)}
_RESULT_NAMES = {"bool": "true or false", "list": "a list"}


class _Expression(Protocol):
    def eval(self, *, data: dict[str, object]) -> CelValue: ...

    def return_type(self) -> object: ...


class _Environment(Protocol):
    def compile(self, expression: str) -> _Expression: ...


class Program:
    """A checked expression. `uses` and `uses_steps` list what it reads, so callers can pass in no
    more than that; `uses_steps` is None if it may read any step.
    """

    __slots__ = ("_expression", "_fields", "_longest", "_wants", "text", "uses", "uses_steps")

    def __init__(
        self,
        text: str,
        expression: _Expression,
        *,
        found: list[CelToken],
        wants: Wants,
        uses: set[str],
    ) -> None:
        self.text = text
        self.uses = frozenset(uses)
        self._expression = expression
        self._wants: Wants = wants
        self._fields = _fields(found)
        self.uses_steps = None if self._fields is None else frozenset(self._fields)
        plusses = sum(token.text == "+" for token in found)
        self._longest = MAX_JOINED // plusses if plusses and loops(found) else None

    def evaluate(self, scope: Mapping[str, JsonValue]) -> Value:
        """The value of the expression; names missing in `scope` are null, 0 or empty.

        A field of a value without fields, such as a null, counts as missing.
        """
        try:
            answer = self._expression.eval(data=self._data(scope))
            kind = str(answer.type())
            if kind == "ERROR":
                return self._error(str(answer.value()), scope)
            return self._value(answer, kind, scope)
        except Unfit as problem:
            return Broken(f"the expression has no usable value: {problem}", problem.code)
        except (MemoryError, RuntimeError, TypeError) as problem:
            # The evaluator raises if it has no error value for a problem: budget, optional values.
            return _raised(str(problem))

    def _value(self, answer: CelValue, kind: str, scope: Mapping[str, JsonValue]) -> Value:
        if not kind.startswith(_RESULT_KINDS[self._wants]):
            message = f"the expression gives {type_name(kind)}, not {_RESULT_NAMES[self._wants]}"
            return Broken(message, "not-a-bool" if self._wants == "bool" else "not-a-list")
        if self._wants == "bool":
            return Truth(answer.value() is True)
        given = (scope[name] for name in self.uses if name in scope)
        values = with_key_order(from_cel(answer), given)
        assert isinstance(values, list)
        return Items(values)

    def _data(self, scope: Mapping[str, JsonValue]) -> dict[str, object]:
        data: dict[str, object] = {}
        for name in self.uses:
            value = scope.get(name)
            if name == "steps":
                data[name] = self._steps(value)
            elif value is None and name in _ABSENT:
                data[name] = _ABSENT[name]()
            else:
                data[name] = to_cel(value, longest=self._longest)
        return data

    def _steps(self, steps: JsonValue) -> object:
        given = {} if steps is None else steps
        if not isinstance(given, Mapping):
            raise Unfit("steps is not a mapping")
        if self._fields is not None:
            given = {
                step: _only(given[step], fields)
                for step, fields in self._fields.items()
                if step in given
            }
        return to_cel(given, longest=self._longest)

    def _error(self, text: str, scope: Mapping[str, JsonValue]) -> Value:
        code, _, message = text.partition(": ")
        if code == "NOT_FOUND" and message.startswith("Key not found in map"):
            return Missing(self._missing(message.partition(" : ")[2], scope))
        if code == "INVALID_ARGUMENT" and message.startswith(
            ("Applying SELECT to non-message", "Invalid container type")
        ):
            return Missing(
                "a field was asked of a value that has no fields, such as null or a text"
            )
        return _failed(message)

    def _missing(self, key: str, scope: Mapping[str, JsonValue]) -> str:
        name = key.strip('"')[:MAX_MESSAGE]
        steps = scope.get("steps")
        there = isinstance(steps, Mapping) and name in steps
        if self.uses_steps is not None and name in self.uses_steps and not there:
            return (
                f"there is nothing of step {name} here; ask with '{name}' in steps first, "
                "because has(…) only asks for the last field of a path"
            )
        return f"there is nothing named {name}; has(…) asks for the last field of a path"


def compile_cel(
    text: str, *, step_ids: Collection[str], wants: Wants, variables: Collection[str] = VARIABLES
) -> Program | list[CelProblem]:
    """The program of an expression, or all of its problems."""
    if len(text) > MAX_LENGTH:
        message = f"the expression has {len(text)} characters, at most {MAX_LENGTH} are read"
        hint = "let a step compute part of it"
        return [CelProblem(message, MAX_LENGTH, "too-complex", hint)]
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        return [CelProblem("there is half a character here", problem.start, "cel-syntax")]
    made = _compile(text, frozenset(step_ids), wants, frozenset(variables))
    return made if isinstance(made, Program) else list(made)


@lru_cache(maxsize=1_024)
def _compile(
    text: str, step_ids: frozenset[str], wants: Wants, variables: frozenset[str]
) -> Program | tuple[CelProblem, ...]:
    found = tokens(text)
    changes = edits(found)
    written = WrittenExpression(apply(text, changes), changes, found, step_ids, variables)
    problems = list(_own_problems(written))
    expression = None
    try:
        expression = _environment(variables).compile(written.rewritten)
    except RuntimeError as problem:
        problems += explain(str(problem), written)
    else:
        problems += _type_problems(str(expression.return_type()), wants)
    if expression is None or problems:
        return tuple(sorted(problems, key=lambda problem: problem.offset))
    uses = free_names(found) & variables
    return Program(text, expression, found=found, wants=wants, uses=uses)


@lru_cache(maxsize=64)
def _environment(variables: frozenset[str]) -> _Environment:
    types = {name: _TYPES.get(name, cel.Type.DYN) for name in variables}
    made: _Environment = cel.NewEnv(variables=types, extensions=[ext_optional.ExtOptional()])
    return made


def _own_problems(written: WrittenExpression) -> list[CelProblem]:
    problems = [
        CelProblem("steps cannot be the name of an item", token.start, "cel-syntax", "rename it")
        for token in loop_variables(written.tokens)
        if token.text == "steps"
    ]
    if growth(written.tokens) > MAX_GROWTH:
        message = "the loops of the expression multiply what they are given"
        hint = "name the item fewer times in map, or map once instead of one after the other"
        problems.append(CelProblem(message, 0, "too-complex", hint))
    if "steps" in written.variables:
        named = [step_problem(r, written.step_ids) for r in references(written.tokens) if r]
        problems += [problem for problem in named if problem]
    return problems


def _type_problems(kind: str, wants: Wants) -> list[CelProblem]:
    if kind.startswith(("DYN", *_RESULT_KINDS[wants])):
        return []
    message = f"the expression gives {type_name(kind)}, not {_RESULT_NAMES[wants]}"
    hint = "compare it with something, for example == or contains" if wants == "bool" else None
    if kind.startswith("optional_type"):
        hint = "say what holds without a value: .orValue(…)"
    return [CelProblem(message, 0, "cel-type", hint)]


def _fields(found: list[CelToken]) -> dict[str, frozenset[str] | None] | None:
    """Which fields of which steps are read; None if it may be any."""
    named: dict[str, frozenset[str] | None] = {}
    for reference in references(found):
        if reference is None:
            return None
        before = named.get(reference.step, frozenset())
        field = frozenset([reference.field] if reference.field is not None else [])
        named[reference.step] = None if reference.whole or before is None else before | field
    return named


def _only(step: JsonValue, fields: frozenset[str] | None) -> JsonValue:
    if fields is None or not isinstance(step, Mapping):
        return step
    return {field: step[field] for field in fields if field in step}


def _raised(message: str) -> Broken:
    if message.startswith("INTERNAL: Iteration budget exceeded"):
        return Broken("the expression goes through more than 10,000 items", "too-much-work")
    if message.startswith("Unable to convert function return value"):
        return Broken("the expression gives an optional value; .orValue(…) makes a plain one of it")
    return _failed(message)


def _failed(message: str) -> Broken:
    # The evaluator's messages may quote a value, and values can be long.
    return Broken(f"the expression fails: {message[:MAX_MESSAGE]}")
