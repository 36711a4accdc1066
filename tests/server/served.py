"""A real server on a port of its own, in a thread of this process, and a plain client for it."""

import asyncio
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.app.home_line import Held
from loopwright.app.settings import Settings
from loopwright.server.context import Context, Limits, Serving
from loopwright.server.holding import announce, holding
from loopwright.server.home_door import home_door
from loopwright.server.serving import living, quiet_server

SECONDS = 20.0
UNHURRIED = Limits(requests_per_second=10_000)  # tests ask quicker than anybody may


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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if data is not None and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            found = connection.getresponse()
            told = {name.lower(): value for name, value in found.getheaders()}
            return Reply(found.status, told, found.read())
        finally:
            connection.close()

    def call(self, work: Callable[[], Any]) -> Any:
        """Do something in the thread of the server."""

        async def there() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(SECONDS)

    def made(self, role: str, **more: Any) -> str:
        """A token with this role."""
        reply = self("POST", "/api/v1/tokens", {"label": f"a {role}", "role": role, **more})
        assert reply.status == 201, reply.body
        return str(reply.json["token"])

    def plain(self, data: bytes, seconds: float = SECONDS) -> bytes:
        """Send bytes as they are; everything that comes back until the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR) if b"Connection: close" in data else None
            got = b""
            while piece := sock.recv(65_536):
                got += piece
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

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """Wait until a run has one of these statuses."""
        done = threading.Event()
        for _ in range(400):
            found: dict[str, Any] = self("GET", f"/api/v1/runs/{run}").json
            if found["status"] in statuses:
                return found
            done.wait(0.02)
        raise AssertionError(f"{run} is {found['status']}, not {statuses}")


class _Thread(threading.Thread):
    """The server, in a thread of its own."""

    held = False  # whether commands of the home find it

    def __init__(self, settings: Settings, how: Serving, folder: Path, sock: socket.socket) -> None:
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
            handle = stack.enter_context(holding(self.settings.home)) if self.held else None
            context, app = await stack.enter_async_context(living(self.settings, self.how))
            if handle is not None:
                has_line = await stack.enter_async_context(home_door(context))
                held = Held(pid=os.getpid(), url=self.how.url, version="0", has_line=has_line)
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
    limits: Limits | None = None,
    home: str = "home",
    at: int = 0,
    send_buffer: int | None = None,
    held: bool = False,
    more: Mapping[str, Any] | None = None,
    **serving: Any,
) -> Iterator[Served]:
    """A server with a home in this folder."""
    settings = Settings(home=folder / home, durability="normal", **(more or {}))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", at))
        if send_buffer is not None:  # connections take it over
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sock.listen()
        port = sock.getsockname()[1]
        how = Serving(port=port, workspace=folder, limits=limits or UNHURRIED, **serving)
        thread = _Thread(settings, how, folder, sock)
        thread.held = held
        thread.start()
        assert thread.ready.wait(SECONDS)
        if thread.one is not None:
            try:
                yield thread.one
            finally:
                thread.one.loop.call_soon_threadsafe(leave, thread.one.context)
                thread.join(SECONDS)
    if thread.trouble is not None:
        raise thread.trouble


def leave(context: Context) -> None:
    context.closing.set()
    context.feed.close()


async def _ended(context: Context, server: Any) -> None:
    await context.closing.wait()
    server.should_exit = True
