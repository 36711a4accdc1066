"""Which runs a list has, what they have spent, and how much of the budget of all runs is used.

Spend is grouped by agent, definition, label or day.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import NO_USAGE, Usage
from loopwright.operations.lists.run_lists import list_old_runs
from loopwright.operations.response_types import LimitUsed, SpendAmount, SpendLine, SpendReport
from loopwright.operations.settings_files import SharedBudget
from loopwright.ports import DAY_MS, EventLog, RunRow, RunStatus, UsageRow
from loopwright.syntax.notations import is_duration, parse_duration
from loopwright.views.formats import cost_text, money, usage_amounts
from loopwright.views.run_responses import RunTotal


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
