"""The line: the Socket.IO library, behind the few things that are asked of it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NewType

import msgspec
import socketio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from loopwright.model.record import JsonValue
from loopwright.server.bodies import strict_json
from loopwright.server.refusals import Refusal

PATH = "/socket.io"
MESSAGE_BYTES = 1_000_000
_LOG = logging.getLogger("loopwright.server.sockets")
LAST_WORDS_S = 0.1
_ROOM = "/"
NO_EVENT = ""
Packed = NewType("Packed", str)
"""Something as it goes over the line."""


class Refused(Exception):
    """Somebody is not let in; what they are told."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


Come = Callable[[str, HTTPConnection, object], Awaitable[None]]
Go = Callable[[str], Awaitable[None]]
Hear = Callable[[str, object, tuple[object, ...]], Awaitable[Mapping[str, JsonValue]]]


class _Json:
    """JSON as it is sent and read: as strict as in a body. An event that cannot be read is one
    that nobody knows, so its sender is told.
    """

    @staticmethod
    def dumps(value: object, **_: object) -> str:
        return msgspec.json.encode(value).decode()

    @staticmethod
    def loads(text: str | bytes, **_: object) -> object:
        raw = text.encode() if isinstance(text, str) else text
        try:
            value = strict_json(raw)
        except Refusal as error:
            if not raw.lstrip().startswith((b"[", b"{")):  # what the library says to itself
                raise ValueError(error.message) from error
            return [NO_EVENT]
        return value if value != [] else [NO_EVENT]


class Line:
    """Connections by their ids."""

    def __init__(self, come: Come, go: Go, hear: Hear) -> None:
        self._server: Any = socketio.AsyncServer(
            async_mode="asgi",
            cors_allowed_origins=[],  # who may ask was seen to before a request came here
            max_http_buffer_size=MESSAGE_BYTES,
            http_compression=False,
            json=_Json,
            logger=_LOG,
            engineio_logger=_LOG,
            namespaces=[_ROOM],
        )
        self._come, self._go, self._hear = come, go, hear
        self._server.on("connect", self._connected)
        self._server.on("disconnect", self._disconnected)
        self._server.on("*", self._heard)
        self._in: set[str] = set()
        self._strangers: dict[str, int] = {}

    def app(self) -> ASGIApp:
        app: ASGIApp = socketio.ASGIApp(self._server, socketio_path=PATH.strip("/"))
        return app

    # -- what comes in -------------------------------------------------------------------------

    async def _connected(self, sid: str, environ: object = None, auth: object = None) -> None:
        if sid in self._in or not isinstance(environ, dict) or "asgi.scope" not in environ:
            return  # an event that is only called like this
        try:
            await self._come(sid, HTTPConnection(environ["asgi.scope"]), auth)
        except Refused as error:
            held = self._server.manager.eio_sid_from_sid(sid, _ROOM)
            self._server.start_background_task(self._show_out, held)
            refusal = socketio.exceptions.ConnectionRefusedError
            raise refusal(error.message, {"code": error.code}) from error
        self._in.add(sid)

    async def _show_out(self, held: str | None) -> None:
        """Close a connection that was refused, once it has been told why."""
        await asyncio.sleep(LAST_WORDS_S)
        await self._hang_up(held)

    async def _disconnected(self, sid: str, *_: object) -> None:
        if sid not in self._in or self._server.manager.is_connected(sid, _ROOM):
            return  # as above
        self._in.discard(sid)
        await self._go(sid)

    async def _heard(self, event: object, sid: str, *args: object) -> Mapping[str, JsonValue]:
        return await self._hear(sid, event, args)

    # -- what goes out -------------------------------------------------------------------------

    async def send(self, sid: str, event: str, data: Mapping[str, JsonValue]) -> None:
        """Send something."""
        await self._server.emit(event, dict(data), to=sid)

    def packed(self, event: str, data: msgspec.Raw) -> Packed:
        """What is JSON already as it goes over the line, once for all who are sent it."""
        said = self._server.packet_class(socketio.packet.EVENT, data=[event, data], namespace=_ROOM)
        return Packed(said.encode())

    async def send_packed(self, sid: str, packed: Packed) -> None:
        """Send what was made ready before; who has left is sent nothing."""
        held = self._server.manager.eio_sid_from_sid(sid, _ROOM)
        if held is not None:
            await self._server.eio.send(held, packed)

    def backlog(self, sid: str) -> int:
        """How many packets wait for a client to take them."""
        held = self._server.eio.sockets.get(self._server.manager.eio_sid_from_sid(sid, _ROOM))
        return held.queue.qsize() if held is not None else 0

    async def end(self, sid: str) -> None:
        """Close the connection of a client, without waiting for it to agree."""
        held = self._server.manager.eio_sid_from_sid(sid, _ROOM)
        if self._server.manager.is_connected(sid, _ROOM):
            await self._server.disconnect(sid)
        await self._hang_up(held)

    async def _hang_up(self, held: str | None) -> None:
        socket = self._server.eio.sockets.get(held)
        if socket is not None:
            await socket.close(wait=False)

    async def sweep(self) -> None:
        """Close connections that have not said who they are since the sweep before the last."""
        known = self._server.manager.sid_from_eio_sid
        strangers = [held for held in self._server.eio.sockets if known(held, _ROOM) is None]
        self._strangers = {one: self._strangers.get(one, 0) + 1 for one in strangers}
        for one in [one for one, times in self._strangers.items() if times > 2]:
            await self._hang_up(one)

    async def close(self) -> None:
        await self._server.shutdown()
