"""Conditions: whether a step whose dependencies are met runs at all."""

from typing import assert_never

import msgspec

from loopwright.kernel.frames import Owner
from loopwright.kernel.state import Senses, State
from loopwright.kernel.texts import resolve, scope_at
from loopwright.model.expr import Cel, Compare, Condition, EveryOf, SomeOf
from loopwright.model.record import Blob, JsonValue


class Holds(msgspec.Struct, frozen=True):
    """The condition has an answer."""

    yes: bool


class CannotTell(msgspec.Struct, frozen=True):
    """The condition cannot be evaluated, and why."""

    why: str


def evaluate(
    state: State, owner: Owner, condition: Condition, senses: Senses
) -> Holds | CannotTell:
    """Whether a condition holds, seen from a place."""
    match condition:
        case Cel():
            return _cel(state, owner, condition, senses)
        case Compare():
            return _compare(state, owner, condition, senses)
        case EveryOf(parts=parts):
            return _combined(state, owner, parts, senses, decided_by=False)
        case SomeOf(parts=parts):
            return _combined(state, owner, parts, senses, decided_by=True)
        case _:
            assert_never(condition)


def _combined(
    state: State,
    owner: Owner,
    parts: tuple[Condition, ...],
    senses: Senses,
    *,
    decided_by: bool,
) -> Holds | CannotTell:
    for part in parts:
        said = evaluate(state, owner, part, senses)
        if isinstance(said, CannotTell) or said.yes is decided_by:
            return said
    return Holds(not decided_by)


def _cel(state: State, owner: Owner, condition: Cel, senses: Senses) -> Holds | CannotTell:
    said = senses.evaluate(condition.text, scope_at(state, owner, senses), wants="bool")
    if said.missing and condition.missing == "false":
        return Holds(yes=False)
    if said.problem:
        return CannotTell(said.problem)
    return Holds(said.value is True)


def _compare(state: State, owner: Owner, condition: Compare, senses: Senses) -> Holds | CannotTell:
    found = resolve(state, owner, condition.ref, senses)
    left = senses.read(found) if isinstance(found, Blob) else found
    if condition.op in ("==", "!="):
        same = _text(left) == _text(condition.value)
        return Holds(same is (condition.op == "=="))
    one, other = _number(left), _number(condition.value)
    if one is None or other is None:
        shown = _text(left)[:60]
        return CannotTell(f"{shown!r} {condition.op} {_text(condition.value)!r} needs two numbers")
    match condition.op:
        case "<":
            return Holds(one < other)
        case ">":
            return Holds(one > other)
        case "<=":
            return Holds(one <= other)
        case _:
            return Holds(one >= other)


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, list | dict):
        return None
    try:
        return float(value)
    except ValueError:
        return None
