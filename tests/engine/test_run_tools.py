"""Tools of a run: which append stores a request, and what happens if the append fails."""

import asyncio
from collections.abc import Callable

import pytest

from loopwright.engine.run_tools import LONGEST_WAIT_S, MOST_USES
from loopwright.errors import StorageError, VersionConflict
from loopwright.kernel.events import MessageDelivered, MessageSent
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Coordinator, Plan
from loopwright.model.record import JsonValue
from loopwright.ports import Answer, Append, EffectJob, EffectSuccess, ToolReply
from tests.engine.world import Process, World, quiet, run

CALL = CallAgent(agent="worker")
FULL = StorageError("no space is left", code="full")


def plan() -> Plan:
    steps = (Step(id="a", action=CALL), Step(id="b", action=CALL, needs=("a",)))
    return Plan(name="t", steps=steps, coordinator=Coordinator(agent="lead"))


class Held:
    """Agents that wait; a test speaks for them."""

    def __init__(self) -> None:
        self.jobs: dict[str, EffectJob] = {}
        self.answers: dict[str, asyncio.Future[Answer]] = {}

    async def perform(self, job: EffectJob) -> Answer:
        self.jobs[job.effect] = job
        self.answers[job.effect] = asyncio.get_running_loop().create_future()
        return await self.answers[job.effect]

    def use(self, effect: str, tool: str, **arguments: JsonValue) -> "asyncio.Future[ToolReply]":
        talk = self.jobs[effect].talk
        assert talk is not None
        return asyncio.ensure_future(talk.use(tool, arguments))


async def begun(world: World | None = None) -> tuple[Held, Process, str]:
    held = Held()
    process = (world or World()).process(performer=held)
    name = await process.start(plan())
    await quiet()
    return held, process, name


def sent(process: Process, name: str) -> list[str]:
    return [str(event.text) for event in process.events(name) if isinstance(event, MessageSent)]


def test_a_use_is_answered_when_it_is_durable() -> None:
    """Nothing is told before the event is in the log."""

    async def body() -> None:
        held, process, name = await begun()
        told = held.use("a/agent#1", "send_message", text="hi")
        assert (await told).text == "queued: m1 for coordinator"
        assert sent(process, name) == ["hi"]

    run(body())


def test_what_could_not_be_saved_is_asked_again() -> None:
    """A conflict and a full disk cost time, not words; nothing is recorded twice."""

    async def body() -> None:
        held, process, name = await begun()
        process.log.refusals.extend([VersionConflict("other"), FULL])
        told = held.use("a/agent#1", "send_message", text="hi")
        await quiet()
        assert not told.done()
        await process.tick(2_000)
        assert (await told).ok
        assert sent(process, name) == ["hi"]

    run(body())


def test_what_can_never_be_saved_is_refused() -> None:
    """The agent is told, and the run goes on."""

    async def body() -> None:
        held, process, name = await begun()
        process.log.refusals.append(StorageError("too much", code="too-large"))
        told = await held.use("a/agent#1", "send_message", text="hi")
        assert not told.ok
        assert "too-large" in told.text
        assert sent(process, name) == []
        assert (await held.use("a/agent#1", "send_message", text="short")).ok

    run(body())


def test_a_call_made_again_after_a_crash_says_nothing_twice() -> None:
    """The same words of the same call are known; other words are a message of their own."""

    async def body() -> None:
        world = World()
        held, process, name = await begun(world)
        for text in ("hi", "hi", "one"):
            await held.use("a/agent#1", "send_message", text=text)
        await held.use("/coordinator#1", "narrate", text="so far")
        world.kill(process)
        again = Held()
        later = world.process(performer=again)
        later.driver.wake(name)
        await quiet()
        assert "before" in (await again.use("a/agent#1", "send_message", text="hi")).text
        later.log.refusals.append(VersionConflict("other"))
        assert (await again.use("a/agent#1", "send_message", text="two")).text.startswith(
            "queued: m4"
        )
        later.log.refusals.append(VersionConflict("other"))
        assert "before" in (await again.use("a/agent#1", "send_message", text="hi")).text
        assert (await again.use("a/agent#1", "send_message", text="hi")).text.startswith(
            "queued: m5"
        )
        assert "before" in (await again.use("/coordinator#1", "narrate", text="so far")).text
        assert sent(later, name) == ["hi", "hi", "one", "two", "hi"]
        assert later.kinds(name).count("coordinator.narrated") == 1

    run(body())


