"""Messages to a program while it works, when one arrives at the moment its turn ends."""

import asyncio
from pathlib import Path

import pytest

from loopwright.agents.coding_agents import TurnMessages
from loopwright.model.record import JsonValue
from loopwright.ports import InboxMessage, ToolReply
from tests.agents.calls import job

LETTER = InboxMessage(sender="ann", text="hurry", kind="tell")
NOTHING = ToolReply(text="no message")


class Inbox:
    """The inbox of a call; a test decides when a delivery has been recorded."""

    def __init__(self, *, is_recording: bool) -> None:
        self.is_recording = is_recording
        self.reads: list[asyncio.Future[ToolReply]] = []

    async def use(self, tool: str, arguments: JsonValue) -> ToolReply:
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]

    def end_waiting(self) -> None:
        if not self.is_recording:
            self.reads[-1].set_result(NOTHING)


class Program:
    """A program under way that notes what is done to its input, in order."""

    def __init__(self) -> None:
        self.input: list[str] = []

    def write(self, data: bytes) -> None:
        self.input.append(data.decode().strip())

    def end_input(self) -> None:
        self.input.append("end")

    def finish(self, within_s: float) -> None: ...

    def hold_idle(self, *, held: bool) -> None: ...

    def no_progress(self) -> None: ...


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("recorded", ["before", "after"])
def test_a_message_recorded_while_the_turn_ends_is_sent(tmp_path: Path, recorded: str) -> None:
    """Whether its delivery is durable just before or only after the end of the turn: it is sent
    before the input ends, and the program is not ended until it has read it.
    """

    async def body() -> None:
        inbox, program, finished, read = Inbox(is_recording=True), Program(), [], set[str]()
        names: list[str] = []

        def encode(text: str, name: str) -> str:
            names.append(name)
            return text

        messages = TurnMessages(job(tmp_path, talk=inbox), encode)
        messages.begin(program)
        await settle()
        if recorded == "before":  # the reader has not been resumed yet
            inbox.reads[0].set_result(ToolReply(text="1 message", messages=(LETTER,)))
        messages.end_turn(read, lambda: finished.append("first turn"))
        messages.end_turn(read, lambda: finished.append("more output after the turn"))
        if recorded == "after":
            await settle()
            assert program.input == []
            inbox.reads[0].set_result(ToolReply(text="1 message", messages=(LETTER,)))
        await settle()
        assert program.input == ["Message from ann: hurry", "end"]
        assert (finished, len(inbox.reads)) == ([], 1)
        read.update(names)
        messages.end_turn(read, lambda: finished.append("second turn"))
        assert finished == ["second turn"]

    asyncio.run(body())


@pytest.mark.item("rec-35")
def test_a_turn_without_a_message_ends_at_once(tmp_path: Path) -> None:
    """A reader that only waits takes nothing, and what comes later waits for the next call."""

    async def body() -> None:
        inbox, program, finished = Inbox(is_recording=False), Program(), []
        messages = TurnMessages(job(tmp_path, talk=inbox), lambda text, name: text)
        messages.begin(program)
        await settle()
        messages.end_turn(set(), lambda: finished.append("turn"))
        await settle()
        assert (program.input, finished, len(inbox.reads)) == (["end"], ["turn"], 1)

    asyncio.run(body())


@pytest.mark.item("rec-35")
def test_a_call_that_was_closed_sends_nothing(tmp_path: Path) -> None:
    """Its program has ended; a repeated call has delivered messages in its prompt."""

    async def body() -> None:
        inbox, program, finished = Inbox(is_recording=True), Program(), []
        messages = TurnMessages(job(tmp_path, talk=inbox), lambda text, name: text)
        messages.begin(program)
        await settle()
        messages.end_turn(set(), lambda: finished.append("turn"))
        messages.close()
        await settle()
        assert (program.input, finished) == ([], [])

    asyncio.run(body())
