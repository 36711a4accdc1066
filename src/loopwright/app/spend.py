"""What runs have spent, by agent, definition, label or day, and which runs a list shows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from loopwright.app.agent_titles import LOOP_AGENTS, is_kind, title_among_runs
from loopwright.app.purse import Ledger, Purse
from loopwright.app.usage_backfill import meter_old_runs
from loopwright.app.views.usage import cost_text, money, usage_item
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import NO_USAGE, RunStarted, Usage
from loopwright.model.plan import stored_plan
from loopwright.model.record import JsonValue
from loopwright.ports import EventLog, RunRow, RunStatus, UsageRow
from loopwright.runtime.headline import DAY_MS
from loopwright.syntax.amounts import is_duration, parse_duration

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
    meter_old_runs(log)
    rows = log.rows(statuses=wanted.statuses, before=before)
    found = (row for row in rows if wanted.fits(row))
    return [row for row, _ in zip(found, range(limit), strict=False)] if limit else [*found]


def total_of(log: EventLog, rows: Sequence[RunRow]) -> dict[str, JsonValue]:
    """How many runs these are, how many of them run, what they have used, and which runs were
    recorded and are no longer stored: no list is complete without those.
    """
    named = {row.run for row in rows}
    found = [one for one in log.usage() if one.run in named]
    usage = usage_item(sum((one.usage for one in found), NO_USAGE), called=bool(found))
    running = sum(row.headline.status == "running" for row in rows)
    missing: list[JsonValue] = [*log.missing()]
    return {"runs": len(rows), "running": running, "usage": usage, "missing": missing}


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

    def as_dict(self) -> dict[str, JsonValue]:
        used = usage_item(self.usage, called=bool(self.calls))
        return {"runs": len(self.runs), "calls": self.calls, **used}


def spend(
    log: EventLog, *, by: By = "agent", since: int | None = None, purse: Purse, now_ms: int
) -> dict[str, JsonValue]:
    """What all runs have used since a day (of UTC), and how much of the limits of all runs. A run
    with several labels counts for each of them, and once in the total.
    """
    left_out = meter_old_runs(log)
    since_day = 0 if since is None else since // DAY_MS
    needs_rows = by in ("definition", "label")
    heads = {row.run: row.headline for row in log.rows()} if needs_rows else {}
    total, lines, titles = _Line(), dict[str, _Line](), _AgentTitles(log)
    for row in log.usage(since_day):
        total.add(row)
        head = heads.get(row.run)
        labels = head.labels if head is not None else ()
        agent = titles.of(row) if by == "agent" else ""
        definition = head.name if head is not None else row.run
        for name in _names(by, row, agent, definition, labels):
            lines.setdefault(name, _Line()).add(row)
    started = (row.run for row in log.rows() if row.headline.started_at // DAY_MS >= since_day)
    return {
        "by": by,
        "since": None if since is None else _date(since_day),
        "lines": [{"name": name, **line.as_dict()} for name, line in _ordered(by, lines)],
        "total": total.as_dict(),
        "runs_without_usage": len({*started} - total.runs),
        "limits": limits_used(log, purse, now_ms),
        "left_out": [*left_out],
    }


class _AgentTitles:
    """What the agents of usage rows are called; each run is read once, and only where an agent may
    have no name that somebody gave it.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[tuple[str, str], str] = {}

    def of(self, row: UsageRow) -> str:
        if not is_kind(row.agent) and row.agent not in LOOP_AGENTS:
            return row.agent
        key = (row.run, row.agent)
        if key not in self._known:
            self._known[key] = self._read(row)
        return self._known[key]

    def _read(self, row: UsageRow) -> str:
        try:
            first = self._log.read(row.run, limit=1)[0].fact
        except (LoopwrightError, IndexError):  # pruned, or damaged: others say so
            return row.agent
        assert isinstance(first, RunStarted)
        return title_among_runs(row.agent, stored_plan(self._log.blob, first.plan))


def _names(
    by: By, row: UsageRow, agent: str, definition: str, labels: Iterable[str]
) -> Iterator[str]:
    match by:
        case "agent":
            yield agent
        case "definition":
            yield definition
        case "day":
            yield _date(row.day)
        case "label":
            yield from labels or [NO_LABEL]


def _ordered(by: By, lines: dict[str, _Line]) -> list[tuple[str, _Line]]:
    """Days in their order, everything else by what it cost."""
    if by == "day":
        return sorted(lines.items())
    return sorted(lines.items(), key=lambda one: (-one[1].usage.usd, -one[1].usage.tokens, one[0]))


def _date(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


def limits_used(log: EventLog, purse: Purse, now_ms: int) -> list[JsonValue]:
    """How much of each limit of all runs together is used."""
    today = now_ms // DAY_MS
    found: list[JsonValue] = []
    ledger = Ledger(log)
    for name, most, since_day in (
        ("usd_per_day", purse.usd_per_day, today),
        ("tokens_per_day", purse.tokens_per_day, today),
        ("usd_total", purse.usd_total, 0),
        ("tokens_total", purse.tokens_total, 0),
    ):
        if most is not None:
            used = ledger.used(since_day)
            amount = used.usd if name.startswith("usd") else used.tokens
            found.append(
                {"limit": name, "of": most, "used": amount, "unpriced_calls": used.unpriced}
            )
    return found


def limit_text(one: JsonValue) -> str:
    """How much of a limit is used, in words."""
    assert isinstance(one, dict)
    used, most = float(str(one["used"])), float(str(one["of"]))
    if str(one["limit"]).startswith("usd"):
        unpriced = int(str(one["unpriced_calls"]))
        return f"{one['limit']}: {cost_text(used, unpriced)} of {money(most)}"
    return f"{one['limit']}: {used:.0f} of {most:.0f} tokens"
