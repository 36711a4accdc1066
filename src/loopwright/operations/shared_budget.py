"""The budget that all runs of a data directory share, and what they have spent.

The budget is checked before every call of a model or an agent, and again when a call reports
its usage. Usage of running calls is stored, so processes on one data directory share the
budget. A budget that cannot be read stops nothing.
"""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.event_parts import CALLED, HOME_BUDGET, Failure
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.operations.run_lists import BudgetUse, UsageLedger, budget_use
from loopwright.operations.settings_files import SharedBudget
from loopwright.ports import (
    DAY_MS,
    Answer,
    Clock,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    EventLog,
    Meter,
    Performer,
)

Window: TypeAlias = Literal["day", "total"]
READ_AGAIN_MS = 1_000  # how often a call under way reads what other processes have spent
STORED_MS = 5_000  # until the usage of a call that has ended is taken to be stored
_WORDS: dict[Window, str] = {"day": "today", "total": "in all"}


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
                used, more = (
                    self._ledger.used(since),
                    budget_use(self.calls.correction(window, since)),
                )
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
