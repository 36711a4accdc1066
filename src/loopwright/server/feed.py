"""The feed: wakes whoever waits for new facts of a run, by whichever process they were written.

Facts are never queued for a client. Whoever is woken reads the log from its own cursor, so a client
that is slow costs nothing but its own delay, and nothing can be lost or doubled. How far a run is
was told when it was written to, so however many follow it, the disk is asked once.
"""

import asyncio
import contextlib
from collections.abc import Callable

from loopwright.errors import LoopwrightError
from loopwright.ports import EventLog
from loopwright.server.enduring import Enduring

POLL_S = 0.2
MOST_KNOWN = 10_000


class Feed:
    """One for a server. Made and used in the thread of its event loop."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._waiting: dict[str, dict[asyncio.Future[bool], int]] = {}  # what each has seen
        self._versions: dict[str, int] = {}
        self._hearing: list[Callable[[str], None]] = []
        self._cursor = 0
        self._end = log.subscribe(self._written)
        self.closed = False

    def version(self, run: str) -> int:
        """The number of the newest fact of a run; what others wrote counts when it is noticed."""
        known = self._versions.get(run)
        if known is None:
            if len(self._versions) >= MOST_KNOWN:
                self._versions.clear()
            known = self._versions[run] = self._log.version(run)
        return known

    async def moved(self, run: str, after: int, seconds: float) -> bool:
        """Wait until a run has a fact with a number above `after`; False when time was up first."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(run, {})[woken] = after
        # Not `wait_for`: a task for each of thousands of waits a second is what that would cost.
        late = loop.call_later(seconds, _time_is_up, woken)
        try:
            if self.closed or self.version(run) > after:
                return not self.closed
            if not await woken:
                self._versions.pop(run, None)  # it may be gone
                return False
            return not self.closed
        finally:
            late.cancel()
            del self._waiting[run][woken]
            if not self._waiting[run]:
                del self._waiting[run]

    def hear(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(run)` whenever a run was written to; the answer ends it."""
        self._hearing.append(listener)
        return lambda: self._hearing.remove(listener)

    async def watch_others(self) -> None:
        """Notice what other processes write, for as long as somebody waits."""
        work = Enduring("noticing what other processes write")
        with work.round():
            _, self._cursor = self._log.nudges(0)
        while not self.closed:
            await asyncio.sleep(POLL_S)
            if not self._waiting and not self._hearing:
                continue
            with work.round():
                runs, self._cursor = self._log.nudges(self._cursor)
                for run in runs:
                    self._wake(run, self._asked_anew(run))

    def close(self) -> None:
        """Let everybody go."""
        self.closed = True
        self._end()
        for run in list(self._waiting):
            self._wake(run)

    @property
    def listeners(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _written(self, run: str, version: int) -> None:
        if run in self._versions:  # a later one may be known already
            self._versions[run] = max(version, self._versions[run])
        self._wake(run, version)

    def _asked_anew(self, run: str) -> int | None:
        """How far a run is that somebody wrote to; None where that is not known."""
        self._versions.pop(run, None)
        if run in self._waiting:
            with contextlib.suppress(LoopwrightError):  # whoever waits finds out
                return self.version(run)
        return None

    def _wake(self, run: str, version: int | None = None) -> None:
        """Wake whoever has not seen as much."""
        for woken, after in self._waiting.get(run, {}).items():
            if not woken.done() and (version is None or version > after):
                woken.set_result(True)
        for listener in self._hearing:
            listener(run)


def _time_is_up(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)
