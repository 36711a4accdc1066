"""Lists of runs and gates, from the rows that are written with the events: no log is folded.

Commands that only list import little beside this module.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from loopwright.agents.processes.process_marks import Presence
from loopwright.errors import LoopwrightError, NotFound, StorageError
from loopwright.kernel.event_parts import Worktree
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.model.plan import stored_content, stored_plan
from loopwright.model.record import Text
from loopwright.operations.accounts.access import find_caller, mark_origin
from loopwright.operations.api_types import LimitUsed, SpendAmount, SpendLine, SpendReport
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import SharedBudget, refuse_remote, unusable, user_records
from loopwright.ports import (
    APPLIED,
    CHAT_SURFACE,
    DAY_MS,
    NO_SUBJECT,
    OPEN_STATUSES,
    EventLog,
    GateSubject,
    ListedFigures,
    OpenGate,
    RunDetails,
    RunListing,
    RunRow,
    RunStatus,
    UsageRow,
)
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.syntax.notations import is_duration, parse_duration
from loopwright.views.event_records import timestamp
from loopwright.views.formats import cost_text, details_of, figures_amounts, money, usage_amounts
from loopwright.views.run_responses import (
    InboxGate,
    RunItem,
    RunTotal,
    WorktreeView,
    changed_tree,
    gate_call,
    gate_exposure,
    workspace_changes,
)

NO_FIGURES = ListedFigures()
ReadText = Callable[[Text | None], str]


def driver_pid(log: EventLog, row: RunRow) -> int | None:
    """The living process that drives a run; None of a run that has ended."""
    if row.owner is None or row.headline.status not in OPEN_STATUSES:
        return None
    return row.owner.pid if log.alive(row.owner) else None


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
    listing = listing_of(log, run)
    return listing.figures, listing.details


def _computed_subject(log: EventLog, gate: OpenGate) -> GateSubject:
    """What a gate is about; nothing if the events of its run are damaged, whose gates are listed
    all the same.
    """
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


def presence_of(settings: Settings) -> Presence:
    """Which owners of runs in this data directory are alive."""
    return Presence(settings.home / "owners")


def open_empty_log(stack: AsyncExitStack) -> SqliteLog:
    """A log without runs, for commands that read without a data directory."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - rarely needed

    folder = stack.enter_context(TemporaryDirectory(prefix="loopwright-"))
    return open_sqlite_log(Path(folder) / "empty.db", alive=lambda _: False)


def open_data_log(settings: Settings) -> SqliteLog:
    """The log in the data directory, which is made when it is not there."""
    refuse_remote(settings.home)
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise unusable(settings.home, error) from error
    alive, is_new = presence_of(settings).alive, not settings.database.exists()
    log = open_sqlite_log(settings.database, alive=alive, durability=settings.durability)
    if is_new and (inside := find_caller()) is not None:
        mark_origin(log, inside)
    user_records().add_data_directory(settings.home)
    return log


def listing_of(log: EventLog, run: str) -> RunListing:
    """Everything that lists show of a run, from its events."""
    from loopwright.kernel.events import GateAnswered, GateClosed, GateOpened, RunStarted  # noqa: PLC0415 - rarely needed
    from loopwright.kernel.fold import fold  # noqa: PLC0415 - rarely needed
    from loopwright.ports import headline  # noqa: PLC0415 - rarely needed

    events = [one.event for one in log.read(run)]
    first = events[0] if events else None
    if not isinstance(first, RunStarted):
        raise StorageError(f"the log of {run} has no beginning", code="damaged")
    plan = stored_plan(log.blob, first.plan)
    try:
        state = fold(plan, events)
    except (LookupError, ValueError) as error:
        words = f"the events of {run} cannot be followed: {error}"
        raise StorageError(words, code="damaged") from error
    opened = [one for one in events if isinstance(one, GateOpened) and one.gate in state.gates]
    return RunListing(
        version=len(events),
        headline=headline.headline_of(state),
        figures=headline.figures_of(state),
        details=details_of(plan, first),
        usage=headline.usage_rows(run, events),
        open_gates=headline.gate_changes(state, opened)[0],
        closed_gates=[
            headline.closed_gate(run, one)
            for one in events
            if isinstance(one, GateAnswered | GateClosed) and one.gate not in state.gates
        ],
    )


def store_listings(log: EventLog, runs: Sequence[str]) -> list[str]:
    """Store the listing of each run in a transaction of its own, so that an interruption loses
    nothing. Returns damaged runs. Where nothing can be written, nothing is stored.
    """
    left: list[str] = []
    for run in runs:
        try:
            log.replace_listing(run, listing_of(log, run))
        except (StorageError, NotFound) as error:
            if error.code == "read-only":
                break
            left.append(run)
    return left


class BudgetUse(NamedTuple):
    """What was used."""

    usd: float = 0.0
    tokens: int = 0
    unpriced: int = 0  # calls whose cost is unknown


