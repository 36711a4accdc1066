"""Clients: the caller behind a request, its role, and limits of connections.

The caller is identified by a token in a header or by a session cookie. Requests from a program
of a run on this machine are refused, whatever token they carry. The process at the other end is
looked up once per connection, when a request needs it; harmless public requests do not.

Connections that are idle or slow are closed. If there are too many connections, in total or
from one address, the one whose client has sent nothing complete for longest is closed for a new
one.
"""

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias, cast

import h11
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from loopwright import host
from loopwright.errors import LoopwrightError, NotAllowed, NotSignedIn, StorageError
from loopwright.http.context import Context, ServerOptions
from loopwright.http.responses import RequestRefusal
from loopwright.operations.accounts.access import (
    InsideRun,
    Principal,
    Role,
    current_user,
    inside_run_error,
    record_refusal,
    require,
)
from loopwright.operations.accounts.people import SESSION_MS
from loopwright.operations.child_runs import (
    UNKNOWN_PEER,
    UNLISTED_PEER,
    find_tcp_peer,
    find_unix_peer,
    is_read_outside,
)

COOKIE = "loopwright_session"
DEVICE_COOKIE = "loopwright_device"
DEVICE_SECONDS = 365 * 86_400
SAFE = ("GET", "HEAD")


def identify(context: Context, request: HTTPConnection) -> Principal:
    """The sender of a request; a token counts before a cookie."""
    given = request.headers.getlist("authorization")
    secret = request.cookies.get(COOKIE, "")
    peer = request.scope.get(_KEY)
    if not given and isinstance(peer, Peer) and peer.is_local:
        return peer.owner()
    if not given and secret:
        who = context.people.by_session(secret)
        _check_own_page(request)
        return who
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotSignedIn(
            "Authentication required",
            hint="send `Authorization: Bearer TOKEN`; `loopwright token create` makes one",
        )
    return context.access.by_token(token.strip())


def _check_own_page(request: HTTPConnection) -> None:
    """Browsers send a cookie for requests of any page: a request that changes something must come
    from a page of ours. The Origin, where there is one, was checked before.
    """
    if request.scope.get("method") in SAFE or "origin" in request.headers:
        return
    if request.headers.get("sec-fetch-site", "").lower() != "same-origin":
        raise RequestRefusal(
            403,
            "foreign-origin",
            "a session is for pages of this server",
            hint="programs use a token: `loopwright token create LABEL --user NAME` makes one",
        )


def session_cookie(serving: ServerOptions, response: Response, secret: str) -> None:
    """Set the cookie of a session."""
    response.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_MS // 1_000,
        httponly=True,
        samesite="strict",
        secure=serving.is_secure,
        path="/",
    )


def device_cookie(serving: ServerOptions, response: Response, text: str) -> None:
    """Set the cookie by which a browser shows that it signed in before. It gives no access."""
    response.set_cookie(
        DEVICE_COOKIE,
        text,
        max_age=DEVICE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=serving.is_secure,
        path="/",
    )


def expired_cookie(serving: ServerOptions, response: Response) -> None:
    """Take the cookie away."""
    response.delete_cookie(
        COOKIE, httponly=True, samesite="strict", secure=serving.is_secure, path="/"
    )


_KEY = "loopwright.peer"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PING = b"\x89\x00"  # an empty frame of a WebSocket that is answered
_EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
SEND_SECONDS = 0.25
SEND_LOOKS = 50
MOST_PROOFS = 64  # that wait for one another
Address: TypeAlias = tuple[str, int]
Accept: TypeAlias = Callable[[], Awaitable[None]]
HINT = "people use the server from outside of runs"


