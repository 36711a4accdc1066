"""Fakes of ports: a clock that the test sets, and a performer that answers by a script.

The clock does not move by itself. The performer answers at once, or when the test releases an
answer.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from loopwright.kernel.event_parts import AgentCall, Failure
from loopwright.ports import (
    Answer,
    EffectFailure,
    EffectJob,
    EffectSuccess,
)

START_MS = 1_700_000_000_000


class FakeClock:
    """The port `Clock` without real time. Timers run inside `advance` and `fire`, in order of time.

    `now` is the wall clock, which can be set; `passed` is the elapsed time.
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
        """Keep an action until the wall clock shows `when_ms`; the returned function cancels it."""
        return self._keep(self._at, when_ms, action)

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until this much time has passed; the returned function cancels it."""
        return self._keep(self._after, self.passed + delay_ms, action)

    @property
    def next_in(self) -> int | None:
        """Time until the earliest timer; 0 if one is due, None if there is none."""
        at, after = self._first(self._at), self._first(self._after)
        left = [] if at is None else [at - self.now]
        left += [] if after is None else [after - self.passed]
        return max(min(left), 0) if left else None

    def fire(self) -> int:
        """Run what is due now, including what becomes due by it; returns the number of actions."""
        ran = 0
        while self.next_in == 0:
            after = self._first(self._after)
            steady = after is not None and after <= self.passed
            _, number = heapq.heappop(self._after if steady else self._at)
            self._actions.pop(number)()
            ran += 1
        return ran

    def advance(self, ms: int) -> int:
        """Let time pass: each timer runs at its own time; returns the number of actions."""
        ran, left = self.fire(), self.next_in
        while left is not None and left <= ms:
            ms -= left
            self.elapse(left)
            ran += self.fire()
            left = self.next_in
        self.elapse(ms)
        return ran

    def elapse(self, ms: int) -> None:
        """Let time pass and run nothing: everything that was due in the meantime is late."""
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


PerformerScript: TypeAlias = Callable[[EffectJob], Answer | None]
"""The answer to a job; None delays the job until `ScriptedPerformer.answer` is called."""
ScriptedAnswer: TypeAlias = Answer | str | int | None
"""A short form of an answer: a text, or the exit code of a program."""


def answer_of(said: ScriptedAnswer) -> Answer | None:
    """An answer from its short form."""
    if isinstance(said, str):
        return EffectSuccess(output=said, code=0)
    return EffectSuccess(code=said) if isinstance(said, int) else said


def failed(kind: str, detail: str = "it did not work") -> EffectFailure:
    """An answer that reports a failure."""
    return EffectFailure(error=Failure(type=kind, detail=detail))


def always(said: ScriptedAnswer = "ok") -> PerformerScript:
    """The same answer to everything."""
    answer = answer_of(said)
    return lambda job: answer


def never() -> PerformerScript:
    """Every job is delayed."""
    return lambda job: None


def by_effect(
    table: Mapping[str, ScriptedAnswer], default: ScriptedAnswer = "ok"
) -> PerformerScript:
    """Named effects get their own answer, all others the default."""
    return lambda job: answer_of(table.get(job.effect, default))


def by_iteration(
    agents: Sequence[ScriptedAnswer], commands: Sequence[ScriptedAnswer] = (0,)
) -> PerformerScript:
    """The n-th iteration gets the n-th answer, and further ones the last answer."""

    def script(job: EffectJob) -> Answer | None:
        row = agents if isinstance(job.call, AgentCall) else commands
        return answer_of(row[min(job.iteration, len(row)) - 1])

    return script


class ScriptedPerformer:
    """The port `Performer` without side effects. `jobs` has every requested job, in order."""

    def __init__(self, script: PerformerScript | None = None) -> None:
        self.script = script or always()
        self.jobs: list[EffectJob] = []
        self.held: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self.jobs.append(job)
        answer = self.script(job)
        return answer if answer is not None else self.hold(job)

    def hold(self, job: EffectJob) -> Awaitable[Answer]:
        """Delay a job; it leaves `held` when it is answered or withdrawn."""
        key = job.run, job.effect
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held[key] = future
        future.add_done_callback(lambda done: self._over(key, done))
        return future

    def answer(self, run: str, effect: str, said: ScriptedAnswer) -> bool:
        """Answer a delayed job; False if it is no longer waiting."""
        future = self.held.get((run, effect))
        answer = answer_of(said)
        if future is None or future.done() or answer is None:
            return False
        future.set_result(answer)
        return True

    def _over(self, key: tuple[str, str], done: asyncio.Future[Answer]) -> None:
        if self.held.get(key) is done:
            del self.held[key]
