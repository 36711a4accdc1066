"""All runs of one process, and what other processes on the same data have to do with them."""

import asyncio

import pytest

from loopwright.engine.actor import RETRY_STORAGE_MS
from loopwright.engine.driver import POLL_MS
from loopwright.errors import Conflict, NotFound, StorageError
from loopwright.kernel.events import EffectFailed, EffectRequested
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, Step, Steps, Wait
from loopwright.model.checks import Approval, Cap
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, StageOutputs
from loopwright.testing import by_iteration, never
from tests.engine.world import World, quiet, run
from tests.support.laws.log import check_invariants
from tests.support.plans import loop, plan_of, step

CALL = CallAgent(agent="worker")
GATED = plan_of(step("main", Repeat(body=CALL, max=3, gate=LoopGate())))
NAP = plan_of(Step(id="nap", action=Wait(ms=60_000)))


def passes(count: int) -> Plan:
    return loop(most=count, until=Cap())


# -- who drives ------------------------------------------------------------------------------------


def test_a_second_driver_is_refused_by_name() -> None:
    """A run that a living process drives is not taken; the refusal names that process."""

    async def body() -> None:
        world = World()
        first, second = world.process(never()), world.process(never())
        name = await first.start(passes(2))
        with pytest.raises(Conflict) as refused:
            second.driver.wake(name)
        assert refused.value.code == "already-driven"
        assert str(first.owner.pid) in str(refused.value)
        assert second.scripted.jobs == []
        assert second.service.state(name).run == name, "looking is always possible"

    run(body())


def test_recovery_leaves_living_owners_alone() -> None:
    """Only runs whose owner is gone are taken up, and what was recorded is not done again."""

    async def body() -> None:
        world = World()
        dying, living = world.process(by_iteration(["one", None])), world.process(never())
        left, kept = await dying.start(passes(3)), await living.start(passes(3))
        await quiet()
        world.kill(dying)
        next_one = world.process(never())
        assert next_one.service.recover() == [left]
        await quiet()
        assert set(next_one.scripted.held) == {(left, "main.1/agent#1")}
        assert living.driver.is_driving(kept)
        assert next_one.log.row(left).owner == next_one.owner

    run(body())


def test_recovery_takes_a_run_up_once() -> None:
    """Asking again changes nothing for runs that are already driven here."""

    async def body() -> None:
        world = World()
        dying = world.process(never())
        await dying.start(passes(3))
        await quiet()
        world.kill(dying)
        process = world.process(never())
        assert len(process.service.recover()) == 1
        assert process.service.recover() == []
        await quiet()
        assert len(process.scripted.jobs) == 1

    run(body())


def test_one_damaged_run_does_not_keep_the_others_from_being_recovered() -> None:
    """A run that cannot be loaded is told by name, and the rest goes on."""

    async def body() -> None:
        world = World()
        dying = world.process(never())
        bad, good = await dying.start(passes(2)), await dying.start(passes(3))
        await quiet()
        world.kill(dying)
        process = world.process(never())
        plan = dying.events(bad)[0].plan  # type: ignore[union-attr]
        world.store.blobs[plan] = b"not a plan"
        assert process.service.recover() == [good]
        [(name, _)] = process.driver.problems
        assert name == bad
        await quiet()
        assert [job.run for job in process.scripted.jobs] == [good]

    run(body())


def test_a_run_that_does_not_exist_is_not_found() -> None:
    """Waking a run nobody started says so."""

    async def body() -> None:
        with pytest.raises(NotFound):
            World().process().driver.wake("run_none")

    run(body())


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "waits for its storage"])
def test_run_that_an_ended_process_took_from_its_driver_when_woken_is_driven_again(
    waits: bool,
) -> None:
    """The driver still has the run in memory; nobody else would take it up."""

    async def body() -> None:
        world = World()
        process, dying = world.process(never()), world.process(never())
        name = await process.start(passes(2))
        await quiet()
        if waits:
            process.log.refusals.append(StorageError("io"))
            process.scripted.answer(name, "main.0/agent#1", "x")
            await quiet()
        world.dead.add(process.owner.token)  # stalled for so long that it was taken for dead
        dying.driver.wake(name)
        await quiet()
        world.kill(dying)
        process.driver.wake(name)
        await process.tick(POLL_MS)
        await process.tick(RETRY_STORAGE_MS[0])
        assert process.log.row(name).owner == process.owner
        assert process.driver.is_driving(name)
        assert set(process.scripted.held) == {(name, "main.0/agent#1")}

    run(body())


