"""Lists of runs and gates, and one run in detail, as plain values for every interface."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.event_parts import Usage, Worktree
from loopwright.kernel.events import GateAnswered
from loopwright.kernel.snapshots import has_unrecorded
from loopwright.kernel.state import State
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits
from loopwright.operations.runs import Service
from loopwright.operations.workspace_rules import enforced_levels
from loopwright.ports import APPLIED, CHAT_SURFACE, EventLog, OpenGate, RunRow
from loopwright.views.event_records import timestamp
from loopwright.views.formats import UsageAmounts, run_amounts, usage_amounts
from loopwright.views.iterations import (
    change_counts,
    iterations,
    most_iterations,
    workspace_changes,
)
from loopwright.views.progress import IterationSeen
from loopwright.views.run_responses import (
    ChangedDependency,
    ChangedTree,
    CheckView,
    Decided,
    ForkOrigin,
    InboxGate,
    IterationItem,
    ResumedItem,
    RunItem,
    RunLimits,
    RunMessageItem,
    RunSnapshot,
    WorktreeView,
)
from loopwright.views.run_view import MessageView, Resumed, RunView
from loopwright.views.status_text import goal, next_commands, waits_for
from loopwright.views.summary import final_line, gate_exposure, requested_call, summary


def driver_pid(log: EventLog, row: RunRow) -> int | None:
    """The living process that drives a run."""
    return row.owner.pid if row.owner is not None and log.alive(row.owner) else None


def is_left_behind(log: EventLog, row: RunRow) -> bool:
    """Whether a run should be running and no process drives it."""
    return row.headline.status == "running" and driver_pid(log, row) is None


@dataclass(frozen=True, slots=True)
class RunListFigures:
    """What a line of a list takes from the events of a run. Much smaller than its state."""

    iterations: int
    max: int | None
    usage: UsageAmounts
    gates: int
    changed: ChangedTree | None
    worktree: Worktree | None
    waits_for: str | None = None


_NO_FIGURES = RunListFigures(0, None, usage_amounts(Usage(), called=False), 0, None, None)


def run_figures(state: State) -> RunListFigures:
    """The figures of a run, from its state."""
    return RunListFigures(
        iterations=iterations(state),
        max=most_iterations(state),
        usage=run_amounts(state),
        gates=len(state.gates),
        changed=_changed(state),
        worktree=state.started.worktree if state.started else None,
        waits_for=waits_for(state),
    )


def run_item(service: Service, row: RunRow) -> RunItem:
    """A run as a line of a list; a run with damaged events must not hide the others."""
    try:
        return item(service.log, row, run_figures(service.state(row.run)))
    except StorageError as error:
        if error.code != "damaged":
            raise
        return item(service.log, row, None, error.message)


def item(
    log: EventLog, row: RunRow, figures: RunListFigures | None, damage: str | None = None
) -> RunItem:
    """A run as a line of a list, from figures that are known already."""
    head, shown = row.headline, figures or _NO_FIGURES
    return RunItem(
        run=row.run,
        name=head.name,
        status=head.status,
        reason=head.reason,
        iterations=shown.iterations,
        max=shown.max,
        usage=shown.usage,
        gates=shown.gates,
        damaged=damage,
        driver=driver_pid(log, row),
        left_behind=is_left_behind(log, row),
        waits_for=shown.waits_for,
        dialect=head.dialect,
        workspace=head.workspace,
        worktree=_worktree(shown.worktree, row),
        changed=shown.changed,
        started_at=timestamp(head.started_at),
        updated_at=timestamp(head.updated_at),
        finished_at=timestamp(head.finished_at) if head.finished_at else None,
    )


def _worktree(found: Worktree | None, row: RunRow) -> WorktreeView | None:
    """The worktree of a run; `exists` is false after `discard`."""
    if found is None:
        return None
    return WorktreeView(
        branch=found.branch,
        folder=found.folder,
        repository=found.repository,
        exists=Path(found.folder).is_dir(),
        applied=_is_applied(found.folder, row),
    )


def _is_applied(folder: str, row: RunRow) -> bool:
    """Whether a result was applied after the last thing that happened in its run."""
    try:
        at = Path(folder + APPLIED).stat().st_mtime_ns // 1_000_000
    except OSError:
        return False
    return at >= row.headline.updated_at


def inbox_items(service: Service, gates: Iterable[OpenGate] | None = None) -> list[InboxGate]:
    """The rows of the inbox, oldest first, or of some gates; a question about a tool call with that
    call. A chat that waits for the next message of its person is not one of them.
    """
    states: dict[str, State | None] = {}
    items: list[InboxGate] = []
    for gate in service.gates() if gates is None else gates:
        if gate.run not in states:
            states[gate.run] = _whole_state(service, gate.run)
        state, row = states[gate.run], service.log.row(gate.run)
        found = state.gates.get(gate.gate) if state is not None else None
        call = requested_call(found, service.read_text) if found is not None else None
        if call is None and row.headline.surface == CHAT_SURFACE:
            continue
        marks, shown = gate_exposure(gate.message, call)
        snapshot = found.snapshot if found is not None else None
        one = InboxGate(
            id=gate.gate,
            run=gate.run,
            name=row.headline.name,
            path=gate.path,
            message=gate.message,
            digest=gate.digest,
            opened_at=timestamp(gate.opened_at),
            call=call,
            marks=marks,
            shown=shown,
            snapshot=workspace_changes(snapshot) if snapshot is not None else None,
        )
        items.append(one)
    return items


def _whole_state(service: Service, run: str) -> State | None:
    """The state of a run; one that is damaged must not hide the questions of the others."""
    try:
        return service.state(run)
    except StorageError as error:
        if error.code != "damaged":
            raise
        return None


def run_detail(service: Service, run: str) -> RunSnapshot:
    """One run: its summary, and what a person wants to know besides."""
    picture = RunView(service, run)
    picture.carry_on()
    return detail(service, picture)


def detail(service: Service, picture: RunView) -> RunSnapshot:
    """One run as a picture shows it, with the number of its newest event."""
    row, state, forked = service.log.row(picture.run), picture.state, picture.forked
    head, plan = row.headline, state.plan
    left_behind = is_left_behind(service.log, row)
    worktree = _worktree(state.started.worktree if state.started else None, row)
    return RunSnapshot(
        seq=picture.seen,
        **msgspec.structs.asdict(summary(state, service.read_text)),
        forked=ForkOrigin(forked.parent, forked.place) if forked else None,
        resumed=[_resumed_item(one) for one in picture.resumed],
        sandbox=enforced_levels(plan),
        agents={name: _backend(agent) for name, agent in plan.agents.items() if agent.spec},
        limits=_limits(plan.limits),
        protect=list(plan.workspace.protect),
        env=list(plan.pass_env),
        name=head.name,
        headline=final_line(
            state, left_behind=left_behind, now_ms=None if left_behind else service.clock.now_ms()
        ),
        goal=goal(state),
        max=most_iterations(state),
        passes=[_iteration_item(seen) for seen in picture.passes],
        passes_before=picture.passes_before,
        activity=picture.progress.total_activity.summary(),
        decisions=[_decision_item(one) for one in picture.decisions],
        messages=[_message_item(service, one) for one in picture.messages.values()],
        graph=picture.graph(),
        driver=driver_pid(service.log, row),
        left_behind=left_behind,
        waits_for=waits_for(state),
        dialect=head.dialect,
        workspace=head.workspace,
        worktree=worktree,
        started_at=timestamp(head.started_at),
        updated_at=timestamp(head.updated_at),
        finished_at=timestamp(head.finished_at) if head.finished_at else None,
        changed=_changed(state),
        changed_dependencies=[ChangedDependency(*one) for one in picture.dependencies],
        next=_next(state, row, worktree, left_behind=left_behind),
    )


def _changed(state: State) -> ChangedTree | None:
    """What the whole run changed, as far as its snapshots tell."""
    latest = state.snapshots.latest
    if latest is None or (not latest.total.files and has_unrecorded(state)):
        return None  # that nothing changed is not known
    total = latest.total
    return ChangedTree(latest.tree, total.files, total.insertions, total.deletions)


def _next(
    state: State, row: RunRow, worktree: WorktreeView | None, *, left_behind: bool
) -> list[str]:
    """A run that no process drives any more has to be taken up before anything else."""
    if left_behind:
        return [f"loopwright resume {row.run}", f"loopwright stop {row.run}"]
    if worktree is None or row.headline.finished_at is None:
        return [*next_commands(state)]
    if not worktree.exists:  # nothing of it can be resumed
        return [f"loopwright logs {row.run}"]
    verb = "discard" if worktree.applied else "apply"
    return [f"loopwright {verb} {row.run}", *next_commands(state)]


def _limits(limits: Limits) -> RunLimits:
    return RunLimits(
        usd=limits.usd, tokens=limits.tokens, time_ms=limits.wall_ms, idle_ms=limits.idle_ms
    )


def _backend(agent: Agent) -> str:
    return f"{agent.spec} ({agent.model})" if agent.model else str(agent.spec)


def _resumed_item(one: Resumed) -> ResumedItem:
    return ResumedItem(
        at=timestamp(one.event.at),
        by=one.event.by,
        restarted=one.event.mode == "restart",
        point=one.point,
    )


def _decision_item(answered: GateAnswered) -> Decided:
    return Decided(
        gate=answered.gate,
        path=answered.path,
        decision=answered.decision,
        text=answered.text,
        by=answered.by,
        at=timestamp(answered.at),
    )


def _message_item(service: Service, told: MessageView) -> RunMessageItem:
    sent = told.sent
    return RunMessageItem(
        message=sent.message,
        by=sent.sender,
        to=sent.to,
        text=service.read_text(sent.text),
        state=told.state,
        at=timestamp(sent.at),
    )


def _status_words(seen: IterationSeen) -> str:
    """What an agent says of its own state while it does nothing else."""
    is_waiting = seen.status == "running" and seen.status_line
    return f"(the agent's status: {seen.status_line})" if is_waiting else ""


def _iteration_item(seen: IterationSeen) -> IterationItem:
    return IterationItem(
        path=seen.path,
        iteration=seen.number,
        status=seen.status,
        done=seen.done,
        learning=seen.learning or _status_words(seen),
        error=seen.error or None,
        activity=seen.activity.summary(),
        tree=seen.tree or None,
        changed=change_counts(seen.changed) if seen.changed is not None else None,
        usage=usage_amounts(seen.usage),
        checks=[CheckView(one.label, one.verdict, one.evidence, one.by) for one in seen.checks],
    )
