"""One attempt under its deadlines: the library speaks in a task, the gateway listens."""

import asyncio
from collections.abc import Awaitable, Callable

from loopwright.gateway.speaking import Delta, Fallen, Said, Spoken
from loopwright.model.exchange import (
    CallDelta,
    CallLimits,
    ModelFailure,
    ModelFailureKind,
    ModelUsage,
)
from loopwright.ports import Clock

LONGEST_ANSWER = 16_000_000  # characters; a model that never ends is stopped before memory is

_WORDS: dict[ModelFailureKind, str] = {
    "first_token_timeout": "nothing was said within {first_token_ms} ms",
    "idle_timeout": "it fell silent for {idle_ms} ms",
    "wall_timeout": "it was not done within {total_ms} ms, all tries together",
    "bad_answer": "the answer did not come to an end",
}


class Trial:
    """Deltas as they come, by iteration; afterwards `outcome` says how it ended.

    The deadline for the first token runs from the start, that for silence from each delta on.
    `stop` ends the attempt from outside, for the reason given; `close` ends it without one.
    """

    def __init__(
        self, speak: Callable[[Said], Awaitable[Spoken | Fallen]], clock: Clock, limits: CallLimits
    ) -> None:
        self._speak = speak
        self._clock = clock
        self._limits = limits
        self._queue: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._stopped: ModelFailureKind | None = None
        self._size = 0
        self._outcome: Spoken | Fallen | None = None
        self._error: Exception | None = None
        self._timer = self._arm(limits.first_token_ms, "first_token_timeout")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def outcome(self) -> Spoken | Fallen:
        """How it ended; to be asked when the iteration is over."""
        if self._outcome is None:
            raise self._error or RuntimeError("the attempt is still under way")
        return self._outcome

    def __aiter__(self) -> "Trial":
        return self

    async def __anext__(self) -> Delta:
        delta = await self._queue.get()
        if delta is None:
            raise StopAsyncIteration
        return delta

    def stop(self, why: ModelFailureKind) -> None:
        """End it, for a reason that becomes its outcome."""
        if self._stopped is None and self._outcome is None:
            self._stopped = why
            self._task.cancel()

    async def close(self) -> None:
        """End it if it is still under way, and wait until its connection is given back."""
        self._timer()
        self._task.cancel()
        await asyncio.wait({self._task})

    def _arm(self, ms: int, why: ModelFailureKind) -> Callable[[], None]:
        return self._clock.call_after(ms, lambda: self.stop(why))

    def _said(self, delta: Delta) -> None:
        self._timer()
        self._timer = self._arm(self._limits.idle_ms, "idle_timeout")
        self._queue.put_nowait(delta)
        self._size += len(delta.args if isinstance(delta, CallDelta) else delta.text)
        if self._size > LONGEST_ANSWER:
            self.stop("bad_answer")

    async def _run(self) -> None:
        try:
            self._outcome = await self._speak(self._said)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            self._outcome = self._cut_short(self._stopped)
        except Exception as error:
            self._error = error  # a defect of ours: raised where the outcome is asked for
        finally:
            self._timer()
            self._queue.put_nowait(None)

    def _cut_short(self, why: ModelFailureKind) -> Fallen:
        limits = self._limits
        detail = _WORDS[why].format(
            first_token_ms=limits.first_token_ms, idle_ms=limits.idle_ms, total_ms=limits.total_ms
        )
        return Fallen(
            failure=ModelFailure(kind=why, detail=detail), usage=ModelUsage(measured=False)
        )
