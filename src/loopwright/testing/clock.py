"""A clock that stands still until it is told otherwise."""

import heapq
from collections.abc import Callable

START_MS = 1_700_000_000_000


class FakeClock:
    """The port `Clock` without time. Timers run inside `advance` and `fire`, in order of time."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms
        self._timers: list[tuple[int, int]] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._made = 0

    def now_ms(self) -> int:
        return self.now

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until `when_ms` is reached; the answer cancels it."""
        self._made += 1
        number = self._made
        self._actions[number] = action
        heapq.heappush(self._timers, (when_ms, number))
        return lambda: self._cancel(number)

    @property
    def next_due(self) -> int | None:
        """When the earliest timer is due; None when there is none."""
        while self._timers and self._timers[0][1] not in self._actions:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire(self) -> int:
        """Run what is due now, also what becomes due by it; answers how many actions ran."""
        ran = 0
        due = self.next_due
        while due is not None and due <= self.now:
            _, number = heapq.heappop(self._timers)
            self._actions.pop(number)()
            ran += 1
            due = self.next_due
        return ran

    def advance(self, ms: int) -> int:
        """Let time pass: each timer on the way runs at its own time; answers how many ran."""
        end, ran = self.now + ms, self.fire()
        due = self.next_due
        while due is not None and due <= end:
            self.now = due
            ran += self.fire()
            due = self.next_due
        self.now = end
        return ran

    def jump(self, ms: int) -> None:
        """Set the time forward or back, as a person or a time server does; nothing runs yet."""
        self.now += ms

    def forget(self) -> None:
        """Drop every timer, as the end of a process does."""
        self._timers.clear()
        self._actions.clear()

    def _cancel(self, number: int) -> None:
        self._actions.pop(number, None)
