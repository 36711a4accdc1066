"""Why a loop ended and the result of a run, in the terms of ALDO.

A run that ended at a ceiling is not a failure here: it is `ok`. Whether the work was done
follows from the reason, and from the outcome of the engine.
"""

import re
from typing import Literal, NamedTuple, TypeAlias, TypedDict, assert_never

from loopwright.model.actions import Action, ModelCycle, Repeat, Steps
from loopwright.model.checks import (
    Contains,
    Leaf,
    NoCalls,
    SpendCheck,
    ToolResultCheck,
    leaves,
)
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue

Outcome: TypeAlias = Literal["completed", "exhausted", "failed", "cancelled"]
Payload: TypeAlias = dict[str, JsonValue]


class LoopEnding(NamedTuple):
    """What ended a loop, with what belongs to it."""

    reason: str
    detail: Payload


class RunResult(TypedDict):
    """What a run answers with."""

    ok: bool
    output: JsonValue


class PlanLoops(NamedTuple):
    """The loops of a plan by the step that contains them: of cycles, and of rounds."""

    cycles: dict[str, Repeat]
    rounds: dict[str, Repeat]
    limits: dict[str, float | None]


def loops_of(plan: Plan) -> PlanLoops:
    """All loops of a plan; the ids of its steps are unique."""
    found = PlanLoops({}, {}, {})
    for step in plan.steps:
        _gather(step.id, step.action, step.limits.usd, found)
    return found


def _gather(step: str, action: Action, usd: float | None, found: PlanLoops) -> None:
    if isinstance(action, Repeat) and isinstance(action.body, ModelCycle):
        found.cycles[step] = action
        found.limits[step] = usd
    elif isinstance(action, Repeat):
        found.rounds[step] = action
        _gather(step, action.body, usd, found)
    for inner in action.steps if isinstance(action, Steps) else ():
        _gather(inner.id, inner.action, inner.limits.usd, found)


TENANT = "home_budget"
"""The reason of a run that met the budget of all runs together."""
_SPENT = re.compile(r"spent ([\d.]+) of ([\d.]+) USD")


class LoopSpending(NamedTuple):
    """The cost of a loop, and its limit."""

    usd: float
    cap: float | None


def ending_of(
    loop: Repeat,
    *,
    reason: str,
    cycles: int,
    passed: tuple[int, str] | None,
    spending: LoopSpending,
    error: str = "",
) -> LoopEnding | None:
    """The reason why a loop of cycles ended; None for a plain run that has just finished. `passed`
    is the check that passed, by its position, with its evidence.
    """
    if reason == TENANT:
        total, most = _amounts(error)
        detail: Payload = {"capUsd": most, "totalUsd": total, "message": error}
        return LoopEnding("tenant-budget-exhausted", detail)
    if reason == "max_iterations":
        return LoopEnding("maxCycles", {"cycles": cycles})
    if passed is not None and reason != "budget":
        return _of_check(leaves(loop.until)[passed[0]], passed[1], loop)
    if reason == "budget":
        declared = next(
            (one.usd for one in leaves(loop.until) if isinstance(one, SpendCheck)), None
        )
        cap = spending.cap if declared is None else declared
        return LoopEnding("budget-exhausted", {"usd": spending.usd, "cap": cap})
    return LoopEnding(reason, {})


def _amounts(words: str) -> tuple[float | None, float | None]:
    """The spent amount and the limit, from the message about a budget of money."""
    found = _SPENT.search(words)
    return (float(found[1]), float(found[2])) if found else (None, None)


def _of_check(leaf: Leaf, evidence: str, loop: Repeat) -> LoopEnding | None:
    if isinstance(leaf, Contains):
        reason = "textMention" if leaf.ignore_case else "text-includes"
        return LoopEnding(reason, {"trigger": leaf.text})
    if isinstance(leaf, ToolResultCheck):
        tool, _, call = evidence.removesuffix(")").rpartition(" (")
        wanted: Payload = {} if leaf.exit_code is None else {"exit_code": leaf.exit_code}
        wanted |= {} if leaf.contains is None else {"contains": leaf.contains}
        return LoopEnding("tool-result", {"tool": tool, "callId": call, "match": wanted})
    if isinstance(leaf, NoCalls):
        is_plain = isinstance(loop.body, ModelCycle) and loop.body.nudge is None
        return None if is_plain else LoopEnding("no-tool-calls", {})
    return LoopEnding("command", {"evidence": evidence})


def result_of(
    outcome: Outcome, *, reason: str, output: JsonValue = "", error: str = ""
) -> RunResult:
    """The answer of a run that has ended."""
    match outcome:
        case "exhausted" if reason == TENANT:
            return {"ok": False, "output": ""}
        case "completed" | "exhausted":
            return {"ok": True, "output": output}
        case "cancelled":
            return {"ok": False, "output": {"cancelled": True, "reason": reason}}
        case "failed":
            return {"ok": False, "output": {"error": error or reason}}
        case never:
            assert_never(never)
