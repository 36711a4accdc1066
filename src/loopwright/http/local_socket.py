"""The Unix sockets of a server, for commands of this machine.

One answers HTTP requests like the port does; its clients are the person who owns the data
directory. On the other one commands ask the server to drive runs: `data_directory` describes its
messages. A command that reads slowly misses live text and change
notices, but no event, because it reads events from the log.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import uvicorn

from loopwright import __version__, host
from loopwright.errors import (
    Conflict,
    LoopwrightError,
    NotAllowed,
    NotFound,
    ServerFailed,
    StorageError,
)
from loopwright.http.context import Context
from loopwright.operations.accounts.access import inside_run_error, record_refusal
from loopwright.operations.child_runs import check_sandbox, find_unix_peer
from loopwright.operations.data_directory import (
    HTTP_SOCKET,
    PROTOCOL,
    SOCKET,
    TEXT_CHARS,
    DriveAccepted,
    DriveRefused,
    DriveRequest,
    DriveTrouble,
    FromServer,
    Heartbeat,
    Hello,
    LiveTextSent,
    RunMoved,
    as_line,
    keys_of,
    limits_of,
    path_of,
)
from loopwright.ports import OPEN_STATUSES, Delta
from loopwright.workers.background_tasks import NAME

_LOG = logging.getLogger(NAME)
BEHIND_BYTES = 1_000_000  # of a command that does not read
LOOK_SECONDS = 1.0
POLLS_PER_HEARTBEAT = 5
BACKLOG = 128
MOST = 200  # commands at once
REQUEST_BYTES = 4_096  # of what a command says


@asynccontextmanager
async def serve_local_socket(context: Context) -> AsyncIterator[bool]:
    """Listen in the data directory while this context is open. If that is not possible, which is
    the answer, commands work without.
    """
    home = context.settings.home
    visits: set[Visit] = set()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit(context, reader, writer)
        if len(visits) >= MOST:
            visit.end()
            return
        visits.add(visit)
        try:
            await visit.serve()
        finally:
            visits.discard(visit)

    try:
        sock = _bound(context, SOCKET)
    except OSError as error:
        _LOG.warning("commands of %s work without this server: %s", home, error)
        yield False
        return
    server = await asyncio.start_unix_server(
        visited, sock=sock, backlog=BACKLOG, limit=REQUEST_BYTES
    )
    try:
        yield True
    finally:
        server.close()
        for visit in list(visits):
            visit.end()
        with contextlib.suppress(OSError), host.socket_path(home, SOCKET) as path:
            os.unlink(path)


@asynccontextmanager
async def serve_http_socket(context: Context, server: uvicorn.Server) -> AsyncIterator[None]:
    """Answer HTTP requests on a Unix socket for as long as this lasts; it closes with the port.
    Where there can be no socket, commands work without.
    """
    try:
        sock = _bound(context, HTTP_SOCKET)
    except OSError as error:
        _LOG.warning("HTTP requests of %s only by its address: %s", context.settings.home, error)
        yield
        return

    sock.listen(BACKLOG)  # a client that connects before the server accepts waits a moment

    async def end_with_server() -> None:
        await context.closing.wait()
        server.should_exit = True

    tasks = [
        asyncio.ensure_future(server.serve(sockets=[sock])),
        asyncio.ensure_future(end_with_server()),
    ]
    try:
        yield
    finally:
        server.should_exit = True
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with (
            contextlib.suppress(OSError),
            host.socket_path(context.settings.home, HTTP_SOCKET) as path,
        ):
            os.unlink(path)


def _bound(context: Context, name: str) -> socket.socket:
    """The socket; this is the only server of the data directory, so an existing file is stale."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with host.socket_path(context.settings.home, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
            os.chmod(path, 0o600)  # before anybody can connect
    except OSError:
        sock.close()
        raise
    return sock


