"""Runs that agents of other runs start: who may start them, how deep, with which budget.

A process that descends from a program of a run is recognised by the process tree
(`agents/processes/process_tree.py`), whatever its environment. It is outside of the trust
boundary: it may start runs and look at its own, but not answer gates, use accounts, tokens and
settings, or control other runs. Other attempts are refused (`inside-run`) and written to the
audit log of the data directory. A data directory that was created inside a run belongs to that
run, and its programs may use it freely. Tests of programs that use Loopwright need that.

A run that such a process starts is a child run, one level deeper, and cannot spend more than
its parent has left. A call of a run is also limited by what the runs above it have left,
counting calls of sibling runs under way, and by what its child runs have used. The decider of a
run cannot check this, because it knows no other runs.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from loopwright.agents.processes.process_tree import (
    UNKNOWN_PEER,
    find_unix_peer,
)
from loopwright.agents.processes.tcp_peer import UNLISTED_PEER, find_tcp_peer, is_read_outside
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.kernel.event_parts import CALLED, HOME_BUDGET, Failure
from loopwright.kernel.events import NO_USAGE, RunStarted, Usage
from loopwright.kernel.state import State
from loopwright.model.access import is_offline
from loopwright.model.plan import stored_plan
from loopwright.model.policy import Limits
from loopwright.operations.accounts.access import InsideRun, inside_run_error, record_refusal
from loopwright.operations.dialects import OF_LOOPS
from loopwright.ports import (
    Answer,
    Clock,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    EventLog,
    Meter,
    Performer,
    RecordStore,
    RunRow,
)

MOST_DEPTH = 5


@dataclass(frozen=True, slots=True)
class Runs:
    """Where other runs are looked up."""

    log: EventLog
    state: Callable[[str], State]


@dataclass(frozen=True, slots=True)
class Nest:
    """The position of a run in a chain of child runs, and what it may use."""

    limits: Limits
    parent: str | None = None
    depth: int = 0
    allow_unknown_cost: bool = False  # as its parent


def nested(runs: Runs, limits: Limits, inside: InsideRun | None) -> Nest:
    """A child is held to what its parent has left; any other run is as it is."""
    if inside is None or not inside.run:
        return Nest(limits)
    above = claimed_run(runs.log, inside)
    parent = _first(runs, above)
    depth = 1 + max(inside.depth, parent.depth if parent is not None else 0)
    if depth > MOST_DEPTH:
        raise LoopwrightError(
            f"this would be run {depth} inside of another: {MOST_DEPTH} levels are the most",
            code="run-depth",
            hint="a loop that starts itself has no end; start it from outside",
        )
    if parent is None:  # of another data directory: what it has left is not known here
        return Nest(limits, above, depth)
    plan = runs.state(above).plan
    left = _within(limits, plan.limits, _used(runs, parent))
    # A plan of an older version names only the agents that this was needed for.
    allow = plan.allow_unknown_cost or bool(plan.uncovered)
    return Nest(left, above, depth, allow_unknown_cost=allow)


def claimed_run(log: EventLog, inside: InsideRun) -> str:
    """The run that a process belongs to. A program can start a supervisor of its own that names
    another run, so the innermost run counts only if it was started below the outermost one.
    """
    outer = inside.runs[-1] if inside.runs else inside.run
    return inside.run if is_own_run(log, outer, inside.run) else outer


def is_own_run(log: EventLog, own: str, run: str) -> bool:
    """Whether a run is `own` or was started below it."""
    for _ in range(MOST_DEPTH + 1):
        if run == own:
            return True
        try:
            parent = _parent(log, run)
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return False
        if parent is None:
            return False
        run = parent
    return False


def is_stage_of_loop(log: EventLog, inside: InsideRun) -> bool:
    """Whether a process belongs to a stage of a loop of roles, or to a run below one."""
    run: str | None = claimed_run(log, inside)
    for _ in range(MOST_DEPTH + 1):
        try:
            first = log.read(run, limit=1)[0].event if run else None
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return False
        if not isinstance(first, RunStarted):
            return False
        if first.dialect == OF_LOOPS:
            return True
        run = first.parent
    return False


def superseded(log: EventLog, rows: Iterable[RunRow]) -> set[str]:
    """Of runs without a driver, those whose parent will not wait for them: it was ended,
    or it makes the iteration again that had started them, and with it another such run. And those
    of a parent with sandboxed agents: no other process would drive them in that sandbox.
    """
    return {row.run for row in rows if _is_running(row) and _is_lost(log, row.run)}


def adoptable(log: EventLog, rows: Sequence[RunRow]) -> list[RunRow]:
    """The others; no run that waits in a sandbox, as it could only continue outside of it."""
    return [
        row
        for row in rows
        if not (_is_lost(log, row.run) if _is_running(row) else _sandbox_of(log, row.run))
    ]


def _is_running(row: RunRow) -> bool:
    return row.headline.status == "running"


def check_sandbox(log: EventLog, run: str, inside: InsideRun | None) -> None:
    """Refuse to resume a run that was started inside the sandbox of an agent, and that no process
    drives there any more: here it would have access that the sandbox denies. Ending it is allowed.
    """
    owner = log.row(run).owner
    if owner is not None and log.alive(owner):
        return
    around = _sandbox_of(log, run, inside=inside.run if inside is not None else None)
    if around is not None:
        raise Conflict(
            f"{run} was started by an agent of {around}, in a sandbox: without that agent it "
            "would continue outside of it",
            code="behind-wall",
            hint=f"`loopwright stop {run}` ends it; what it is for can be started by a person",
        )


def _is_lost(log: EventLog, run: str) -> bool:
    try:
        parent = _parent(log, run)
        if parent is None:
            return False
        return log.row(parent).headline.status != "completed" or _sandbox_of(log, run) is not None
    except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
        return False


def _sandbox_of(log: EventLog, run: str, *, inside: str | None = None) -> str | None:
    """The run above this one, at any height, that has sandboxed agents; for a caller that is a
    program of a run on the way there, there is none between them.
    """
    for _ in range(MOST_DEPTH):
        try:
            parent = _parent(log, run)
            if parent is None or parent == inside:
                return None
            if _has_sandboxes(log, parent):
                return parent
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return None
        run = parent
    return None


def _parent(log: EventLog, run: str) -> str | None:
    [first] = log.read(run, limit=1)
    return first.event.parent if isinstance(first.event, RunStarted) else None


def _has_sandboxes(log: EventLog, run: str) -> bool:
    [first] = log.read(run, limit=1)
    if not isinstance(first.event, RunStarted):
        return False
    plan = stored_plan(log.blob, first.event.plan)
    return any(is_offline(one) or one.access not in (None, "full") for one in plan.agents.values())


def _first(runs: Runs, run: str) -> RunStarted | None:
    try:
        first = runs.log.read(run, limit=1)[0].event
    except NotFound:
        return None
    return first if isinstance(first, RunStarted) else None


def used_with_children(runs: Runs, run: str) -> Usage:
    """What a run has used, with the runs below it at any depth."""
    first = _first(runs, run)
    return NO_USAGE if first is None else _used(runs, first)


def _used(runs: Runs, parent: RunStarted) -> Usage:
    """What a run has used, with the runs below it."""
    used = runs.state(parent.run).usage
    for child in _children(runs, parent):
        more = used_with_children(runs, child)
        used = Usage(
            input_tokens=used.input_tokens + more.input_tokens,
            output_tokens=used.output_tokens + more.output_tokens,
            usd=round(used.usd + more.usd, 9),
        )
    return used


def _children(runs: Runs, parent: RunStarted) -> Iterator[str]:
    for row in runs.log.rows():
        if row.headline.started_at < parent.at or row.run == parent.run:
            continue
        first = _first(runs, row.run)
        if first is not None and first.parent == parent.run and first.depth > parent.depth:
            yield row.run


def _within(own: Limits, around: Limits, used: Usage) -> Limits:
    """The smaller of what a child may use and what its parent has left."""
    usd, tokens = own.usd, own.tokens
    if around.usd is not None:
        left = max(0.0, round(around.usd - used.usd, 9))
        usd = left if usd is None else min(usd, left)
    if around.tokens is not None:
        rest = max(0, around.tokens - used.input_tokens - used.output_tokens)
        tokens = rest if tokens is None else min(tokens, rest)
    return msgspec.structs.replace(own, usd=usd, tokens=tokens)


__all__ = [
    "UNKNOWN_PEER",
    "UNLISTED_PEER",
    "find_tcp_peer",
    "find_unix_peer",
    "is_read_outside",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRights:
    """What a process inside a run may do in the data directory of the run."""

    inside: InsideRun
    log: EventLog
    records: RecordStore
    clock: Clock
    via: str

    def refuse(self, what: str, subject: str = "") -> NoReturn:
        """Refuse, and record it; `what` completes "cannot …"."""
        at = self.clock.now_ms()
        record_refusal(self.records, self.inside, f"{what} {subject}".strip(), at=at, via=self.via)
        raise inside_run_error(self.inside, what)

    def check_start(self) -> None:
        """Refuse to start a run for a stage of a loop of roles: such loops have no loops inside."""
        if is_stage_of_loop(self.log, self.inside):
            self.refuse("start a run: stages of a loop do not start loops")

    def is_own(self, run: str) -> bool:
        """Whether a run is the one around the process, or was started below it."""
        return is_own_run(self.log, claimed_run(self.log, self.inside), run)

    def check_own(self, run: str, what: str) -> None:
        """Refuse requests about a run of another person."""
        if not self.is_own(run):
            self.refuse(what, run)

    def check_child(self, run: str, what: str) -> None:
        """Refuse what concerns any run but those that were started below the process."""
        if run in self.inside.runs or not self.is_own(run):
            self.refuse(what, run)


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

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        accounts = [*self._accounts_of(job)] if self._may_have_account(job) else []
        if not accounts:
            return self._performer.perform(job)
        words = next((found for one in accounts if (found := one.problem(is_begin=True))), None)
        if words is not None:
            return EffectFailure(error=Failure(type=HOME_BUDGET, detail=words))
        call = _Call(accounts, job)
        answer = self._performer.perform(job)
        if isinstance(answer, EffectSuccess | EffectFailure):
            return call.ended(answer)
        return self._ended(call, answer)

    def _may_have_account(self, job: EffectJob) -> bool:
        """Whether a call may count against another run, or against the runs that its own starts."""
        if not isinstance(job.call, CALLED):
            return False
        starts_runs = job.agent is not None and bool(job.agent.loops)
        return starts_runs or job.origin.depth > 0 or job.run in self._accounts

    async def _ended(self, call: "_Call", answer: Awaitable[Answer]) -> Answer:
        try:
            return call.ended(await answer)
        finally:
            call.close(None)

    def _accounts_of(self, job: EffectJob) -> Iterator[_Account]:
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
            first = self._runs.log.read(run, limit=1)[0].event
        except (LoopwrightError, LookupError, ValueError):
            return None
        # A fork has a parent too, and a budget of its own.
        is_child = isinstance(first, RunStarted) and first.depth > 0
        return first.parent if is_child and isinstance(first, RunStarted) else None


class _Call(Meter):
    """The meter of one call: that of its run, and the accounts of the runs around it."""

    def __init__(self, accounts: list[_Account], job: EffectJob) -> None:
        self._accounts = accounts
        self._inner = job.meter
        self._exceeded: str | None = None
        self._is_open = True
        for one in accounts:
            one.live[id(self)] = NO_USAGE
        usd = [one.limits.usd - one.total.usd for one in accounts if one.limits.usd is not None]
        if usd and job.limits.covered:
            known = [] if job.limits.remaining_usd is None else [job.limits.remaining_usd]
            remaining = max(0.0, round(min([*usd, *known]), 9))
            job.limits = msgspec.structs.replace(job.limits, remaining_usd=remaining, budgeted=True)
        tokens = [
            one.limits.tokens - one.total.tokens
            for one in accounts
            if one.limits.tokens is not None
        ]
        if tokens:
            left = [] if job.limits.remaining_tokens is None else [job.limits.remaining_tokens]
            job.limits = msgspec.structs.replace(
                job.limits, remaining_tokens=max(0, min([*tokens, *left]))
            )
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
        if (
            self._exceeded is None
            or not isinstance(answer, EffectFailure)
            or not answer.error.outer
        ):
            return answer
        return msgspec.structs.replace(
            answer, error=Failure(type=HOME_BUDGET, detail=self._exceeded)
        )
