"""Telling many receivers: so many side by side, each of them one thing after another. Whoever is
slow holds up nobody else, and not the end of the server either.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

MOST = 8  # receivers that are told at the same moment

_Found = TypeVar("_Found")


async def aside(work: Callable[[], _Found]) -> _Found:
    """Do something slow in a thread that nobody waits for when the server ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Found] = loop.create_future()

    def settle(found: _Found | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)  # type: ignore[arg-type]  # there was no error

    def run() -> None:
        found, trouble = None, None
        try:
            found = work()
        except BaseException as error:
            trouble = error
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(settle, found, trouble)

    threading.Thread(target=run, name="loopwright-aside", daemon=True).start()
    return await done


class Lanes:
    """Who is being told just now."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._busy: dict[str, asyncio.Future[None]] = {}
        self._last: dict[str, int] = {}  # whose turn was when
        self._turn = 0

    def begin(
        self, waiting: Iterable[str], work: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        """Begin with those who wait, as far as there is room: first whose turn was longest ago."""
        names = sorted(set(waiting).difference(self._busy), key=lambda one: self._last.get(one, 0))
        for name in names[: self._most - len(self._busy)]:
            self._turn += 1
            self._last[name] = self._turn
            self._busy[name] = task = asyncio.ensure_future(work(name))
            task.add_done_callback(partial(self._done, name))

    def _done(self, name: str, _task: asyncio.Future[None]) -> None:
        del self._busy[name]

    async def rest(self) -> None:
        """Wait until nobody is being told any more."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    async def end(self) -> None:
        """Let go of all of them."""
        for task in self._busy.values():
            task.cancel()
        await self.rest()
