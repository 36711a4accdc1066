"""The budget that all runs of a data directory share, and what they have spent.

The budget is checked before every call of a model or an agent, and again when a call reports
its usage. Usage of running calls is stored, so processes on one data directory share the
budget. A budget that cannot be read stops nothing. Spend is grouped by agent, definition, label
or day.

Usage of runs from versions that did not store it with the events is added up once.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from loopwright.errors import LoopwrightError, NotFound, StorageError
from loopwright.kernel.event_parts import CALLED, HOME_BUDGET, NO_USAGE, Failure, Usage
from loopwright.kernel.events import RunEdited, RunStarted
from loopwright.model.plan import stored_plan
from loopwright.operations.response_types import LimitUsed, SpendAmount, SpendLine, SpendReport
from loopwright.ports import (
    Answer,
    Clock,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    EventLog,
    Meter,
    Performer,
    RunRow,
    RunStatus,
    UsageRow,
)
from loopwright.ports.headline import DAY_MS, usage_rows
from loopwright.syntax.notations import is_duration, parse_duration
from loopwright.views.formats import (
    LOOP_AGENTS,
    cost_text,
    is_kind,
    money,
    title_among_runs,
    usage_amounts,
)
from loopwright.views.run_responses import RunTotal


def meter_old_runs(log: EventLog) -> list[str]:
    """Add up the usage of runs that an older version recorded. A damaged run is left out; the
    answer names those that could not be added up.
    """
    left: list[str] = []
    for run in log.unmetered():
        try:
            _meter(log, run)
        except (StorageError, NotFound):
            left.append(run)
    return left


def _meter(log: EventLog, run: str) -> None:
    events = [one.event for one in log.read(run)]
    headline = log.row(run).headline
    labels: tuple[str, ...] = ()
    surface = ""
    for event in events:
        if isinstance(event, RunStarted):
            labels = event.labels
            surface = stored_plan(log.blob, event.plan).settings.get("surface", "")
        elif isinstance(event, RunEdited) and event.labels is not None:
            labels = event.labels
    log.replace_usage(
        run, replace(headline, labels=labels, surface=surface), usage_rows(run, events)
    )


Window: TypeAlias = Literal["day", "total"]
READ_AGAIN_MS = 1_000  # how often a call under way reads what other processes have spent
STORED_MS = 5_000  # until the usage of a call that has ended is taken to be stored
_WORDS: dict[Window, str] = {"day": "today", "total": "in all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBudget:
    """What may be used in a day (of UTC), and ever. Without `hard_stop` it is only looked at."""

    usd_per_day: float | None = None
    tokens_per_day: int | None = None
    usd_total: float | None = None
    tokens_total: int | None = None
    hard_stop: bool = True

    @property
    def has_limits(self) -> bool:
        """Whether any limit is set, also one that stops nothing."""
        caps = (self.usd_per_day, self.tokens_per_day, self.usd_total, self.tokens_total)
        return any(one is not None for one in caps)

    @property
    def limits_usd(self) -> bool:
        """Whether USD are limited for all runs together."""
        return self.hard_stop and (self.usd_per_day is not None or self.usd_total is not None)

    @property
    def is_open(self) -> bool:
        """Whether nothing is limited."""
        return not (self.hard_stop and self.has_limits)


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
            meter_old_runs(self._log)
            self._is_metered = True
        return _used(self._log.usage_sum(since_day))


def _used(usage: Usage) -> BudgetUse:
    return BudgetUse(round(usage.usd, 9), usage.tokens, usage.unpriced)


@dataclass(slots=True)
class _Caller:
    """The calls of one agent of one run: what was stored when the first of those under way began,
    with those that have ended since, and what each of them has used so far.
    """

    day: int
    stored: Mapping[Window, Usage]
    ended: Usage = NO_USAGE
    live: dict[int, Usage] = field(default_factory=dict)
    over_at: int | None = None  # when the last of them ended

    def base(self, window: Window) -> Usage:
        return self.stored[window] + self.ended


class OwnCalls:
    """The calls of this process. What they have used is known here before it is stored, and part
    of it is stored while they run; so for their callers the store is not read.
    """

    def __init__(self, log: EventLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._callers: dict[tuple[str, str], _Caller] = {}

    @property
    def live(self) -> Usage:
        """What the calls under way have used so far."""
        found = (usage for caller in self._callers.values() for usage in caller.live.values())
        return sum(found, NO_USAGE)

    def correction(self, window: Window, since_day: int) -> Usage:
        """What has to be added to the sum of the store, so that it is what was used apart from
        the calls under way here.
        """
        found = NO_USAGE
        for (run, agent), caller in [*self._callers.items()]:
            stored = self._log.usage_sum(since_day, run, agent)
            if caller.over_at is not None and self._is_stored(caller, window, stored):
                del self._callers[run, agent]
            elif window == "total" or caller.day == since_day:
                found = found + (caller.base(window) - stored)
        return found

    def _is_stored(self, caller: _Caller, window: Window, stored: Usage) -> bool:
        """Whether the calls that have ended are part of the store by now."""
        base, late = caller.base(window), self._clock.now_ms() - (caller.over_at or 0) > STORED_MS
        return late or (stored.usd >= base.usd - 1e-9 and stored.tokens >= base.tokens)

    def begin(self, call: int, key: tuple[str, str]) -> None:
        caller = self._callers.get(key)
        if caller is None or caller.over_at is not None:
            today = self._clock.now_ms() // DAY_MS
            days: Mapping[Window, int] = {"day": today, "total": 0}
            stored = {window: self._log.usage_sum(day, *key) for window, day in days.items()}
            caller = self._callers[key] = _Caller(today, stored)
        caller.live[call] = NO_USAGE

    def use(self, call: int, key: tuple[str, str], usage: Usage) -> None:
        if key in self._callers:
            self._callers[key].live[call] = usage

    def end(self, call: int, key: tuple[str, str], usage: Usage | None) -> None:
        caller = self._callers.get(key)
        if caller is None:
            return
        last = caller.live.pop(call, NO_USAGE)
        caller.ended = caller.ended + (last if usage is None else usage)
        if not caller.live:
            caller.over_at = self._clock.now_ms()


class BudgetedPerformer:
    """A performer that checks the budget of all runs before each call, and gives each call what
    that budget has left. What other processes spend meanwhile is read from the store again while
    a call runs.
    """

    def __init__(
        self, performer: Performer, budget: SharedBudget, log: EventLog, clock: Clock
    ) -> None:
        self._performer = performer
        self._budget = budget
        self._ledger = UsageLedger(log)
        self._clock = clock
        self.calls = OwnCalls(log, clock)

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        if not isinstance(job.call, CALLED):
            return self._performer.perform(job)
        left = self.left()
        live = self.calls.live if left else NO_USAGE
        spent = next((words for one in left if (words := one.used_up(live))), None)
        if spent is not None:
            return EffectFailure(error=Failure(type=HOME_BUDGET, detail=spent))
        if self._budget.limits_usd:
            job.limits = msgspec.structs.replace(job.limits, budgeted=True)
        call = _GuardedCall(self, job, left, self._clock)
        call.limit(job)
        answer = self._performer.perform(job)
        if isinstance(answer, EffectSuccess | EffectFailure):
            call.close(answer.usage)
            return call.ended(answer)
        return self._ended(call, answer)

    async def _ended(self, call: "_GuardedCall", answer: Awaitable[Answer]) -> Answer:
        usage: Usage | None = None
        try:
            done = await answer
            usage = done.usage
            return call.ended(done)
        finally:
            call.close(usage)

    def left(self) -> list["_Left"]:
        """What each limit leaves. A log that cannot be read limits nothing here: the run itself
        reports it.
        """
        try:
            return [*self._limits()]
        except Exception:
            return []

    def _limits(self) -> Iterator["_Left"]:
        today = self._clock.now_ms() // DAY_MS
        caps: Mapping[Window, tuple[float | None, int | None]] = {
            "day": (self._budget.usd_per_day, self._budget.tokens_per_day),
            "total": (self._budget.usd_total, self._budget.tokens_total),
        }
        for window, (usd, tokens) in caps.items():
            if usd is not None or tokens is not None:
                since = today if window == "day" else 0
                used, more = self._ledger.used(since), _used(self.calls.correction(window, since))
                used = BudgetUse(round(used.usd + more.usd, 9), used.tokens + more.tokens)
                yield _Left(usd=usd, tokens=tokens, used=used, window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The limits of a day or of all time, and what was used when a call began."""

    usd: float | None
    tokens: int | None
    used: BudgetUse
    window: Window

    def used_up(self, live: Usage) -> str | None:
        """Which limit is used up when calls under way are counted, in words."""
        usd, tokens = round(self.used.usd + live.usd, 9), self.used.tokens + live.tokens
        over_usd = self.usd is not None and usd >= self.usd
        if over_usd or (self.tokens is not None and tokens >= self.tokens):
            return self._words(usd, tokens, in_usd=over_usd)
        return None

    def exceeded(self, live: Usage) -> str | None:
        """Which limit is exceeded when calls under way are counted, in words."""
        usd, tokens = round(self.used.usd + live.usd, 9), self.used.tokens + live.tokens
        if self.usd is not None and usd > self.usd:
            return self._words(usd, tokens, in_usd=True)
        if self.tokens is not None and tokens > self.tokens:
            return self._words(usd, tokens, in_usd=False)
        return None

    def _words(self, usd: float, tokens: int, *, in_usd: bool) -> str:
        when = f"{_WORDS[self.window]} by all runs here"
        if in_usd:
            return f"spent {usd:.4f} of {self.usd:g} USD {when}"
        return f"used {tokens} of {self.tokens} tokens {when}"


