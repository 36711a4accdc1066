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
from loopwright.model.effect_ids import (
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


def effect_requested(state: State, fact: EffectRequested) -> None:
    owner = state.owners[fact.path]
    pending = note_request(state, fact, owner)
    purpose = pending.purpose
    match purpose:
        case CallPurpose() | BackoffPurpose() | ReworkPurpose():
            dispatch.note_request(owner.body, pending)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            dispatch.note_request(owner.body, pending)
        case LoopDeadlinePurpose() | DelayPurpose():
            dispatch.note_request(owner.body, pending)
        case DeadlinePurpose():
            owner.deadline = fact.effect
        case CheckPurpose(index):
            assert isinstance(owner, IterationOwner)
            _note_check_request(owner.checks, index, pending)
        case CheckBackoffPurpose():  # it has the number of the attempt before it
            assert isinstance(owner, IterationOwner)
            owner.checks.pending = fact.effect
        case ArtifactPurpose():
            assert isinstance(owner, StepOwner)
            owner.look, owner.looks, owner.found = fact.effect, pending.attempt, None
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


def effect_answered(state: State, fact: _Answer) -> None:
    pending = state.pending.pop(fact.effect, None)
    if pending is None:
        state.ignored += 1
        return
    state.queues.lost.pop(fact.effect, None)
    state.queues.timers.pop(fact.effect, None)
    if type(fact) is EffectDone and fact.snapshot is not None:
        state.snapshots.newest = fact.snapshot
    if pending.gates:
        state.queues.stale.update((name, gate) for name, gate in pending.gates.items() if gate.open)
    if type(pending.call) is AgentCall or type(pending.call) is ModelCall:
        _agent_answered(state, pending, pending.call, fact)
    if state.snapshots.on:
        snapshots.note_writer(state, pending)
    _route_answer(state, pending, fact)
    state.touch(pending.owner)


def effect_activity(state: State, fact: EffectActivity) -> None:
    """Count what a call under way has used so far: it may never get an answer of its own."""
    pending = state.pending.get(fact.effect)
    if pending is None or fact.usage is None or not isinstance(pending.call, CALLED):
        return
    _spend(state, pending.owner, fact.usage - (pending.used or NO_USAGE))
    pending.used = fact.usage


def _agent_answered(
    state: State,
    pending: PendingEffect,
    call: AgentCall | ModelCall,
    fact: EffectDone | EffectFailed,
) -> None:
    if call.role != "coordinator":
        count_call(state, pending.owner, -1)
    if state.queues.slots:
        free_slot(state)
    if fact.mark is not None:
        state.agents.marks.setdefault(call.agent, set()).add(fact.mark)
    if fact.usage is not None or pending.used is not None:
        _spend(state, pending.owner, (fact.usage or NO_USAGE) - (pending.used or NO_USAGE))
    if fact.session and call.role == "worker":
        _remember(pending, fact.session, fact.usage or NO_USAGE)


def _remember(pending: PendingEffect, session: str, used: Usage) -> None:
    """Keep a session for the next pass of the loop around, with all that it has used."""
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
    """Let all that wait for a time be looked at: a loop between two passes has no next one when
    what is around it is used up. A place is used up once, so this is not done often.
    """
    for effect in state.queues.timers:
        state.touch(state.pending[effect].owner)


def _route_answer(state: State, pending: PendingEffect, fact: EffectDone | EffectFailed) -> None:
    owner, purpose = pending.owner, pending.purpose
    match purpose:
        case CallPurpose() | BackoffPurpose() | ReworkPurpose():
            dispatch.note_answer(owner.body, pending, fact)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            dispatch.note_answer(owner.body, pending, fact)
        case LoopDeadlinePurpose() | DelayPurpose():
            dispatch.note_answer(owner.body, pending, fact)
        case DeadlinePurpose():
            owner.deadline_hit = owner.deadline_hit or type(fact) is EffectDone
        case CheckPurpose() | CheckBackoffPurpose():
            assert isinstance(owner, IterationOwner)
            _answer_check(owner, purpose, fact)
        case ArtifactPurpose():
            assert isinstance(owner, StepOwner)
            owner.look, owner.found = None, type(fact) is EffectDone and fact.code == 0
        case SnapshotPurpose():
            snapshots.snapshot_answered(state, pending, fact)
        case CoordinatorPurpose() | CoordinatorBackoffPurpose() | ReplyPurpose() | HoldPurpose():
            coordination.answered(state, pending, purpose, fact)
        case _:
            assert_never(purpose)


def _answer_check(
    owner: IterationOwner,
    purpose: CheckPurpose | CheckBackoffPurpose,
    fact: EffectDone | EffectFailed,
) -> None:
    owner.checks.pending = None
    if isinstance(purpose, CheckPurpose):
        owner.checks.answer = fact
    else:
        owner.checks.answer = None
        owner.checks.parks += 1


def gate_opened(state: State, fact: GateOpened) -> None:
    owner = state.owners[fact.path]
    gate = GateState(
        gate=fact.gate,
        digest=fact.digest,
        message=fact.message,
        answers=fact.answers,
        opened_at=fact.at,
        path=fact.path,
        owner=owner,
        effect=fact.effect,
        snapshot=fact.snapshot,
    )
    state.gates[fact.gate] = gate
    if fact.call is not None:
        assert isinstance(owner.body, CycleBody)
        gate.call = fact.call
        owner.body.gates[fact.call] = gate
    elif fact.about == "cap":
        assert isinstance(owner.body, RepeatBody)
        owner.body.cap_gate = gate
    elif fact.about == "tool":
        pending = state.pending[fact.effect]
        pending.gates = {**(pending.gates or {}), fact.gate: gate}
    elif fact.about == "blocked":
        assert isinstance(owner, StepOwner)
        owner.gate = gate
    elif fact.about == "step":
        assert isinstance(owner.body, LeafBody)
        owner.body.gate = gate
    else:
        assert isinstance(owner, IterationOwner)
        owner.gate = gate


def gate_answered(state: State, fact: GateAnswered) -> None:
    gate = state.gates.pop(fact.gate, None)
    if gate is None:
        state.ignored += 1
        return
    gate.open = False
    state.queues.stale.pop(fact.gate, None)
    gate.answered_at = fact.at
    gate.decision = fact.decision
    gate.text = fact.text
    gate.by = fact.by
    if fact.decision == "approve" and state.snapshots.on:
        snapshots.accept(state, gate)
    body = gate.owner.body
    if isinstance(body, CycleBody) and gate.call is not None:
        conversation.decided(state, body, gate.call, fact)
    if isinstance(gate.owner, StepOwner) and gate.owner.gate is gate:
        gate.owner.note = fact.text
    if isinstance(body, LeafBody) and body.gate is gate and fact.decision == "reject":
        body.rejections += 1
        body.rejection = fact.text
    if isinstance(body, RepeatBody) and body.cap_gate is gate and fact.decision == "continue":
        body.progress.extra += 1
        body.progress.feedback = fact.text
        body.cap_gate = None
        conversation.granted(body, fact.text)
    state.touch(gate.owner)


def gate_closed(state: State, fact: GateClosed) -> None:
    state.queues.stale.pop(fact.gate, None)
    gate = state.gates.pop(fact.gate, None)
    if gate is None:
        state.ignored += 1
        return
    gate.open = False
