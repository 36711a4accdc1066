"""Stop rules: budgets, iteration limits, repeated results, and time limits with their timers."""

from collections.abc import Mapping
from typing import NamedTuple, assert_never

import msgspec

from loopwright.kernel.event_parts import Failure, SleepCall
from loopwright.kernel.events import NO_USAGE, AnyEvent, EffectFailed, RunReopened, Usage
from loopwright.kernel.frames import (
    IterationOwner,
    Owner,
    RepeatBody,
    Result,
    RunOwner,
    Spent,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.state import State, chain, limits_of, request_effect
from loopwright.model.actions import AskPerson
from loopwright.model.ids import DEADLINE, LOOP_DEADLINE
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits

COST_UNKNOWN = (
    "the cost of this call is unknown, so the limit in USD cannot be enforced; limit tokens "
    "instead (`--budget tokens=2M`), set a price in the settings, or start with "
    "`--allow-unknown-cost`"
)
"""The failure of a call whose cost is unknown, where a limit in USD applies."""


def over_budget(state: State, owner: Owner) -> str | None:
    """Which budget around an owner is used up, in words, or None."""
    if not state.plan_index.has_budget:
        return None
    used = (used_up(limits_of(state, place), place.spent) for place in chain(owner))
    return next((words for words in used if words is not None), None)


def loop_over_budget(state: State, body: RepeatBody) -> str | None:
    """The same for a loop: what is written at the loop itself, and everything around it."""
    return used_up(body.action.limits, body.spent) or over_budget(state, body.owner)


def used_up(limits: Limits, spent: Spent) -> str | None:
    """Which limit of a place is reached by what was used there, in words, or None."""
    if limits.usd is not None and spent.usd >= limits.usd:
        return f"spent {spent.usd:.4f} of {limits.usd:g} USD"
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"used {spent.tokens} of {limits.tokens} tokens"
    return None


class RemainingBudget(NamedTuple):
    """What the limits around a call leave for it; None where no limit applies."""

    usd: float | None = None
    tokens: int | None = None


def remaining(state: State, owner: Owner, live: Mapping[str, Usage]) -> RemainingBudget:
    """The smallest budget that is left at any place around an owner. `live` is what calls that
    have not ended have used so far, by effect.
    """
    if not state.plan_index.has_budget:
        return RemainingBudget()
    usd: list[float] = []
    tokens: list[int] = []
    for place in chain(owner):
        limits = limits_of(state, place)
        if limits.usd is None and limits.tokens is None:
            continue
        under_way = _live_at(state, place, live)
        if limits.usd is not None:
            usd.append(max(0.0, round(limits.usd - place.spent.usd - under_way.usd, 9)))
        if limits.tokens is not None:
            tokens.append(max(0, limits.tokens - place.spent.tokens - under_way.tokens))
    return RemainingBudget(min(usd, default=None), min(tokens, default=None))


def exceeded(state: State, owner: Owner, live: Mapping[str, Usage]) -> str | None:
    """Which budget around an owner is exceeded when calls that have not ended are counted with
    what they have used so far, in words, or None.
    """
    for place in chain(owner):
        limits = limits_of(state, place)
        if limits.usd is None and limits.tokens is None:
            continue
        under_way = _live_at(state, place, live)
        usd = round(place.spent.usd + under_way.usd, 9)
        if limits.usd is not None and usd > limits.usd:
            return f"spent {usd:.4f} of {limits.usd:g} USD"
        tokens = place.spent.tokens + under_way.tokens
        if limits.tokens is not None and tokens > limits.tokens:
            return f"used {tokens} of {limits.tokens} tokens"
    return None


def _live_at(state: State, place: Owner | RepeatBody, live: Mapping[str, Usage]) -> Usage:
    """What calls under way inside a place have used beyond what is counted already."""
    total = NO_USAGE
    for effect, usage in live.items():
        pending = state.pending.get(effect)
        if pending is not None and any(one is place for one in chain(pending.owner)):
            total = total + usage - (pending.used or NO_USAGE)
    return total


def has_usd_limit(state: State, owner: Owner) -> bool:
    """Whether a limit in USD applies to an owner."""
    if not state.plan_index.has_budget:
        return False
    return any(limits_of(state, place).usd is not None for place in chain(owner))


def ended_by_budget(failure: EffectFailed) -> Result:
    """How a part of a run ended whose call was cut off by a budget around it."""
    error = Failure("budget", failure.error.detail)
    return Result("exhausted", "budget", output=failure.output or None, error=error)


def is_out_of_time(body: StepsBody) -> bool:
    """Whether no further step of an iteration may begin, since the time of its loop is up."""
    owner = body.owner
    if not isinstance(owner, IterationOwner) or not owner.parent.deadline_hit:
        return False
    return owner.parent.action.on_deadline == "after_step"


def is_cut_off(body: RepeatBody) -> bool:
    """Whether a loop whose time is up ends now: at once, or when its steps or its iteration have
    ended that were under way then.
    """
    match body.action.on_deadline:
        case "stop":
            return True
        case "after_step":
            return not any(_is_busy(one) for one in body.active.values())
        case "after_pass":
            return not body.active
        case never:
            assert_never(never)


def _is_busy(owner: IterationOwner) -> bool:
    """Whether part of an iteration is active: a step, or its checks when all steps have ended."""
    body = owner.body
    if not isinstance(body, StepsBody):
        return True
    return bool(body.active) or len(body.results) == len(body.index.action.steps)


def out_of_time(plan: Plan) -> Result:
    """How a part of a run ended that took too long. Where a run may be partly completed, such a
    part has failed like any other.
    """
    error = Failure("deadline", "the time limit was reached")
    return Result("failed" if plan.outcome == "partial" else "exhausted", "deadline", error=error)


def request_deadline(state: State, owner: Owner) -> list[AnyEvent]:
    """The timer of a place with a time limit, asked for once, when the place begins."""
    if owner.deadline is not None or not state.plan_index.has_wall:
        return []
    if isinstance(owner, IterationOwner):
        wall = owner.parent.action.limits.pass_wall_ms
    else:
        wall = limits_of(state, owner).wall_ms
    if wall is None:
        return []
    number = 1 + state.reopenings.count if isinstance(owner, RunOwner) else owner.openings
    return [request_effect(state, owner, DEADLINE, number, SleepCall(until=state.now + wall))]


def deadline_result(state: State, owner: Owner) -> Result | None:
    """How a place ended whose time is over; a run as a whole is exhausted then."""
    if not owner.deadline_hit:
        return None
    if isinstance(owner, StepOwner):
        action = owner.step.action
        if isinstance(action, AskPerson) and action.expired is not None:
            return Result("completed", "deadline", output=action.expired)
    late = out_of_time(state.plan)
    if isinstance(owner, RunOwner):
        return msgspec.structs.replace(late, status="exhausted")
    return late


def request_loop_deadline(state: State, body: RepeatBody) -> list[AnyEvent]:
    limits = body.action.limits
    if body.deadline is not None or (limits.wall_ms is None and limits.ends_at is None):
        return []
    owner, ends_at = body.owner, limits.ends_at
    openings = 1 if isinstance(owner, RunOwner) else owner.openings
    if ends_at is not None and openings > 1 and ends_at <= state.now:
        ends_at = None  # a run resumed after that time must be able to work
    wall = None if limits.wall_ms is None else state.now + limits.wall_ms
    times = [at for at in (wall, ends_at) if at is not None]
    if not times:
        return []
    return [request_effect(state, owner, LOOP_DEADLINE, openings, SleepCall(until=min(times)))]


def renew_spent(opening: RunReopened, place: StepOwner | RepeatBody, limits: Limits) -> None:
    """A new budget is one of the whole run: the budgets inside it start again."""
    if opening.limits is not None and used_up(limits, place.spent) is not None:
        place.spent = Spent()


def with_time(limits: Limits, wall_ms: int) -> Limits:
    return msgspec.structs.replace(limits, wall_ms=wall_ms, ends_at=None)
