"""The purse of a home: what all its runs may use together, and what they have used.

Looked at before every call of a model or an agent, from what is in the log and nothing else. So it
is the same for every process on the data directory, and after a crash. A purse that cannot be
looked into stops nobody.
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from loopwright.app.usage_backfill import meter_old_runs
from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import NO_USAGE, Failure, Usage
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.ports import Answer, Clock, Done, EventLog, Failed, Job, Meter, Performer
from loopwright.runtime.headline import DAY_MS

Window: TypeAlias = Literal["day", "total"]
_WORDS: dict[Window, str] = {"day": "today", "total": "in all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
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


class Used(NamedTuple):
    """What was used."""

    usd: float = 0.0
    tokens: int = 0
    unpriced: int = 0  # calls whose cost is unknown


class Ledger:
    """What the runs of a log have used, from the table that is written with their events."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._is_metered = False

    def used(self, since_day: int) -> Used:
        """Everything from a day on."""
        if not self._is_metered:
            meter_old_runs(self._log)
            self._is_metered = True
        usd, tokens, unpriced = 0.0, 0, 0
        for row in self._log.usage(since_day):
            usd, tokens = usd + row.usage.usd, tokens + row.usage.tokens
            unpriced += row.usage.unpriced
        return Used(round(usd, 9), tokens, unpriced)


class Guarded:
    """A performer that asks the purse before it lets anybody be paid, and that gives each call what
    the purse has left.
    """

    def __init__(self, performer: Performer, purse: Purse, log: EventLog, clock: Clock) -> None:
        self._performer = performer
        self._purse = purse
        self._ledger = Ledger(log)
        self._clock = clock
        self._live: dict[int, Usage] = {}  # of calls under way

    def perform(self, job: Job) -> Answer | Awaitable[Answer]:
        if not isinstance(job.call, CALLED):
            return self._performer.perform(job)
        left = self._left()
        spent = next((one.spent for one in left if one.is_used_up), None)
        if spent is not None:
            return Failed(error=Failure(type=HOME_BUDGET, detail=spent))
        if self._purse.limits_usd:
            job.budgeted = True
        call = _GuardedCall(job.meter, left, self._live)
        call.limit(job)
        answer = self._performer.perform(job)
        if isinstance(answer, Done | Failed):
            return call.ended(answer)
        return self._ended(call, answer)

    async def _ended(self, call: "_GuardedCall", answer: Awaitable[Answer]) -> Answer:
        try:
            return call.ended(await answer)
        finally:
            self._live.pop(id(call), None)

    def _left(self) -> list["_Left"]:
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
            "day": (self._purse.usd_per_day, self._purse.tokens_per_day),
            "total": (self._purse.usd_total, self._purse.tokens_total),
        }
        for window, (usd, tokens) in caps.items():
            if usd is not None or tokens is not None:
                used = self._ledger.used(today if window == "day" else 0)
                yield _Left(usd=usd, tokens=tokens, used=used, window=window)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The limits of a day or of all time, and what was used when a call began."""

    usd: float | None
    tokens: int | None
    used: Used
    window: Window

    @property
    def is_used_up(self) -> bool:
        used = self.used
        over_usd = self.usd is not None and used.usd >= self.usd
        return over_usd or (self.tokens is not None and used.tokens >= self.tokens)

    @property
    def spent(self) -> str:
        over_usd = self.usd is not None and self.used.usd >= self.usd
        return self._words(self.used.usd, self.used.tokens, in_usd=over_usd)

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
    """The meter of one call: the budgets of its run, and what the purse leaves for all runs that
    this process drives.
    """

    def __init__(self, inner: Meter, left: Sequence[_Left], live: dict[int, Usage]) -> None:
        self._inner = inner
        self._left = left
        self._live = live
        self._exceeded: str | None = None
        self._is_smallest = False

    def limit(self, job: Job) -> None:
        """Give a call what is left, unless the budgets of its run leave less."""
        others = sum(self._live.values(), NO_USAGE)
        usd = [one.usd - one.used.usd - others.usd for one in self._left if one.usd is not None]
        if usd and job.covered:
            left = max(0.0, round(min(usd), 9))
            self._is_smallest = job.remaining_usd is None or left < job.remaining_usd
            job.remaining_usd = left if self._is_smallest else job.remaining_usd
        tokens = [one.tokens - one.used.tokens for one in self._left if one.tokens is not None]
        if tokens:
            known = [] if job.remaining_tokens is None else [job.remaining_tokens]
            job.remaining_tokens = max(0, min([*tokens, *known]) - others.tokens)
        job.meter = self

    def report(self, usage: Usage) -> str | None:
        words = self._inner.report(usage)
        if words is not None:
            return words
        self._live[id(self)] = usage
        live = sum(self._live.values(), NO_USAGE)
        found = (one.exceeded(live) for one in self._left)
        self._exceeded = next((one for one in found if one is not None), None)
        return self._exceeded

    def ended(self, answer: Answer) -> Answer:
        """The answer; a call that the purse cut off says so."""
        if not isinstance(answer, Failed) or not answer.error.outer:
            return answer
        if self._exceeded is None and not self._is_smallest:
            return answer
        words = self._exceeded or next(
            (one for left in self._left if (one := left.exceeded(answer.usage or NO_USAGE))),
            answer.error.detail,
        )
        return msgspec.structs.replace(answer, error=Failure(type=HOME_BUDGET, detail=words))