class UsageLedger:
    """What the runs of a log have used, from the table that is written with their events."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._is_metered = False

    def used(self, since_day: int) -> BudgetUse:
        """Everything from a day on."""
        if not self._is_metered:
            list_old_runs(self._log)
            self._is_metered = True
        return budget_use(self._log.usage_sum(since_day))


def budget_use(usage: Usage) -> BudgetUse:
    return BudgetUse(round(usage.usd, 9), usage.tokens, usage.unpriced)


By: TypeAlias = Literal["agent", "definition", "label", "day"]
BYS: tuple[By, ...] = get_args(By)
NO_LABEL = "(no label)"
_HINT = "write a duration (7d, 12h), a date (2026-11-01), today or yesterday (UTC)"
_DAYS = {"today": 0, "yesterday": 1}


def since_ms(text: str, now_ms: int) -> int:
    """A moment as people write it: a duration before now, a date, or the beginning of a day."""
    if text in _DAYS:
        return (now_ms // DAY_MS - _DAYS[text]) * DAY_MS
    length = parse_duration(text)
    if length is not None and is_duration(length):
        return now_ms - length
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise LoopwrightError(f"--since cannot be {text!r}", code="bad-since", hint=_HINT) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


# -- runs of a list --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a list shows. `name` may hold `*`; without one it is a part of the name."""

    statuses: tuple[RunStatus, ...] = ()
    since: int | None = None  # started since then; milliseconds, epoch
    name: str = ""
    labels: tuple[str, ...] = ()  # all of them
    chats: bool | None = None  # True: chats only, False: no chats

    def fits(self, row: RunRow) -> bool:
        head = row.headline
        if self.since is not None and head.started_at < self.since:
            return False
        if self.chats is not None and (head.surface == "chat") != self.chats:
            return False
        return self._is_named(head.name.casefold()) and {*self.labels} <= {*head.labels}

    def _is_named(self, name: str) -> bool:
        wanted = self.name.casefold()
        return fnmatchcase(name, wanted) if "*" in wanted else wanted in name


def filtered_runs(
    log: EventLog, wanted: RunFilter, *, limit: int | None = None, before: str | None = None
) -> list[RunRow]:
    """The runs that fit, newest first."""
    list_old_runs(log)
    rows = log.rows(statuses=wanted.statuses, before=before)
    found = (row for row in rows if wanted.fits(row))
    return [row for row, _ in zip(found, range(limit), strict=False)] if limit else [*found]


def total_of(log: EventLog, rows: Sequence[RunRow]) -> RunTotal:
    """The number of these runs, the number of running ones, their usage, and which runs were
    recorded and are missing: no list is complete without those.
    """
    named = {row.run for row in rows}
    found = [one for one in log.usage() if one.run in named]
    usage = usage_amounts(sum((one.usage for one in found), NO_USAGE), called=bool(found))
    running = sum(row.headline.status == "running" for row in rows)
    return RunTotal(runs=len(rows), running=running, usage=usage, missing=[*log.missing()])


# -- what was spent --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    runs: set[str] = field(default_factory=set)
    calls: int = 0
    usage: Usage = NO_USAGE

    def add(self, row: UsageRow) -> None:
        self.runs.add(row.run)
        self.calls += row.calls
        self.usage = self.usage + row.usage

    def amount(self) -> SpendAmount:
        used = usage_amounts(self.usage, called=bool(self.calls))
        return SpendAmount(runs=len(self.runs), calls=self.calls, **msgspec.structs.asdict(used))


def spend(
    log: EventLog, *, by: By = "agent", since: int | None = None, budget: SharedBudget, now_ms: int
) -> SpendReport:
    """What all runs have used since a day (of UTC), and how much of the limits of all runs. A run
    with several labels counts for each of them, and once in the total.
    """
    left_out = list_old_runs(log)
    since_day = 0 if since is None else since // DAY_MS
    runs = {row.run: row for row in log.rows()}
    total, lines = _Line(), dict[str, _Line]()
    for row in log.usage(since_day):
        total.add(row)
        for name in _names(by, row, runs.get(row.run)):
            lines.setdefault(name, _Line()).add(row)
    started = (row.run for row in runs.values() if row.headline.started_at // DAY_MS >= since_day)
    return SpendReport(
        by=by,
        since=None if since is None else _date(since_day),
        lines=[
            SpendLine(name, **msgspec.structs.asdict(line.amount()))
            for name, line in _ordered(by, lines)
        ],
        total=total.amount(),
        runs_without_usage=len({*started} - total.runs),
        limits=limits_used(log, budget, now_ms),
        left_out=left_out,
    )


def _names(by: By, used: UsageRow, run: RunRow | None) -> Iterable[str]:
    match by:
        case "agent":
            details = run.details if run is not None else None
            return [used.agent if details is None else details.titles.get(used.agent, used.agent)]
        case "definition":
            return [run.headline.name if run is not None else used.run]
        case "day":
            return [_date(used.day)]
        case "label":
            return (run.headline.labels if run is not None else ()) or [NO_LABEL]


def _ordered(by: By, lines: dict[str, _Line]) -> list[tuple[str, _Line]]:
    """Days in their order, everything else by what it cost."""
    if by == "day":
        return sorted(lines.items())
    return sorted(lines.items(), key=lambda one: (-one[1].usage.usd, -one[1].usage.tokens, one[0]))


def _date(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


def limits_used(log: EventLog, budget: SharedBudget, now_ms: int) -> list[LimitUsed]:
    """How much of each limit of all runs together is used."""
    today = now_ms // DAY_MS
    found: list[LimitUsed] = []
    ledger = UsageLedger(log)
    for name, most, since_day in (
        ("usd_per_day", budget.usd_per_day, today),
        ("tokens_per_day", budget.tokens_per_day, today),
        ("usd_total", budget.usd_total, 0),
        ("tokens_total", budget.tokens_total, 0),
    ):
        if most is not None:
            used = ledger.used(since_day)
            amount = used.usd if name.startswith("usd") else used.tokens
            found.append(LimitUsed(name, float(most), float(amount), used.unpriced))
    return found


def limit_text(one: LimitUsed) -> str:
    """How much of a limit is used, in words."""
    if one.limit.startswith("usd"):
        return f"{one.limit}: {cost_text(one.used, one.unpriced_calls)} of {money(one.of)}"
    return f"{one.limit}: {one.used:.0f} of {one.of:.0f} tokens"
