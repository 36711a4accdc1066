"""What a plan may spend at most, as far as its limits say it: of the run, of steps, of loops.

A limit further out holds for all that is inside. Where none is, what is inside is added up, and a
loop counts as often as it may be made. What nothing limits has no ceiling.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopwright.model.actions import Action, CallAgent, Cycle, Repeat, Step, Steps
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits

Amount: TypeAlias = Literal["usd", "tokens"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that may be spent; None where nothing limits it."""

    usd: float | None
    tokens: int | None


def ceilings(plan: Plan) -> Ceilings:
    """What a run of a plan may spend at most."""
    usd, tokens = _plan(plan, "usd"), _plan(plan, "tokens")
    return Ceilings(usd=usd, tokens=None if tokens is None else int(tokens))


def _plan(plan: Plan, amount: Amount) -> float | None:
    return _least(plan.limits, amount, _sum(_step(step, amount) for step in plan.steps))


def _step(step: Step, amount: Amount) -> float | None:
    return _least(step.limits, amount, _action(step.action, amount))


def _action(action: Action, amount: Amount) -> float | None:
    match action:
        case CallAgent() | Cycle():
            return None
        case Steps(steps=steps):
            return _sum(_step(step, amount) for step in steps)
        case Repeat(body=body):
            once, passes = _action(body, amount), _passes(action)
            all_passes = None if once is None or passes is None else once * passes
            return _least(action.limits, amount, all_passes)
        case _:
            return 0


def _passes(loop: Repeat) -> int | None:
    return loop.max if loop.each is None else loop.each.max_items


def _least(limits: Limits, amount: Amount, inside: float | None) -> float | None:
    own: float | None = getattr(limits, amount)
    known = [one for one in (own, inside) if one is not None]
    return min(known) if known else None


def _sum(amounts: Iterable[float | None]) -> float | None:
    total = 0.0
    for one in amounts:
        if one is None:
            return None
        total += one
    return total
