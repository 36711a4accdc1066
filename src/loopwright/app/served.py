"""Runs of a command that the server of its home drives, for as long as there is one.

The command prepares and records a run as always; only the driving is the server's. When the server
goes, its restart is awaited for a moment, and then this process drives on itself.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loopwright import __version__, errors
from loopwright.app.home_line import (
    LINE_BYTES,
    PROTOCOL,
    Drive,
    Driven,
    FromServer,
    Hello,
    Moved,
    Refused,
    Said,
    Troubled,
    as_line,
    held_by,
    keys_of,
    socket_path,
)
from loopwright.app.opening import owner_alive
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.facts import RunStarted
from loopwright.model.plan import Plan
from loopwright.ports import (
    OPEN_STATUSES,
    Bus,
    Clock,
    Delta,
    EventLog,
    Headline,
    Owner,
    Performer,
    RunRow,
)
from loopwright.runtime.driver import LocalDriver, already_driven, has_work
from loopwright.runtime.senses import SchemaCheck

HELLO_S = 5.0
KNOCK_S = 0.05
TICK_S = 0.25
GONE_S = 5.0  # without a server until this process drives on itself
SILENT_S = 15.0
_DECODER = msgspec.json.Decoder(FromServer)
DRAINING = "draining"
Say = Callable[[str], None]


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


async def reach(home: Path, say: Say, seconds: float = HELLO_S) -> Line | None:
    """The line to the server of a home; None where there is none, or none that answers."""
    end = time.monotonic() + seconds
    while (held := held_by(home)) is not None:
        try:
            async with asyncio.timeout(max(KNOCK_S, end - time.monotonic())):
                line = await _connected(home, say)
        except (FileNotFoundError, ConnectionError) as error:
            if time.monotonic() > end:
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
    who = f" (process {pid})" if pid else ""
    say(f"warning: the server of this home{who} is left out: {why}; runs are driven here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server of a home, and what comes of it that it tells."""

    line: Line
    home: Path
    bus: Bus
    heard: Callable[[str, int], None]  # a run has facts up to this number
    say: Say


@dataclass(slots=True)
class _Handed:
    """A run that was handed to the server."""

    moved: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: LoopwrightError | None = None