class _GuardedCall(Meter):
    """The meter of one call: the budgets of its run, and what is left for all runs."""

    def __init__(
        self, guard: BudgetedPerformer, job: EffectJob, left: Sequence[_Left], clock: Clock
    ) -> None:
        assert isinstance(job.call, CALLED)
        self._guard = guard
        self._inner = job.meter
        self._key = job.run, job.call.agent
        self._left = left
        self._clock = clock
        self._read_at = clock.now_ms()
        self._exceeded: str | None = None
        self._is_smallest = False

    def limit(self, job: EffectJob) -> None:
        """Give a call what is left, unless the budgets of its run leave less."""
        others = self._guard.calls.live
        usd = [one.usd - one.used.usd - others.usd for one in self._left if one.usd is not None]
        if usd and job.limits.covered:
            left = max(0.0, round(min(usd), 9))
            self._is_smallest = job.limits.remaining_usd is None or left < job.limits.remaining_usd
            if self._is_smallest:
                job.limits = msgspec.structs.replace(job.limits, remaining_usd=left)
        tokens = [
            one.tokens - one.used.tokens - others.tokens
            for one in self._left
            if one.tokens is not None
        ]
        if tokens:
            known = [] if job.limits.remaining_tokens is None else [job.limits.remaining_tokens]
            remaining = max(0, min([*tokens, *known]))
            job.limits = msgspec.structs.replace(job.limits, remaining_tokens=remaining)
        job.meter = self
        if self._left:
            self._guard.calls.begin(id(self), self._key)

    def report(self, usage: Usage) -> str | None:
        words = self._inner.report(usage)
        if words is not None:
            return words
        calls = self._guard.calls
        calls.use(id(self), self._key, usage)
        now = self._clock.now_ms()
        if now - self._read_at >= READ_AGAIN_MS:
            self._left, self._read_at = self._guard.left() or self._left, now
        found = (one.exceeded(calls.live) for one in self._left)
        self._exceeded = next((one for one in found if one is not None), None)
        return self._exceeded

    def close(self, usage: Usage | None) -> None:
        """The call has ended, with this usage if it has an answer."""
        self._guard.calls.end(id(self), self._key, usage)

    def ended(self, answer: Answer) -> Answer:
        """The answer; a call that was cut off by the shared budget says so."""
        if not isinstance(answer, EffectFailure) or not answer.error.outer:
            return answer
        if self._exceeded is None and not self._is_smallest:
            return answer
        words = self._exceeded or next(
            (one for left in self._left if (one := left.exceeded(answer.usage or NO_USAGE))),
            answer.error.detail,
        )
        return msgspec.structs.replace(answer, error=Failure(type=HOME_BUDGET, detail=words))


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


class _AgentTitles:
    """What the agents of usage rows are called; each run is read once, and only where an agent may
    have no name that was given to it.
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
            first = self._log.read(row.run, limit=1)[0].event
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
