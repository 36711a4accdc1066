"""The real clock. Waiting is done by the event loop; a wall clock set back fires nothing early."""

import asyncio
import time
from collections.abc import Callable

# A timer looks again at least this often, so that a wall clock set forward is noticed.
LONGEST_NAP_S = 60.0


class SystemClock:
    """Wall time for records, the event loop's timers for waiting."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

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
