"""Time limits of places: the timer that a place asks for when it begins, and what it means."""

import msgspec

from loopwright.kernel.calls import SleepCall
from loopwright.kernel.facts import AnyFact
from loopwright.kernel.frames import Owner, PassOwner, Result, RunOwner, StepOwner
from loopwright.kernel.limits import out_of_time
from loopwright.kernel.state import State, limits_of
from loopwright.kernel.trying import request
from loopwright.model.actions import AskPerson


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
    number = 1 + state.reopened if isinstance(owner, RunOwner) else owner.openings
    return [request(state, owner, "deadline", number, SleepCall(until=state.now + wall))]


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
