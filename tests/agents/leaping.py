"""An event loop whose clock can be set forward: a limit is over when a test says so.

A short limit would be over before a slow machine has started the program that it is for. So tests
give long ones, wait until the program has come so far, and let the time pass in no time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

_T = TypeVar("_T")

HOUR_S = 3_600
PATIENCE_S = 60.0


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop that counts the seconds of the machine, and those that were leapt over."""

    def __init__(self) -> None:
        self._leapt = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._leapt

    def leap(self, seconds: float) -> None:
        self._leapt += seconds


def leap(seconds: float) -> None:
    """Let time pass in the running loop, which `play` has made."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    loop.leap(seconds)


def play(body: Coroutine[object, object, _T]) -> _T:
    """Run to the end, in a loop whose clock can be set forward."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(body)


async def leap_when(holds: Callable[[], bool], seconds: float = HOUR_S) -> None:
    """Wait until it holds, take what was written by then, and let the time pass."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(0.005)
    for _ in range(3):  # the loop looks into its pipes once in each turn
        await asyncio.sleep(0)
    leap(seconds)
