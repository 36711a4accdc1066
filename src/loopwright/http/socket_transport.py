"""The Socket.IO library behind a small interface, and checks of Engine.IO packets before it.

Clients need few kinds of packet: close, pong, the three steps of an upgrade, and messages in
the default namespace without attachments. Every other packet closes the connection. Without a
token a client may only connect, in a small packet, and nothing that it sends is kept.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NewType, Protocol
from urllib.parse import parse_qs

import engineio
import msgspec
import socketio
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.http.context import UNIDENTIFIED_BYTES
from loopwright.http.requests import strict_json
from loopwright.http.responses import RequestRefusal
from loopwright.model.record import JsonValue

MAX_PACKETS = 16  # in one body
HANDSHAKE_SECONDS = 10.0  # for a WebSocket to be upgraded, and for its client to send a token
POLICY_VIOLATION = 1008
SEPARATOR = "\x1e"
CONNECT, CLOSE, PROBE, PONG, UPGRADE, MESSAGE = "0", "1", "2probe", "3", "5", "4"
DISCONNECT, EVENT, ACK = "1", "2", "3"

CloseSocket = Callable[[], Awaitable[None]]


class BadPacket(Exception):
    """A packet that no client sends."""


class TransportSessions(Protocol):
    """The sessions of the library, as far as they matter here."""

    def is_identified(self, session: str | None) -> bool:
        """Whether the client of a session has sent a token that is known."""

    async def hang_up(self, session: str | None) -> None:
        """Close a session and forget it."""

    async def make_room(self) -> None:
        """Close the oldest sessions without a token when there are too many of them."""

    def register_socket(self, session: str, close: CloseSocket) -> None:
        """Remember how the WebSocket of a session is closed."""

    def forget_socket(self, session: str, close: CloseSocket) -> None:
        """Forget how it is closed, unless another WebSocket has replaced it."""


def check_packet(packet: str | bytes, *, identified: bool, upgrade: bool = False) -> None:
    """Raise BadPacket unless a client may send this packet now."""
    if not isinstance(packet, str):
        raise BadPacket("binary packets are not accepted")
    if packet in (PONG, CLOSE):
        return
    if upgrade and packet in (PROBE, UPGRADE):
        return
    if not packet.startswith(MESSAGE):
        raise BadPacket("unknown packet type")
    if not identified and len(packet) > UNIDENTIFIED_BYTES:
        raise BadPacket("too large before a token")
    _check_message(packet[1:2], packet[2:3], identified=identified)


def _check_message(kind: str, following: str, *, identified: bool) -> None:
    """`kind` is the type in Socket.IO, `following` the character after it."""
    allowed = (DISCONNECT, EVENT, ACK) if identified else (CONNECT,)
    if kind not in allowed or not kind:
        raise BadPacket("this message is not accepted now")
    if following == "/":
        raise BadPacket("there is only the default namespace")


def split_body(body: bytes) -> list[str]:
    """The packets in a body of the polling transport."""
    try:
        packets = body.decode().split(SEPARATOR)
    except UnicodeDecodeError as error:
        raise BadPacket("not UTF-8") from error
    if len(packets) > MAX_PACKETS:
        raise BadPacket(f"more than {MAX_PACKETS} packets")
    return packets


class PacketCheck:
    """The application of the library; requests with packets that no client sends do not reach it,
    and close the session that they name.
    """

    def __init__(self, app: ASGIApp, sessions: TransportSessions) -> None:
        self._app, self._sessions = app, sessions
        self._polls: set[str] = set()  # sessions that are being polled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        query, session = _query_of(scope), _session_of(scope)
        if "j" in query or len(query.get("sid", ())) > 1:
            await _refusal("JSONP and repeated parameters are not accepted")(scope, receive, send)
            return
        if not session:
            await self._sessions.make_room()
        if scope["type"] == "websocket":
            await _Socket(self._sessions, session, receive, send).serve(self._app, scope)
        elif scope["method"] == "POST":
            await self._post(session, scope, receive, send)
        elif session and scope["method"] == "GET":
            await self._poll(session, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _poll(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A client polls once at a time; more polls would only hold connections."""
        if session in self._polls:
            await self._sessions.hang_up(session)
            await _refusal("this session is being polled already")(scope, receive, send)
            return
        self._polls.add(session)
        try:
            await self._app(scope, receive, send)
        finally:
            self._polls.discard(session)

    def body_limit(self, scope: Scope) -> int | None:
        """How many bytes a body has at most; None for the usual limit."""
        known = self._sessions.is_identified(_session_of(scope))
        return None if known else UNIDENTIFIED_BYTES

    async def refuse_body(self, scope: Scope) -> None:
        """Close the session of a request whose body was too large or too slow."""
        await self._sessions.hang_up(_session_of(scope))

    async def _post(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        identified = self._sessions.is_identified(session)
        try:
            _check_type(Headers(scope=scope))
            for packet in split_body(message.get("body", b"")):
                check_packet(packet, identified=identified)
        except BadPacket as error:
            await self._sessions.hang_up(session)
            await _refusal(str(error))(scope, receive, send)
            return
        await self._app(scope, _repeat_first(message, receive), send)


def _query_of(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _session_of(scope: Scope) -> str:
    return _query_of(scope).get("sid", [""])[0]


def _refusal(why: str) -> ASGIApp:
    body = {"code": 3, "message": f"Bad request: {why}"}
    response = JSONResponse(body, 400, headers={"Connection": "close"})

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        await response(scope, receive, send)

    return refuse


def _check_type(headers: Headers) -> None:
    """The library reads a form as a packet of JSONP."""
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise BadPacket("a form is not accepted")


def _repeat_first(message: Message, receive: Receive) -> Receive:
    left = [message]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


class _Socket:
    """One WebSocket on its way to the library."""

    def __init__(
        self, sessions: TransportSessions, session: str, receive: Receive, send: Send
    ) -> None:
        self._sessions, self._session = sessions, session
        self._receive_message, self._send_message = receive, send
        self._upgrading = bool(session)
        self._accepted = self._closed = False
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + HANDSHAKE_SECONDS

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            if self._session:
                self._sessions.forget_socket(self._session, self.close)
            await self.close()

    async def _receive(self) -> Message:
        try:
            async with asyncio.timeout_at(self._until()):
                message = await self._receive_message()
            if message["type"] == "websocket.receive":
                self._check(message)
        except (TimeoutError, BadPacket):
            await self.close()
            await self._sessions.hang_up(self._session)
            return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
        return message

    def _until(self) -> float | None:
        """Wait without a limit only for a client that has sent its token and has been upgraded."""
        waits = self._upgrading or not self._sessions.is_identified(self._session)
        return self._deadline if waits else None

    def _check(self, message: Message) -> None:
        packet = message.get("text")
        packet = message.get("bytes") or b"" if packet is None else packet
        identified = self._sessions.is_identified(self._session)
        check_packet(packet, identified=identified, upgrade=self._upgrading)
        if packet == UPGRADE:
            self._upgrading = False
            self._sessions.register_socket(self._session, self.close)

    async def _send(self, message: Message) -> None:
        if self._closed:
            return
        if message["type"] == "websocket.accept":
            self._accepted = True
        elif message["type"] == "websocket.close":
            self._closed = True
        elif not self._session:  # the first packet names the session
            self._session = str(json.loads(message["text"][1:])["sid"])
            self._sessions.register_socket(self._session, self.close)
        await self._send_message(message)

    async def close(self) -> None:
        """Close the WebSocket, whether or not its client agrees."""
        if self._accepted and not self._closed:
            self._closed = True
            await self._send_message({"type": "websocket.close", "code": POLICY_VIOLATION})


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


class ConnectionRefused(Exception):
    """The connection is refused; the message for the client."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


Come = Callable[[str, HTTPConnection, object], Awaitable[None]]
Go = Callable[[str], Awaitable[None]]
Hear = Callable[[str, object, tuple[object, ...]], Awaitable[Mapping[str, JsonValue]]]


class _Json:
    """JSON as it is sent and received: as strict as in a body. An unreadable event counts as an
    unknown one, so its sender receives an error.
    """

    @staticmethod
    def dumps(value: object, **_: object) -> str:
        return msgspec.json.encode(value).decode()

    @staticmethod
    def loads(text: str | bytes, **_: object) -> object:
        raw = text.encode() if isinstance(text, str) else text
        try:
            value = strict_json(raw)
        except RequestRefusal as error:
            if not raw.lstrip().startswith((b"[", b"{")):  # what the library says to itself
                raise ValueError(error.message) from error
            return [NO_EVENT]
        return value if value != [] else [NO_EVENT]


class SocketServer:
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
        self._server.on("*", self._on_event)
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
        except ConnectionRefused as error:
            held = self._server.manager.eio_sid_from_sid(sid, _ROOM)
            self._server.start_background_task(self._show_out, held)
            refusal = socketio.exceptions.ConnectionRefusedError
            raise refusal(error.message, {"code": error.code}) from error
        self._in.add(sid)

    async def _show_out(self, held: str | None) -> None:
        """Close a refused connection after the reason was sent."""
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

    async def _on_event(self, event: object, sid: str, *args: object) -> Mapping[str, JsonValue]:
        return await self._hear(sid, event, args)

    # -- what goes out -------------------------------------------------------------------------

    async def send(self, sid: str, event: str, data: Mapping[str, JsonValue]) -> None:
        """Send something."""
        await self._server.emit(event, dict(data), to=sid)

    def packed(self, event: str, data: msgspec.Raw) -> Packed:
        """What is JSON already as it goes over the line, once for all who are sent it."""
        packet = self._server.packet_class(
            socketio.packet.EVENT, data=[event, data], namespace=_ROOM
        )
        return Packed(packet.encode())

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
