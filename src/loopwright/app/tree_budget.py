"""One budget for a run and the runs that its agents start: what any of them uses counts for all.

The limits of a run are checked by its own decider, which knows nothing of other runs. Here each
call of a run is also held to what the runs above it have left, with the calls of sibling runs that
are under way, and each call of a run to what its child runs have used.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from loopwright.app.nesting import MOST_DEPTH, Runs, used_with_children
from loopwright.errors import LoopwrightError
from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import NO_USAGE, Failure, RunStarted, Usage
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.kernel.state import State
from loopwright.model.policy import Limits
from loopwright.ports import Answer, Clock, Done, EventLog, Failed, Job, Meter, Performer

READ_AGAIN_MS = 60_000  # what was read of a run is read again after this time, between calls
MOST_KNOWN = 10_000


@dataclass(slots=True)
class _Account:
    """The limits of a run, and what it and the runs below it have used."""

    run: str
    limits: Limits
    used: Usage
    read_at: int
    live: dict[int, Usage] = field(default_factory=dict)

    @property
    def total(self) -> Usage:
        return sum(self.live.values(), self.used)

    def problem(self, *, is_begin: bool) -> str | None:
        """Which limit is used up (before a call) or exceeded (during one), in words."""
        total, limits = self.total, self.limits
        whose = f"by {self.run} and the runs below it"
        usd = round(total.usd, 9)
        if limits.usd is not None and (usd > limits.usd or (is_begin and usd >= limits.usd)):
            return f"spent {usd:.4f} of {limits.usd:g} USD {whose}"
        over = limits.tokens is not None and total.tokens - limits.tokens
        if over is not False and (over > 0 or (is_begin and over >= 0)):
            return f"used {total.tokens} of {limits.tokens} tokens {whose}"
        return None


class TreeBudget:
    """A performer that holds each call to the budgets of the runs above its own."""

    def __init__(
        self, performer: Performer, log: EventLog, clock: Clock, state: Callable[[str], State]
    ) -> None:
        self._performer = performer
        self._runs = Runs(log, state)
        self._clock = clock
        self._parents: dict[str, str | None] = {}
        self._accounts: dict[str, _Account] = {}

    def perform(self, job: Job) -> Answer | Awaitable[Answer]:
        if not isinstance(job.call, CALLED):
            return self._performer.perform(job)
        accounts = [*self._accounts_of(job)]
        if not accounts:
            return self._performer.perform(job)
        words = next((found for one in accounts if (found := one.problem(is_begin=True))), None)
        if words is not None:
            return Failed(error=Failure(type=HOME_BUDGET, detail=words))
        call = _Call(accounts, job)
        answer = self._performer.perform(job)
        if isinstance(answer, Done | Failed):
            return call.ended(answer)
        return self._ended(call, answer)

    async def _ended(self, call: "_Call", answer: Awaitable[Answer]) -> Answer:
        try:
            return call.ended(await answer)
        finally:
            call.close(None)

    def _accounts_of(self, job: Job) -> Iterator[_Account]:
        """Those of the runs above, and that of the run itself if its agents can start others."""
        above, run = self._parent(job.run), job.run
        if run in self._accounts or (job.agent is not None and job.agent.loops):
            yield from self._account(run)
        for _ in range(MOST_DEPTH):
            if above is None:
                return
            yield from self._account(above)
            above = self._parent(above)

    def _account(self, run: str) -> Iterator[_Account]:
        """The account of a run that has limits. Another data directory has runs that are not
        known here, and a damaged one says so when it is driven.
        """
        known, now = self._accounts.get(run), self._clock.now_ms()
        if known is None or (not known.live and now - known.read_at > READ_AGAIN_MS):
            try:
                state = self._runs.state(run)
                used = used_with_children(self._runs, run)
            except (LoopwrightError, LookupError, ValueError):
                return
            if len(self._accounts) >= MOST_KNOWN:
                self._accounts = {key: one for key, one in self._accounts.items() if one.live}
            known = _Account(run=run, limits=state.plan.limits, used=used, read_at=now)
            self._accounts[run] = known
        if known.limits.usd is not None or known.limits.tokens is not None:
            yield known

    def _parent(self, run: str) -> str | None:
        if run not in self._parents:
            if len(self._parents) >= MOST_KNOWN:
                self._parents.clear()
            self._parents[run] = self._read_parent(run)
        return self._parents[run]

    def _read_parent(self, run: str) -> str | None:
        try:
            first = self._runs.log.read(run, limit=1)[0].fact
        except (LoopwrightError, LookupError, ValueError):
            return None
        # A fork has a parent too, and a budget of its own.
        is_child = isinstance(first, RunStarted) and first.depth > 0
        return first.parent if is_child and isinstance(first, RunStarted) else None


class _Call(Meter):
    """The meter of one call: that of its run, and the accounts of the runs around it."""

    def __init__(self, accounts: list[_Account], job: Job) -> None:
        self._accounts = accounts
        self._inner = job.meter
        self._exceeded: str | None = None
        self._is_open = True
        for one in accounts:
            one.live[id(self)] = NO_USAGE
        usd = [one.limits.usd - one.total.usd for one in accounts if one.limits.usd is not None]
        if usd and job.covered:
            known = [] if job.remaining_usd is None else [job.remaining_usd]
            job.remaining_usd = max(0.0, round(min([*usd, *known]), 9))
            job.budgeted = True
        tokens = [
            one.limits.tokens - one.total.tokens
            for one in accounts
            if one.limits.tokens is not None
        ]
        if tokens:
            left = [] if job.remaining_tokens is None else [job.remaining_tokens]
            job.remaining_tokens = max(0, min([*tokens, *left]))
        job.meter = self

    def report(self, usage: Usage) -> str | None:
        words = self._inner.report(usage)
        if words is not None:
            return words
        for one in self._accounts:
            one.live[id(self)] = usage
        found = (one.problem(is_begin=False) for one in self._accounts)
        self._exceeded = next((one for one in found if one is not None), None)
        return self._exceeded

    def close(self, usage: Usage | None) -> None:
        """The call has ended, with this usage if it has an answer."""
        if not self._is_open:
            return
        self._is_open = False
        for one in self._accounts:
            last = one.live.pop(id(self), NO_USAGE)
            one.used = one.used + (last if usage is None else usage)

    def ended(self, answer: Answer) -> Answer:
        self.close(answer.usage)
        if self._exceeded is None or not isinstance(answer, Failed) or not answer.error.outer:
            return answer
        return msgspec.structs.replace(
            answer, error=Failure(type=HOME_BUDGET, detail=self._exceeded)
        )
