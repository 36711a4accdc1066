"""The contract of `ModelClient`, over every client: what holds for one holds for all."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing

import pytest

from loopwright.model.chat import (
    AssistantMessage,
    AttemptFailed,
    AttemptStarted,
    CallDelta,
    CallLimits,
    CallPart,
    ModelAnswer,
    ModelAttempt,
    ModelEvent,
    ModelFailureKind,
    ModelUsage,
    TextDelta,
    ToolMessage,
    ToolResult,
    UnansweredRequest,
    UserMessage,
)
from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    ScriptedUsage,
    WireScript,
)
from tests.contracts.model_client_suite import CLIENTS, PATIENT, Opener, World

TWO_CALLS = (
    ScriptedCall(name="fs_read", args={"path": "a"}),
    ScriptedCall(name="fs_list", args={"path": "b"}),
)
FAST = CallLimits(tries=1)


def cost_of_unmeasured(usage: ModelUsage) -> float | None:
    """Without counts a cost is unknown, except for a model of the user's own machine."""
    return 0.0 if usage.price == "local" else None


@pytest.fixture(params=CLIENTS.values(), ids=CLIENTS.keys())
def opener(request: pytest.FixtureRequest) -> Opener:
    found: Opener = request.param
    return found


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def ended(events: list[ModelEvent]) -> ModelAnswer:
    last = events[-1]
    assert isinstance(last, ModelAnswer), last
    return last


def refused(events: list[ModelEvent]) -> UnansweredRequest:
    last = events[-1]
    assert isinstance(last, UnansweredRequest), last
    return last


@pytest.mark.item("W28")
def test_a_text_arrives_in_pieces_and_whole(opener: Opener) -> None:
    """The first event starts the attempt, the deltas make up the text, the last one has it all."""

    async def work() -> None:
        turn = ScriptedTurn(
            text="one two three four", chunk=4, usage=ScriptedUsage(input=10, output=5)
        )
        async with opener(WireScript(turns=(turn,))) as world:
            events = await world.events(world.request())
        assert isinstance(events[0], AttemptStarted)
        said = "".join(event.text for event in events if isinstance(event, TextDelta))
        answer = ended(events)
        assert said == answer.message.text == "one two three four"
        assert answer.finish == "stop"
        [attempt] = answer.attempts
        assert (attempt.usage.input_tokens, attempt.usage.output_tokens) == (10, 5)

    run(work())


@pytest.mark.item("W2")
def test_two_calls_of_one_turn_and_their_results(opener: Opener) -> None:
    """Parallel calls come with our names and whole arguments, and the next request is accepted
    with a result for each, by a server that refuses anything else.
    """

    async def work() -> None:
        script = WireScript(
            turns=(ScriptedTurn(text="reading", calls=TWO_CALLS), ScriptedTurn(text="done"))
        )
        async with opener(script) as world:
            events = await world.events(world.request())
            turn = ended(events)
            assert [(c.tool, c.args) for c in turn.message.calls] == [
                ("fs.read", '{"path":"a"}'),
                ("fs.list", '{"path":"b"}'),
            ]
            assert turn.finish == "tool_calls"
            told = [event for event in events if isinstance(event, CallDelta)]
            assert [event.tool for event in told if event.tool] == ["fs.read", "fs.list"]
            history = (UserMessage(text="hello"), turn.message, results_for(turn.message))
            again = ended(await world.events(world.request(messages=history)))
            assert again.message.text == "done"

    run(work())


def results_for(message: AssistantMessage) -> ToolMessage:
    return ToolMessage(
        results=tuple(
            ToolResult(id=call.id, tool=call.tool, text="it is there") for call in message.calls
        )
    )


def test_an_interrupted_history_is_mended(opener: Opener) -> None:
    """A call without a result is sent with one that says so, not without one."""

    async def work() -> None:
        calls = (CallPart(id="c1", tool="fs.read"), CallPart(id="c2", tool="fs.list"))
        half = ToolMessage(results=(ToolResult(id="c2", tool="fs.list", text="b"),))
        history = (UserMessage(text="hello"), AssistantMessage(parts=calls), half)
        async with opener(WireScript(turns=(ScriptedTurn(text="fine"),))) as world:
            answer = ended(await world.events(world.request(messages=history)))
        assert answer.message.text == "fine"

    run(work())


