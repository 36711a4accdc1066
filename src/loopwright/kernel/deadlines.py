"""Time limits of places: the timer that a place asks for when it begins, and what it means."""

from loopwright.kernel.calls import SleepCall
from loopwright.kernel.facts import AnyFact, Failure
from loopwright.kernel.frames import Owner, PassOwner, Result
from loopwright.kernel.proceed import request
from loopwright.kernel.state import State, limits_of


def deadline(state: State, owner: Owner) -> list[AnyFact]:
    """The timer of a place with a time limit, asked for once, when the place begins."""
    if owner.deadline is not None or not state.has_wall:
        return []
    if isinstance(owner, PassOwner):
        wall = owner.parent.action.limits.pass_wall_ms
    else:
        wall = limits_of(state, owner).wall_ms
    if wall is None:
        return []
    number = 1 + state.reopened if owner is state.root else 1  # others go by a new name then
    return [request(state, owner, "deadline", number, SleepCall(until=state.now + wall))]


def deadline_result(owner: Owner) -> Result | None:
    """How a place ended whose time is over."""
    if not owner.deadline_hit:
        return None
    error = Failure(type="deadline", detail="the time limit was reached")
    return Result("exhausted", "deadline", error=error)
