"""Rounds of the event loop: what many streams bring at once is taken up in small portions.

A hundred answers that come word by word all have something to read in the same round, and to take
it up costs a third of a millisecond each. Read in one go, they would hold up everybody else.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx2

SLICE_SECONDS = 0.005


class Rounds:
    """Lets those who come go on until the round has lasted long enough; the others go on in the
    next. Belongs to one event loop.
    """

    def __init__(self, slice_seconds: float = SLICE_SECONDS) -> None:
        self._slice = slice_seconds
        self._until: float | None = None  # the end of this round's portion, once it has begun
        self._next = asyncio.Event()
        self._door = asyncio.Lock()

    async def enter(self) -> None:
        """Come in alone: requests that are to begin at once begin one in a round, since building
        one takes milliseconds.
        """
        async with self._door:
            await asyncio.sleep(0)

    async def turn(self) -> None:
        """Come back when there is time in a round."""
        loop = asyncio.get_running_loop()
        while self._until is not None and loop.time() > self._until:
            await self._next.wait()
        if self._until is None:
            self._until = loop.time() + self._slice
            loop.call_soon(self._over)

    def _over(self) -> None:
        self._until = None
        self._next.set()
        self._next = asyncio.Event()

    async def pace(self, response: httpx2.Response) -> None:
        """Have the body of a response read in turns."""
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Paced(response.stream, self)


class _Paced(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, rounds: Rounds) -> None:
        self._stream = stream
        self._rounds = rounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            await self._rounds.turn()
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