@pytest.mark.item("W19")
def test_call_ids_are_unique_in_the_history(opener: Opener) -> None:
    """A server that uses an id again gets it renamed before anybody relies on it."""

    async def work() -> None:
        same = ScriptedCall(name="fs_read", args={"path": "a"}, id="again")
        first = AssistantMessage(parts=(CallPart(id="again", tool="fs.read"),))
        history = (UserMessage(text="hello"), first, results_for(first))
        async with opener(WireScript(turns=(ScriptedTurn(calls=(same,)),))) as world:
            answer = ended(await world.events(world.request(messages=history)))
        [call] = answer.message.calls
        assert call.id not in ("", "again")

    run(work())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(ScriptedFault(status=401), "auth", id="401"),
        pytest.param(ScriptedFault(status=404), "no_model", id="404"),
        pytest.param(ScriptedFault(status=400), "bad_request", id="400"),
        pytest.param(ScriptedFault(status=429), "rate_limited", id="429"),
        pytest.param(ScriptedFault(status=500), "server", id="500"),
        pytest.param(ScriptedFault(status=529), "overloaded", id="529"),
    ],
)
def test_errors_are_values_of_their_kind(
    opener: Opener, fault: ScriptedFault, kind: ModelFailureKind
) -> None:
    """Each error of a service ends the exchange with its kind, and costs nothing."""

    async def work() -> None:
        async with opener(WireScript(otherwise=ScriptedTurn(fault=fault))) as world:
            end = refused(await world.events(world.request(limits=FAST)))
        assert end.failure.kind == kind
        assert end.failure.status == fault.status
        [attempt] = end.attempts
        assert attempt.usage.usd == 0.0

    run(work())


def test_an_overflow_is_reported_at_once(opener: Opener) -> None:
    """A prompt that does not fit is not tried again: it has to be made shorter first."""

    async def work() -> None:
        async with opener(WireScript(otherwise=ScriptedTurn(overflow=True))) as world:
            end = refused(await world.events(world.request(limits=PATIENT)))
        assert end.failure.kind == "overflow"
        assert len(end.attempts) == 1

    run(work())


@pytest.mark.item("W13")
def test_a_passing_failure_is_tried_again(opener: Opener) -> None:
    """After 529 and 500 the third try answers; each attempt is told and counted."""

    async def work() -> None:
        turns = (
            ScriptedTurn(fault=ScriptedFault(status=529)),
            ScriptedTurn(fault=ScriptedFault(status=500)),
            ScriptedTurn(text="yes"),
        )
        async with opener(WireScript(turns=turns)) as world:
            events = await world.events(world.request(limits=PATIENT))
        answer = ended(events)
        assert answer.message.text == "yes"
        kinds = [one.failure.kind if one.failure else None for one in answer.attempts]
        assert kinds == ["overloaded", "server", None]
        assert [e.number for e in events if isinstance(e, AttemptStarted)] == [1, 2, 3]

    run(work())


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(ScriptedTurn(text="a long answer", chunk=4, cut_after=2), id="cut"),
        pytest.param(
            ScriptedTurn(text="a long answer", chunk=4, fault=ScriptedFault(status=529, after=2)),
            id="error inside",
        ),
    ],
)
def test_a_stream_that_breaks_is_begun_anew(opener: Opener, turn: ScriptedTurn) -> None:
    """What was said before the break is void; the answer is that of the new attempt alone, and
    the cost of the broken one is unknown, not zero.
    """

    async def work() -> None:
        async with opener(WireScript(turns=(turn, ScriptedTurn(text="whole")))) as world:
            answer = ended(await world.events(world.request(limits=PATIENT)))
        assert answer.message.text == "whole"
        broken: ModelAttempt = answer.attempts[0]
        assert broken.failure is not None
        assert broken.usage.usd == cost_of_unmeasured(broken.usage)
        assert not broken.usage.measured

    run(work())