@pytest.mark.item("G13")
def test_an_answer_to_a_run_that_waited_through_a_crash_is_taken_up() -> None:
    """A gate that was open when its process died is answered later by a third process."""

    async def body() -> None:
        world = World()
        dying = world.process()
        name = await dying.start(GATED)
        await dying.driver.rest(name)
        (gate,) = dying.log.gates()
        world.kill(dying)
        server, other = world.process(), world.process()
        assert server.service.recover() == [], "it waits for a person, there is nothing to do"
        assert not server.driver.is_driving(name)
        await other.looker.answer(gate.gate, "approve", by="ann")
        await server.tick(POLL_MS)
        assert server.status(name) == "completed"

    run(body())


# -- what others write -----------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["answer", "stop", "pause"])
def test_what_another_process_writes_is_seen_with_the_next_poll(act: str) -> None:
    """A decision, a stop and a pause from outside reach the driver within one poll."""

    async def body() -> None:
        world = World()
        process, other = world.process(), world.process()
        name = await process.start(GATED)
        await process.driver.rest(name)
        if act == "answer":
            await other.looker.answer(name, "approve", by="ann")
        elif act == "stop":
            await other.looker.stop(name, by="ann")
        else:
            await other.looker.pause(name)
            await other.looker.answer(name, "continue")
        await process.tick(POLL_MS)
        expected = {"answer": "completed", "stop": "cancelled", "pause": "paused"}
        assert process.status(name) == expected[act]
        assert process.driver.problems == []

    run(body())


def test_a_stop_from_outside_ends_what_is_under_way() -> None:
    """A run in the middle of a call is ended with the next poll, and its call too."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(passes(2))
        await quiet()
        await other.looker.stop(name)
        assert len(process.scripted.held) == 1
        await process.tick(POLL_MS)
        assert process.scripted.held == {}
        assert process.status(name) == "cancelled"

    run(body())


def test_a_resume_from_outside_continues_here() -> None:
    """The owner of a paused run takes it up when somebody else resumes it."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(passes(2))
        await quiet()
        await process.service.pause(name)
        process.scripted.answer(name, "main.0/agent#1", "x")
        await quiet()
        await other.looker.resume(name)
        await process.tick(POLL_MS)
        assert set(process.scripted.held) == {(name, "main.1/agent#1")}

    run(body())


def test_polling_survives_a_disk_that_stumbles() -> None:
    """A poll that fails is told; the next one sees everything that was missed."""

    async def body() -> None:
        world = World()
        process, other = world.process(), world.process()
        name = await process.start(GATED)
        await process.driver.rest(name)
        await other.looker.answer(name, "approve")
        log = process.log
        works, log.nudges = log.nudges, _stumble  # type: ignore[method-assign, assignment]
        await process.tick(POLL_MS)
        log.nudges = works  # type: ignore[method-assign]
        assert process.status(name) == "running"
        await process.tick(POLL_MS)
        assert process.status(name) == "completed"
        assert [str(problem) for _, problem in process.driver.problems] == ["a stumble"]

    run(body())


def _stumble(after: int) -> tuple[list[str], int]:
    raise StorageError("a stumble")


# -- timers ----------------------------------------------------------------------------------------


@pytest.mark.item("inv-17")
@pytest.mark.parametrize("away_ms", [1_000, 120_000], ids=["back in time", "back too late"])
def test_a_timer_survives_a_restart(away_ms: int) -> None:
    """A run parked on a timer goes on at its time under a later driver; at once if that passed."""

    async def body() -> None:
        world = World()
        first = world.process()
        name = await first.start(NAP)
        await quiet()
        assert not first.driver.is_driving(name), "only its row is kept"
        due = first.log.row(name).headline.wake_at
        assert due == first.clock.now + 60_000
        world.kill(first)
        world.now += away_ms
        second = world.process()
        second.service.recover()
        await second.tick(0)
        if second.clock.now < due:
            assert second.status(name) == "running"
            await second.tick(due - second.clock.now - 1)
            assert second.status(name) == "running", "never early"
            await second.tick(1)
        assert second.status(name) == "completed"
        assert second.kinds(name).count("effect.done") == 1

    run(body())


def test_a_gate_with_a_deadline_is_closed_by_a_later_driver() -> None:
    """A run that waits for a person under a time limit ends at that limit, after a crash too."""

    async def body() -> None:
        world = World()
        first = world.process()
        plan = Plan(
            name="t",
            steps=(Step(id="ask", action=AskPerson(), limits=Limits(wall_ms=10_000)),),
        )
        name = await first.start(plan)
        await quiet()
        assert first.status(name) == "waiting"
        world.kill(first)
        second = world.process()
        second.service.recover()
        await quiet()
        assert second.status(name) == "waiting"
        await second.tick(10_000)
        assert (second.status(name), second.log.gates()) == ("exhausted", [])

    run(body())


