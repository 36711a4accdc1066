"""Fold requests, answers and gates, and what a loop keeps of a finished iteration.

An answer counts once. An answer to an effect that is not pending, or a decision about a closed
gate, is counted as ignored and changes nothing else. A loop keeps the result, the verdicts and
one line (the learning) of each finished iteration.
"""

import re
from typing import TypeVar, assert_never

import msgspec

from loopwright.kernel import coordination, snapshots
from loopwright.kernel.bodies import conversation
from loopwright.kernel.effects import free_slot, note_backoff_end
from loopwright.kernel.event_parts import CALLED, NO_USAGE, AgentCall, Failure, ModelCall, Usage
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
    ItemResult,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.limits import cap, used_up
from loopwright.kernel.state import (
    PendingEffect,
    State,
    chain,
    count_call,
    enclosing_pass,
    head,
    limits_of,
    note_request,
    session_key,
)
from loopwright.model.actions import RunCommand, RunScript
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
from loopwright.model.ids import last_id
from loopwright.model.policy import ProgressLog, StageOutputs
from loopwright.model.record import Text


def effect_requested(state: State, fact: EffectRequested) -> None:
    owner = state.owners[fact.path]
    pending = note_request(state, fact, owner)
    purpose = pending.purpose
    match purpose:
        case CallPurpose() | BackoffPurpose() | ReworkPurpose():
            _note_call(pending, purpose)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            assert isinstance(owner.body, CycleBody)
            conversation.requested(owner.body, pending)
        case DeadlinePurpose() | LoopDeadlinePurpose() | DelayPurpose():
            _note_timer(pending, purpose)
        case CheckPurpose() | CheckBackoffPurpose():  # a wait has the number of the try before it
            assert isinstance(owner, IterationOwner)
            owner.check_pending, owner.check_tries = fact.effect, pending.attempt
        case ArtifactPurpose():
            assert isinstance(owner, StepOwner)
            owner.look, owner.looks, owner.found = fact.effect, pending.attempt, None
        case SnapshotPurpose():
            snapshots.snapshot_requested(state, pending)
        case CoordinatorPurpose() | CoordinatorBackoffPurpose() | ReplyPurpose() | HoldPurpose():
            coordination.requested(state, pending, purpose)
        case _:
            assert_never(purpose)


def _note_call(
    pending: PendingEffect, purpose: CallPurpose | BackoffPurpose | ReworkPurpose
) -> None:
    body = pending.owner.body
    if isinstance(body, CycleBody):
        conversation.requested(body, pending)
        return
    assert isinstance(body, LeafBody)
    body.pending = pending.effect
    if isinstance(purpose, CallPurpose):
        body.attempt = pending.attempt


def _note_timer(
    pending: PendingEffect, purpose: DeadlinePurpose | LoopDeadlinePurpose | DelayPurpose
) -> None:
    owner, body = pending.owner, pending.owner.body
    if isinstance(purpose, DeadlinePurpose):
        owner.deadline = pending.effect
        return
    assert isinstance(body, RepeatBody)
    if isinstance(purpose, LoopDeadlinePurpose):
        body.deadline = pending.effect
    else:
        body.delay = pending.effect


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
    key, sessions = session_key(pending.owner, inside, pending.spec), inside.parent.sessions
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
            _answer_call(pending, fact)
        case TurnPurpose() | SummaryPurpose() | ToolPurpose():
            assert isinstance(owner.body, CycleBody)
            conversation.answered(owner.body, pending, fact)
        case DeadlinePurpose() | LoopDeadlinePurpose() | DelayPurpose():
            _end_timer(pending, purpose, done=type(fact) is EffectDone)
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


def _answer_call(pending: PendingEffect, fact: EffectDone | EffectFailed) -> None:
    body = pending.owner.body
    if isinstance(body, CycleBody):
        conversation.answered(body, pending, fact)
    else:
        assert isinstance(body, LeafBody)
        _answer_leaf(body, pending, fact)


def _end_timer(
    pending: PendingEffect,
    purpose: DeadlinePurpose | LoopDeadlinePurpose | DelayPurpose,
    *,
    done: bool,
) -> None:
    owner, body = pending.owner, pending.owner.body
    if isinstance(purpose, DeadlinePurpose):
        owner.deadline_hit = owner.deadline_hit or done
        return
    assert isinstance(body, RepeatBody)
    if isinstance(purpose, LoopDeadlinePurpose):
        body.deadline_hit = body.deadline_hit or done
    else:
        body.delay, body.delayed = None, pending.attempt


def _answer_check(
    owner: IterationOwner,
    purpose: CheckPurpose | CheckBackoffPurpose,
    fact: EffectDone | EffectFailed,
) -> None:
    owner.check_pending = None
    if isinstance(purpose, CheckPurpose):
        owner.check_answer = fact
    else:
        owner.check_answer = None
        owner.check_parks += 1


def _answer_leaf(body: LeafBody, pending: PendingEffect, fact: EffectDone | EffectFailed) -> None:
    body.pending = None
    if isinstance(pending.purpose, BackoffPurpose):
        note_backoff_end(body, pending.attempt, fact.at)
    elif isinstance(pending.purpose, ReworkPurpose) and type(fact) is EffectDone:
        body.gate = None  # what was rejected has been worked on: ask again
    elif type(fact) is EffectFailed:
        body.failure = fact
    elif fact.code not in (0, None) and isinstance(body.action, RunCommand | RunScript):
        body.failure = _bad_exit(fact, body.action)
    else:
        body.answer = fact