def test_a_long_pause_is_not_waited_for(opener: Opener) -> None:
    """A service that asks for an hour ends the exchange, with the time it named."""

    async def work() -> None:
        script = WireScript(
            otherwise=ScriptedTurn(fault=ScriptedFault(status=429, retry_after=3600))
        )
        async with opener(script) as world:
            end = refused(await world.events(world.request(limits=PATIENT)))
            assert end.failure.kind == "rate_limited"
            assert end.failure.retry_at_ms == world.clock.now_ms() + 3_600_000
        assert len(end.attempts) == 1

    run(work())


@pytest.mark.item("W13")
def test_the_next_model_of_the_list_answers(opener: Opener) -> None:
    """A model whose key is refused gives way to the next one without a pause."""

    async def work() -> None:
        script = WireScript(
            turns=(ScriptedTurn(fault=ScriptedFault(status=401)), ScriptedTurn(text="I am second"))
        )
        async with opener(script) as world:
            models = (world.model, world.model)
            events = await world.events(world.request(models=models, limits=PATIENT))
        assert ended(events).message.text == "I am second"
        [failed] = [event for event in events if isinstance(event, AttemptFailed)]
        assert failed.wait_ms == 0

    run(work())


def test_closing_closes_the_connection(opener: Opener) -> None:
    """Leaving the stream in the middle ends the attempt at the other side too."""

    async def work() -> None:
        turn = ScriptedTurn(text="never said to its end", chunk=4, stall_after=2)
        async with opener(WireScript(turns=(turn,))) as world:
            async with aclosing(world.client.stream(world.request())) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        break
            await until_given_up(world)

    run(work())


@pytest.mark.item("W14")
def test_cancelling_closes_the_connection(opener: Opener) -> None:
    """A task that is cancelled while it waits for the model leaves nothing behind."""

    async def work() -> None:
        turn = ScriptedTurn(text="never said to its end", chunk=4, stall_after=1)
        async with opener(WireScript(turns=(turn,))) as world:
            begun = asyncio.Event()

            async def listen() -> None:
                async with aclosing(world.client.stream(world.request())) as stream:
                    async for event in stream:
                        if isinstance(event, TextDelta):
                            begun.set()

            task = asyncio.create_task(listen())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_given_up(world)

    run(work())


async def until_given_up(world: World) -> None:
    """The other side of a connection notices in its own thread."""
    for _ in range(2_000):
        if world.given_up():
            return
        await asyncio.sleep(0.005)
    pytest.fail("the attempt goes on at the other side")


@pytest.mark.parametrize(
    ("stall_after", "limits", "kind"),
    [
        pytest.param(
            0, CallLimits(first_token_ms=5_000, tries=1), "first_token_timeout", id="first"
        ),
        pytest.param(1, CallLimits(idle_ms=7_000, tries=1), "idle_timeout", id="idle"),
        pytest.param(1, CallLimits(total_ms=9_000, tries=1), "wall_timeout", id="total"),
    ],
)
def test_deadlines(
    opener: Opener, stall_after: int, limits: CallLimits, kind: ModelFailureKind
) -> None:
    """Silence at the start, silence in the middle and a talk without end each have their limit,
    on a clock that is set, and the connection is closed.
    """

    async def work() -> None:
        turn = ScriptedTurn(text="never said to its end", chunk=4, stall_after=stall_after)
        async with opener(WireScript(turns=(turn,))) as world:
            told: list[ModelEvent] = []
            reached = asyncio.Event()

            async def listen() -> None:
                async with aclosing(world.client.stream(world.request(limits=limits))) as stream:
                    async for event in stream:
                        told.append(event)
                        if stall_after == 0 or isinstance(event, TextDelta):
                            reached.set()

            task = asyncio.create_task(listen())
            await reached.wait()
            while not task.done():
                await asyncio.sleep(0.01)
                world.clock.advance(1_000)
            assert refused(told).failure.kind == kind

    run(work())


def test_usage_that_is_not_told_is_not_zero(opener: Opener) -> None:
    """A server that reports no usage leads to an answer whose cost is unknown."""

    async def work() -> None:
        async with opener(
            WireScript(turns=(ScriptedTurn(text="free?", report_usage=False),))
        ) as world:
            answer = ended(await world.events(world.request()))
        [attempt] = answer.attempts
        assert not attempt.usage.measured
        assert attempt.usage.usd == cost_of_unmeasured(attempt.usage)

    run(work())
