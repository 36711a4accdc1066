"""A real server on a port of its own, in a thread of this process, and a plain client for it."""

import asyncio
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwright.http.context import Context, RequestLimits, ServerOptions
from loopwright.http.local_socket import serve_http_socket, serve_local_socket
from loopwright.http.server import (
    announce,
    hold_lock,
    living,
    local_http_server,
    quiet_server,
)
from loopwright.kernel.events import AnyEvent
from loopwright.operations.accounts.access import acting_as
from loopwright.operations.data_directory import ServerLockInfo
from loopwright.operations.settings import Settings

SECONDS = 60.0  # whatever takes so long does not come; a slow machine is no failure
UNHURRIED = RequestLimits(requests_per_second=10_000)  # tests ask quicker than anybody may


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The slug of a problem."""
        return str(self.json["type"]).rpartition(":")[2]


@dataclass
class Served:
    """A server under test."""

    port: int
    folder: Path
    context: Context
    loop: asyncio.AbstractEventLoop
    token: str = ""
    _kept: threading.local = field(default_factory=threading.local)
    _lines: list[http.client.HTTPConnection] = field(default_factory=list)

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Ask; `token=""` asks as nobody."""
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        sent = {"Host": f"127.0.0.1:{self.port}"}
        held = self.token if token is None else token
        if held:
            sent["Authorization"] = f"Bearer {held}"
        if data is not None:
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        is_kept = self.is_connected
        try:
            return self._exchange(method, path, sent, data)
        except (ConnectionError, http.client.RemoteDisconnected):
            if not is_kept:
                raise
            return self._exchange(method, path, sent, data)  # closed since the last request

    @property
    def is_connected(self) -> bool:
        """Whether this thread has a connection from its last request."""
        return getattr(self._kept, "line", None) is not None

    def disconnect(self) -> None:
        """Close the connection of this thread: the next request opens another one."""
        line: http.client.HTTPConnection | None = getattr(self._kept, "line", None)
        self._kept.line = None
        if line is not None:
            line.close()

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes | None
    ) -> Reply:
        """Send a request over the connection of this thread. The server searches all processes of
        the machine for the other end of each new connection, which costs more than most requests.
        """
        if not self.is_connected:
            self._kept.line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
            self._lines.append(self._kept.line)
        line = self._kept.line
        try:
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                line.putheader(name, value)
            if data is not None and "Content-Length" not in headers:
                line.putheader("Content-Length", str(len(data)))
            line.endheaders(data)
            found = line.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            reply = Reply(found.status, told, found.read())
        except BaseException:
            self.disconnect()
            raise
        if line.sock is None:  # the server closes it
            self.disconnect()
        return reply

    def close(self) -> None:
        """Close the connections of all threads."""
        for line in self._lines:
            line.close()

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something in the thread of the server."""

        async def there() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(SECONDS)

    def as_admin(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the thread of the server, as an admin would."""

        async def there() -> Any:
            with acting_as("admin"):
                return await work

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(SECONDS)

    def made(self, role: str, **more: Any) -> str:
        """A token with this role."""
        reply = self("POST", "/api/v1/tokens", {"label": f"a {role}", "role": role, **more})
        assert reply.status == 201, reply.body
        return str(reply.json["token"])

    def plain(
        self,
        data: bytes,
        seconds: float = SECONDS,
        on_data: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Send bytes as they are; everything that comes back until the end of the connection.

        `on_data` is called with what has come back so far.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as sock:
            sock.sendall(data)
            got = b""
            while piece := sock.recv(65_536):
                got += piece
                if on_data is not None:
                    on_data(got)
            return got

    def script(self, *replies: Any, name: str = "replies.yaml") -> str:
        """A scripted agent."""
        listed = [{"text": one} if isinstance(one, str) else one for one in replies]
        (self.folder / name).write_text(json.dumps({"replies": listed}))
        return f"script:{self.folder / name}"

    def definition(self, agent: str, **repeat: Any) -> str:
        value = {"name": "work", "agent": agent, "goal": "Do it.", "repeat": {"max": 3, **repeat}}
        return json.dumps(value)

    def start(self, definition: str, **more: Any) -> str:
        """Start a run; its id."""
        reply = self("POST", "/api/v1/runs", {"definition": definition, **more})
        assert reply.status == 201, reply.body
        return str(reply.json["run"])

    def gated(self) -> tuple[str, str]:
        """A run that waits for a person, and its gate."""
        run = self.start(self.definition(self.script(*["some work"] * 9), until={"person": True}))
        self.until(run, "waiting")
        return run, str(self("GET", f"/api/v1/runs/{run}").json["gates"][0]["id"])

    def followed(self, event: type[AnyEvent]) -> None:
        """Wait until somebody follows a run and was sent all of it, with such an event."""

        def is_sent() -> bool:
            for run, waiting in self.context.feed._waiting.items():
                events = [one.event for one in self.context.here.log.read(run)]
                if any(isinstance(one, event) for one in events):
                    return min(waiting.values()) == len(events)
            return False

        wait_for(lambda: self.call(is_sent))

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """Wait until a run has one of these statuses."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = [self("GET", f"/api/v1/runs/{run}").json]
            return found[0]["status"] in statuses

        wait_for(is_there, lambda: f"{run} is {found[0]['status']}, not {statuses}")
        return found[0]


def wait_for(
    holds: Callable[[], object], otherwise: Callable[[], object] = lambda: "it never came to that"
) -> None:
    """Wait until something holds, asked again and again; `otherwise` says what is wrong."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


class _Thread(threading.Thread):
    """The server, in a thread of its own."""

    held = False  # whether commands of the home find it

    def __init__(
        self, settings: Settings, how: ServerOptions, folder: Path, sock: socket.socket
    ) -> None:
        super().__init__(daemon=True)
        self.settings, self.how, self.folder, self.sock = settings, how, folder, sock
        self.ready = threading.Event()
        self.one: Served | None = None
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.trouble = error
        finally:
            self.ready.set()

    async def _main(self) -> None:
        async with AsyncExitStack() as stack:
            handle = stack.enter_context(hold_lock(self.settings.home)) if self.held else None
            context, app = await stack.enter_async_context(living(self.settings, self.how))
            if handle is not None:
                has_line = await stack.enter_async_context(serve_local_socket(context))
                held = ServerLockInfo(
                    pid=os.getpid(), url=self.how.url, version="0", has_line=has_line
                )
                at_socket = serve_http_socket(context, local_http_server(app, self.how))
                await stack.enter_async_context(at_socket)
                announce(handle, held)
            server = quiet_server(app, self.how)
            first = context.access.first_token()
            self.one = Served(self.how.port, self.folder, context, asyncio.get_running_loop())
            self.one.token = first.text if first else ""
            stop = asyncio.ensure_future(_ended(context, server))
            self.ready.set()
            await server.serve(sockets=[self.sock])
            await stop


@contextmanager
def served(
    folder: Path,
    *,
    limits: RequestLimits | None = None,
    home: str = "home",
    at: int = 0,
    send_buffer: int | None = None,
    held: bool = False,
    more: Mapping[str, Any] | None = None,
    workspace: Path | None = None,
    **serving: Any,
) -> Iterator[Served]:
    """A server with a home in this folder, which is also the workspace unless one is named."""
    settings = Settings(home=folder / home, durability="normal", **(more or {}))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", at))
        if send_buffer is not None:  # connections take it over
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sock.listen()
        port = sock.getsockname()[1]
        how = ServerOptions(
            port=port, workspace=workspace or folder, limits=limits or UNHURRIED, **serving
        )
        thread = _Thread(settings, how, folder, sock)
        thread.held = held
        thread.start()
        assert thread.ready.wait(SECONDS)
        if thread.one is not None:
            try:
                yield thread.one
            finally:
                thread.one.close()
                thread.one.loop.call_soon_threadsafe(leave, thread.one.context)
                thread.join(SECONDS)
                assert not thread.is_alive(), "the server does not end"
    if thread.trouble is not None:
        raise thread.trouble


def left_when_followed(server: Served, event: type[AnyEvent]) -> threading.Thread:
    """A server that leaves as soon as somebody was sent such an event."""

    def work() -> None:
        server.followed(event)
        server.loop.call_soon_threadsafe(leave, server.context)

    ending = threading.Thread(target=work, daemon=True)
    ending.start()
    return ending


def leave(context: Context) -> None:
    context.closing.set()
    context.feed.close()


async def _ended(context: Context, server: Any) -> None:
    await context.closing.wait()
    server.should_exit = True