def _bad_exit(fact: EffectDone, action: RunCommand | RunScript) -> EffectFailed:
    """A step's program that ended with another code than 0: a failure that a retry may name."""
    return EffectFailed(
        at=fact.at,
        path=fact.path,
        iteration=fact.iteration,
        effect=fact.effect,
        error=Failure("exit", _exit_words(fact, action)),
        output=fact.output,
        code=fact.code,
    )


def _exit_words(fact: EffectDone, action: RunCommand | RunScript) -> str:
    words = f"the command ended with code {fact.code}"
    if isinstance(action, RunScript):
        step = last_id(fact.path)
        words = f"step '{step}' failed: {action.interpreter} exited with code {fact.code}"
    return f"{words}: {fact.note}" if fact.note else words


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
        body.extra += 1
        body.feedback = fact.text
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


def note_gate(repeat: RepeatBody, owner: IterationOwner, *, done: bool) -> None:
    """What a decision after the pass means for the next one."""
    asked, rule = owner.gate, repeat.action.gate
    if asked is None or rule is None or asked.decision is None or done:
        return
    if rule.approve_continues and asked.decision == "approve" and not asked.text:
        repeat.feedback = "Approved"
    most = cap(repeat)
    raises = rule.grants and asked.decision == "continue"
    if raises and most is not None and repeat.finished >= most:
        repeat.extra += 1


OUTCOME_CHARS = 200
_LINES = re.compile(r"[\r\n]+")


def learning_of(output: Text | None, iteration: int, chars: int) -> str:
    """The head of an output on one line; cut first and cleaned after, so it is never longer."""
    line = _LINES.sub(" ", head(output, chars)).strip()
    return line or f"(iteration {iteration} produced no output)"


def outcome_line(output: Text | None, verdict: str) -> str:
    """How an iteration ended, on one line: what was decided, and how its last words begin."""
    lines = [line.strip() for line in head(output, 4 * OUTCOME_CHARS).splitlines()]
    first = next((line for line in lines if line), "(no output)")[:OUTCOME_CHARS]
    return f"{verdict}: {first}" if verdict else first


LEARNINGS_KEPT = 1_000
"""How many learnings a loop that shows only the most recent ones keeps at least."""


def settle_item(repeat: RepeatBody, number: int, ended: Result) -> None:
    while len(repeat.item_results) <= number:
        repeat.item_results.append(None)
    repeat.item_results[number] = ItemResult(
        status=ended.status, output=ended.output, result=ended.result, error=ended.error
    )
    if ended.status != "completed" and repeat.spoiled is None:
        repeat.spoiled = ended
    repeat.last = ended


def settle_iteration(
    repeat: RepeatBody, owner: IterationOwner, ended: Result, *, done: bool
) -> None:
    if ended.status == "cancelled":
        # Ended from outside, it has no result: what the pass before left stays the last one.
        kept = repeat.last or Result("cancelled")
        repeat.last = msgspec.structs.replace(ended, output=kept.output, result=kept.result)
        return
    same = repeat.last is not None and ended.output == repeat.last.output
    repeat.identical = repeat.identical + 1 if same else 1
    broken = bool(owner.notes) and any(note.verdict == "error" for note in owner.notes)
    repeat.broken = repeat.broken + 1 if broken else 0
    repeat.last = ended
    repeat.last_done = done
    repeat.last_checks = owner.notes
    gate = owner.gate or owner.heard
    repeat.unmet = 0 if gate is not None else repeat.unmet + 1
    repeat.feedback = gate.text if gate is not None and gate.decision else ""
    note_gate(repeat, owner, done=done)
    memory = repeat.action.memory
    if type(memory) is ProgressLog or repeat.action.output == "learning":
        size = memory.chars if type(memory) is ProgressLog else 300
        repeat.learnings.append(learning_of(ended.output, owner.iteration, size))
        if type(memory) is ProgressLog and memory.total:
            _forget(repeat)
    elif type(memory) is StageOutputs:
        repeat.learnings.append(outcome_line(ended.output, _decided(owner, done=done)))
        _forget(repeat)
    body = owner.body
    if type(body) is CycleBody:
        conversation.remember_turn(repeat, body, done=done)
    repeat.last_steps = dict(body.results) if type(body) is StepsBody else {}
    if repeat.action.output == "all":
        repeat.outputs.append(_said_in(owner, ended))


def _forget(repeat: RepeatBody) -> None:
    """Drop learnings that no prompt shows any more; a new list, since a kept loop may share it."""
    if len(repeat.learnings) >= 2 * LEARNINGS_KEPT:
        repeat.learnings = repeat.learnings[LEARNINGS_KEPT:]
        repeat.forgotten += LEARNINGS_KEPT


def _decided(owner: IterationOwner, *, done: bool) -> str:
    """What the checks made of a pass, in a word."""
    names = {note.check for note in owner.notes}
    if "approval" in names:
        return "approved" if done else "not approved"
    return ("goal reached" if done else "goal not reached") if "goal" in names else ""


def _said_in(owner: IterationOwner, ended: Result) -> list[tuple[str, Text]]:
    """Everything that was said in a pass, with the step or the judge that said it."""
    if isinstance(owner.body, StepsBody):
        results = owner.body.results
        order = [step.id for step in owner.body.index.action.steps]
        said = [(name, results[name].output) for name in order if name in results]
    else:
        said = [("", ended.output)]
    judged = [("judge", note.evidence) for note in owner.notes if note.check == "judge"]
    return [(name, text) for name, text in [*said, *judged] if text]
