"""Snapshots of the workspace: when one is due, what its answer changes, and protected files.

A snapshot is an effect. One is requested at the start of a run, one after the body of each
iteration and before its checks, and one after each step in which something may have written. A
snapshot whose answer was recorded is never taken again. If snapshots are off, this module adds
no events.

When a stop or a time limit cuts off a call that may have written, a last snapshot is taken
before the run ends. Its time is limited, so that it does not delay the stop, and a second stop
ends the run without it.

Protected files are compared with the baseline: the first snapshot, or the tree that a person
last accepted, at a gate or when the run was resumed. If files are protected and a snapshot
fails, nothing completes.
"""

from collections.abc import Iterable, Sequence

import msgspec

from loopwright.kernel.event_parts import (
    AgentCall,
    CommandCall,
    Failure,
    Snapshot,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
)
from loopwright.kernel.frames import (
    GateState,
    IterationOwner,
    LeafBody,
    Owner,
    Result,
    RunOwner,
    StepOwner,
)
from loopwright.kernel.state import PendingEffect, State, enclosing_iteration, request_effect
from loopwright.model.actions import AskPerson, StopRun, Wait
from loopwright.model.checks import leaves
from loopwright.model.ids import SNAPSHOT, CheckPurpose

PROTECT = "protect"
"""The name of the check that protected files are unchanged."""

PROTECTED = "protected"
"""Why a run or a step failed that changed protected files."""

NAMED = 5
"""So many files are named in a sentence; the event has more of them."""

UNRECORDED = "/"
"""The end of names in `outside` that are protected files which no snapshot has; twice for the state
that differs from the baseline.
"""

CUT_OFF_MS = 4_000
"""How long the last snapshot may take after a stop or a time limit."""

SHOWN_PATHS = 20
"""So many changed files are kept with a gate."""


# -- when one is due -------------------------------------------------------------------------------


def before_run(state: State, owner: RunOwner) -> list[AnyEvent] | None:
    """The snapshot before anything else of a run; None when it is there."""
    if state.snapshots.taken:
        return None
    if owner.inside in state.snapshots.asked or state.control.paused:
        return []
    return [_asked(state, owner, state.snapshots.last)]


def after_run(state: State, owner: RunOwner, *, cut_off: bool = False) -> list[AnyEvent] | None:
    """The last snapshot of a run, where something may have written since the one before: calls
    that have ended, and calls and snapshots that are withdrawn now. `cut_off`: its time is limited.
    """
    known = state.snapshots
    if known.skip_last:
        return None
    if not known.taken or not (known.written or known.asked or _has_writers(state)):
        return None
    return [_asked(state, owner, known.last, within_ms=CUT_OFF_MS if cut_off else 0)]


def is_last_under_way(state: State) -> bool:
    """Whether a run that was stopped, or whose time is up, waits for its last snapshot."""
    pending = state.pending.get(state.snapshots.asked.get(state.root.inside, ""))
    return (
        pending is not None
        and isinstance(pending.call, SnapshotCall)
        and bool(pending.call.within_ms)
    )


def after_step(
    state: State, owner: StepOwner, cut_off: Sequence[AnyEvent] = ()
) -> list[AnyEvent] | None:
    """The snapshot after a step; None when none is needed, or when it is there. `cut_off` ends what
    is open inside a step whose time is up: the snapshot comes after it.
    """
    if owner.inside in state.snapshots.asked:
        return []
    if not state.snapshots.written and not _has_writers(state, cut_off):
        return None
    return [*cut_off, _asked(state, owner, state.snapshots.last)]


def after_body(
    state: State, owner: IterationOwner, cut_off: Sequence[AnyEvent] = ()
) -> list[AnyEvent] | None:
    """The snapshot after the body of an iteration, before its checks; None when none is needed, or
    when it is there. A turn of a conversation inside a step is not an iteration. `cut_off` ends
    what is open inside an iteration whose time is up: the snapshot comes after it.
    """
    known = state.snapshots
    if owner.inside in known.asked:
        return []
    if owner.number < 0 or owner.parent.call is not None or owner.path in known.iterations:
        return None
    if owner.checks.notes or owner.checks.pending or owner.checks.answer or owner.gate:
        return None
    before, count = known.before.get(owner.path, (known.last, known.count))
    if not known.written and count == known.count and not _has_writers(state, cut_off):
        return None
    return [*cut_off, _asked(state, owner, before)]


