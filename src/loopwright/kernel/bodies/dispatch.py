"""The functions of a body, whatever it is: a call, a graph of steps, a loop or a turn of a model.

Each kind of body has a module with the same functions. These choose the module by the type of the
body. The first part decides: it returns a result or events. The second part folds: it changes the
body. The last part ends what is open inside a place, from the outside: a deadline, a stop, or a
failing sibling. Every request gets exactly one answer and every start exactly one end; the
innermost one is closed first.
"""

from typing import assert_never

from loopwright.kernel.bodies import call, conversation, dispatch, each, repeat, steps
from loopwright.kernel.effects import close_gate, withdraw
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    IterationFinished,
    StepFinished,
)
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    StepsBody,
    passes_made,
    places_inside,
)
from loopwright.kernel.state import KernelServices, PendingEffect, State
from loopwright.model.record import Text

# -- deciding --------------------------------------------------------------------------------------


def outcome(state: State, body: Body, senses: KernelServices) -> Result | None:
    """How a body has ended, or None while it is open.

    It is a function of the state alone: a crash between two events changes nothing, because what
    is due is always found again from the state.
    """
    match body:
        case LeafBody():
            return call.outcome(state, body, senses)
        case RepeatBody() if body.action.each is None:
            return repeat.outcome(state, body, senses)
        case RepeatBody():
            return each.outcome(state, body, senses)
        case StepsBody():
            return steps.outcome(body, senses)
        case CycleBody():
            return conversation.outcome(state, body)
        case _:
            assert_never(body)


def next_events(state: State, body: Body, senses: KernelServices) -> list[AnyEvent]:
    """The next events of a body that is open; none while it waits for an answer."""
    match body:
        case LeafBody():
            return call.next_events(state, body, senses)
        case RepeatBody() if body.action.each is None:
            return repeat.next_events(state, body, senses)
        case RepeatBody():
            return each.next_events(state, body, senses)
        case StepsBody():
            return steps.next_events(state, body, senses)
        case CycleBody():
            return conversation.next_events(state, body, senses)
        case _:
            assert_never(body)


def close(state: State, body: Body, why: str) -> list[AnyEvent]:
    """The end of what is open in a body itself, when the places inside have been closed."""
    match body:
        case LeafBody():
            return call.close(state, body, why)
        case RepeatBody() if body.action.each is None:
            return repeat.close(state, body, why)
        case RepeatBody():
            return each.close(state, body, why)
        case StepsBody():
            return steps.close(state, body, why)
        case CycleBody():
            return conversation.close(state, body, why)
        case _:
            assert_never(body)


def output_of(body: LeafBody | CycleBody) -> tuple[Text | None, Text | None]:
    """Output and structured result of a single call, also of one that failed half-way."""
    if isinstance(body, LeafBody):
        return call.output_of(body)
    return conversation.output_of(body)


# -- folding ---------------------------------------------------------------------------------------


def note_request(body: Body, pending: PendingEffect) -> None:
    """An effect of a body was requested."""
    match body:
        case LeafBody():
            call.note_request(body, pending)
        case RepeatBody() if body.action.each is None:
            repeat.note_request(body, pending)
        case RepeatBody():
            each.note_request(body, pending)
        case CycleBody():
            conversation.note_request(body, pending)
        case StepsBody():
            raise AssertionError(f"a graph of steps requests no effect: {pending.effect}")
        case _:
            assert_never(body)


def note_answer(body: Body, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    """An effect of a body has its answer."""
    match body:
        case LeafBody():
            call.note_answer(body, pending, event)
        case RepeatBody() if body.action.each is None:
            repeat.note_answer(body, pending, event)
        case RepeatBody():
            each.note_answer(body, pending, event)
        case CycleBody():
            conversation.note_answer(body, pending, event)
        case StepsBody():
            raise AssertionError(f"a graph of steps has no effect: {pending.effect}")
        case _:
            assert_never(body)


def note_iteration(body: RepeatBody, owner: IterationOwner, ended: Result, *, done: bool) -> None:
    """An iteration of a loop has ended."""
    if body.action.each is None:
        repeat.note_iteration(body, owner, ended, done=done)
    else:
        each.note_iteration(body, owner.number, ended)


def resume(state: State, body: Body) -> None:
    """The run was reopened: what did not complete in a body is due again."""
    match body:
        case LeafBody():
            call.resume(body)
        case RepeatBody() if body.action.each is None:
            repeat.resume(state, body)
        case RepeatBody():
            each.resume(state, body)
        case StepsBody():
            steps.resume(body)
        case CycleBody():
            conversation.resume(body)
        case _:
            assert_never(body)


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
