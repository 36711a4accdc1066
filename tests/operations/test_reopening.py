"""Going on with a run that has ended: one id, only what is missing, whoever asks for it."""

import asyncio

import msgspec
import pytest

from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.events import AgentChanged, EffectRequested, RunReopened, Usage
from loopwright.model.actions import CallAgent, Repeat, Step, StopRun
from loopwright.model.checks import Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, ProgressLog
from loopwright.operations.run_control import ResumeChanges, reopen
from loopwright.ports import EffectSuccess
from loopwright.testing import always, never
from loopwright.testing.fakes import PerformerScript, answer_of, failed
from tests.engine.world import Process, World, quiet, run
from tests.support.laws.log import check_invariants
from tests.support.plans import plan_of, step

TWO = plan_of(step("a"), step("b", needs=("a",)))


def breaks(*effects: str) -> PerformerScript:
    """These effects fail, all others work."""
    return lambda job: failed("agent") if job.effect in effects else answer_of("ok")


async def ended(process: Process, plan: Plan = TWO, **more: object) -> str:
    name = await process.start(plan, **more)
    await process.driver.rest(name)
    return name


def requests(process: Process, name: str) -> list[str]:
    return [f.effect for f in process.events(name) if isinstance(f, EffectRequested)]


@pytest.mark.item("zenflow-68", "archon-63")
def test_a_failed_run_continues_under_its_id() -> None:
    """The row is open again, then ended; the completed step is not called a second time."""

    async def body() -> None:
        process = World().process(breaks("b/agent#1"))
        name = await ended(process)
        assert process.status(name) == "failed"
        await reopen(process.service, name, by="ann")
        assert process.log.row(name).headline.finished_at is None
        await process.driver.rest(name)
        assert process.status(name) == "completed"
        assert requests(process, name) == ["a/agent#1", "b/agent#1", "b/agent#2"]
        assert [row.run for row in process.log.rows()] == [name]
        [event] = [f for f in process.events(name) if isinstance(f, RunReopened)]
        assert event.by == "ann"
        assert check_invariants(process.log) == []

    run(body())


def test_a_process_that_dies_in_the_second_opening_is_followed_by_another() -> None:
    """The run goes on where it was: nothing with an answer is asked again."""

    async def body() -> None:
        world = World()
        first = world.process(breaks("a/agent#1"))
        name = await ended(first)
        second = world.process(lambda job: None if job.path == "b" else answer_of("ok"))
        world.kill(first)
        await reopen(second.service, name)
        await quiet()
        assert requests(second, name) == ["a/agent#1", "a/agent#2", "b/agent#1"]
        world.kill(second)
        third = world.process()
        assert third.service.recover() == [name]
        await third.driver.rest(name)
        assert third.status(name) == "completed"
        assert [job.effect for job in third.scripted.jobs] == ["b/agent#1"]
        assert check_invariants(third.log) == []

    run(body())


def test_two_who_reopen_at_once() -> None:
    """One of them does; the other is told that the run is under way."""

    async def body() -> None:
        world = World()
        process = world.process(breaks("a/agent#1"))
        name = await ended(process)
        process.scripted.script = never()
        answers = await asyncio.gather(
            *(reopen(process.service, name) for _ in range(2)), return_exceptions=True
        )
        assert [type(answer) for answer in answers].count(Conflict) == 1
        events = process.events(name)
        assert sum(isinstance(event, RunReopened) for event in events) == 1

    run(body())


@pytest.mark.parametrize(
    ("plan", "words", "hint"),
    [
        pytest.param(plan_of(step("a")), "nothing left to do", "start a new run", id="completed"),
        pytest.param(
            plan_of(step("a", StopRun())),
            "by a step of its definition",
            "--restart",
            id="stop-step",
        ),
    ],
)
def test_other_ends_are_for_good(plan: Plan, words: str, hint: str) -> None:
    """The refusal says how the run ended, and what to do."""

    async def body() -> None:
        process = World().process()
        name = await ended(process, plan)
        before = process.events(name)
        with pytest.raises(Conflict, match=words) as error:
            await reopen(process.service, name)
        assert error.value.code == "ended"
        assert hint in (error.value.hint or "")
        assert process.events(name) == before

    run(body())