def after_checks(state: State, owner: IterationOwner) -> list[AnyEvent]:
    """The snapshot after checks that passed, where they may have changed protected files: such an
    iteration does not pass. Empty when none is needed.
    """
    known = state.snapshots
    if not known.on or not known.written or not state.plan.workspace.protect:
        return []
    if owner.number < 0 or owner.parent.call is not None or violation(state):
        return []
    before, _ = known.before.get(owner.path, (known.last, known.count))
    return [_asked(state, owner, before)]


def _asked(state: State, owner: Owner, previous: str, *, within_ms: int = 0) -> EffectRequested:
    known, policy = state.snapshots, state.plan.workspace
    call = SnapshotCall(
        previous=previous,
        first=known.first,
        baseline=known.baseline,
        protect=policy.protect,
        watch=known.watch,
        outside=known.latest.outside if known.latest is not None else (),
        within_ms=within_ms,
    )
    return request_effect(state, owner, SNAPSHOT, known.count + 1, call)


# -- folding ---------------------------------------------------------------------------------------


def snapshot_requested(state: State, pending: PendingEffect) -> None:
    known = state.snapshots
    known.asked[pending.owner.inside] = pending.effect
    known.count = pending.attempt
    known.written = False


def snapshot_answered(
    state: State, pending: PendingEffect, event: EffectDone | EffectFailed
) -> None:
    known, owner = state.snapshots, pending.owner
    known.asked.pop(pending.path, None)
    if isinstance(event, EffectFailed) and event.error.type == "cancelled":
        known.written = True  # its result was no longer needed; the next one covers it
        return
    snapshot = event.snapshot if isinstance(event, EffectDone) else None
    if snapshot is None:
        known.problem = event.error.detail if isinstance(event, EffectFailed) else "it has no tree"
        known.failed_since = known.failed_since or event.iteration or 0
    else:
        known.problem, known.failed_since = "", 0
        known.latest, known.last = snapshot, snapshot.tree
        known.first = known.first or snapshot.tree
        known.baseline = known.baseline or snapshot.tree
    if isinstance(owner, RunOwner):
        known.taken = True
        for waiting in list(state.owners.values()):
            state.touch(waiting)
    elif isinstance(owner, IterationOwner):
        known.iterations[owner.path] = snapshot


def stopped_again(state: State) -> None:
    """The run ends without its last snapshot when it is stopped once more meanwhile."""
    if is_last_under_way(state):
        state.snapshots.skip_last = True


def note_writer(state: State, pending: PendingEffect) -> None:
    """An effect has ended that may have written to the workspace. Checks count where files are
    protected: then the last snapshot comes after them.
    """
    if _counts(state, pending):
        state.snapshots.written = True


def _counts(state: State, pending: PendingEffect) -> bool:
    is_check = isinstance(pending.purpose, CheckPurpose)
    return _may_write(pending) and (not is_check or bool(state.plan.workspace.protect))


def _has_writers(state: State, ended: Iterable[AnyEvent] | None = None) -> bool:
    """Whether calls are under way that may write; of those that these events end, if given."""
    pending = state.pending.values()
    if ended is not None:
        effects = {one.effect for one in ended if isinstance(one, EffectFailed)}
        return any(one.effect in effects and _counts(state, one) for one in pending)
    return any(_counts(state, one) for one in pending)


def _may_write(pending: PendingEffect) -> bool:
    call = pending.call
    if isinstance(call, AgentCall):
        return call.role not in ("judge", "goal", "coordinator")
    return isinstance(call, ToolCall | CommandCall)


def has_unrecorded(state: State) -> bool:
    """Whether something may have written since the last snapshot: a call that was ended early, one
    that is running, or one whose snapshot failed.
    """
    known = state.snapshots
    if not known.on or known.latest is None:
        return False
    return known.written or bool(known.problem) or _has_writers(state)


def iteration_begun(state: State, owner: IterationOwner) -> None:
    state.snapshots.before[owner.path] = (state.snapshots.last, state.snapshots.count)


def iteration_resumed(state: State, owner: IterationOwner) -> None:
    """The changes of an iteration include those of its earlier attempts. If a person changed the
    workspace between two attempts, they begin after that: those changes are not the agent's.
    """
    known = state.snapshots
    is_unchanged = known.latest is not None and known.latest.changed.files == 0
    if not is_unchanged or owner.path not in known.before:
        iteration_begun(state, owner)


def iteration_ended(state: State, owner: IterationOwner, *, completed: bool) -> None:
    state.snapshots.iterations.pop(owner.path, None)
    if completed:  # others may be resumed
        state.snapshots.before.pop(owner.path, None)


