"""The line: the Socket.IO library, behind the few things that are asked of it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NewType

import engineio
import msgspec
import socketio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from loopwright.model.record import JsonValue
from loopwright.server.bodies import strict_json
from loopwright.server.refusals import Refusal
from loopwright.server.sockets.packets import CloseSocket, PacketCheck

PATH = "/socket.io"
MESSAGE_BYTES = 1_000_000
_LOG = logging.getLogger("loopwright.server.sockets")
LAST_WORDS_S = 0.1
SLOW_CLIENT_LOOKS = 30  # for a client to fetch the reason why it was refused
MAX_UNIDENTIFIED = 128  # sessions whose clients have not sent a token that is known
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
        self._sockets: dict[str, CloseSocket] = {}
        self._pings: dict[str, asyncio.Future[None]] = {}
        self._server.eio.start_background_task = self._start_task

    def app(self) -> ASGIApp:
        return PacketCheck(socketio.ASGIApp(self._server, socketio_path=PATH.strip("/")), self)

    def _start_task(
        self, target: Callable[..., Awaitable[Any]], *args: object, **named: object
    ) -> asyncio.Future[Any]:
        """As the library does it, and remember the task that waits to ping a session: it would
        keep a session in memory after its end.
        """
        task: asyncio.Future[Any] = asyncio.ensure_future(target(*args, **named))
        session = getattr(getattr(target, "__self__", None), "sid", None)
        if isinstance(session, str):
            self._pings[session] = task
            task.add_done_callback(lambda _: self._forget_ping(session, task))
        return task

    def _forget_ping(self, session: str, task: asyncio.Future[Any]) -> None:
        if self._pings.get(session) is task:
            del self._pings[session]

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
        for _ in range(SLOW_CLIENT_LOOKS):
            await asyncio.sleep(LAST_WORDS_S)
            session = self._server.eio.sockets.get(held)
            if session is None or session.queue.empty():
                break
        await self.hang_up(held)

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
        await self.hang_up(held)

    # -- sessions, whether or not their clients were let in ------------------------------------

    def is_identified(self, session: str | None) -> bool:
        return self._server.manager.sid_from_eio_sid(session, _ROOM) in self._in

    async def hang_up(self, session: str | None) -> None:
        """Close a session, and its WebSocket shortly after, whether or not its client agrees."""
        held = self._server.eio.sockets.get(session)
        if held is None or session is None:
            return
        with contextlib.suppress(engineio.exceptions.SocketIsClosedError):
            await held.close(wait=False)
        self._server.eio.sockets.pop(session, None)
        self._end_ping(session)
        close = self._sockets.pop(session, None)
        if close is not None:
            self._server.start_background_task(self._close_socket, close)

    async def _close_socket(self, close: CloseSocket) -> None:
        """Close a WebSocket once the last packet of its session has been sent."""
        await asyncio.sleep(LAST_WORDS_S)
        await close()

    def register_socket(self, session: str, close: CloseSocket) -> None:
        self._sockets[session] = close

    def forget_socket(self, session: str, close: CloseSocket) -> None:
        if self._sockets.get(session) == close:
            del self._sockets[session]
        if session not in self._server.eio.sockets:
            self._end_ping(session)

    def _end_ping(self, session: str) -> None:
        ping = self._pings.pop(session, None)
        if ping is not None:
            ping.cancel()

    def _unidentified(self) -> list[str]:
        """Sessions whose clients were not let in, the oldest first."""
        return [one for one in self._server.eio.sockets if not self.is_identified(one)]

    async def make_room(self) -> None:
        """Close the oldest: a client sends its token within moments of opening a session."""
        for one in self._unidentified()[: -(MAX_UNIDENTIFIED - 1)]:
            await self.hang_up(one)

    async def sweep(self) -> None:
        """Close sessions that have not sent a token since the sweep before the last."""
        strangers = self._unidentified()
        self._strangers = {one: self._strangers.get(one, 0) + 1 for one in strangers}
        for one in [one for one, times in self._strangers.items() if times > 2]:
            await self.hang_up(one)

    async def close(self) -> None:
        await self._server.shutdown()