class Peer:
    """The process at the other end of one connection."""

    def __init__(self, transport: asyncio.Transport | None = None) -> None:
        self._transport = transport
        self._lookup: asyncio.Task[InsideRun | None] | None = None
        connection = None if transport is None else transport.get_extra_info("socket")
        self._socket = connection if _is_unix(connection) else None

    @property
    def is_local(self) -> bool:
        """Whether it is connected through the Unix socket of the data directory."""
        return self._socket is not None

    def owner(self) -> Principal:
        """The person who owns the data directory, with every right. The access rights of the
        socket let only them and root connect; a system may ignore those.
        """
        if self._socket is None or not host.is_own_user(self._socket):
            raise NotAllowed("this socket is for the owner of the data directory")
        return Principal(name=current_user(), role="admin", by="socket")

    async def find(self, scope: Scope, accept: Accept | None = None) -> InsideRun | None:
        """The run that it belongs to, or None. A proof that fails is tried again when it is needed
        again.
        """
        if self._socket is not None:
            return await asyncio.to_thread(find_unix_peer, self._socket)
        client, server = scope.get("client"), scope.get("server")
        if not server or server[1] is None:
            return None
        if not client:  # the connection was reset; what it brought can still be read
            return UNKNOWN_PEER
        if self._lookup is None:
            own, other = (str(server[0]), int(server[1])), (str(client[0]), int(client[1]))
            self._lookup = asyncio.ensure_future(self._find(scope, accept, other, own))
        found = await asyncio.shield(self._lookup)
        if found is UNLISTED_PEER:
            self._lookup = None
        return found

    async def _find(
        self, scope: Scope, accept: Accept | None, peer: Address, own: Address
    ) -> InsideRun | None:
        found = await asyncio.to_thread(find_tcp_peer, peer, own)
        if found is not UNLISTED_PEER or self._transport is None:
            return found
        data = _informational(scope)
        if scope["type"] == "websocket":
            if accept is None:
                return found
            await accept()
            data = _PING
        return None if await _PROOFS.prove(peer, own, Probe(self._transport, data)) else found


def _is_unix(connection: socket.socket | None) -> bool:
    return connection is not None and connection.family == socket.AF_UNIX


class EarlyHandshake:
    """A WebSocket whose handshake can be completed before its application is called: browsers
    accept no informational response before it, but answer pings after it.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._first: Message | None = None
        self.is_done = False

    async def complete(self) -> None:
        """Do the handshake now."""
        if not self.is_done:
            self._first = await self._receive()
            await self._send({"type": "websocket.accept"})
            self.is_done = True

    async def receive(self) -> Message:
        first, self._first = self._first, None
        return await self._receive() if first is None else first

    async def send(self, message: Message) -> None:
        if not (self.is_done and message["type"] == "websocket.accept"):
            await self._send(message)


def _informational(scope: Scope) -> bytes:
    """A response that every client skips. Browsers and Node.js expect 100 only on request, and the
    HTTP library of Python knows no other. Clients of HTTP/1.0 know none.
    """
    if scope.get("http_version") != "1.1":
        return b""
    names = {name for name, _ in scope["headers"]}
    return _EARLY_HINTS if b"sec-fetch-mode" in names else _CONTINUE


class Probe:
    """Sends an informational response, called from another thread."""

    def __init__(self, transport: asyncio.Transport, data: bytes) -> None:
        self._transport = transport
        self._data = data
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> bool:
        """Send it; whether the kernel has taken it."""
        sending = asyncio.run_coroutine_threadsafe(self._send(), self._loop)
        with suppress(TimeoutError, RuntimeError):
            return sending.result(SEND_SECONDS)
        return False

    async def _send(self) -> bool:
        if not self._data or self._transport.is_closing():
            return False
        self._transport.write(self._data)
        for _ in range(SEND_LOOKS):
            if not self._transport.get_write_buffer_size():
                return True
            await asyncio.sleep(SEND_SECONDS / SEND_LOOKS)
        return False


class _Proofs:
    """Proofs that the process at the other end is a person's, one after the other in a thread of
    their own: each stops the programs of all runs for a moment.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="peer-proof")
        self._waiting = 0

    async def prove(self, peer: Address, own: Address, probe: Probe) -> bool:
        if self._waiting >= MOST_PROOFS:
            return False
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, is_read_outside, peer, own, probe)
        finally:
            self._waiting -= 1


_PROOFS = _Proofs()


def with_peer(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    """The application as one connection calls it: all its requests share what is known of it."""
    peer = Peer(transport)

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = peer
        await app(scope, receive, send)

    return call


async def refuse_agents(context: Context, scope: Scope, accept: Accept | None = None) -> None:
    """Refuse a request from a program of a run, and record it. `accept` completes the handshake of
    a WebSocket, where that is needed to find out who sends it.
    """
    if context.service.inside is not None and context.service.rights is None:
        return  # this server runs in a data directory of the run's own
    inside = await scope.setdefault(_KEY, Peer()).find(scope, accept)
    if inside is None:
        return
    what = f"{scope.get('method', 'GET')} {scope['path']}"
    at, who = context.clock.now_ms(), _named(context, scope)
    record_refusal(context.records, inside, what, at=at, via="http", who=who)
    raise inside_run_error(inside, "use the server: it is for people", hint=HINT)


def _named(context: Context, scope: Scope) -> str:
    """Whose token the request carries; it is no longer a secret."""
    with suppress(LoopwrightError):
        return identify(context, HTTPConnection(scope)).name
    return ""


def admit(context: Context, who: Principal, role: Role, what: str) -> None:
    """NotAllowed unless the caller has this role or a higher one; `what` is the request."""
    try:
        require(who, role)
    except NotAllowed:
        with contextlib.suppress(StorageError):  # refused even without an audit entry
            row = context.access.row(who.name, "denied", what, f"needs {role}, has {who.role}")
            context.records.change(audit=[row])
        raise


HEADER_SECONDS = 10.0
WRITE_SECONDS = 60.0  # for a client to read anything of what waits for it
MAX_CONNECTIONS = 512
MAX_FROM_ADDRESS = 256
_CODE = "too-many-connections"
_PROBLEM = (
    b'{"type":"urn:loopwright:problem:%s","title":"Too many connections",'
    b'"status":503,"detail":"all connections of this server are in use; try again later"}'
) % _CODE.encode()
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
    b"Content-Length: %d\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s"
) % (len(_PROBLEM), _PROBLEM)

