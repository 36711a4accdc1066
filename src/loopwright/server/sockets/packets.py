"""Check Engine.IO packets before the library reads them.

Clients send few kinds of packet: close, pong, the three steps of an upgrade, and messages in the
default namespace without attachments. Every other packet closes the connection. Without a token a
client may only connect, in a small packet, so nothing that it sends is kept.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.server.context import UNIDENTIFIED_BYTES

MAX_PACKETS = 16  # in one body
HANDSHAKE_SECONDS = 10.0  # for a WebSocket to be upgraded, and for its client to send a token
POLICY_VIOLATION = 1008
SEPARATOR = "\x1e"
CONNECT, CLOSE, PROBE, PONG, UPGRADE, MESSAGE = "0", "1", "2probe", "3", "5", "4"
DISCONNECT, EVENT, ACK = "1", "2", "3"

CloseSocket = Callable[[], Awaitable[None]]


class BadPacket(Exception):
    """A packet that no client sends."""


class Sessions(Protocol):
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

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
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

    def __init__(self, sessions: Sessions, session: str, receive: Receive, send: Send) -> None:
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
