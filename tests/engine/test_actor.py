"""One run in memory: what is saved together, and what happens when saving or performing fails."""

from collections.abc import Awaitable

import pytest

from loopwright.engine.actor import RETRY_STORAGE_MS
from loopwright.errors import StorageError, VersionConflict
from loopwright.kernel.events import (
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunFinished,
    RunPaused,
    RunResumed,
    Usage,
)
from loopwright.model.actions import CallAgent, LoopGate, Repeat, Step, Wait
from loopwright.model.chat import AssistantMessage, CallPart, ModelTurn, RequestedCall, encode_turn
from loopwright.model.checks import Cap, SpendCheck
from loopwright.model.plan import Agent, Plan
from loopwright.ports import Answer, Append, EffectJob, EffectSuccess
from loopwright.testing import ScriptedPerformer, by_effect, never
from tests.engine.world import Process, World, quiet, run
from tests.support.laws.run import event_problems
from tests.support.plans import loop, plan_of, step

LONG = "z" * 5_000
FULL = StorageError("no space is left", code="full")
CALL = CallAgent(agent="worker")


def passes(count: int) -> Plan:
    return loop(most=count, until=Cap())


def laws(process: Process, name: str) -> list[str]:
    state = process.state(name)
    return event_problems(state.plan, process.events(name))


# -- saving ----------------------------------------------------------------------------------------


def test_an_answer_and_the_next_request_share_one_append() -> None:
    """An iteration costs one append: start, one for each iteration, and nothing more."""

    async def body() -> None:
        process = World().process()
        state = await process.finish(passes(4))
        assert state.finished is not None
        kinds = [[type(event).__name__ for event in one.events] for one in process.log.appends]
        assert len(kinds) == 2 + 4
        for middle in kinds[2:-1]:
            assert middle[0] == "EffectDone"
            assert middle[-1] == "EffectRequested"

    run(body())


def test_the_row_follows_the_run() -> None:
    """Every status that a list shows is written with the append that brings it."""

    async def body() -> None:
        process = World().process()
        gated = plan_of(step("main", Repeat(body=CALL, max=2, gate=LoopGate())))
        name = await process.start(gated)
        assert process.status(name) == "running"
        await process.driver.rest(name)
        assert process.status(name) == "waiting"
        await process.service.answer(name, "approve")
        await process.driver.rest(name)
        row = process.log.row(name)
        assert (row.headline.status, row.headline.reason) == ("completed", "approved")
        assert process.log.gates() == []

    run(body())


def test_a_key_stays_with_an_open_run() -> None:
    """The key that a run was started with is in its row until the end, whoever writes the row."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(2), key="assistant-1")
        await process.service.pause(name)
        await quiet()
        assert process.log.row(name).headline.key == "assistant-1"

    run(body())


def test_a_conflict_keeps_the_answer() -> None:
    """An answer that meets a newer log is given again; the effect is not performed again."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(passes(1))
        await quiet()
        await other.looker.pause(name, by="ann")
        process.scripted.answer(name, "main.0/agent#1", LONG)
        await quiet()
        events = process.events(name)
        (done,) = [event for event in events if isinstance(event, EffectDone)]
        (paused,) = [event for event in events if isinstance(event, RunPaused)]
        assert events.index(paused) < events.index(done)
        assert process.service.read_text(done.output) == LONG
        assert len(process.scripted.jobs) == 1
        assert laws(process, name) == []

    run(body())


@pytest.mark.parametrize("error", [FULL, VersionConflict("no")], ids=["full disk", "conflict"])
@pytest.mark.item("inv-21")
def test_content_of_a_refused_append_is_not_lost(error: Exception) -> None:
    """A long text whose append was refused is stored with the append that is taken."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1))
        await quiet()
        process.log.refusals.extend([error, error])
        process.scripted.answer(name, "main.0/agent#1", LONG)
        await quiet()
        for _ in range(2):
            await process.tick(5_000)
        (done,) = [event for event in process.events(name) if isinstance(event, EffectDone)]
        assert process.service.read_text(done.output) == LONG
        assert isinstance(process.events(name)[-1], RunFinished)

    run(body())


def test_a_full_disk_is_tried_again_with_patience() -> None:
    """While nothing can be stored the run waits longer and longer, and loses nothing."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1))
        await quiet()
        tries = len(RETRY_STORAGE_MS) + 2
        process.log.refusals.extend([FULL] * tries)
        process.scripted.answer(name, "main.0/agent#1", "x")
        await quiet()
        for left, wait in enumerate([*RETRY_STORAGE_MS, 30_000], start=2):
            assert len(process.log.refusals) == tries - left + 1
            await process.tick(wait - 1)
            assert len(process.log.refusals) == tries - left + 1, "not before its time"
            await process.tick(1)
        await process.tick(30_000)
        assert isinstance(process.events(name)[-1], RunFinished)
        assert len(process.scripted.jobs) == 1
        assert [problem for _, problem in process.driver.problems] == [FULL] * tries

    run(body())


