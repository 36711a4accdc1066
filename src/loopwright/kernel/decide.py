"""Decide: the events that follow from the state. Never raises for what may happen in a run.

`settle` is the whole engine in one function: for every owner that an event has touched, decide
the next events, fold them, and repeat until there are none.
"""

import msgspec

from loopwright.kernel.bodies import dispatch
from loopwright.kernel.bodies.dispatch import close_inside, close_try
from loopwright.kernel.bodies.steps import run_result
from loopwright.kernel.checks import ChecksDecision, DueCheck, check_name, combine_verdicts
from loopwright.kernel.coordination import close_mail, correspond, last_words
from loopwright.kernel.effects import close_lost, close_stale, free_slot, is_retried
from loopwright.kernel.event_parts import DropReason, Failure
from loopwright.kernel.events import (
    AnyEvent,
    IterationFinished,
    RunFinished,
    StepFinished,
    StepRetried,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import (
    CycleBody,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    RunOwner,
    StepOwner,
)
from loopwright.kernel.gates import check_blocked_step
from loopwright.kernel.iteration import IterationEnd, gate_after_iteration, is_gated, run_check
from loopwright.kernel.limits import deadline_result, request_deadline
from loopwright.kernel.messages import REOPENED, stop_delivered, stopped
from loopwright.kernel.references import hidden_word
from loopwright.kernel.signal import without_signal
from loopwright.kernel.snapshots import (
    after_body,
    after_checks,
    after_run,
    after_step,
    before_run,
    is_last_under_way,
    iteration_snapshot,
    protect_verdict,
    protected_result,
    run_verdict,
    unverifiable,
    violation,
)
from loopwright.kernel.state import KernelServices, State
from loopwright.model.checks import SpendCheck


def settle(state: State, services: KernelServices, at: int = 0) -> list[AnyEvent]:
    """Everything that follows now, already folded into the state; `at` is the time."""
    if at > state.now:
        state.now = at
    new: list[AnyEvent] = close_stale(state) if state.queues.stale else []
    if state.queues.lost:
        new += close_lost(state)
    for event in new:
        apply(state, event)
    while state.queues.agenda or (state.queues.slots and _use_free_slot(state)):
        owner = state.queues.agenda.popleft()
        owner.queued = False
        if owner.closed:
            continue
        for event in decide(state, owner, services):
            apply(state, event)
            new.append(event)
    return new


def _use_free_slot(state: State) -> bool:
    """Decide about a call that waits for a concurrency slot when there is one.

    A step that was considered before may not have needed the slot.
    """
    free_slot(state)
    return bool(state.queues.agenda)


def decide(state: State, owner: Owner, services: KernelServices) -> list[AnyEvent]:
    """What follows for one owner; nothing when it waits."""
    if state.finished is not None or state.started is None:
        return []
    if state.control.cancel is not None:
        return _cancelled(state)
    if state.snapshots.on and not state.snapshots.taken and owner is not state.root:
        return []
    # By type, which is quicker than asking for each class in turn: this is done for every event.
    if type(owner) is IterationOwner:
        return _decide_iteration(state, owner, services)
    if type(owner) is StepOwner:
        return _decide_step(state, owner, services)
    assert type(owner) is RunOwner
    return _decide_run(state, owner, services)


def _begins_anew(owner: StepOwner, ended: Result) -> bool:
    """Whether a failed step of many parts is tried again as a whole. Only a policy that speaks of
    any failure does that; one that names failures is about the calls inside. The time of a step is
    that of all its tries.
    """
    retry = owner.step.retry
    if owner.deadline_hit:
        return False
    if isinstance(owner.body, LeafBody) or ended.status != "failed" or "any" not in retry.on:
        return False
    stopped = ended.error is not None and not is_retried(retry, ended.error)
    return owner.tries - owner.first_try + 1 < retry.attempts and not stopped


def _cancelled(state: State) -> list[AnyEvent]:
    assert state.control.cancel is not None
    if state.snapshots.on and not state.snapshots.skip_last and is_last_under_way(state):
        return []
    why = state.control.cancel.reason
    events = close_inside(state, state.root, why)
    if state.snapshots.on:
        last = after_run(state, state.root, cut_off=True)
        if last is not None:
            return [*events, *last]
    events += close_mail(state, why, "workflow-cancelled", resumable=True)
    events.append(RunFinished(at=state.now, outcome="cancelled", reason=why))
    return events


def _decide_run(state: State, owner: RunOwner, services: KernelServices) -> list[AnyEvent]:
    talk = correspond(state, services)
    ended = deadline_result(state, owner)
    if state.snapshots.on:
        waits = _snapshot_of_run(state, owner, ended)
        if waits is not None:
            return [*waits, *talk]
        ended = ended or unverifiable(state)
    ended = ended or dispatch.outcome(state, owner.body, services)
    if ended is None:
        return [
            *request_deadline(state, owner),
            *dispatch.next_events(state, owner.body, services),
            *talk,
        ]
    ended = run_result(state.plan, owner.body, ended)
    events = close_inside(state, owner, ended.reason)
    if state.snapshots.on:
        last = after_run(state, owner, cut_off=owner.deadline_hit)
        if last is not None:
            return [*events, *last, *talk]
        ended = run_verdict(state, ended)
    waits = None if owner.deadline_hit else last_words(state)
    if waits is not None:
        return [*events, *talk, *waits]
    unread: DropReason = "hold-timeout" if state.mail.coordinator.held else "run-ended"
    events += close_mail(state, ended.reason, unread, resumable=ended.status in REOPENED)
    events.append(
        RunFinished(
            at=state.now,
            outcome="completed" if ended.status == "skipped" else ended.status,
            reason=ended.reason,
            output=state.mail.coordinator.summary or ended.output,
            result=ended.result,
            error=ended.error,
        )
    )
    return events


def _snapshot_of_run(state: State, owner: RunOwner, ended: Result | None) -> list[AnyEvent] | None:
    """What a run waits for: its first snapshot, and its last one when all else has ended."""
    if state.snapshots.taken:
        return [] if owner.inside in state.snapshots.asked else None
    first = None if ended is not None else before_run(state, owner)
    return None if first is None else [*request_deadline(state, owner), *first]


def _cut_off(state: State, owner: StepOwner, ended: Result) -> list[AnyEvent]:
    """What ends everything that is open in a step whose own time, or that of its loop, is up. The
    timer of a step that may be tried again stays.
    """
    if owner.deadline_hit:
        return close_inside(state, owner, ended.reason)
    body = owner.body
    if isinstance(body, RepeatBody) and body.deadline_hit and body.action.each is None:
        return close_try(state, owner, ended.reason)
    return []


def _decide_step(state: State, owner: StepOwner, services: KernelServices) -> list[AnyEvent]:
    late = None
    if state.mail.stopped or owner.deadline_hit:
        late = stopped(state, owner) or deadline_result(state, owner)
    ended = late or dispatch.outcome(state, owner.body, services)
    if ended is None:
        new = dispatch.next_events(state, owner.body, services)
        if not state.plan_index.has_wall:
            return new
        return [*request_deadline(state, owner), *new]
    if state.snapshots.on:
        cut_off = _cut_off(state, owner, ended)
        next_events = after_step(state, owner, cut_off) if late is None or cut_off else None
        if next_events is not None:
            return next_events
        if late is None:
            ended = protected_result(state, owner, ended)
    following = check_blocked_step(state, owner, ended, services)
    if isinstance(following, StepRetried):
        return [*close_try(state, owner, ended.reason), following]
    if not isinstance(following, Result):
        return following
    ended = following
    if _begins_anew(owner, ended):
        again = StepRetried(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            attempt=owner.tries + 1,
            error=ended.error,
        )
        return [*close_try(state, owner, ended.reason), again]
    events = [*stop_delivered(state, owner), *close_inside(state, owner, ended.reason)]
    events.append(
        StepFinished(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            status=ended.status,
            reason=ended.reason,
            output=ended.output,
            result=ended.result,
            error=ended.error,
            iterations=ended.iterations,
            usage=owner.spent.usage,
        )
    )
    return events


def _decide_iteration(
    state: State, owner: IterationOwner, services: KernelServices
) -> list[AnyEvent]:
    """What follows for an iteration."""
    late = None  # asked only where it can be: this is done for every event of an iteration
    if state.mail.stopped or owner.deadline_hit:
        late = stopped(state, owner) or deadline_result(state, owner)
    if owner.number >= 0:
        ended = late or dispatch.outcome(state, owner.body, services)
    else:  # before the first iteration only the checks are asked: there is no body to wait for
        ended = late or Result("completed")
    if ended is None:
        following = dispatch.next_events(state, owner.body, services)
        if not state.plan_index.has_wall:
            return following
        return [*request_deadline(state, owner), *following]
    if state.snapshots.on:
        cut_off = close_inside(state, owner, ended.reason) if owner.deadline_hit else []
        next_events = after_body(state, owner, cut_off) if late is None or cut_off else None
        if next_events is not None:
            return next_events
    if ended.status != "completed" or owner.parent.action.each is not None:
        return _finish_iteration(state, owner, ended, ChecksDecision("fail", ended.reason))
    return _judge_iteration(state, owner, ended, services)


def _finish_iteration(
    state: State, owner: IterationOwner, ended: Result, settled: ChecksDecision
) -> list[AnyEvent]:
    events = stop_delivered(state, owner) if state.mail.stopped else []
    events += close_inside(state, owner, settled.reason or ended.reason)
    status, error, reason = ended.status, ended.error, settled.reason
    if settled.verdict == "rejected":
        status, error = "failed", Failure(type="rejected", detail=settled.reason)
        reason = "rejected"
    elif settled.verdict == "broken":
        status, error = "failed", Failure(type="check_broken", detail=settled.reason)
        reason = "check_broken"
    elif settled.verdict == "pass" and settled.reason == check_name(SpendCheck):
        detail = f"spent {owner.parent.spent.usd:.4f} USD"
        status, error, reason = "exhausted", Failure(type="budget", detail=detail), "budget"
    body = owner.body
    leaf = same = False
    if type(body) is LeafBody or type(body) is CycleBody:
        leaf, same = True, ended.output == dispatch.output_of(body)[0]
    silent = not reason and ended.reason == "idle_timeout"
    seen = iteration_snapshot(state, owner) if state.snapshots.on else None
    events.append(
        IterationFinished(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            status=status,
            done=settled.verdict == "pass" and status == "completed",
            reason=ended.reason if silent else reason,
            output=None if same else ended.output,
            result=None if leaf else ended.result,
            error=error,
            ms=state.now - owner.started_at - owner.idle_ms,
            tree=state.snapshots.last if seen is None else seen.tree,
            changed=seen.changed if seen is not None else None,
        )
    )
    return events


def _judge_iteration(
    state: State, owner: IterationOwner, ended: Result, services: KernelServices
) -> list[AnyEvent]:
    """Run the checks one after the other until they have decided."""
    protected = protect_verdict(state, owner) if state.snapshots.on else []
    if protected:
        return protected
    loop = owner.parent.action
    weighed = combine_verdicts(loop.until, owner.checks.verdicts, order=loop.checks)
    if type(weighed) is ChecksDecision:
        if weighed.verdict == "pass" and (next_events := after_checks(state, owner)):
            return next_events
        return _settled(state, owner, ended, weighed, services)
    assert type(weighed) is DueCheck
    return run_check(state, owner, ended, weighed, services)


def _settled(
    state: State,
    owner: IterationOwner,
    ended: Result,
    settled: ChecksDecision,
    services: KernelServices,
) -> list[AnyEvent]:
    seen = _without_signal(state, owner, ended, services)
    if settled.verdict in ("rejected", "broken"):
        wanted = "rejected" if settled.verdict == "rejected" else "error"
        words = next((note.evidence for note in owner.checks.notes if note.verdict == wanted), "")
        settled = ChecksDecision(settled.verdict, services.read(words))
        return _finish_iteration(state, owner, seen, settled)
    if settled.verdict == "pass" and settled.reason != check_name(SpendCheck) and violation(state):
        settled = ChecksDecision("fail")
    if owner.parent.action.gate is None or not is_gated(owner, settled):
        return _finish_iteration(state, owner, seen, settled)
    following = gate_after_iteration(state, owner, seen, settled, services)
    if isinstance(following, IterationEnd):
        return _finish_iteration(state, owner, following.ended, following.settled)
    return following


def _without_signal(
    state: State, owner: IterationOwner, ended: Result, services: KernelServices
) -> Result:
    """The visible output of an iteration: signals to its loop are left out."""
    word = hidden_word(owner) if state.plan_index.has_signals else None
    if word is None or ended.output is None:
        return ended
    result = services.read(ended.output)
    seen = without_signal(result, word)
    return ended if seen == result else msgspec.structs.replace(ended, output=services.keep(seen))
