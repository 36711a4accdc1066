"""Fold: how each event changes the state, with one function for each kind.

Nothing here decides. An event that no longer fits (an answer to an effect that is not pending,
a decision about a closed gate) is counted and changes nothing else, so a late or duplicate
answer is harmless.
"""

from collections.abc import Callable, Iterable

from loopwright.kernel import snapshots
from loopwright.kernel.bodies import conversation, dispatch
from loopwright.kernel.bodies.dispatch import effect_activity, effect_answered, effect_requested
from loopwright.kernel.effects import effect_repeated
from loopwright.kernel.event_parts import BaseEvent
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    BudgetReserved,
    BudgetSettled,
    CancelRequested,
    CheckVerdict,
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    HistoryCompressed,
    IterationFinished,
    IterationStarted,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunEdited,
    RunFinished,
    RunForked,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
    StepFinished,
    StepKept,
    StepRetried,
    StepSkipped,
    StepStarted,
    TurnTaken,
)
from loopwright.kernel.frames import (
    Body,
    CheckNote,
    CycleBody,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.gates import gate_closed, gate_opened
from loopwright.kernel.limits import is_out_of_time
from loopwright.kernel.messages import (
    finalized,
    message_delivered,
    message_dropped,
    message_sent,
    note,
)
from loopwright.kernel.references import thread_of
from loopwright.kernel.reopened_runs import (
    _agent_changed,
    keep_iteration,
    keep_loop,
    keep_step,
    name_at_the_top,
    note_spoilt,
    resume_iteration,
    resume_step,
    run_edited,
    run_forked,
    run_reopened,
)
from loopwright.kernel.state import State, make_body, release_frames, release_inside, steps_body
from loopwright.model.actions import Action
from loopwright.model.ids import iteration_number, last_id, parent_path
from loopwright.model.plan import Plan


def fold(plan: Plan, events: Iterable[AnyEvent]) -> State:
    """The state after these events."""
    state = State(plan)
    for event in events:
        apply(state, event)
    return state


def apply(state: State, event: AnyEvent) -> None:
    """Let one event change the state."""
    state.version += 1
    if event.at > state.now:
        state.now = event.at
    if state.finished is not None and type(event) is not RunReopened:
        state.ignored += 1
        return
    _APPLY[type(event)](state, event)
    if state.mail.active:
        note(state, event)


def _begin_body(state: State, owner: Owner, action: Action, step: StepOwner) -> Body:
    """The frame for an action that begins now, with the conversation that it continues."""
    body = make_body(state, owner, action, step)
    if type(body) is RepeatBody and body.call is not None:
        thread = thread_of(state, owner, body.call)
        if thread is not None:
            loop, name = thread[0].parent, thread[1]
            body.talk.thread = loop, name
            body.talk.history = list(loop.memory.talks.get(name, ()))
            body.talk.carried = len(body.talk.history)
    return body


def _run_started(state: State, event: RunStarted) -> None:
    state.started = event
    state.times.working_since = event.at
    state.control.labels = event.labels
    root = state.root
    root.body = steps_body(state, root, state.plan_index.root)
    state.owners[""] = root
    state.touch(root)


def _run_paused(state: State, event: RunPaused) -> None:
    state.control.paused = True


def _run_resumed(state: State, event: RunResumed) -> None:
    state.control.paused = False
    for owner in list(state.owners.values()):
        state.touch(owner)


def _cancel_requested(state: State, event: CancelRequested) -> None:
    if state.control.cancel is None:
        state.control.cancel = event
    elif state.snapshots.on:
        snapshots.stopped_again(state)
    state.touch(state.root)


def _run_finished(state: State, event: RunFinished) -> None:
    state.finished = event
    state.times.worked_ms += max(0, event.at - state.times.working_since)
    state.root.closed = True
    state.queues.agenda.clear()


def _step_started(state: State, event: StepStarted) -> None:
    parent = state.owners[parent_path(event.path)].body
    assert isinstance(parent, StepsBody)
    number = parent.index.at[last_id(event.path)]
    step = parent.index.action.steps[number]
    parent.ready.remove(number)
    unfinished = parent.unfinished.pop(step.id, None)
    if unfinished is not None:
        parent.active[step.id] = unfinished
        resume_step(state, unfinished)
        return
    owner = StepOwner(
        path=event.path, iteration=event.iteration, step=step, parent=parent, inside=event.path
    )
    owner.body = _begin_body(state, owner, step.action, owner)
    parent.active[step.id] = owner
    state.owners[event.path] = owner
    around = parent.owner
    if around is state.root:
        name_at_the_top(state, owner)
    elif isinstance(around, IterationOwner) and around.parent.carry.note:
        owner.note, around.parent.carry.note = around.parent.carry.note, ""
    state.touch(owner)


def _step_retried(state: State, event: StepRetried) -> None:
    """The whole step starts again, with new names for everything inside."""
    owner = state.owners[event.path]
    assert isinstance(owner, StepOwner)
    if owner.inside != owner.path:
        del state.owners[owner.inside]
    owner.tries = event.attempt
    owner.inside = f"{owner.path}~{event.attempt}"
    if owner.path in state.reopenings.begun:
        state.reopenings.begun[owner.path] = event.attempt
    release_inside(owner.body)
    owner.body = _begin_body(state, owner, owner.step.action, owner)
    owner.gate = owner.found = None
    owner.looks = 0
    state.owners[owner.inside] = owner
    state.touch(owner)


def _step_finished(state: State, event: StepFinished) -> None:
    owner = state.owners.pop(event.path)
    assert isinstance(owner, StepOwner)
    state.owners.pop(owner.inside, None)
    owner.closed = True
    result = Result(
        status=event.status,
        reason=event.reason,
        output=event.output,
        result=event.result,
        error=event.error,
        iterations=event.iterations,
    )
    owner.parent.active.pop(owner.step.id, None)
    keep_loop(state, owner, event)
    keep_step(owner, event.status)
    _settle_step(state, owner.parent, owner.step.id, result)
    if event.status == "completed":
        release_frames(owner)


def _step_skipped(state: State, event: StepSkipped) -> None:
    parent = state.owners[parent_path(event.path)].body
    assert isinstance(parent, StepsBody)
    step = last_id(event.path)
    number = parent.index.at[step]
    if number in parent.ready:
        parent.ready.remove(number)
    parent.unfinished.pop(step, None)
    _settle_step(
        state, parent, step, Result(status=event.status, reason=event.reason, error=event.error)
    )


def _step_kept(state: State, event: StepKept) -> None:
    parent = state.owners[parent_path(event.path)].body
    assert isinstance(parent, StepsBody)
    step = last_id(event.path)
    parent.ready.remove(parent.index.at[step])
    reason = "done" if event.reason == "kept" else event.reason
    ended = Result("completed", reason, output=event.output, result=event.result)
    _settle_step(state, parent, step, ended)


def _settle_step(state: State, parent: StepsBody, step: str, result: Result) -> None:
    number = parent.index.at[step]
    parent.results[step] = result
    tolerated = parent.index.action.steps[number].on_error == "continue"
    if result.status in ("failed", "exhausted") and not tolerated and parent.failed is None:
        parent.failed = step
    for dependent in parent.index.dependents[number]:
        parent.missing[dependent] -= 1
        if parent.missing[dependent] == 0:
            parent.ready.append(dependent)
    state.touch(parent.owner)
    if is_out_of_time(parent):  # then its loop has the next word
        assert isinstance(parent.owner, IterationOwner)
        state.touch(parent.owner.parent.owner)


def _iteration_started(state: State, event: IterationStarted) -> None:
    parent = state.owners[parent_path(event.path)].body
    assert type(parent) is RepeatBody
    number = iteration_number(event.path)
    if parent.unfinished and number in parent.unfinished:
        _iteration_resumed(state, parent, number, event)
        return
    owner = IterationOwner(
        path=event.path,
        iteration=event.iteration or number + 1,
        number=number,
        parent=parent,
        inside=event.path,
        started_at=event.at,
    )
    owner.body = _begin_body(state, owner, parent.action.body, parent.step)
    if number >= parent.started:
        parent.started = number + 1
    parent.checked_first = parent.checked_first or number < 0
    parent.active[number] = owner
    state.owners[event.path] = owner
    _note_newest(state, owner)
    if state.snapshots.on:
        snapshots.iteration_begun(state, owner)
    state.touch(owner)


def _iteration_resumed(
    state: State, parent: RepeatBody, number: int, event: IterationStarted
) -> None:
    """An iteration that had begun before its run was reopened continues where it stopped."""
    owner = parent.unfinished.pop(number).owner
    parent.started = max(parent.started, number + 1)
    parent.checked_first = parent.checked_first or number < 0
    parent.active[number] = owner
    if number in parent.items.again:
        parent.items.again.remove(number)
    _note_newest(state, owner)
    if state.snapshots.on:
        snapshots.iteration_resumed(state, owner)
    resume_iteration(state, owner, event.at)


def _note_newest(state: State, owner: IterationOwner) -> None:
    if not owner.parent.talk.answers_call and owner.parent.owner.parent is state.root.body:
        state.latest.iteration = owner


def _iteration_finished(state: State, event: IterationFinished) -> None:
    owner = state.owners.pop(event.path)
    assert type(owner) is IterationOwner
    owner.closed = True
    if state.snapshots.on:
        snapshots.iteration_ended(state, owner, completed=event.status == "completed")
    repeat = owner.parent
    repeat.active.pop(owner.number, None)
    if event.status != "completed":
        keep_iteration(repeat, owner, event)
    if owner.number < 0:
        _settle_check_first(state, repeat, owner, event)
        return
    carry = repeat.carry
    if event.status != "completed" or carry.spoilt or carry.keeps or carry.note:
        note_spoilt(repeat, owner, event)
    repeat.finished += 1
    output, result = event.output, event.result
    body = owner.body
    if type(body) is LeafBody or type(body) is CycleBody:
        said, result = dispatch.output_of(body)
        output = said if output is None else output  # the event has it where others see less
    ended = Result(
        status=event.status, reason=event.reason, output=output, result=result, error=event.error
    )
    dispatch.note_iteration(repeat, owner, ended, done=event.done)
    state.touch(repeat.owner)
    if event.status == "completed":
        release_frames(owner)


def _settle_check_first(
    state: State, repeat: RepeatBody, owner: IterationOwner, event: IterationFinished
) -> None:
    """The look before the first iteration: it may end the loop, and it counts as no iteration."""
    repeat.checked_first = True
    if event.done or event.status != "completed":
        repeat.progress.last = Result(status=event.status, reason=event.reason, error=event.error)
        repeat.progress.last_done = event.done
    repeat.progress.last_checks = owner.checks.notes
    state.touch(repeat.owner)


def _check_verdict(state: State, event: CheckVerdict) -> None:
    owner = state.owners[event.path]
    assert isinstance(owner, IterationOwner)
    owner.checks.verdicts[event.index] = event.verdict
    code = owner.checks.answer.code if owner.checks.answer is not None else None
    by = owner.gate.by if owner.gate is not None else event.by
    owner.checks.notes.append(
        CheckNote(event.index, event.check, event.verdict, event.evidence, code=code, by=by)
    )
    if not owner.parent.talk.answers_call and owner.parent.owner.parent is state.root.body:
        state.latest.notes, state.latest.notes_of = owner.checks.notes, owner
    owner.checks.answer = None
    if event.verdict == "error":  # asked again if the run is resumed, under the next number
        owner.checks.numbers[event.index] = owner.checks.tries
    owner.checks.tries = owner.checks.earlier = 0
    if owner.gate is not None:  # its decision is this verdict; another check asks again
        owner.answered_gate, owner.gate = owner.gate, None
    state.touch(owner)


def _gate_answered(state: State, event: GateAnswered) -> None:
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


def _recorded(state: State, event: BaseEvent) -> None:
    """An event that later parts of the product read and that changes no decision here."""


_APPLY: dict[type[BaseEvent], Callable[..., None]] = {
    RunStarted: _run_started,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    CancelRequested: _cancel_requested,
    AgentChanged: _agent_changed,
    RunFinished: _run_finished,
    RunReopened: run_reopened,
    RunForked: run_forked,
    RunEdited: run_edited,
    StepStarted: _step_started,
    StepRetried: _step_retried,
    StepFinished: _step_finished,
    StepSkipped: _step_skipped,
    StepKept: _step_kept,
    IterationStarted: _iteration_started,
    IterationFinished: _iteration_finished,
    CheckVerdict: _check_verdict,
    EffectRequested: effect_requested,
    EffectDone: effect_answered,
    EffectFailed: effect_answered,
    EffectActivity: effect_activity,
    EffectRepeated: effect_repeated,
    GateOpened: gate_opened,
    GateAnswered: _gate_answered,
    GateClosed: gate_closed,
    MessageSent: message_sent,
    MessageDelivered: message_delivered,
    MessageDropped: message_dropped,
    CoordinatorNarrated: _recorded,
    CoordinatorFinalized: finalized,
    HistoryCompressed: conversation.history_compressed,
    TurnTaken: conversation.turn_taken,
    BudgetReserved: _recorded,
    BudgetSettled: _recorded,
}