def test_what_was_read_before_a_crash_is_in_the_prompt_after_it() -> None:
    """A message handed to a call that is made again is not lost."""

    async def body() -> None:
        world = World()
        held, process, name = await begun(world)
        await held.use(
            "/coordinator#1", "forward_to_agent", target_step_id="a", text="mind the gap"
        )
        told = await held.use("a/agent#1", "read_inbox")
        assert [one.text for one in told.messages] == ["mind the gap"]
        assert "mind the gap" not in held.jobs["a/agent#1"].prompt.text
        world.kill(process)
        again = Held()
        world.process(performer=again).driver.wake(name)
        await quiet()
        assert "[coordinator]: mind the gap" in again.jobs["a/agent#1"].prompt.text

    run(body())


def test_waiting_for_mail_ends_with_mail_or_with_time() -> None:
    """A reader that waits is answered by the first message, or by the clock."""

    async def body() -> None:
        held, process, _ = await begun()
        waits = held.use("a/agent#1", "read_inbox", wait=5)
        await quiet()
        await process.tick(4_000)
        assert not waits.done()
        await process.tick(1_000)
        assert (await waits) == ToolReply(text="no message")
        waits = held.use("a/agent#1", "read_inbox", wait=10 * LONGEST_WAIT_S)
        await quiet()
        await held.use("/coordinator#1", "forward_to_agent", target_step_id="a", text="x")
        assert [one.text for one in (await waits).messages] == ["x"]
        assert (await held.use("a/agent#1", "read_inbox", wait=True)).messages == ()

    run(body())


def test_a_reader_that_has_gone_takes_nothing() -> None:
    """What came after it had left waits for another."""

    async def body() -> None:
        held, process, name = await begun()
        talk = held.jobs["a/agent#1"].talk
        assert talk is not None
        waits = talk.use("read_inbox", {"wait": 60})
        await quiet()
        waits.cancel()  # type: ignore[attr-defined]
        await held.use("/coordinator#1", "forward_to_agent", target_step_id="a", text="x")
        await quiet()
        assert not any(
            isinstance(event, MessageDelivered) and event.messages for event in process.events(name)
        )

    run(body())


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("moment", ["waiting", "recording a delivery", "recording nothing"])
def test_a_reader_that_stops_waiting_gets_what_is_recorded(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery that is being recorded reaches the reader; otherwise it gets nothing at once, and
    what comes later waits for another.
    """

    async def body() -> None:
        held, process, _ = await begun()
        talk = held.jobs["a/agent#1"].talk
        assert talk is not None
        submit = process.log.submit

        def stopping(append: Append, done: Callable[[Exception | None], None]) -> None:
            """Stop the readers while an append is under way."""
            submit(append, done)
            delivers = any(isinstance(event, MessageDelivered) for event in append.events)
            if delivers == (moment == "recording a delivery"):
                talk.end_waiting()
                appends.append(append)

        appends: list[Append] = []
        if moment == "recording nothing":
            held.use("/coordinator#1", "narrate", text="one")  # its append is under way
            monkeypatch.setattr(process.log, "submit", stopping)
        reading = held.use("a/agent#1", "read_inbox", wait=60)
        if moment == "recording nothing":
            held.use("/coordinator#1", "narrate", text="two")
        await quiet()
        if moment == "waiting":
            talk.end_waiting()
        if moment == "recording a delivery":
            monkeypatch.setattr(process.log, "submit", stopping)
            await held.use("/coordinator#1", "forward_to_agent", target_step_id="a", text="x")
        await quiet()
        assert len(appends) == (moment != "waiting")
        assert reading.done()
        assert [one.text for one in (await reading).messages] == (
            ["x"] if moment == "recording a delivery" else []
        )

    run(body())


def test_a_call_that_is_over_is_reported_as_over() -> None:
    """After its answer, or when the run is left, nobody waits for ever."""

    async def body() -> None:
        held, process, _ = await begun()
        waits = held.use("a/agent#1", "read_inbox", wait=60)
        await quiet()
        held.answers["a/agent#1"].set_result(EffectSuccess(output="x"))
        await quiet()
        assert not (await waits).ok
        assert not (await held.use("a/agent#1", "send_message", text="late")).ok
        other = held.use("b/agent#1", "read_inbox", wait=60)
        await quiet()
        await process.driver.close()
        assert not (await other).ok

    run(body())


def test_a_call_may_ask_only_so_often() -> None:
    """An agent that asks without end is told to stop, and the log does not grow."""

    async def body() -> None:
        held, process, name = await begun()
        for _ in range(MOST_USES):
            await held.use("a/agent#1", "read_inbox")
        told = await held.use("a/agent#1", "send_message", text="x")
        assert not told.ok
        assert sent(process, name) == []

    run(body())


def test_wrong_uses_are_reported() -> None:
    """A refusal is an answer, and no event."""

    async def body() -> None:
        held, process, name = await begun()
        before = process.log.version(name)
        for tool in ("narrate", "dance"):
            assert not (await held.use("a/agent#1", tool, text="x")).ok
        assert not (await held.use("a/agent#1", "send_message", text="")).ok
        assert process.log.version(name) == before

    run(body())
