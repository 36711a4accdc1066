"""Fold requests, answers and gates, and what a loop keeps of a finished iteration.

An answer counts once. An answer to an effect that is not pending, or a decision about a closed
gate, is counted as ignored and changes nothing else. A loop keeps the result, the verdicts and
one line (the learning) of each finished iteration.
"""

from typing import TypeVar, assert_never

from loopwright.kernel import coordination, snapshots
from loopwright.kernel.bodies import conversation, dispatch
from loopwright.kernel.effects import free_slot
from loopwright.kernel.event_parts import CALLED, NO_USAGE, AgentCall, ModelCall, Usage
from loopwright.kernel.events import (
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
)
from loopwright.kernel.frames import (
    AgentSession,
    CycleBody,
    GateState,
    IterationChecks,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    StepOwner,
)
from loopwright.kernel.limits import used_up
from loopwright.kernel.state import (
    PendingEffect,
    State,
    chain,
    count_call,
    enclosing_pass,
    limits_of,
    note_request,
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


def effect_requested(state: State, event: EffectRequested) -> None:
    owner = state.owners[event.path]
    pending = note_request(state, event, owner)
    purpose = pending.purpose
    match purpose:
        case CallPurpose() | BackoffPurpose() | ReworkPurpose():
            dispatch.note_request(owner.body, pending)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            dispatch.note_request(owner.body, pending)
        case LoopDeadlinePurpose() | DelayPurpose():
            dispatch.note_request(owner.body, pending)
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
    inside = enclosing_pass(pending.owner)
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
                dispatch.note_answer(owner.body, pending, event)
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


def gate_opened(state: State, event: GateOpened) -> None:
    owner = state.owners[event.path]
    gate = GateState(
        gate=event.gate,
        digest=event.digest,
        message=event.message,
        answers=event.answers,
        opened_at=event.at,
        path=event.path,
        owner=owner,
        effect=event.effect,
        snapshot=event.snapshot,
    )
    state.gates[event.gate] = gate
    if event.call is not None:
        assert isinstance(owner.body, CycleBody)
        gate.call = event.call
        owner.body.gates[event.call] = gate
    elif event.about == "cap":
        assert isinstance(owner.body, RepeatBody)
        owner.body.cap_gate = gate
    elif event.about == "tool":
        pending = state.pending[event.effect]
        pending.gates = {**(pending.gates or {}), event.gate: gate}
    elif event.about == "blocked":
        assert isinstance(owner, StepOwner)
        owner.gate = gate
    elif event.about == "step":
        assert isinstance(owner.body, LeafBody)
        owner.body.gate = gate
    else:
        assert isinstance(owner, IterationOwner)
        owner.gate = gate


def gate_answered(state: State, event: GateAnswered) -> None:
    gate = state.gates.pop(event.gate, None)
    if gate is None:
        state.ignored += 1
        return
    gate.open = False
    state.queues.stale.pop(event.gate, None)
    gate.answered_at = event.at
    gate.decision = event.decision
    gate.text = event.text
    gate.by = event.by
    if event.decision == "approve" and state.snapshots.on:
        snapshots.accept(state, gate)
    body = gate.owner.body
    if isinstance(body, CycleBody) and gate.call is not None:
        conversation.decided(state, body, gate.call, event)
    if isinstance(gate.owner, StepOwner) and gate.owner.gate is gate:
        gate.owner.note = event.text
    if isinstance(body, LeafBody) and body.gate is gate and event.decision == "reject":
        body.rejections += 1
        body.rejection = event.text
    if isinstance(body, RepeatBody) and body.cap_gate is gate and event.decision == "continue":
        body.progress.extra += 1
        body.progress.feedback = event.text
        body.cap_gate = None
        conversation.granted(body, event.text)
    state.touch(gate.owner)


def gate_closed(state: State, event: GateClosed) -> None:
    state.queues.stale.pop(event.gate, None)
    gate = state.gates.pop(event.gate, None)
    if gate is None:
        state.ignored += 1
        return
    gate.open = False