def begin_again(state: State, *, accept_changes: bool = False) -> None:
    """A run is reopened or forked: its workspace may have changed meanwhile, so a snapshot is taken
    first. The baseline of protected files stays: an agent may have changed them in a call that no
    snapshot followed. Only a person who accepts the changes makes that snapshot the baseline.
    """
    known = state.snapshots
    if known.on:
        known.taken = known.written = known.skip_last = False
        known.asked.clear()
        if accept_changes:
            known.baseline = ""
            if known.latest is not None:
                known.latest = without_violation(known.latest)


def accept(state: State, gate: GateState) -> None:
    """A person has approved: changes of protected files that the gate named are accepted."""
    known = state.snapshots
    if gate.call is not None or gate.effect or known.latest is None or not known.latest.protected:
        return
    known.baseline = known.latest.tree
    known.latest = without_violation(known.latest)


def without_violation(snapshot: Snapshot) -> Snapshot:
    """The snapshot after a person has accepted the changes of protected files."""
    outside = snapshot.outside
    accepted = {path[:-1]: state for path, state in outside if path.endswith(UNRECORDED * 2)}
    if accepted:
        kept = {path: state for path, state in outside if not path.endswith(UNRECORDED * 2)}
        outside = tuple({**kept, **accepted}.items())
    return msgspec.structs.replace(snapshot, protected=(), protected_count=0, outside=outside)


# -- protected files -------------------------------------------------------------------------------


def violation(state: State) -> str:
    """Why protected files do not let anything complete now, in words; empty where they do."""
    known = state.snapshots
    if not known.on or not state.plan.workspace.protect:
        return ""
    if known.problem:
        return f"protected files could not be verified: {known.problem}"
    latest = known.latest
    if latest is None or not latest.protected:
        return ""
    return f"protected files changed: {name_files(latest.protected, latest.protected_count)}"


def name_files(paths: tuple[str, ...], count: int) -> str:
    """The first files of a list, and how many others there are."""
    named = ", ".join(paths[:NAMED])
    others = max(count, len(paths)) - min(len(paths), NAMED)
    return f"{named} and {others} more" if others > 0 else named


def protect_verdict(state: State, owner: IterationOwner) -> list[AnyEvent]:
    """The verdict about protected files, once in each iteration that changed them."""
    words = violation(state)
    if not words or owner.number < 0 or any(note.check == PROTECT for note in owner.checks.notes):
        return []
    return [
        CheckVerdict(
            at=state.now,
            path=owner.path,
            iteration=owner.iteration,
            index=len(leaves(owner.parent.action.until)),
            check=PROTECT,
            verdict="fail",
            evidence=words,
            tree=state.snapshots.last,
        )
    ]


def protected_result(state: State, owner: StepOwner, ended: Result) -> Result:
    """A step outside of loops has no checks: it fails itself when protected files have changed,
    unless a person is asked right after it.
    """
    if ended.status != "completed" or enclosing_iteration(owner) is not None:
        return ended
    body = owner.body
    if isinstance(body, LeafBody) and isinstance(body.action, AskPerson | Wait | StopRun):
        return ended
    index = owner.parent.index
    following = (index.action.steps[n] for n in index.dependents[index.at[owner.step.id]])
    if any(isinstance(step.action, AskPerson) for step in following):
        return ended
    return run_verdict(state, ended)


def run_verdict(state: State, ended: Result) -> Result:
    """How a run or a step ended, once protected files are taken into account."""
    words = violation(state) if ended.status == "completed" else ""
    if not words:
        return ended
    error = Failure(PROTECTED, words)
    return msgspec.structs.replace(ended, status="failed", reason=PROTECTED, error=error)


def unverifiable(state: State) -> Result | None:
    """A run that names protected files and has no first snapshot does not begin."""
    known = state.snapshots
    if not state.plan.workspace.protect or not known.taken or known.first or not known.problem:
        return None
    return run_verdict(state, Result("completed"))


# -- what events and gates carry -------------------------------------------------------------------


def iteration_snapshot(state: State, owner: IterationOwner) -> Snapshot | None:
    """The snapshot after the body of an iteration, as far as there is one."""
    return state.snapshots.iterations.get(owner.path)


def gate_snapshot(state: State, owner: Owner) -> Snapshot | None:
    """What a person at a gate is shown of the changes: those of the iteration, else of the run."""
    shown = state.snapshots.latest
    if isinstance(owner, IterationOwner):
        shown = state.snapshots.iterations.get(owner.path) or shown
    if shown is None:
        return None
    paths = shown.paths[:SHOWN_PATHS]
    return msgspec.structs.replace(shown, paths=paths, omitted=(), outside=())
