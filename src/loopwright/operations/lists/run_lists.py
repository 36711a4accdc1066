"""Lists of runs and gates, from the rows that are written with the events: no log is folded.

Commands that only list import little beside this module.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from loopwright.errors import StorageError
from loopwright.kernel.event_parts import Worktree
from loopwright.model.plan import stored_content
from loopwright.model.record import Text
from loopwright.ports import (
    APPLIED,
    CHAT_SURFACE,
    NO_SUBJECT,
    EventLog,
    GateSubject,
    ListedFigures,
    OpenGate,
    RunDetails,
    RunRow,
)
from loopwright.views.event_records import timestamp
from loopwright.views.formats import figures_amounts
from loopwright.views.run_responses import (
    InboxGate,
    RunItem,
    WorktreeView,
    changed_tree,
    gate_call,
    gate_exposure,
    workspace_changes,
)

NO_FIGURES = ListedFigures()
ReadText = Callable[[Text | None], str]


def driver_pid(log: EventLog, row: RunRow) -> int | None:
    """The living process that drives a run."""
    return row.owner.pid if row.owner is not None and log.alive(row.owner) else None


def is_left_behind(log: EventLog, row: RunRow) -> bool:
    """Whether a run should be running and no process drives it."""
    return row.headline.status == "running" and driver_pid(log, row) is None


def run_item(log: EventLog, row: RunRow) -> RunItem:
    """A run as a line of a list; a run with damaged events must not hide the others."""
    damage: str | None = None
    figures, details = row.figures or NO_FIGURES, row.details or RunDetails()
    try:
        log.check_end(row.run)
        if row.figures is None or row.details is None:
            figures, details = _computed(log, row.run)
    except StorageError as error:
        if error.code != "damaged":
            raise
        figures, damage = NO_FIGURES, error.message
    head, driver = row.headline, driver_pid(log, row)
    return RunItem(
        run=row.run,
        name=head.name,
        status=head.status,
        reason=head.reason,
        iterations=figures.iterations,
        max=figures.max,
        usage=figures_amounts(figures),
        gates=0 if damage else row.gates,
        damaged=damage,
        driver=driver,
        left_behind=head.status == "running" and driver is None,
        waits_for=figures.waits_for,
        dialect=head.dialect,
        workspace=head.workspace,
        worktree=None if damage else worktree_view(details.worktree, row),
        changed=changed_tree(figures),
        started_at=timestamp(head.started_at),
        updated_at=timestamp(head.updated_at),
        finished_at=timestamp(head.finished_at) if head.finished_at else None,
    )


def _computed(log: EventLog, run: str) -> tuple[ListedFigures, RunDetails]:
    """What the row of an older version does not have, where it cannot be stored."""
    from loopwright.operations.lists.old_runs import listing_of  # noqa: PLC0415 - rarely needed

    listing = listing_of(log, run)
    return listing.figures, listing.details


def _computed_subject(log: EventLog, gate: OpenGate) -> GateSubject:
    """What a gate is about; nothing if the events of its run are damaged, whose gates are listed
    all the same.
    """
    from loopwright.operations.lists.old_runs import listing_of  # noqa: PLC0415 - rarely needed

    try:
        found = {one.gate: one.subject for one in listing_of(log, gate.run).open_gates}
    except StorageError as error:
        if error.code != "damaged":
            raise
        return NO_SUBJECT
    return found.get(gate.gate) or NO_SUBJECT


def list_old_runs(log: EventLog) -> list[str]:
    """Store what lists show of runs that an older version recorded, one run after the other.
    Returns the runs for which that was not possible.
    """
    if not (old := log.unlisted()):
        return []
    from loopwright.operations.lists.old_runs import store_listings  # noqa: PLC0415 - rarely needed

    return store_listings(log, old)


def worktree_view(found: Worktree | None, row: RunRow) -> WorktreeView | None:
    """The worktree of a run; it does not exist any more after `discard`."""
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


def read_text(log: EventLog, text: Text | None) -> str:
    """A text of an event, whole."""
    if text is None or isinstance(text, str):
        return text or ""
    return stored_content(log.blob, text.blob).decode()


def inbox_gates(log: EventLog, gates: Iterable[OpenGate], read: ReadText) -> list[InboxGate]:
    """Open gates as rows of the inbox; a question about a tool call with that call. A chat that
    waits for the next message of its person is not one of them.
    """
    rows: dict[str, RunRow] = {}
    found: list[InboxGate] = []
    for gate in gates:
        if gate.run not in rows:
            rows[gate.run] = log.row(gate.run)
        head = rows[gate.run].headline
        item = _inbox_gate(log, gate, head.name, read)
        if item.call is not None or head.surface != CHAT_SURFACE:
            found.append(item)
    return found


def _inbox_gate(log: EventLog, gate: OpenGate, name: str, read: ReadText) -> InboxGate:
    subject = gate.subject or _computed_subject(log, gate)
    call = None if subject.call is None else gate_call(subject.call, read)
    marks, shown = gate_exposure(gate.message, call)
    return InboxGate(
        id=gate.gate,
        run=gate.run,
        name=name,
        path=gate.path,
        message=gate.message,
        digest=gate.digest,
        opened_at=timestamp(gate.opened_at),
        call=call,
        marks=marks,
        shown=shown,
        snapshot=None if subject.snapshot is None else workspace_changes(subject.snapshot),
    )
