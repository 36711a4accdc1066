"""Stop rules about what may be used: budget of every place around, stalled results, the cap."""

from loopwright.kernel.facts import Failure
from loopwright.kernel.frames import Owner, RepeatBody, Result, Spent
from loopwright.kernel.state import State, chain, limits_of
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits


def over_budget(state: State, owner: Owner) -> str | None:
    """Which budget around an owner is used up, in words, or None."""
    if not state.has_budget:
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


def stalled(body: RepeatBody) -> bool:
    """Whether the last results were all the same for as long as the limit allows."""
    limit = body.action.limits.identical
    return limit is not None and body.finished >= limit and body.identical >= limit


def cap(body: RepeatBody) -> int | None:
    """The most passes that a loop may make, with those that a person granted."""
    return None if body.action.max is None else body.action.max + body.extra


def out_of_time(plan: Plan) -> Result:
    """How a part of a run ended that took too long. Where a run may be partly completed, such a
    part has failed like any other.
    """
    error = Failure("deadline", "the time limit was reached")
    return Result("failed" if plan.outcome == "partial" else "exhausted", "deadline", error=error)
