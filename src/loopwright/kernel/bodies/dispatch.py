"""The functions of a body, whatever it is: a call, a graph of steps, a loop or a turn of a model.

Each kind of body has a module with the same functions. These choose the module by the type of the
body. The first part decides: it returns a result or events. The second part folds: it changes the
body. The third part ends what is open inside a place, from the outside: a deadline, a stop, or a
failing sibling. Every request gets exactly one answer and every start exactly one end; the
innermost one is closed first. The last part folds requests and answers of effects: an answer counts
once, and one to an effect that is not pending is counted as ignored and changes nothing else.
"""

from typing import TypeVar, assert_never

from loopwright.kernel import coordination, snapshots
from loopwright.kernel.bodies import call, conversation, each, repeat, steps
from loopwright.kernel.effects import close_gate, free_slot, withdraw
from loopwright.kernel.event_parts import CALLED, AgentCall, ModelCall
from loopwright.kernel.events import (
    NO_USAGE,
    AnyEvent,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    StepFinished,
    Usage,
)
from loopwright.kernel.frames import (
    AgentSession,
    Body,
    CycleBody,
    IterationChecks,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.limits import used_up
from loopwright.kernel.state import (
    KernelServices,
    PendingEffect,
    State,
    add_pending,
    chain,
    count_call,
    enclosing_iteration,
    iterations_made,
    limits_of,
    places_inside,
    session_key,
)
from loopwright.model.ids import (
    ArtifactPurpose,
    BackoffPurpose,
    CallPurpose,
    CheckBackoffPurpose,
    CheckPurpose,
    CoordinatorBackoffPurpose,
    CoordinatorPurpose,
    DeadlinePurpose,
    DelayPurpose,
    HoldPurpose,
    LoopDeadlinePurpose,
    ReplyPurpose,
    ReworkPurpose,
    SnapshotPurpose,
    SummaryPurpose,
    ToolPurpose,
    TurnPurpose,
)
from loopwright.model.record import Text

# -- deciding --------------------------------------------------------------------------------------


def outcome(state: State, body: Body, services: KernelServices) -> Result | None:
    """How a body has ended, or None while it is open.

    It is a function of the state alone: a crash between two events changes nothing, because what
    is due is always found again from the state.
    """
    match body:
        case LeafBody():
            return call.outcome(state, body, services)
        case RepeatBody() if body.action.each is None:
            return repeat.outcome(state, body, services)
        case RepeatBody():
            return each.outcome(state, body, services)
        case StepsBody():
            return steps.outcome(body, services)
        case CycleBody():
            return conversation.outcome(state, body)
        case _:
            assert_never(body)


def next_events(state: State, body: Body, services: KernelServices) -> list[AnyEvent]:
    """The next events of a body that is open; none while it waits for an answer."""
    match body:
        case LeafBody():
            return call.next_events(state, body, services)
        case RepeatBody() if body.action.each is None:
            return repeat.next_events(state, body, services)
        case RepeatBody():
            return each.next_events(state, body, services)
        case StepsBody():
            return steps.next_events(state, body, services)
        case CycleBody():
            return conversation.next_events(state, body, services)
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
    if not state.pending and not state.gates and _has_no_places(owner.body):
        return []  # the usual case: nothing is open anywhere
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


def _has_no_places(body: Body) -> bool:
    """Whether a call, or a loop between two iterations, has nothing open inside. The steps of a
    graph that have not begun are closed too.
    """
    return type(body) is LeafBody or (type(body) is RepeatBody and not body.active)


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
            iterations=iterations_made(owner.body),
            usage=owner.spent.usage,
        )
    return [*inside, ended]


def _close_body(state: State, body: Body, why: str) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    for place in places_inside(body):
        events += _close_owner(state, place, why)
    return [*events, *close(state, body, why)]


# -- requests and answers -------------------------------------------------------------------------


def effect_requested(state: State, event: EffectRequested) -> None:
    owner = state.owners[event.path]
    pending = add_pending(state, event, owner)
    purpose = pending.purpose
    match purpose:
        case CallPurpose() | BackoffPurpose() | ReworkPurpose():
            note_request(owner.body, pending)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            note_request(owner.body, pending)
        case LoopDeadlinePurpose() | DelayPurpose():
            note_request(owner.body, pending)
        case DeadlinePurpose():
            owner.deadline = event.effect
        case CheckPurpose(index):
            assert isinstance(owner, IterationOwner)
            _note_check_request(owner.checks, index, pending)
        case CheckBackoffPurpose():  # it has the number of the attempt before it
            assert isinstance(owner, IterationOwner)
            owner.checks.pending = event.effect
        case ArtifactPurpose():
            assert isinstance(owner, StepOwner)
            owner.look, owner.looks, owner.found = event.effect, pending.attempt, None
        case SnapshotPurpose():
            snapshots.snapshot_requested(state, pending)
        case CoordinatorPurpose() | CoordinatorBackoffPurpose() | ReplyPurpose() | HoldPurpose():
            coordination.requested(state, pending, purpose)
        case _:
            assert_never(purpose)