def test_a_timer_that_finds_the_disk_away_comes_again() -> None:
    """A parked run that cannot be read when it is due is asked for later."""

    async def body() -> None:
        process = World().process()
        name = await process.start(NAP)
        await quiet()
        process.log.unreadable.append(StorageError("io"))
        await process.tick(60_000)
        assert process.status(name) == "running"
        await process.tick(30_000)
        assert process.status(name) == "completed"

    run(body())


# -- resting and closing ---------------------------------------------------------------------------


def test_resting_is_waiting_for_the_end_or_a_person() -> None:
    """Whoever waits for a run is told when it ends, when it asks, and when it is not here."""

    async def body() -> None:
        process = World().process()
        name = await process.start(GATED)
        both = asyncio.gather(process.driver.rest(name), process.driver.rest(name))
        await both
        assert process.status(name) == "waiting"
        await process.driver.rest(name)
        await process.driver.rest("run_unknown")

    run(body())


@pytest.mark.item("rondoflow-10")
def test_runs_continue_side_by_side() -> None:
    """Two runs do not wait for each other."""

    async def body() -> None:
        process = World().process(never())
        first, second = await process.start(passes(1)), await process.start(passes(1))
        await quiet()
        process.scripted.answer(second, "main.0/agent#1", "x")
        await process.driver.rest(second)
        assert process.status(second) == "exhausted"
        assert process.status(first) == "running"

    run(body())


def test_closing_ends_everything_and_leaves_runs_to_be_resumed() -> None:
    """Calls are cancelled, runs are given back without an event, and the next driver goes on."""

    async def body() -> None:
        world = World()
        process = world.process(never())
        working, waiting = await process.start(passes(2)), await process.start(NAP)
        await quiet()
        before = [process.log.version(name) for name in (working, waiting)]
        told = asyncio.ensure_future(process.driver.rest(working))
        await quiet()
        await process.driver.close()
        await told
        assert process.scripted.held == {}
        assert [process.log.version(name) for name in (working, waiting)] == before
        assert [process.log.row(name).owner for name in (working, waiting)] == [None, None]
        assert process.clock.next_in is None, "no timer is left behind"
        other = world.process(never())
        assert set(other.service.recover()) == {working, waiting}
        await quiet()
        assert [job.effect for job in other.scripted.jobs] == ["main.0/agent#1"]
        requested = [f for f in other.events(working) if isinstance(f, EffectRequested)]
        assert len(requested) == 1

    run(body())


def test_closing_waits_for_what_is_being_ended() -> None:
    """Close comes back when the last call has really ended, however long that takes."""

    async def body() -> None:
        ended = asyncio.Event()

        class Slow:
            def perform(self, job: object) -> object:
                return self._call()

            async def _call(self) -> None:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    for _ in range(30):
                        await asyncio.sleep(0)
                    ended.set()

        process = World().process(performer=Slow())  # type: ignore[arg-type]
        await process.start(passes(1))
        await quiet()
        await process.driver.close()
        assert ended.is_set()

    run(body())


def test_ten_thousand_runs_at_gates_are_rows() -> None:
    """Runs that wait for a person leave nothing in memory but their names."""

    async def body() -> None:
        process = World().process()
        names = [await process.start(GATED) for _ in range(50)]
        for name in names:
            await process.driver.rest(name)
        assert process.driver._actors == {}
        assert process.driver._timers == {}
        assert len(process.driver._plans) == 1, "equal plans are held once"

    run(body())


@pytest.mark.item("coqui-67")
def test_a_stage_whose_process_vanishes_is_begun_three_times() -> None:
    """Each driver that dies takes the call down with it: the third that finds it so gives it up. A
    driver that leaves in order is not counted.
    """
    stage = Steps(steps=(step("code"),))
    stages = Repeat(body=stage, max=2, until=Approval(words=True), memory=StageOutputs())
    plan = plan_of(Step(id="main", action=stages))

    async def body() -> None:
        world = World()
        process = world.process(never())
        name = await process.start(plan)
        await quiet()
        begun = len(process.scripted.jobs)
        await process.driver.close()
        for _ in range(4):
            process = world.process(never())
            process.driver.recover(process.log.rows())
            await quiet()
            begun += len(process.scripted.jobs)
            world.kill(process)
        assert begun == 1 + 3
        assert process.status(name) == "failed"
        failed = [event for event in process.events(name) if isinstance(event, EffectFailed)]
        assert [event.error.type for event in failed] == ["vanished"]
        assert check_invariants(process.log) == []

    run(body())