class Visit:
    """One command on the local socket."""

    def __init__(
        self, context: Context, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._context = context
        self._reader = reader
        self._writer = writer
        self._runs: set[str] = set()
        self._troubles = context.here.driver.problem_count

    async def serve(self) -> None:
        """Answer until one of both leaves."""
        here = self._context.here
        ends = [self._context.feed.listen(self._moved), here.bus.listen(self._on_delta)]
        looking = asyncio.ensure_future(self._look())
        try:
            # The permissions of the socket say the same; a system may ignore those.
            is_ours = host.is_own_user(self._writer.get_extra_info("socket"))
            if not is_ours or self._is_agent():
                return
            path, keys = path_of(os.environ), keys_of(os.environ)
            limits = limits_of(self._context.settings)
            self._send(Hello(PROTOCOL, __version__, os.getpid(), path, keys, limits))
            while line := await self._reader.readline():
                self._drive(msgspec.json.decode(line, type=DriveRequest).run)
                await self._writer.drain()  # a client that does not read is not read either
        except (OSError, ValueError, msgspec.DecodeError, msgspec.ValidationError) as error:
            _LOG.info("a command of this data directory disconnected: %s", error)
        finally:
            looking.cancel()
            for end in ends:
                end()
            self.end()

    def _is_agent(self) -> bool:
        """Whether a program of a run connects; the refusal says why."""
        inside = find_unix_peer(self._writer.get_extra_info("socket"))
        if inside is None:
            return False
        at = self._context.clock.now_ms()
        record_refusal(self._context.records, inside, SOCKET, at=at, via="socket")
        error = inside_run_error(inside, "use the socket of the data directory")
        self._send(DriveRefused("", NotAllowed.__name__, error.code, error.message, error.hint))
        return True

    def end(self) -> None:
        """Close the connection, even if the client never read its messages."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()

    def _drive(self, run: str) -> None:
        try:
            if self._context.closing.is_set():
                raise Conflict("the server is about to stop", code="draining")
            status = self._context.here.log.row(run).headline.status
            self._runs.add(run)
            if status in OPEN_STATUSES:
                self._check_sandbox(run)
                self._context.here.driver.wake(run)
        except LoopwrightError as error:
            refusal = DriveRefused(run, type(error).__name__, error.code, error.message, error.hint)
            self._send(refusal)
        except Exception:
            _LOG.exception("%s cannot be driven for a command", run[:80])
            words = "the server failed; its log tells more"
            self._send(DriveRefused(run, ServerFailed.__name__, ServerFailed.code, words))
        else:
            self._send(DriveAccepted(run))
            self._moved(run)

    def _check_sandbox(self, run: str) -> None:
        """The caller may be in a sandbox, and the server is not; runs may still be ended here."""
        try:
            check_sandbox(self._context.here.log, run, None)
        except Conflict:
            if self._context.service.state(run).control.cancel is None:
                raise

    def _moved(self, run: str) -> None:
        if run in self._runs and not self._is_behind():
            with contextlib.suppress(StorageError, NotFound):
                self._send(RunMoved(run, self._context.here.log.version(run)))

    def _on_delta(self, delta: Delta) -> None:
        if delta.run in self._runs and not self._is_behind():
            text = delta.text[:TEXT_CHARS]
            self._send(LiveTextSent(delta.run, delta.effect, delta.kind, text))

    async def _look(self) -> None:
        """Report what keeps runs from continuing."""
        driver = self._context.here.driver
        for looks in count(1):
            if not looks % POLLS_PER_HEARTBEAT and not self._is_behind():
                self._send(Heartbeat())
            new, self._troubles = driver.problem_count - self._troubles, driver.problem_count
            for run, problem in driver.problems[-new:] if new else ():
                if run in self._runs:
                    self._send(DriveTrouble(run, str(problem)))
            await asyncio.sleep(LOOK_SECONDS)

    def _is_behind(self) -> bool:
        return self._writer.transport.get_write_buffer_size() > BEHIND_BYTES

    def _send(self, message: FromServer) -> None:
        if not self._writer.is_closing():
            self._writer.write(as_line(message))
