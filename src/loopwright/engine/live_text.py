"""Live text of agents between processes.

Each driving process listens on a Unix socket in the data directory, named after its owner
token. Only the user who runs it can connect. A client names a run on one line and gets what its
agents write as lines of JSON, first the end of what was written before unless the line ends
with `now`. Live text is never stored: a client that reads slowly misses some of it, and the
driving process neither waits nor keeps more than a short tail.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from loopwright import host
from loopwright.engine.activity import LiveBus
from loopwright.ports import Delta

FOLDER = "live"
MOST_CLIENTS = 50
BEHIND_BYTES = 256_000  # of one client that does not read
TAIL_CHARS = 8_000  # of a call, for a client that connects later
MOST_TAILS = 200
REQUEST_BYTES = 4_096
LINE_BYTES = 2_000_000  # more than a text of the greatest size takes
TEXT_CHARS = 100_000  # in one line
CONNECT_S = 0.5
FROM_NOW = "now"  # after the run: without what was written before


class LiveLine(msgspec.Struct, frozen=True):
    """A piece of text on the wire."""

    run: str
    effect: str
    kind: Literal["text", "tool", "note"]
    text: str


_DECODER = msgspec.json.Decoder(LiveLine)


# -- the driving process ---------------------------------------------------------------------------


class _Client:
    """One connected watcher."""

    def __init__(self, run: str, writer: asyncio.StreamWriter) -> None:
        self.run = run
        self._writer = writer

    def send(self, delta: Delta) -> None:
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() < BEHIND_BYTES:
            line = LiveLine(delta.run, delta.effect, delta.kind, delta.text[-TEXT_CHARS:])
            self._writer.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._writer.transport.abort()


class LiveText:
    """Sends what agents write to the clients of their runs."""

    def __init__(self) -> None:
        self._clients: set[_Client] = set()
        self._tails: dict[str, Delta] = {}  # by run: what its newest call has written last

    def tail(self, run: str) -> Delta | None:
        """The end of what the newest call of a run has written."""
        return self._tails.get(run)

    def publish(self, delta: Delta) -> None:
        self._keep(delta)
        for client in list(self._clients):
            if client.run == delta.run:
                client.send(delta)

    def _keep(self, delta: Delta) -> None:
        before = self._tails.pop(delta.run, None)
        text = delta.text if delta.kind == "text" else f"\n[{delta.text}]\n"
        if before is not None and before.effect == delta.effect:
            text = before.text + text
        kept = Delta(run=delta.run, effect=delta.effect, kind="text", text=text[-TAIL_CHARS:])
        self._tails[delta.run] = kept
        while len(self._tails) > MOST_TAILS:
            del self._tails[next(iter(self._tails))]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects."""
        client: _Client | None = None
        try:
            if len(self._clients) >= MOST_CLIENTS or not _is_same_user(writer):
                return
            request = (await asyncio.wait_for(reader.readline(), CONNECT_S)).decode().strip()
            run, _, begin = request.partition(" ")
            client = _Client(run, writer)
            self._clients.add(client)
            tail = self._tails.get(run)
            if tail is not None and begin != FROM_NOW:
                client.send(tail)
            await reader.read()
        except (OSError, ValueError, TimeoutError):
            return
        finally:
            if client is not None:
                self._clients.discard(client)
            writer.close()

    def close(self) -> None:
        for client in list(self._clients):
            client.close()


@asynccontextmanager
async def serve_live_text(bus: LiveBus, home: Path, token: str) -> AsyncIterator[LiveText]:
    """Let other processes of this user read what agents write here. Where no socket can be made,
    runs work without.
    """
    live = LiveText()
    end = bus.listen(live.publish)
    sock = _listening(home, token)
    if sock is None:
        try:
            yield live
        finally:
            end()
        return
    server = await asyncio.start_unix_server(live.serve, sock=sock, limit=REQUEST_BYTES)
    try:
        yield live
    finally:
        end()
        server.close()
        live.close()
        with contextlib.suppress(OSError), host.socket_path(home / FOLDER, token) as path:
            os.unlink(path)


def _listening(home: Path, token: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
        _remove_dead(home)
        with host.socket_path(home / FOLDER, token) as path:
            sock.bind(path)
            os.chmod(path, 0o600)  # before it listens
        sock.listen()
    except OSError:
        sock.close()
        return None
    return sock


def _remove_dead(home: Path) -> None:
    """Remove the sockets of processes that could not do it: no process listens there."""
    for name in os.listdir(home / FOLDER):
        with contextlib.suppress(OSError), host.socket_path(home / FOLDER, name) as path:
            try:
                _connected(path).close()
            except ConnectionRefusedError:
                os.unlink(path)


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    return host.is_own_user(writer.get_extra_info("socket"))


# -- a watching process ----------------------------------------------------------------------------


async def read_live_text(
    home: Path, token: str, run: str, *, tail: bool
) -> AsyncGenerator[Delta, None]:
    """What the agents of a run write, from the process that drives it, until that process leaves.
    With `tail`, the first piece is the end of what was written before.
    """
    try:
        with host.socket_path(home / FOLDER, token) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES)
    except OSError:
        return
    try:
        writer.write(f"{run}\n".encode() if tail else f"{run} {FROM_NOW}\n".encode())
        while line := await reader.readline():
            for delta in _decoded(line):
                yield delta
    except (OSError, ValueError):  # it has gone, or sends lines that are too long
        return
    finally:
        writer.close()


def _decoded(line: bytes) -> list[Delta]:
    try:
        one = _DECODER.decode(line)
    except msgspec.DecodeError:  # a later version may send more
        return []
    return [Delta(run=one.run, effect=one.effect, kind=one.kind, text=one.text)]


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_S)
        sock.connect(path)
        sock.settimeout(0)
    except OSError:
        sock.close()
        raise
    return sock
