"""A clock that stands still until it is told otherwise."""

import heapq
from collections.abc import Callable

START_MS = 1_700_000_000_000


class FakeClock:
    """The port `Clock` without time. Timers run inside `advance` and `fire`, in order of time.

    `now` is the wall clock, which may be set; `passed` is how much time really went by.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms
        self.passed = 0
        self._at: list[tuple[int, int]] = []
        self._after: list[tuple[int, int]] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._made = 0

    def now_ms(self) -> int:
        return self.now

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until the wall clock shows `when_ms`; the answer cancels it."""
        return self._keep(self._at, when_ms, action)

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until so much time has passed; the answer cancels it."""
        return self._keep(self._after, self.passed + delay_ms, action)

    @property
    def next_in(self) -> int | None:
        """How long it is to the earliest timer; 0 when one is due, None when there is none."""
        at, after = self._first(self._at), self._first(self._after)
        left = [] if at is None else [at - self.now]
        left += [] if after is None else [after - self.passed]
        return max(min(left), 0) if left else None

    def fire(self) -> int:
        """Run what is due now, also what becomes due by it; answers how many actions ran."""
        ran = 0
        while self.next_in == 0:
            after = self._first(self._after)
            steady = after is not None and after <= self.passed
            _, number = heapq.heappop(self._after if steady else self._at)
            self._actions.pop(number)()
            ran += 1
        return ran

    def advance(self, ms: int) -> int:
        """Let time pass: each timer on the way runs at its own time; answers how many ran."""
        ran, left = self.fire(), self.next_in
        while left is not None and left <= ms:
            ms -= left
            self.elapse(left)
            ran += self.fire()
            left = self.next_in
        self.elapse(ms)
        return ran

    def elapse(self, ms: int) -> None:
        """Let time pass and run nothing: everything that was due meanwhile is late."""
        self.now += ms
        self.passed += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back, as a person or a time server does."""
        self.now += ms

    def forget(self) -> None:
        """Drop every timer, as the end of a process does."""
        self._at.clear()
        self._after.clear()
        self._actions.clear()

    def _keep(
        self, heap: list[tuple[int, int]], when: int, action: Callable[[], None]
    ) -> Callable[[], None]:
        self._made += 1
        number = self._made
        self._actions[number] = action
        heapq.heappush(heap, (when, number))
        return lambda: self._cancel(number)

    def _first(self, heap: list[tuple[int, int]]) -> int | None:
        while heap and heap[0][1] not in self._actions:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _cancel(self, number: int) -> None:
        self._actions.pop(number, None)
