"""Hashing of passwords in threads, few at once, so that guesses cannot block all processors."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from loopwright.http.context import Context
from loopwright.http.responses import RequestRefusal

AT_ONCE = 2
MOST_WAITING = 32
_Made = TypeVar("_Made")


class Hashing:
    """Does slow work, one after the other."""

    def __init__(self, _context: Context) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self.inside = 0

    async def do(self, work: Callable[[], _Made]) -> _Made:
        """What comes of some work; 503 when too many wait for theirs."""
        if self.inside >= AT_ONCE + MOST_WAITING:
            raise RequestRefusal(
                503, "busy", "too many passwords are tried just now", headers={"Retry-After": "1"}
            )
        self.inside += 1
        try:
            async with self._places:
                return await asyncio.to_thread(work)
        finally:
            self.inside -= 1
