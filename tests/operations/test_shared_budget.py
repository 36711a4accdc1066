"""A budget of all runs, shared by processes on one data directory, also while calls run.

Two guards on two connections to one file stand for two processes.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.kernel.event_parts import HOME_BUDGET, AgentCall
from loopwright.kernel.events import RunPaused, RunStarted, Usage
from loopwright.model.plan import Plan, content_hash, encode_plan
from loopwright.operations.settings_files import SharedBudget
from loopwright.operations.shared_budget import READ_AGAIN_MS, BudgetedPerformer
from loopwright.ports import (
    DAY_MS,
    Answer,
    Append,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    EventLog,
    Headline,
    UsageRow,
)
from loopwright.stores.sqlite.log import open_sqlite_log
from loopwright.testing.fakes import FakeClock
from tests.support.jobs import effect_job

PLAN = encode_plan(Plan(name="work", steps=()))
BUDGET = SharedBudget(usd_per_day=1.0)
pytestmark = pytest.mark.item("rec-25")


class Process:
    """A process that drives one run: its log, its guard, and its call under way."""

    def __init__(
        self, folder: Path, name: str, clock: FakeClock, budget: SharedBudget = BUDGET
    ) -> None:
        self.run = f"run_{name}"
        self.clock = clock
        self.log: EventLog = open_sqlite_log(
            folder / "log.db", alive=lambda owner: False, durability="normal"
        )
        self.guard = BudgetedPerformer(self, budget, self.log, clock)
        self.jobs: list[EffectJob] = []
        self.answer: asyncio.Future[Answer] | None = None
        self.stored = Usage()
        first = RunStarted(at=clock.now_ms(), run=self.run, plan=content_hash(PLAN), name=name)
        self.head = Headline(name=name, status="running", started_at=clock.now_ms())
        blobs = {content_hash(PLAN): PLAN}
        asyncio.run(
            self.log.append(
                Append(run=self.run, expected=0, events=[first], headline=self.head, blobs=blobs)
            )
        )

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self.jobs.append(job)
        return self.wait()

    async def wait(self) -> Answer:
        self.answer = asyncio.get_running_loop().create_future()
        return await self.answer

    def call(self) -> Answer | Awaitable[Answer]:
        call = AgentCall(agent="worker")
        job = effect_job(
            run=self.run,
            effect=f"main/agent#{len(self.jobs)}",
            path="main",
            iteration=1,
            attempt=1,
            call=call,
            workspace="/",
            token="",
        )
        return self.guard.perform(job)

    async def store(self, total: Usage) -> None:
        """Write what the calls of the run have used, as the actor does while they run."""
        now, version = self.clock.now_ms(), self.log.version(self.run)
        row = UsageRow(run=self.run, agent="worker", day=now // DAY_MS, usage=total - self.stored)
        self.stored = total
        await self.log.append(
            Append(
                run=self.run,
                expected=version,
                events=[RunPaused(at=now)],
                headline=replace(self.head, updated_at=now),
                usage=[row],
            )
        )

    def report(self, usd: float) -> str | None:
        return self.jobs[-1].meter.report(Usage(usd=usd))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(20_000 * DAY_MS)


@pytest.fixture
def two(tmp_path: Path, clock: FakeClock) -> Iterator[tuple[Process, Process]]:
    """Two processes with one daily budget of 1 USD."""
    processes = Process(tmp_path, "a", clock), Process(tmp_path, "b", clock)
    yield processes
    for one in processes:
        one.log.close()


def test_live_usage_of_another_process_counts_before_a_call(two: tuple[Process, Process]) -> None:
    """What a call elsewhere has used so far is missing from what the next call is given."""
    a, b = two

    async def go() -> None:
        running = asyncio.ensure_future(a.call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert a.report(0.7) is None
        await a.store(Usage(usd=0.7))
        other = asyncio.ensure_future(b.call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert b.jobs[0].limits.remaining_usd == pytest.approx(0.3)
        await a.store(Usage(usd=1.0))
        refused = b.call()
        assert isinstance(refused, EffectFailure)
        assert refused.error.type == HOME_BUDGET
        assert refused.error.detail == "spent 1.0000 of 1 USD today by all runs here"
        for one in (running, other):
            one.cancel()
        await asyncio.gather(running, other, return_exceptions=True)

    asyncio.run(go())


def test_call_under_way_is_ended_when_another_process_spends_the_rest(
    two: tuple[Process, Process], clock: FakeClock
) -> None:
    """A call reads what others have spent while it runs, once a second."""
    a, b = two

    async def go() -> None:
        running = asyncio.ensure_future(a.call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert a.report(0.4) is None
        await b.store(Usage(usd=0.7))
        assert a.report(0.4) is None  # not read again yet
        clock.advance(READ_AGAIN_MS)
        assert a.report(0.4) == "spent 1.1000 of 1 USD today by all runs here"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())


def test_usage_that_is_stored_while_a_call_runs_is_not_counted_twice(
    two: tuple[Process, Process], clock: FakeClock
) -> None:
    """Its own usage is known from the call; the store has part of it, then all of it."""
    a, _ = two

    async def go() -> None:
        await a.store(Usage(usd=0.1))
        running = asyncio.ensure_future(a.call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for usd in (0.3, 0.6, 0.9):
            await a.store(Usage(usd=0.1 + usd / 2))
            clock.advance(READ_AGAIN_MS)
            assert a.report(usd) is None, usd
        assert a.answer is not None
        a.answer.set_result(EffectSuccess(usage=Usage(usd=0.85)))
        await running
        [left] = a.guard.left()  # before the answer is stored
        assert left.used.usd == pytest.approx(0.95)
        await a.store(Usage(usd=0.95))
        [left] = a.guard.left()
        assert left.used.usd == pytest.approx(0.95)

    asyncio.run(go())