def _note_check_request(checks: IterationChecks, index: int, pending: PendingEffect) -> None:
    if not checks.tries:  # the attempts of an earlier opening of the run do not count
        checks.earlier = pending.attempt - 1
    checks.index, checks.tries = index, pending.attempt
    checks.pending = pending.effect


_Answer = TypeVar("_Answer", EffectDone, EffectFailed)


def effect_answered(state: State, event: _Answer) -> None:
    pending = state.pending.pop(event.effect, None)
    if pending is None:
        state.ignored += 1
        return
    state.queues.lost.pop(event.effect, None)
    state.queues.timers.pop(event.effect, None)
    if type(event) is EffectDone and event.snapshot is not None:
        state.snapshots.newest = event.snapshot
    if pending.gates:
        state.queues.stale.update((name, gate) for name, gate in pending.gates.items() if gate.open)
    if type(pending.call) is AgentCall or type(pending.call) is ModelCall:
        _agent_answered(state, pending, pending.call, event)
    if state.snapshots.on:
        snapshots.note_writer(state, pending)
    _route_answer(state, pending, event)
    state.touch(pending.owner)


def effect_activity(state: State, event: EffectActivity) -> None:
    """Count what a call under way has used so far: it may never get an answer of its own."""
    pending = state.pending.get(event.effect)
    if pending is None or event.usage is None or not isinstance(pending.call, CALLED):
        return
    _spend(state, pending.owner, event.usage - (pending.used or NO_USAGE))
    pending.used = event.usage


def _agent_answered(
    state: State,
    pending: PendingEffect,
    call: AgentCall | ModelCall,
    event: EffectDone | EffectFailed,
) -> None:
    if call.role != "coordinator":
        count_call(state, pending.owner, -1)
    if state.queues.slots:
        free_slot(state)
    if event.mark is not None:
        state.agents.marks.setdefault(call.agent, set()).add(event.mark)
    if event.usage is not None or pending.used is not None:
        _spend(state, pending.owner, (event.usage or NO_USAGE) - (pending.used or NO_USAGE))
    if event.session and call.role == "worker":
        _remember(pending, event.session, event.usage or NO_USAGE)


def _remember(pending: PendingEffect, session: str, used: Usage) -> None:
    """Keep a session, with its usage so far, for the next iteration of the enclosing loop."""
    inside = enclosing_iteration(pending.owner)
    if inside is None:
        return
    key, sessions = session_key(pending.owner, inside, pending.spec), inside.parent.memory.sessions
    known = sessions.get(key)
    before = known.used if known is not None and known.id == session else NO_USAGE
    sessions[key] = AgentSession(id=session, used=before + used)


def _spend(state: State, owner: Owner, usage: Usage) -> None:
    state.usage = state.usage + usage
    places = chain(owner)
    watched = (
        [one for one in places if _has_left(state, one)] if state.plan_index.has_budget else []
    )
    for place in places:
        place.spent.input_tokens += usage.input_tokens
        place.spent.output_tokens += usage.output_tokens
        place.spent.usd = round(place.spent.usd + usage.usd, 9)
        place.spent.unpriced += usage.unpriced
    if not all(_has_left(state, one) for one in watched):
        _wake_sleepers(state)


def _has_left(state: State, place: Owner | RepeatBody) -> bool:
    return used_up(limits_of(state, place), place.spent) is None


def _wake_sleepers(state: State) -> None:
    """Look at everything that waits for a time: a loop between two iterations has no next one when
    what is around it is used up. A place is used up once, so this is not done often.
    """
    for effect in state.queues.timers:
        state.touch(state.pending[effect].owner)


def _route_answer(state: State, pending: PendingEffect, event: EffectDone | EffectFailed) -> None:
    owner, purpose = pending.owner, pending.purpose
    match purpose:
        case (
            CallPurpose()
            | BackoffPurpose()
            | ReworkPurpose()
            | TurnPurpose()
            | SummaryPurpose()
            | ToolPurpose()
            | LoopDeadlinePurpose()
            | DelayPurpose()
        ):
            if not owner.closed:  # earlier versions did not withdraw all effects of a retried step
                note_answer(owner.body, pending, event)
        case DeadlinePurpose():
            owner.deadline_hit = owner.deadline_hit or type(event) is EffectDone
        case CheckPurpose() | CheckBackoffPurpose():
            assert isinstance(owner, IterationOwner)
            _answer_check(owner, purpose, event)
        case ArtifactPurpose():
            assert isinstance(owner, StepOwner)
            owner.look, owner.found = None, type(event) is EffectDone and event.code == 0
        case SnapshotPurpose():
            snapshots.snapshot_answered(state, pending, event)
        case CoordinatorPurpose() | CoordinatorBackoffPurpose() | ReplyPurpose() | HoldPurpose():
            coordination.answered(state, pending, purpose, event)
        case _:
            assert_never(purpose)


def _answer_check(
    owner: IterationOwner,
    purpose: CheckPurpose | CheckBackoffPurpose,
    event: EffectDone | EffectFailed,
) -> None:
    owner.checks.pending = None
    if isinstance(purpose, CheckPurpose):
        owner.checks.answer = event
    else:
        owner.checks.answer = None
        owner.checks.parks += 1
