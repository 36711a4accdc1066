"""Caps and barriers: who runs beside whom."""

import asyncio
from collections.abc import Awaitable

import pytest

from loopwright.tools.builtin import ToolLimit, ToolSlots

FREE, TWO, ALONE = ToolLimit(), ToolLimit(at_once=2), ToolLimit(exclusive=True)


class Calls:
    """Calls that go on until they are told to end."""

    def __init__(self) -> None:
        self.gate = ToolSlots()
        self.running: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, limit: ToolLimit, tool: str = "tool") -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._one(name, limit, tool))
        await settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await settle()

    async def _one(self, name: str, limit: ToolLimit, tool: str) -> None:
        async with self.gate.turn(tool, limit):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(story: Awaitable[None]) -> None:
    async def whole() -> None:
        await story

    asyncio.run(whole())


def test_a_cap_holds_for_its_tool_alone() -> None:
    """The third call of a tool waits; another tool goes past it."""

    async def story() -> None:
        calls = Calls()
        for name in "abc":
            await calls.begin(name, TWO)
        await calls.begin("d", TWO, tool="other")
        assert calls.running == ["a", "b", "d"]
        await calls.end("b")
        assert calls.running == ["a", "d", "c"]
        for name in "acd":
            await calls.end(name)

    play(story())


def test_an_exclusive_call_is_a_barrier() -> None:
    """It waits for all before it, and all after it wait for it."""

    async def story() -> None:
        calls = Calls()
        await calls.begin("before", FREE)
        await calls.begin("alone", ALONE, tool="x")
        await calls.begin("after", FREE)
        assert calls.running == ["before"]
        await calls.end("before")
        assert calls.running == ["alone"]
        await calls.end("alone")
        assert calls.running == ["after"]
        await calls.end("after")

    play(story())


@pytest.mark.parametrize("victim", ["before", "alone", "after"])
def test_a_cancelled_call_keeps_nobody_waiting(victim: str) -> None:
    """Wherever a call is given up, the rest goes on."""

    async def story() -> None:
        calls = Calls()
        await calls.begin("before", FREE)
        await calls.begin("alone", ALONE, tool="x")
        await calls.begin("after", FREE)
        await calls.cancel(victim)
        for name in ("before", "alone", "after"):
            await calls.end(name)
        assert calls.running == []
        assert all(task.done() for task in calls.tasks.values())
        await calls.begin("next", ALONE)
        assert calls.running == ["next"]
        await calls.end("next")

    play(story())


def test_a_turn_that_comes_with_a_cancellation_is_given_back() -> None:
    """Admitted and cancelled in the same moment: the place is free again."""

    async def story() -> None:
        calls = Calls()
        await calls.begin("first", ALONE)
        await calls.begin("second", ALONE)
        calls.ends["first"].set()
        await asyncio.sleep(0)
        calls.tasks["second"].cancel()
        await settle()
        await calls.begin("third", ALONE)
        assert "third" in calls.running
        await calls.end("third")

    play(story())
