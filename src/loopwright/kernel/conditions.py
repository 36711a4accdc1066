"""Conditions of steps: whether a step whose dependencies have ended runs at all."""

from typing import assert_never

import msgspec

from loopwright.kernel.frames import Owner
from loopwright.kernel.references import resolve, scope_at
from loopwright.kernel.state import KernelServices, State
from loopwright.model.actions import UNREADABLE, Cel, Compare, Condition, EveryOf, SomeOf
from loopwright.model.record import Blob, JsonValue


class ConditionValue(msgspec.Struct, frozen=True):
    """The condition has an answer."""

    yes: bool


class UndecidedCondition(msgspec.Struct, frozen=True):
    """The condition cannot be evaluated, and why."""

    why: str


def evaluate_condition(
    state: State, owner: Owner, condition: Condition, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
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
    senses: KernelServices,
    *,
    decided_by: bool,
) -> ConditionValue | UndecidedCondition:
    for part in parts:
        result = evaluate_condition(state, owner, part, senses)
        if isinstance(result, UndecidedCondition) or result.yes is decided_by:
            return result
    return ConditionValue(not decided_by)


def _cel(
    state: State, owner: Owner, condition: Cel, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
    result = senses.evaluate(condition.text, scope_at(state, owner, senses), wants="bool")
    if result.missing and condition.missing == "false":
        return ConditionValue(yes=False)
    if result.problem:
        return UndecidedCondition(result.problem)
    return ConditionValue(result.value is True)


def _compare(
    state: State, owner: Owner, condition: Compare, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
    found = resolve(state, owner, condition.ref, senses)
    left = senses.read(found) if isinstance(found, Blob) else found
    if condition.op in ("==", "!="):
        same = _text(left) == _text(condition.value)
        return ConditionValue(same is (condition.op == "=="))
    one, other = _number(left), _number(condition.value)
    written = str(condition.value)
    if condition.ref.of == "run" and written.startswith(UNREADABLE):
        return UndecidedCondition(f"{written.removeprefix(UNREADABLE)} is not a condition")
    if one is None or other is None:
        shown = _text(left)[:60]
        return UndecidedCondition(
            f"{shown!r} {condition.op} {_text(condition.value)!r} needs two numbers"
        )
    match condition.op:
        case "<":
            return ConditionValue(one < other)
        case ">":
            return ConditionValue(one > other)
        case "<=":
            return ConditionValue(one <= other)
        case _:
            return ConditionValue(one >= other)


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
