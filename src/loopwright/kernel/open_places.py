"""End what is open inside a place, from the outside: a deadline, a stop, or a failing sibling.

Every request gets exactly one answer and every start exactly one end; the innermost one is closed
first.
"""

from loopwright.kernel.bodies import dispatch
from loopwright.kernel.effects import close_gate, withdraw
from loopwright.kernel.events import AnyEvent, IterationFinished, StepFinished
from loopwright.kernel.frames import (
    Body,
    IterationOwner,
    LeafBody,
    Owner,
    StepOwner,
    passes_made,
    places_inside,
)
from loopwright.kernel.state import State


def close_try(state: State, owner: StepOwner, why: str) -> list[AnyEvent]:
    """End what is open inside a step that is about to restart; its time limit still runs."""
    return _close_body(state, owner.body, why)


def close_inside(state: State, owner: Owner, why: str) -> list[AnyEvent]:
    """End what is open inside a place, but not the place itself."""
    if type(owner.body) is LeafBody and not state.pending and not state.gates:
        return []
    gate = owner.gate if isinstance(owner, StepOwner) else None
    events = [] if _has_no_body(owner) else _close_body(state, owner.body, why)
    events += withdraw(state, owner, owner.deadline, why)
    if state.snapshots.asked:
        events += withdraw(state, owner, state.snapshots.asked.get(owner.inside), why)
    events += close_gate(state, gate, why)
    events += withdraw(state, owner, owner.look if isinstance(owner, StepOwner) else None, why)
    if isinstance(owner, IterationOwner):
        events += withdraw(state, owner, owner.checks.pending, why)
        events += close_gate(state, owner.gate, why)
    return events


def _has_no_body(owner: Owner) -> bool:
    """A look before the first iteration asks the checks alone: nothing of its body ever begins."""
    return isinstance(owner, IterationOwner) and owner.number < 0


def _close_owner(state: State, owner: StepOwner | IterationOwner, why: str) -> list[AnyEvent]:
    at, path, iteration = state.now, owner.path, owner.iteration
    inside = close_inside(state, owner, why)
    if isinstance(owner, IterationOwner):
        ended: AnyEvent = IterationFinished(
            at=at,
            path=path,
            iteration=iteration,
            status="cancelled",
            reason=why,
            ms=at - owner.started_at - owner.idle_ms,
        )
    else:
        ended = StepFinished(
            at=at,
            path=path,
            iteration=iteration,
            status="cancelled",
            reason=why,
            iterations=passes_made(owner.body),
            usage=owner.spent.usage,
        )
    return [*inside, ended]


def _close_body(state: State, body: Body, why: str) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for place in places_inside(body):
        events += _close_owner(state, place, why)
    return [*events, *dispatch.close(state, body, why)]
