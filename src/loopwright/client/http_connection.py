"""One HTTP request on a new connection, over TCP or over the Unix socket of a local server.

Small on purpose: h11 reads and writes HTTP, asyncio has the socket. The libraries of the standard
library block the thread, which could not be cancelled while an event stream is silent.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import h11

from loopwright import host
from loopwright.client.servers import ServerAddress
from loopwright.operations.data_directory import HTTP_SOCKET

LOST = (OSError, h11.RemoteProtocolError)
"""Errors of a connection: it could not be made, it ended, or what came is not HTTP."""
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class LocalSocket:
    """The address of the server of a data directory of this machine."""

    home: Path

    @property
    def url(self) -> str:
        """What messages call it."""
        return "the local server"


Target: TypeAlias = ServerAddress | LocalSocket


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request as it is sent."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: bytes | None = None
    seconds: float  # how long the server may be silent


class HttpReply:
    """A response whose body is read in pieces."""

    def __init__(self, head: h11.Response, exchange: "_Exchange") -> None:
        self.status = head.status_code
        self._headers = head.headers
        self._exchange = exchange

    def header_values(self, name: str) -> list[str]:
        """Every value of a header; the name is in lower case."""
        return [value.decode("latin-1") for key, value in self._headers if key.decode() == name]

    async def read(self) -> bytes:
        """The rest of the body."""
        return b"".join([data async for data in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body as they arrive."""
        while data := await self._exchange.next_data():
            yield data

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines of the body as they arrive, without their ends."""
        rest = b""
        async for data in self.chunks():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
        if rest:
            yield rest


class _Exchange:
    """A request and its response on one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._seconds = seconds
        self._protocol = h11.Connection(h11.CLIENT)

    async def send(self, target: Target, call: HttpCall) -> HttpReply:
        """Send a request; its response without the body."""
        headers = [("Host", _host_of(target)), ("Connection", "close"), *call.headers.items()]
        if call.body is not None:
            headers.append(("Content-Length", str(len(call.body))))
        elif call.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", "0"))
        parts: list[h11.Event] = [
            h11.Request(method=call.method, target=call.path, headers=headers),
            *([h11.Data(data=call.body)] if call.body else []),
            h11.EndOfMessage(),
        ]
        data = b"".join(self._protocol.send(part) or b"" for part in parts)
        # The server may have refused and closed before it read all of it; its reason is read next.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._writer.write(data)
            await self._writer.drain()
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError("the connection was closed without a response")
        return HttpReply(event, self)

    async def next_data(self) -> bytes:
        """The next piece of the body; empty at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _next(self) -> h11.Event:
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                try:
                    read = self._reader.read(CHUNK_BYTES)
                    self._protocol.receive_data(await asyncio.wait_for(read, self._seconds))
                except TimeoutError:
                    raise TimeoutError("timed out") from None
                continue
            assert isinstance(event, h11.Event), event
            return event


@asynccontextmanager
async def exchange(target: Target, call: HttpCall) -> AsyncIterator[HttpReply]:
    """Send a request on a new connection, which is closed afterwards."""
    reader, writer = await _connect(target, call.seconds)
    try:
        yield await _Exchange(reader, writer, call.seconds).send(target, call)
    finally:
        writer.close()


async def _connect(
    target: Target, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(seconds):
            if isinstance(target, LocalSocket):
                with host.socket_path(target.home, HTTP_SOCKET) as path:
                    return await asyncio.open_unix_connection(path)
            sock = await _connect_tcp(target)
            secure = ssl.create_default_context() if target.scheme == "https" else None
            name = target.host if secure is not None else None
            return await asyncio.open_connection(sock=sock, ssl=secure, server_hostname=name)
    except TimeoutError:
        raise TimeoutError("timed out") from None


async def _connect_tcp(target: ServerAddress) -> socket.socket:
    """A connection to the first address of the host that accepts one."""
    loop = asyncio.get_running_loop()
    port = target.port or (443 if target.scheme == "https" else 80)
    found = await loop.getaddrinfo(target.host, port, type=socket.SOCK_STREAM)
    problem = OSError("it has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(0)  # asyncio waits
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        except BaseException:
            sock.close()
            raise
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise problem


def _host_of(target: Target) -> str:
    return "localhost" if isinstance(target, LocalSocket) else target.url.partition("://")[2]
