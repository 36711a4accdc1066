"""Requests to addresses that were checked: webhooks that are posted, and pages that are fetched.

One connection goes to the checked address, with one time limit for all of it, so that a server that
answers slowly gets no more time than one that does not answer.
"""

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple, cast

from loopwright.app.outgoing import Target

SECONDS = 15.0  # for connecting, sending and the answer together
MOST_READ = 65_536  # of an answer, its headers included
REST_SECONDS = 1.0  # for what comes after the headers, which nobody looks at


def send(target: Target, headers: dict[str, str], body: bytes) -> int:
    """Post a body; the status. A redirect is an answer like any other, and is not followed."""
    line = _Pinned(target, _time_left(SECONDS))
    try:
        line.request("POST", target.path, body, headers)
        answer = _Answer(line.sock, line.left)
        reply = http.client.HTTPResponse(cast("socket.socket", answer), method="POST")
        reply.begin()
        # It has answered. A line that is closed over unread bytes looks like a failure to some who
        # send them, so the rest is taken as far as `_Answer` lets it come, and nobody waits for it.
        answer.left = _time_left(REST_SECONDS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            reply.read()
        return reply.status
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


class Fetched(NamedTuple):
    """What a server answered."""

    status: int
    location: str  # where a redirect leads
    type: str
    body: bytes
    truncated: bool


def fetch(target: Target, *, seconds: float, limit: int) -> Fetched:
    """Get a page, at most `limit` bytes of it. A redirect is an answer, and is not followed."""
    line = _Pinned(target, _time_left(seconds))
    try:
        line.request("GET", target.path, headers={"User-Agent": "loopwright", "Accept": "*/*"})
        answer = _Answer(line.sock, line.left, limit + MOST_READ)
        reply = http.client.HTTPResponse(cast("socket.socket", answer), method="GET")
        reply.begin()
        body = reply.read(limit + 1)
        return Fetched(
            status=reply.status,
            location=reply.getheader("Location", ""),
            type=reply.getheader("Content-Type", ""),
            body=body[:limit],
            truncated=len(body) > limit,
        )
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


def _time_left(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds

    def left() -> float:
        rest = end - time.monotonic()
        if rest <= 0:
            raise TimeoutError(f"no answer within {seconds:g} seconds")
        return rest

    return left


class _Pinned(http.client.HTTPConnection):
    """Connects to an address, and speaks to a name."""

    def __init__(self, target: Target, left: Callable[[], float]) -> None:
        super().__init__(target.host, target.port)
        self._target = target
        self.left = left

    def connect(self) -> None:
        """The name is not resolved again: it could mean something else by now."""
        address = self._target.address, self._target.port
        self.sock = socket.create_connection(address, self.left())
        if self._target.scheme == "https":
            context = ssl.create_default_context()
            self.sock.settimeout(self.left())  # holds for the whole handshake
            self.sock = context.wrap_socket(self.sock, server_hostname=self._target.host)

    def send(self, data: object) -> None:
        """Piece by piece, each within what is left of the time."""
        if self.sock is None:
            self.connect()
        assert isinstance(data, bytes)
        rest = memoryview(data)
        while rest:
            self.sock.settimeout(self.left())
            rest = rest[self.sock.send(rest) :]


class _Answer(io.RawIOBase):
    """What comes over a socket, up to a size and as long as there is time; all that a response
    needs of a socket.
    """

    def __init__(
        self, sock: socket.socket, left: Callable[[], float], most: int = MOST_READ
    ) -> None:
        self._sock, self.left, self._more = sock, left, most

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(cast("bytearray", buffer))[: self._more]
        if not room:
            return 0
        self._sock.settimeout(self.left())
        got = self._sock.recv_into(room)
        self._more -= got
        return got
