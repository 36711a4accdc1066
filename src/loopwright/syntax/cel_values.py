"""Values on their way into an expression and out of it, and the answers an expression gives."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol, TypeAlias

from loopwright.model.record import JsonValue

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
    """A value cannot cross the border; says why."""

    def __init__(self, message: str, code: BrokenCode = "error") -> None:
        super().__init__(message)
        self.code: BrokenCode = code


class CelValue(Protocol):
    """What the evaluator hands out. `value` of a null must never be called: see `from_cel`."""

    def type(self) -> object: ...

    def value(self) -> object: ...


def in_words(cel_type: str) -> str:
    """A CEL type as a reader knows it."""
    base = cel_type.partition("<")[0]
    return _WORDS.get(base, base)


def to_cel(value: object, *, longest: int | None = None, depth: int = 0) -> object:
    """A JSON value as the evaluator takes it, in plain dicts and lists.

    Characters it cannot hold (NUL, half surrogates) become U+FFFD. `longest` limits each text.
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
    raise Unfit(f"{type(value).__name__} is no JSON value")


def from_cel(value: CelValue) -> JsonValue:
    """What the evaluator hands out, as plain JSON.

    Goes through the value piece by piece and asks for the type first: the evaluator gives up a
    reference to None that it does not own whenever it converts a null, and before Python 3.12
    that ends the process sooner or later.
    """
    return _Reader().read(value)


def with_key_order(values: JsonValue, sources: Iterable[JsonValue]) -> JsonValue:
    """Values of an expression with the keys of their mappings in the order that they had in what
    the expression was given; the evaluator forgets it. Keys of a new mapping are sorted.
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
    if len(known) > 1:  # the same keys in several orders: the one of the mapping itself
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
        raise Unfit(f"{in_words(kind)} is no JSON value; string(…) makes a text of most values")


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
        raise Unfit(f"{value} is no JSON number")
    if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
        raise Unfit(f"the number {value} does not fit into 64 bits with a sign")
    assert isinstance(value, bool | int | float | str)
    return value


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise Unfit("a mapping has a key that is no text")
