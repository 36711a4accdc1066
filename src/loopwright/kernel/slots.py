"""Who is next among the calls that wait for a place among the parallel ones."""

from collections import Counter
from collections.abc import Iterable

from loopwright.kernel.calls import CALLED
from loopwright.kernel.frames import CycleBody, LeafBody, Owner
from loopwright.kernel.state import State, is_full
from loopwright.model.actions import AskPerson, CallAgent


def free_slot(state: State) -> None:
    """Let the next call that waits for a place among the parallel ones be looked at, if there is
    one that fits. Where nothing but the plan is capped, the first one fits or none does.
    """
    done: list[str] = []
    for name, owner in _in_order(state):
        fits = owner.closed or not is_full(state, owner)
        if fits:
            done.append(name)
            state.touch(owner)
        if not owner.closed and (fits or not state.has_caps):
            break
    for name in done:
        del state.slots[name]


def _in_order(state: State) -> Iterable[tuple[str, Owner]]:
    """Those who wait: as they came; or first whose agent was called longest ago (`round-robin`);
    or whose agent has the fewest calls under way (`least-busy`). As they came where that is equal.
    """
    waiting = state.slots.items()
    match state.plan.settings.get("scheduler"):
        case "round-robin":
            return sorted(waiting, key=lambda one: state.served.get(_agent(one[1]), 0))
        case "least-busy":
            calls = (one.call for one in state.pending.values())
            busy = Counter(call.agent for call in calls if isinstance(call, CALLED))
            return sorted(waiting, key=lambda one: busy[_agent(one[1])])
        case _:
            return waiting


def _agent(owner: Owner) -> str:
    """The agent that is to be called at a place; of a check, nobody's."""
    body = owner.body
    if isinstance(body, CycleBody):
        return body.action.agent
    action = body.action if isinstance(body, LeafBody) else None
    if isinstance(action, CallAgent):
        return action.agent
    rework = action.on_reject if isinstance(action, AskPerson) else None
    return rework.agent if rework is not None else ""
