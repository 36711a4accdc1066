"""The purse of a home: what all its runs may use together, and what they have used.

Looked at before every call of a model or an agent, from what is in the log and nothing else. So it
is the same for every process on the data directory, and after a crash. A purse that cannot be
looked into stops nobody.
"""

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import EffectDone, EffectFailed, Failure, RunForked
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.ports import Answer, Clock, EventLog, Failed, Job, Performer

DAY_MS = 24 * 60 * 60 * 1_000

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
    def is_open(self) -> bool:
        """Whether nothing is limited."""
        return not (self.hard_stop and self.has_limits)


class Used(NamedTuple):
    """What was used."""

    usd: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class _Known:
    """What is known of one run: how far its log was read, and what it used by day."""

    seen: int = 0
    days: dict[int, Used] = field(default_factory=dict)


class Ledger:
    """What the runs of a log have used. Only what is new is read each time."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[str, _Known] = {}

    def used(self, since_day: int) -> Used:
        """Everything from a day on."""
        usd, tokens = 0.0, 0
        for row in self._log.rows():
            known = self._known.setdefault(row.run, _Known())
            if row.version > known.seen:
                self._read(row.run, known)
            for day, used in known.days.items():
                if day >= since_day:
                    usd, tokens = usd + used.usd, tokens + used.tokens
        return Used(round(usd, 9), tokens)

    def _read(self, run: str, known: _Known) -> None:
        for numbered in self._log.read(run, known.seen):
            known.seen = numbered.seq
            fact = numbered.fact
            if isinstance(fact, RunForked):
                known.days.clear()  # what stands before is counted in the other run
            if isinstance(fact, EffectDone | EffectFailed) and fact.usage is not None:
                day, usage = fact.at // DAY_MS, fact.usage
                before = known.days.get(day, Used())
                known.days[day] = Used(
                    before.usd + usage.usd,
                    before.tokens + usage.input_tokens + usage.output_tokens,
                )


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
