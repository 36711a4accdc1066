"""How many iterations a run has made, and how many it may make."""

from loopwright.kernel.frames import RepeatBody, has_turns, passes_made
from loopwright.kernel.limits import cap
from loopwright.kernel.reopening import at_cap
from loopwright.kernel.state import State
from loopwright.model.actions import CallAgent
from loopwright.model.plan import only_repeat


def iterations(state: State) -> int:
    """Count the iterations of the outermost loop, or of all loops that ended."""
    loop = only_repeat(state.plan)
    total = 0
    for step in state.plan.steps:
        ended = state.root.body.results.get(step.id) if state.started else None
        owner = state.root.body.active.get(step.id) if state.started else None
        if isinstance(step.action, CallAgent):
            continue  # older versions recorded the turns of a chat model here
        if ended is not None:
            total += ended.iterations
        elif owner is not None:
            total += passes_made(owner.body)
    return total if loop is not None or total else 0


def current_loop(state: State) -> RepeatBody | None:
    """The loop that is under way at the top of the run, for a headline."""
    for owner in state.root.body.active.values() if state.started else ():
        if isinstance(owner.body, RepeatBody) and not has_turns(owner.body):
            return owner.body
    return None


def most_passes(state: State) -> int | None:
    """How many passes the loop of a run may make, with those that a person granted."""
    running = current_loop(state)
    if running is not None:
        return cap(running)
    loop = only_repeat(state.plan)
    capped = at_cap(state)
    if loop is not None and len(capped) == 1:
        return next(iter(capped.values())).most
    most = loop.max if loop is not None else None
    if most is not None and state.passes is not None:
        most = state.passes or None
    # An ended loop has no body any more that knows what was granted to it.
    return None if most is None else max(most, state.raised or 0, iterations(state))


def passes_text(state: State) -> str:
    """`3/10`, or nothing for a run without a single loop."""
    if only_repeat(state.plan) is None:
        return ""
    most = most_passes(state)
    return f"{iterations(state)}/{most}" if most else str(iterations(state))