Protocol: TypeAlias = H11Protocol | WSProtocol


class ConnectionLimits:
    """How many connections there are at most. Those of a proxy count in total only."""

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, soft // 2)
        self.total = min(MAX_CONNECTIONS, spare)  # descriptors are left for files and programs
        self.from_address = min(MAX_FROM_ADDRESS, max(8, self.total * 3 // 4))
        self._proxies = [ipaddress.ip_network(one, strict=False) for one in proxies]

    def is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in one for one in self._proxies)

    def make_room(self, new: "TimedConnection", connections: Iterable[Any]) -> bool:
        """Close a connection that waits for its client if there are too many; False when all of
        them are being answered.
        """
        everybody: list[Protocol] = list(connections)
        address = _address(new)
        near = [one for one in everybody if _address(one) == address]
        crowd = [] if self.is_proxy(address) or len(near) <= self.from_address else near
        crowd = crowd or (everybody if len(everybody) > self.total else [])
        if not crowd:
            return True
        clients = [one for one in crowd if isinstance(one, TimedConnection) and one is not new]
        slow = [one for one in clients if one.conn.their_state in (h11.IDLE, h11.SEND_BODY)]
        if not slow:
            return False
        min(slow, key=lambda one: (one.conn.their_state is h11.SEND_BODY, one.idle_since)).drop()
        return True


def _address(protocol: Protocol) -> str:
    return protocol.client[0] if protocol.client else ""


class _Stalled:
    """Ends a connection whose client does not read. Closing it would wait for the client."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self.end()
        self._timer = loop.call_later(WRITE_SECONDS, transport.abort)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TimedConnection(H11Protocol):
    """A connection that is closed when the head of a request is not there in time. Between two
    requests the keep-alive of the server counts, until the next one begins.
    """

    limits: ConnectionLimits | None = None
    _waiting: asyncio.TimerHandle | None = None
    _is_upgraded = False
    idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its own base does
        super().connection_made(transport)
        self._stalled = _Stalled()
        self.idle_since = self.loop.time()
        if self.limits is not None and not self.limits.make_room(self, self.connections):
            transport.write(_BUSY)
            transport.close()
            return
        self.app = with_peer(self.app, transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_upgraded:
            return
        if self._is_done_but_sending:
            if self._waiting is None:
                self._wait()
        elif self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    @property
    def _is_done_but_sending(self) -> bool:
        """Whether the client still sends the body of a request that has been answered."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and self.conn.their_state is h11.SEND_BODY

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = self.loop.time()
        if self._is_done_but_sending and self._waiting is None:
            self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._is_upgraded = True
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        self._stalled.begin(self.loop, self.transport)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled.end()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stalled.end()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once, in favour of another."""
        self.transport.abort()
        self.connections.discard(self)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEADER_SECONDS, self._enough)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _enough(self) -> None:
        self._waiting = None
        self.transport.close()


class BoundedWebSocket(WSProtocol):
    """A WebSocket that reads no further while its client does not read: every ping is answered, and
    the answers would fill the memory.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its own base does
        self._stalled = _Stalled()
        app = cast(ASGIApp, self.app)  # uvicorn has types of its own for the same
        self.app = cast(Any, with_peer(app, transport))
        super().connection_made(transport)

    def pause_writing(self) -> None:
        self._stalled.begin(self.loop, self.transport)
        self.transport.pause_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled.end()
        if not self.read_paused:
            self.transport.resume_reading()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stalled.end()
        super().connection_lost(exc)


def limit_connections(proxies: Iterable[str]) -> type[TimedConnection]:
    """The class of the connections of a server, with limits that they share."""
    return type("LimitedConnection", (TimedConnection,), {"limits": ConnectionLimits(proxies)})
