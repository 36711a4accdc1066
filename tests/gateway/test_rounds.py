"""Portions of the event loop's rounds: nobody is held up by what many streams bring at once."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from loopwright.gateway.library.speaker import StreamPacer

LONG = 3_600.0
NO_TIME_AT_ALL = -1.0
MANY = 20


async def rounds_used(rounds: StreamPacer, *, entering: bool = False) -> int:
    """In how many rounds of the event loop so many come through that all come at once."""
    seen: set[int] = set()
    now = 0

    async def one() -> None:
        await (rounds.enter() if entering else rounds.turn())
        seen.add(now)

    waiting = asyncio.gather(*(one() for _ in range(MANY)))
    while not waiting.done():
        await asyncio.sleep(0)
        now += 1
    await waiting
    return len(seen)


@pytest.mark.parametrize(
    ("portion", "entering", "rounds"),
    [
        pytest.param(LONG, False, 1, id="all at once while there is time"),
        pytest.param(NO_TIME_AT_ALL, False, MANY, id="one in a round where there is none"),
        pytest.param(LONG, True, MANY, id="requests begin one in a round"),
    ],
)
def test_portions(portion: float, entering: bool, rounds: int) -> None:
    """As many go on in one round as fit in its time; the others go on in the next ones."""
    assert asyncio.run(rounds_used(StreamPacer(portion), entering=entering)) == rounds


class Body(httpx2.AsyncByteStream):
    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in (b"a", b"b", b"c"):
            yield piece

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("streamed", [True, False])
def test_a_paced_body_is_whole(streamed: bool) -> None:
    """Every piece of a body comes, in order, and closing it closes the connection."""

    async def read() -> tuple[bytes, bool]:
        body = Body()
        response = httpx2.Response(200, stream=body if streamed else None)
        await StreamPacer(NO_TIME_AT_ALL).pace(response)
        return await response.aread(), body.closed

    assert asyncio.run(read()) == ((b"abc", True) if streamed else (b"", False))