def test_nothing_builds_on_what_was_not_saved() -> None:
    """Answers that come while storage is away wait; events of others in between change nothing."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(plan_of(step("a"), step("b")))
        await quiet()
        process.log.refusals.append(FULL)
        process.scripted.answer(name, "a/agent#1", "from a")
        await quiet()
        # The unsaved append had two events; two others take their numbers.
        await other.looker.pause(name)
        await other.looker.resume(name)
        process.scripted.answer(name, "b/agent#1", "from b")
        await quiet()
        await process.tick(1_000)
        state = process.state(name)
        assert state.finished is not None
        assert state.root.body.results["a"].output == "from a"
        assert state.root.body.results["b"].output == "from b"
        assert laws(process, name) == []
        assert len(process.scripted.jobs) == 2

    run(body())


def test_a_disk_that_cannot_be_read_is_tried_again_too() -> None:
    """When even reading fails the run waits and goes on once it works."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1))
        await quiet()
        process.log.refusals.append(FULL)
        process.scripted.answer(name, "main.0/agent#1", "x")
        await quiet()
        process.log.unreadable.extend([StorageError("io"), StorageError("io")])
        for wait in RETRY_STORAGE_MS[:3]:
            await process.tick(wait)
        assert isinstance(process.events(name)[-1], RunFinished)

    run(body())


def test_an_answer_that_can_never_be_stored_fails_its_effect() -> None:
    """An answer no store takes is told as a failure, and the run goes on by its rules."""

    async def body() -> None:
        broken = EffectSuccess(output="x", usage=Usage(usd=float("inf")))
        process = World().process(by_effect({"main.0/agent#1": broken}))
        state = await process.finish(passes(2))
        assert state.finished is not None
        assert (state.finished.outcome, state.finished.reason) == ("failed", "error")
        (failed,) = [f for f in process.events(state.run) if isinstance(f, EffectFailed)]
        assert failed.error.type == "internal"
        assert "bad-fact" in failed.error.detail

    run(body())


def test_losing_the_run_ends_what_is_under_way() -> None:
    """A driver whose run was taken over stops performing and says why."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process(never())
        name = await process.start(plan_of(step("a"), step("b")))
        await quiet()
        world.dead.add(process.owner.token)  # stalled for so long that it was taken for dead
        other.driver.wake(name)
        await quiet()
        process.scripted.answer(name, "a/agent#1", "too late")
        await quiet()
        assert process.scripted.held == {}
        assert not process.driver.is_driving(name)
        [(_, problem)] = process.driver.problems
        assert getattr(problem, "code", "") == "fenced"
        assert "effect.done" not in other.kinds(name)
        assert set(other.scripted.held) == {(name, "a/agent#1"), (name, "b/agent#1")}

    run(body())


# -- what others write -----------------------------------------------------------------------------


def test_a_stop_that_comes_during_an_append_is_seen_at_once() -> None:
    """What another process writes while we append is folded right after, not at the next answer."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(plan_of(step("a"), step("b", needs=("a",))))
        await quiet()
        process.scripted.answer(name, "a/agent#1", "x")
        log, held = process.log, list[Append]()
        original = log.submit

        def slow_to_tell(append: Append, done: object) -> None:
            held.append(append)

            def later(error: Exception | None) -> None:
                told.append(lambda: done(error))  # type: ignore[operator]

            original(append, later)

        told: list[object] = []
        log.submit = slow_to_tell  # type: ignore[method-assign, assignment]
        await quiet()
        log.submit = original  # type: ignore[method-assign]
        assert len(held) == len(told) == 1, "committed, but not yet told"
        await other.looker.stop(name)
        process.driver._nudged(name)
        told[0]()  # type: ignore[operator]
        await quiet()
        assert process.status(name) == "cancelled"
        assert process.scripted.held == {}

    run(body())


def test_a_paused_and_resumed_gate_is_shown_as_waiting() -> None:
    """After pause and resume a run at a gate is in the list of those that wait."""

    async def body() -> None:
        process = World().process()
        name = await process.start(plan_of(step("main", Repeat(body=CALL, max=2, gate=LoopGate()))))
        await process.driver.rest(name)
        await process.service.pause(name)
        await quiet()
        assert process.status(name) == "paused"
        await process.service.resume(name)
        await quiet()
        assert process.status(name) == "waiting"
        before = process.log.version(name)
        await process.tick(1_000)
        assert process.log.version(name) == before, "correcting the list adds no fact"

    run(body())


def test_a_late_answer_is_dropped() -> None:
    """An answer that comes after the stop has no effect."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(2))
        await quiet()
        held = next(iter(process.scripted.held.values()))
        await process.service.stop(name)
        await quiet()
        assert held.cancelled()
        assert process.status(name) == "cancelled"
        assert process.kinds(name).count("effect.done") == 0

    run(body())


# -- performing ------------------------------------------------------------------------------------


class Raising(ScriptedPerformer):
    """A performer with a defect."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self.jobs.append(job)
        if self.late:
            return self._later()
        raise KeyError("a defect of ours")

    async def _later(self) -> Answer:
        raise KeyError("a defect of ours")


