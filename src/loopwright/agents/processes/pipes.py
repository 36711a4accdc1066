"""The pipes between the driver and a program: feeding one, draining others, keeping a part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_CHUNK = 64 * 1024


class HeadAndTail:
    """Keeps the first and the last bytes of a stream of any length; counts all of them."""

    def __init__(self, head_cap: int, tail_cap: int) -> None:
        self.total = 0
        self._head_cap = head_cap
        self._tail_cap = tail_cap
        self._head = bytearray()
        # Grows up to its cap and is a ring from then on: `_oldest` is where the next byte goes.
        self._tail = bytearray()
        self._oldest = 0

    def add(self, data: bytes) -> None:
        """Process bytes."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        self._head += data[:room]
        rest = memoryview(data)[room:]
        room = self._tail_cap - len(self._tail)
        self._tail += rest[:room]
        self._overwrite(rest[room:])

    def _overwrite(self, data: memoryview) -> None:
        if not data or self._tail_cap == 0:
            return
        data = data[-self._tail_cap :]
        until_the_end = self._tail_cap - self._oldest
        first, second = data[:until_the_end], data[until_the_end:]
        self._tail[self._oldest : self._oldest + len(first)] = first
        self._tail[: len(second)] = second
        self._oldest = (self._oldest + len(data)) % self._tail_cap

    @property
    def left_out(self) -> int:
        """The number of dropped bytes of the stream."""
        return max(0, self.total - self._head_cap - self._tail_cap)

    def value(self) -> bytes:
        """Everything, or first and last part with a note between them."""
        note = f"\n[… {self.left_out} bytes left out …]\n".encode() if self.left_out else b""
        return b"".join((self._head, note, *self._tail_parts()))

    def last(self) -> bytes:
        """The last part alone."""
        return b"".join(self._tail_parts())

    def _tail_parts(self) -> tuple[memoryview, memoryview]:
        whole = memoryview(self._tail)
        return whole[self._oldest :], whole[: self._oldest]


class PipeSource:
    """Reads a pipe as data comes, until it ends or is closed. Owns the descriptor."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        take: Callable[[bytes], None],
        at_end: Callable[[], None],
    ) -> None:
        self.closed = False
        self._loop = loop
        self._fd = fd
        self._take = take
        self._at_end = at_end
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def close(self) -> None:
        """Stop reading."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            at_end, self._take, self._at_end = self._at_end, _drop, _do_nothing
            at_end()


def _drop(data: bytes) -> None:
    """Discard data without a reader."""


def _do_nothing() -> None:
    """Replaces a callback: a closed source does not refer to its readers."""


class PipeFeed:
    """Writes data into a pipe as fast as the other side reads, then closes it, or keeps it open for
    more.

    A reader that disconnects early is not an error. Owns the descriptor.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, data: bytes, *, keep_open: bool = False
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._rest = memoryview(data)
        self._more: list[bytes] = []
        self._keep_open = keep_open
        self._open = True
        os.set_blocking(fd, False)
        self._ready()

    def write(self, data: bytes) -> None:
        """Send more; dropped when the pipe is closed."""
        if self._open:
            self._more.append(data)
            self._ready()

    def end(self) -> None:
        """Close the pipe as soon as everything is written."""
        self._keep_open = False
        if self._open:
            self._ready()

    def _ready(self) -> None:
        try:
            while self._rest or self._more:
                if not self._rest:
                    self._rest, self._more = memoryview(b"".join(self._more)), []
                self._rest = self._rest[os.write(self._fd, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._ready)
            return
        except OSError:
            self.close()
            return
        if self._keep_open:
            self._loop.remove_writer(self._fd)
        else:
            self.close()

    def close(self) -> None:
        """Stop writing; unwritten data is dropped."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            self._rest, self._more = memoryview(b""), []
            os.close(self._fd)


class PipeWriter:
    """Writes data into a pipe now and then, as fast as the other side reads. Owns the descriptor.

    A missing reader is not an error: data is buffered, up to a limit.
    """

    LIMIT = 16 * 1024 * 1024

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._rest = bytearray()
        self._open = True
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        """Queue data for writing; data beyond the limit is dropped."""
        if self._open and len(self._rest) + len(data) <= self.LIMIT:
            self._rest += data
            self._ready()

    def _ready(self) -> None:
        self._loop.remove_writer(self._fd)
        try:
            while self._rest:
                del self._rest[: os.write(self._fd, self._rest[:_CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._ready)

    def close(self) -> None:
        """Stop writing; unread data is lost."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
