"""The real clock. The event loop does the waiting; when the wall clock is set back, nothing fires
early.
"""

import asyncio
import time
from collections.abc import Callable

# A timer checks at least this often, so that a wall clock that was set forward is noticed.
LONGEST_NAP_S = 60.0
# The size of normal clock corrections; a larger difference is a jump.
JUMP_MS = 60_000
# Continues while the machine sleeps, which the other clock does not on every system.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """The time of the system clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Monotonic time, independent of the wall clock."""
    return time.clock_gettime_ns(_STEADY) // 1_000_000


class SystemClock:
    """Wall time for records, the event loop's timers for waiting.

    A jump of the wall clock is ignored while the process lives: otherwise a run would have lasted a
    year, and its time limit would be reached. Times continue from before the jump until the next
    start.
    """

    def __init__(
        self, wall: Callable[[], int] = wall_ms, steady: Callable[[], int] = steady_ms
    ) -> None:
        self._wall, self._steady = wall, steady
        self._ahead = wall() - steady()  # of the wall clock, without its jumps

    def now_ms(self) -> int:
        steady = self._steady()
        ahead = self._wall() - steady
        if ahead != self._ahead and abs(ahead - self._ahead) <= JUMP_MS:
            self._ahead = ahead
        return steady + self._ahead

    def jump_ms(self) -> int:
        """How far the wall clock has jumped; 0 if it has not."""
        away = self._wall() - self._steady() - self._ahead
        return away if abs(away) > JUMP_MS else 0

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        handle: list[asyncio.TimerHandle] = []

        def look() -> None:
            left = (when_ms - self.now_ms()) / 1_000
            if left <= 0:
                action()
            else:
                handle[:] = [loop.call_later(min(left, LONGEST_NAP_S), look)]

        handle[:] = [loop.call_later(0, look)]
        return lambda: handle[0].cancel()

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, action).cancel