@pytest.mark.parametrize("late", [False, True], ids=["at once", "while waiting"])
def test_a_performer_that_raises_fails_the_effect(late: bool) -> None:
    """A defect ends the effect with its name; neither driver nor other runs are harmed."""

    async def body() -> None:
        world = World()
        process = world.process(performer=Raising(late=late))
        name = await process.start(passes(2))
        await process.driver.rest(name)
        finished = process.state(name).finished
        assert finished is not None
        assert (finished.outcome, finished.reason) == ("failed", "error")
        assert finished.error is not None
        assert finished.error.type == "internal"
        assert "KeyError" in finished.error.detail
        assert process.driver.problems == []

    run(body())


def test_a_defect_of_the_decider_ends_the_driving_of_one_run() -> None:
    """A run that cannot be decided about is given up by name; the others go on."""

    async def body() -> None:
        process = World().process()
        judged = loop(until=SpendCheck(usd="much"))  # type: ignore[arg-type]  # no reader makes such a plan
        bad, good = await process.start(judged), await process.start(passes(1))
        await process.driver.rest(bad)
        await process.driver.rest(good)
        assert process.status(good) == "exhausted"
        [(name, problem)] = process.driver.problems
        assert (name, getattr(problem, "code", "")) == (bad, "defect")

    run(body())


def test_a_timer_waits_for_its_time() -> None:
    """A wait is answered at its time, never before, and costs no performer."""

    async def body() -> None:
        process = World().process()
        name = await process.start(plan_of(Step(id="nap", action=Wait(ms=5_000))))
        await quiet()
        await process.tick(4_999)
        assert process.status(name) == "running"
        await process.tick(1)
        assert process.status(name) == "completed"
        assert process.scripted.jobs == []

    run(body())


def test_the_same_log_gives_the_same_job() -> None:
    """A resumed effect is asked for with the same key, prompt and attempt."""

    async def body() -> None:
        world = World()
        process = world.process(never())
        name = await process.start(passes(2))
        await quiet()
        world.kill(process)
        again = world.process(never())
        again.service.recover()
        await quiet()
        (before,), (after,) = process.scripted.jobs, again.scripted.jobs
        assert (before.effect, before.prompt.text, before.attempt) == (
            "main.0/agent#1",
            "Do it.",
            1,
        )
        assert (after.effect, after.prompt, after.attempt) == (
            before.effect,
            before.prompt,
            before.attempt,
        )
        assert after.origin.token != before.origin.token
        requested = [f for f in again.events(name) if isinstance(f, EffectRequested)]
        assert len(requested) == 1

    run(body())


def wants(*tools: str) -> EffectSuccess:
    """A turn of a chat model that asks for these tools."""
    calls = tuple(RequestedCall(id=f"c{n}", tool=tool) for n, tool in enumerate(tools))
    parts = tuple(CallPart(id=call.id, tool=call.tool) for call in calls)
    turn = ModelTurn(message=AssistantMessage(parts=parts), calls=calls)
    return EffectSuccess(result=encode_turn(turn))


def test_a_call_whose_end_was_not_recorded_is_distinguished_from_one_that_is_new() -> None:
    """After a restart a tool that was under way is marked so; one that is asked for only now,
    since somebody let it through while nothing drove the run, is not.
    """

    async def body() -> None:
        world = World()
        first = {"main.0/model#1": wants("fs.read", "shell.exec")}
        process = world.process(by_effect(first, None))
        coder = Agent(spec="model:fake", approvals={"shell.exec": "always"})
        talk = Step(id="main", action=CallAgent(agent="coder"))
        name = await process.start(Plan(name="x", steps=(talk,), agents={"coder": coder}))
        await quiet()
        assert [job.again for job in process.scripted.jobs] == [False, False]
        world.kill(process)
        [gate] = process.log.gates(name)
        again = world.process(never())
        await again.looker.answer(gate.gate, "approve")
        again.service.recover()
        await quiet()
        assert {job.effect: job.again for job in again.scripted.jobs} == {
            "main.0/tool1#1": True,
            "main.0/tool2#1": False,
        }

    run(body())


def test_pause_lets_the_iteration_end_and_holds_the_next() -> None:
    """What is under way goes on to its end; the next iteration begins only after resume."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(3))
        await quiet()
        await process.service.pause(name)
        process.scripted.answer(name, "main.0/agent#1", "x")
        await quiet()
        assert process.status(name) == "paused"
        assert process.scripted.held == {}
        assert not process.driver.is_driving(name)
        await process.service.resume(name)
        await quiet()
        assert set(process.scripted.held) == {(name, "main.1/agent#1")}
        events = process.events(name)
        assert [type(f) for f in events if isinstance(f, RunPaused | RunResumed)] == [
            RunPaused,
            RunResumed,
        ]

    run(body())