def test_a_run_under_way_has_nothing_to_reopen() -> None:
    """It is told how it stands, and left alone."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(TWO)
        await quiet()
        with pytest.raises(Conflict, match="it is running") as error:
            await reopen(process.service, name)
        assert error.value.code == "not-ended"

    run(body())


def test_a_run_whose_key_is_taken_stays_closed() -> None:
    """At most one open run has a key; who holds it is named."""

    async def body() -> None:
        process = World().process(breaks("a/agent#1"))
        name = await ended(process, key="k")
        process.scripted.script = never()
        holder = await process.start(TWO, key="k")
        with pytest.raises(Conflict, match=holder) as error:
            await reopen(process.service, name)
        assert error.value.code == "key-taken"
        assert process.status(name) == "failed"

    run(body())


def test_agents_and_limits_may_change() -> None:
    """Only agents that are different from before are in the log."""

    async def body() -> None:
        costly = EffectSuccess(output="ok", usage=Usage(input_tokens=60))
        plan = Plan(
            name="p",
            steps=TWO.steps,
            agents={"worker": Agent(spec="command:one"), "other": Agent(spec="command:two")},
            limits=Limits(tokens=50, wall_ms=60_000),
        )
        process = World().process(lambda job: costly)
        name = await ended(process, plan)
        assert process.log.row(name).headline.reason == "budget"
        changes = ResumeChanges(agents=["worker=command:sh"], budget="tokens=200")
        await reopen(process.service, name, changes=changes)
        await process.driver.rest(name)
        state = process.state(name)
        assert process.status(name) == "completed"
        assert state.plan.limits == Limits(tokens=200, wall_ms=60_000)
        [event] = [f for f in process.events(name) if isinstance(f, AgentChanged)]
        assert (event.agent, event.becomes.spec) == ("worker", "command:sh")
        assert [job.agent.spec for job in process.scripted.jobs if job.agent] == [
            "command:one",
            "command:sh",
        ]

    run(body())


CAPPED = plan_of(
    Step(
        id="main",
        action=Repeat(
            body=CallAgent(agent="coder"), max=2, until=Regex(pattern="DONE"), memory=ProgressLog()
        ),
    )
)


def test_a_loop_at_its_cap_is_reported_and_continues_with_more_iterations() -> None:
    """Plain, it is refused with the command that would do; with more passes it goes on, in another
    process too after the first one died."""

    async def body() -> None:
        world = World()
        process = world.process()
        name = await ended(process, CAPPED)
        with pytest.raises(Conflict) as refusal:
            await reopen(process.service, name)
        assert refusal.value.code == "at-cap"
        assert f"stopped after 2 of 2 iterations; `loopwright resume {name} --max 4`" in str(
            refusal
        )
        for most, made in ((1, 2), (2, 2)):
            with pytest.raises(LoopwrightError, match=f"--max {most}: .* has made {made} it"):
                await reopen(process.service, name, changes=ResumeChanges(passes=most))
        second = world.process(lambda job: None)
        world.kill(process)
        await reopen(second.service, name, changes=ResumeChanges(passes=4))
        await quiet()
        world.kill(second)
        other = world.process()
        assert other.service.recover() == [name]
        await other.driver.rest(name)
        assert requests(other, name) == [
            "main.0/agent#1",
            "main.1/agent#1",
            "main.2/agent#1",
            "main.3/agent#1",
        ]
        assert other.log.row(name).headline.reason == "max_iterations"
        assert check_invariants(other.log) == []

    run(body())


def test_a_loop_that_failed_at_its_cap() -> None:
    """Plain, it begins anew as a whole, as everything that failed; with more iterations it
    continues."""

    async def body() -> None:
        loop = CAPPED.steps[0].action
        assert isinstance(loop, Repeat)
        strict = msgspec.structs.replace(loop, at_cap="fail")
        process = World().process()
        name = await ended(process, plan_of(Step(id="main", action=strict)))
        words = await reopen(process.service, name)
        assert words == f"{name} resumed at iteration 1"
        await process.driver.rest(name)
        words = await reopen(process.service, name, changes=ResumeChanges(passes=3))
        assert words == f"{name} resumed at iteration 3 of 3"
        await process.driver.rest(name)
        words = await reopen(process.service, name, changes=ResumeChanges(restart=True, passes=1))
        assert words == f"{name} restarted at iteration 1"
        await process.driver.rest(name)
        assert requests(process, name)[2:] == [
            "main~2.0/agent#1",
            "main~2.1/agent#1",
            "main~2.2/agent#1",
            "main~3.0/agent#1",
        ]
        assert check_invariants(process.log) == []

    run(body())


def test_more_iterations_are_for_loops_at_their_cap() -> None:
    """A run that failed in another way has no cap to raise."""

    async def body() -> None:
        process = World().process(breaks("b/agent#1"))
        name = await ended(process)
        with pytest.raises(Conflict, match="none that is unfinished") as refusal:
            await reopen(process.service, name, changes=ResumeChanges(passes=4))
        assert refusal.value.code == "not-at-cap"

    run(body())


def test_what_failed_beside_a_loop_at_its_cap_is_run_again() -> None:
    """There is something to do without more iterations, so nobody has to give any."""

    async def body() -> None:
        both = plan_of(*CAPPED.steps, step("b"))
        process = World().process(breaks("b/agent#1"))
        name = await ended(process, both)
        await reopen(process.service, name)
        await process.driver.rest(name)
        assert "b/agent#2" in requests(process, name)

    run(body())


def test_who_only_looks_may_reopen() -> None:
    """The event is written; whoever drives takes the run up."""

    async def body() -> None:
        world = World()
        process = world.process(breaks("a/agent#1"))
        name = await ended(process)
        process.scripted.script = always("ok")
        await reopen(world.process().looker, name)
        assert process.status(name) == "running"
        await process.tick()
        await process.driver.rest(name)
        assert process.status(name) == "completed"

    run(body())