class ServedDriver(LocalDriver):
    """Hands runs to the server of the home. Once there is none, it is a driver like any other."""

    def __init__(
        self,
        log: EventLog,
        performer: Performer,
        *,
        clock: Clock,
        owner: Owner,
        check_schema: SchemaCheck,
        server: Server,
    ) -> None:
        super().__init__(log, performer, clock=clock, owner=owner, check_schema=check_schema)
        self.server_pid = server.line.pid
        self._line: Line | None = server.line
        self._server = server
        self._handed: dict[str, _Handed] = {}
        self._listening: asyncio.Future[None] | None = None

    def server_words(self) -> str:
        """Who drives in our place; programs are started there, with what it has."""
        hello = self._server.line.hello
        lacks = [f"no {name}" for name in keys_of(os.environ) if name not in hello.keys]
        if hello.path != os.environ.get("PATH", ""):
            lacks.insert(0, "another PATH")
        more = f" (it has {', '.join(lacks)}; --here drives with yours)" if lacks else ""
        return f"driven by the server of this home, process {self.server_pid}{more}"

    @property
    def _alone(self) -> bool:
        return self.server_pid is None

    # -- handing over ------------------------------------------------------------------------------

    @property
    def first_owner(self) -> Owner | None:
        """Whoever comes first may take a new run up, should this process end before it is told."""
        return self.owner if self._alone else None

    def open(self) -> None:
        super().open()
        self._listening = asyncio.ensure_future(self._listen())

    def wake(self, run: str) -> None:
        if self._alone:
            super().wake(run)
            return
        self._check(run)
        self._hand(run)

    def take(self, run: str) -> None:
        if self._alone:
            super().take(run)
        else:
            self._check(run)

    def adopt(self, first: RunStarted, plan: Plan, headline: Headline) -> None:
        # Not by the shorter way: it may have been made when there still was a server.
        self.wake(first.run)

    def recover(self, rows: Iterable[RunRow]) -> list[str]:
        if self._alone:
            return super().recover(rows)
        left = [row for row in rows if row.owner is None or not owner_alive(row.owner)]
        for row in left:
            self._hand(row.run)
        return [row.run for row in left if has_work(row.headline)]

    def _hand(self, run: str) -> None:
        handed = self._handed.setdefault(run, _Handed())
        handed.refusal = None
        handed.answered.clear()
        if self._line is not None:
            self._line.drive(run)

    def _check(self, run: str) -> None:
        """Refuse what a third process drives."""
        other = self.log.row(run).owner
        if other is None or other.pid == self.server_pid or not owner_alive(other):
            return
        raise already_driven(run, other)

    async def taken_up(self, run: str) -> int | None:
        """Wait until the server has a run; its pid. None when this process drives it after all."""
        handed = self._handed.get(run)
        while handed is not None and not self._alone and not handed.answered.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handed.answered.wait(), TICK_S)
        if handed is not None and handed.refusal is not None:
            raise handed.refusal
        return self.server_pid

    # -- waiting -----------------------------------------------------------------------------------

    async def rest(self, run: str) -> None:
        handed = self._handed.get(run)
        while handed is not None and not self._alone:
            handed.moved.clear()
            if handed.refusal is not None:
                raise handed.refusal
            if self.log.row(run).headline.status != "running":
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handed.moved.wait(), TICK_S)
        await super().rest(run)

    def is_driving(self, run: str) -> bool:
        if self._alone or run not in self._handed:
            return super().is_driving(run)
        return self._is_open(run)

    def _is_open(self, run: str) -> bool:
        with contextlib.suppress(NotFound):  # it was forgotten meanwhile
            return self.log.row(run).headline.status in OPEN_STATUSES
        return False

    # -- listening ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while self._line is not None:
            await self._line.hear(self._take)
            self._line = None
            self._line = await self._again()
            if self._line is not None:
                self.server_pid = self._line.pid
                for run in filter(self._is_open, self._handed):
                    self._hand(run)
        self._go_on_here()

    async def _again(self) -> Line | None:
        """The next server of this home, should one come soon."""
        gone_at = silent_at = time.monotonic()
        while time.monotonic() - gone_at < GONE_S:
            if held_by(self._server.home) is not None:  # this one leaves, or the next one comes
                gone_at = time.monotonic()
                if line := await reach(self._server.home, lambda _: None, TICK_S):
                    return line
            if time.monotonic() - silent_at > SILENT_S:
                silent_at = time.monotonic()
                self._server.say("the server of this home does not answer; still waiting for it")
            await asyncio.sleep(KNOCK_S)
        return None

    def _go_on_here(self) -> None:
        """Drive what the server left."""
        self.server_pid = None
        left = [run for run in self._handed if self._is_open(run)]
        if left:
            self._server.say("the server of this home has gone; this process drives on")
        for run in left:
            try:
                super().wake(run)
            except LoopwrightError as error:
                self.trouble(run, error)
        for handed in self._handed.values():
            handed.moved.set()
            handed.answered.set()

    def _take(self, told: FromServer) -> None:
        if isinstance(told, Said):
            delta = Delta(run=told.run, effect=told.effect, kind=told.kind, text=told.text)
            self._server.bus.publish(delta)
        elif isinstance(told, Troubled):
            self.problems.append((told.run, LoopwrightError(told.message)))
        elif isinstance(told, Driven | Refused | Moved) and told.run in self._handed:
            self._took(told, self._handed[told.run])

    def _took(self, told: Driven | Refused | Moved, handed: _Handed) -> None:
        if isinstance(told, Moved):
            with contextlib.suppress(Exception):  # a view that fails must not end the listening
                self._server.heard(told.run, told.seq)
        elif isinstance(told, Driven) or told.code != DRAINING:  # then it is asked again
            handed.refusal = None if isinstance(told, Driven) else _refusal(told)
            handed.answered.set()
        handed.moved.set()

    async def close(self) -> None:
        """Hang up. What the server drives goes on there."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._line is not None:
            self._line.close()
        await super().close()


def _refusal(told: Refused) -> LoopwrightError:
    """The error of the server, as it would be here."""
    kind = getattr(errors, told.kind, LoopwrightError)
    if not (isinstance(kind, type) and issubclass(kind, LoopwrightError | Conflict)):
        kind = LoopwrightError
    if kind is errors.DefinitionError:
        return LoopwrightError(told.message, code=told.code, hint=told.hint)
    return kind(told.message, code=told.code, hint=told.hint)
