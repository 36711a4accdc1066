"""A Socket.IO client for tests: it remembers everything that it was sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import socketio

from tests.http.served import SECONDS, Served


class Tab:
    """One connection, and what came over it."""

    def __init__(self) -> None:
        self.client: Any = socketio.AsyncClient(reconnection=False, request_timeout=SECONDS)
        self.got: list[tuple[str, Any]] = []
        self.refused: Any = None
        self._news = asyncio.Event()
        self.client.on("*", self._take)
        self.client.on("connect_error", self._not_let_in)

    async def _take(self, event: str, *args: Any) -> None:
        self.got.append((event, args[0] if args else None))
        self._news.set()

    async def _not_let_in(self, why: Any) -> None:
        self.refused = why

    async def say(self, event: str, *data: Any) -> Any:
        """Emit, and wait for the answer."""
        given = data[0] if len(data) == 1 else data
        return await self.client.call(event, given, timeout=SECONDS)

    def all(self, event: str) -> list[Any]:
        return [data for name, data in self.got if name == event]

    async def until(self, true: Callable[[], Any]) -> Any:
        """Wait until something is true of what came."""
        async with asyncio.timeout(SECONDS):
            while not (found := true()):
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.5)
        return found

    async def first(self, event: str, **fields: Any) -> Any:
        """The first event with these fields."""

        def found() -> Any:
            for data in self.all(event):
                if all(data.get(name) == value for name, value in fields.items()):
                    return data
            return None

        return await self.until(found)

    async def leave(self) -> None:
        await self.client.disconnect()


@asynccontextmanager
async def tab(own: Served, token: str | None = None, **how: Any) -> AsyncIterator[Tab]:
    """A connection of whoever holds the token; cookies are sent to a host with a name alone."""
    one = Tab()
    host = how.pop("host", "127.0.0.1")
    auth = {"token": own.token if token is None else token, **how.pop("auth", {})}
    how.setdefault("transports", ["websocket"])
    how.setdefault("wait_timeout", SECONDS)  # by itself a client waits for one second
    await one.client.connect(f"http://{host}:{own.port}", auth=auth, **how)
    try:
        yield one
    finally:
        await one.leave()


def talk(work: Coroutine[Any, Any, None]) -> None:
    """Run a conversation."""
    asyncio.run(asyncio.wait_for(work, 1.5 * SECONDS))
