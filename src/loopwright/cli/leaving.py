"""Leaving: what Ctrl-C and a termination signal mean while runs are driven here.

The first Ctrl-C asks the runs to pause: the pass that is under way goes on to its end. The second
one leaves at once, as SIGTERM and SIGHUP do. Whenever this process leaves, its agents are ended and
the runs can be taken up again from where their logs stand.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Leaving:
    """Whether this process is to leave, and with which exit code."""

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        self._pause = pause
        self._now = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()
        self.pausing = False
        self.code: int | None = None
        self.at_once = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for as long as this lasts."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signalled, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def signalled(self, number: int) -> None:
        """A signal has come."""
        if number == signal.SIGINT and not self.pausing and not self.at_once:
            self.pausing = True
            task = asyncio.ensure_future(self._pause())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.leave(128 + number)

    def leave(self, code: int) -> None:
        """Leave as soon as what is under way has been ended."""
        self.code = code
        self._now.set()

    async def unless(self, wait: Awaitable[object]) -> bool:
        """Wait for something, or for the order to leave; True when it came first."""
        waiting = asyncio.ensure_future(wait)
        going = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({waiting, going}, return_when=asyncio.FIRST_COMPLETED)
            if self._now.is_set():
                return True
            await waiting
            return False
        finally:
            for task in (waiting, going):
                task.cancel()
            await asyncio.gather(waiting, going, return_exceptions=True)
