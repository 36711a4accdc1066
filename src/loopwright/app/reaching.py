"""A command's end of the line to the server of its home: finding it, and who may drive for us."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from loopwright import __version__
from loopwright.app.home_line import (
    LINE_BYTES,
    PROTOCOL,
    Drive,
    FromServer,
    Hello,
    as_line,
    held_by,
    limits_of,
    socket_path,
)
from loopwright.app.settings import Settings

HELLO_S = 5.0
KNOCK_S = 0.05
Say = Callable[[str], None]
_DECODER = msgspec.json.Decoder(FromServer)


class Line:
    """A command's end of the line."""

    def __init__(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = hello.pid
        self.hello = hello
        self._reader = reader
        self._writer = writer

    def drive(self, run: str) -> None:
        if not self._writer.is_closing():
            self._writer.write(as_line(Drive(run)))

    async def hear(self, take: Callable[[FromServer], None]) -> None:
        """Hand on what is said, until the other end hangs up."""
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                with contextlib.suppress(msgspec.DecodeError):  # a later version says more
                    take(_DECODER.decode(line))
        self.close()

    def close(self) -> None:
        self._writer.close()


async def reach(settings: Settings, say: Say, seconds: float = HELLO_S) -> Line | None:
    """The line to the server of a home; None where there is none, or none that may drive for us."""
    home = settings.home
    end = time.monotonic() + seconds
    while (held := held_by(home)) is not None:
        if not held.has_line:
            _without(say, held.pid, "it takes nothing from commands; its log says why")
            return None
        try:
            async with asyncio.timeout(max(KNOCK_S, end - time.monotonic())):
                line = await _connected(home, say)
        except (FileNotFoundError, ConnectionError) as error:
            if time.monotonic() > end or (held.pid and isinstance(error, FileNotFoundError)):
                _without(say, held.pid, str(error.strerror or error).lower())
                return None
            await asyncio.sleep(KNOCK_S)  # it is just starting, or about to leave
        except TimeoutError:
            _without(say, held.pid, "it does not answer")
            return None
        except OSError as error:
            _without(say, held.pid, str(error.strerror or error).lower())
            return None
        else:
            if line is not None and line.hello.limits != limits_of(settings):
                line.close()
                _without(say, held.pid, "it has another budget, or other servers of tools")
                return None
            return line
    return None


async def _connected(home: Path, say: Say) -> Line | None:
    with socket_path(home) as path:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES)
    try:
        hello = _DECODER.decode(await reader.readline())
    except (ValueError, asyncio.CancelledError) as error:
        writer.close()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise ConnectionResetError("it hung up") from error
    if isinstance(hello, Hello) and hello.protocol == PROTOCOL:
        return Line(hello, reader, writer)
    writer.close()
    version = hello.version if isinstance(hello, Hello) else "unknown"
    _without(say, 0, f"it is version {version} and this is version {__version__}")
    return None


def _without(say: Say, pid: int, why: str) -> None:
    who = f" (pid {pid})" if pid else ""
    say(f"warning: not using the local server{who}: {why}; running in this process")
