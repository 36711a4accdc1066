"""The purse of a home: what all its runs may use together, and what they have used.

Looked at before every call of a model or an agent, from what is in the log and nothing else. So it
is the same for every process on the data directory, and after a crash. A purse that cannot be
looked into stops nobody.
"""

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from loopwright.app.metering import meter_old_runs
from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import Failure
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.ports import Answer, Clock, EventLog, Failed, Job, Performer
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
    """A performer that asks the purse before it lets anybody be paid."""

    def __init__(self, performer: Performer, purse: Purse, log: EventLog, clock: Clock) -> None:
        self._performer = performer
        self._purse = purse
        self._ledger = Ledger(log)
        self._clock = clock

    def perform(self, job: Job) -> Answer | Awaitable[Answer]:
        if isinstance(job.call, CALLED):
            spent = self._spent()
            if spent is not None:
                return Failed(error=Failure(type=HOME_BUDGET, detail=spent))
            if self._purse.limits_usd:
                job.budgeted = True
        return self._performer.perform(job)

    def _spent(self) -> str | None:
        """Which limit is reached, in words. Who cannot be asked has not said no."""
        try:
            return next(self._reached(), None)
        except Exception:  # a log that cannot be read is told by whoever drives the run
            return None

    def _reached(self) -> Iterator[str]:
        today = self._clock.now_ms() // DAY_MS
        caps: Mapping[Window, tuple[float | None, int | None]] = {
            "day": (self._purse.usd_per_day, self._purse.tokens_per_day),
            "total": (self._purse.usd_total, self._purse.tokens_total),
        }
        for window, (usd, tokens) in caps.items():
            if usd is None and tokens is None:
                continue
            used = self._ledger.used(today if window == "day" else 0)
            when = f"{_WORDS[window]} by all runs here"
            if usd is not None and used.usd >= usd:
                yield f"spent {used.usd:.4f} of {usd:g} USD {when}"
            if tokens is not None and used.tokens >= tokens:
                yield f"used {used.tokens} of {tokens} tokens {when}"
