"""A driver that lets the local server drive the runs of a command while the server is available.

The command prepares and records a run as always; only driving is delegated. If the server
stops, its restart is awaited for a short time, and then this process drives the run itself.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from loopwright import errors
from loopwright.engine.driver import LocalDriver, already_driven, has_work
from loopwright.engine.services import SchemaCheck
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.events import RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.operations.data_directory import (
    CONNECT_RETRY_S,
    HELLO_S,
    DriveAccepted,
    DriveRefused,
    DriveTrouble,
    FromServer,
    LiveTextSent,
    LocalServerLink,
    RunMoved,
    Say,
    keys_of,
    lock_holder,
    path_of,
    reach,
)
from loopwright.operations.settings import Settings
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

TICK_S = 0.25
GONE_S = 5.0  # without a server until this process drives on itself
SILENT_S = 15.0
BRIEF_S = 0.5
DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHandle:
    """The server of a data directory, and the messages that it sends."""

    line: LocalServerLink
    settings: Settings
    bus: Bus
    heard: Callable[[str, int], None]  # a run has events up to this number
    say: Say


@dataclass(slots=True)
class _SentRequest:
    """A run that was handed to the server."""

    moved: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: LoopwrightError | None = None
    seq: int = 0  # the newest event that the server spoke of


class DelegatingDriver(LocalDriver):
    """Delegates runs to the local server. Without a server, it drives them itself."""

    def __init__(
        self,
        log: EventLog,
        performer: Performer,
        *,
        clock: Clock,
        owner: Owner,
        check_schema: SchemaCheck,
        server: ServerHandle,
    ) -> None:
        super().__init__(log, performer, clock=clock, owner=owner, check_schema=check_schema)
        self.server_pid = server.line.pid
        self._line: LocalServerLink | None = server.line
        self._server = server
        self._handed: dict[str, _SentRequest] = {}
        self._received_at = time.monotonic()
        self._listening: asyncio.Future[None] | None = None

    def server_words(self) -> str:
        """Who drives in our place; programs are started there, with what it has."""
        hello = self._server.line.hello
        lacks = [f"no {name}" for name in keys_of(os.environ) if name not in hello.keys]
        if hello.path != path_of(os.environ):
            lacks.insert(0, "another PATH")
        more = f" (it has {', '.join(lacks)}; --here runs with yours)" if lacks else ""
        return f"running on the local server, process {self.server_pid}{more}"

    @property
    def _alone(self) -> bool:
        return self.server_pid is None

    @property
    def is_served(self) -> bool:
        return self._line is not None

    def stranded(self) -> list[str]:
        """Runs that the server left and that no process has taken over since."""
        if self.is_served:
            return []
        return [run for run in self._handed if self._is_open(run) and not self._living(run)]

    def _living(self, run: str) -> Owner | None:
        owner = self.log.row(run).owner
        return owner if owner is not None and self.log.alive(owner) else None

    # -- delegation -------------------------------------------------------------------------------

    @property
    def first_owner(self) -> Owner | None:
        """Any process may take over a new run, should this process end before it is reported."""
        return self.owner if self._alone else None

    def open(self) -> None:
        super().open()
        self._listening = asyncio.ensure_future(self._listen())

    def wake(self, run: str) -> None:
        if self._alone:
            super().wake(run)
            return
        self._check(run)
        self._send_request(run)

    def take(self, run: str) -> None:
        if self._alone:
            super().take(run)
        else:
            self._check(run)

    def adopt(self, first: RunStarted, headline: Headline, state: State) -> None:
        # Not by the shorter way: it may have been made when there still was a server.
        self.wake(first.run)

    def recover(self, rows: Iterable[RunRow]) -> list[str]:
        if self._alone:
            return super().recover(rows)
        left = [row for row in rows if row.owner is None or not self.log.alive(row.owner)]
        for row in left:
            self._send_request(row.run)
        return [row.run for row in left if has_work(row.headline)]

    def _send_request(self, run: str) -> None:
        if not self._handed:
            self._server.say(self.server_words())
        handed = self._handed.setdefault(run, _SentRequest())
        handed.refusal = None
        handed.answered.clear()
        if self._line is not None:
            self._line.drive(run)

    def _check(self, run: str) -> None:
        """Refuse what a third process drives."""
        other = self._living(run)
        if other is not None and other.pid != self.server_pid:
            raise already_driven(run, other)

    async def taken_up(self, run: str) -> int | None:
        """Wait until the server has a run; its pid. None when it does not answer, or has gone."""
        handed = self._handed.get(run)
        if handed is None or self._alone:
            return None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(handed.answered.wait(), HELLO_S)
        if handed.refusal is not None:
            raise handed.refusal
        return self.server_pid if handed.answered.is_set() else None

    # -- waiting -----------------------------------------------------------------------------------

    async def rest(self, run: str) -> None:
        handed = self._handed.get(run)
        while handed is not None and (not self._alone or self._is_elsewhere(run)):
            handed.moved.clear()
            if handed.refusal is not None:
                raise handed.refusal
            version = self.log.version(run)
            if self._rests(run):
                await self._read_remaining(handed, version)
                return
            self._report_silence()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handed.moved.wait(), TICK_S)
        await super().rest(run)

    async def _read_remaining(self, handed: _SentRequest, version: int) -> None:
        """Text of agents is shown before the event that followed it: the log may be quicker than
        the line, which is waited for a moment.
        """
        end = time.monotonic() + TICK_S
        while self._line is not None and handed.seq < version and time.monotonic() < end:
            handed.moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(handed.moved.wait(), end - time.monotonic())

    def _rests(self, run: str) -> bool:
        """Whether only a person can advance a run. With a pause, running calls end first."""
        status = self.log.row(run).headline.status
        if status != "paused":
            return status != "running"
        events = [numbered.event for numbered in self.log.read(run)]
        return not fold(self._plan(events[0]), events).pending

    def _is_elsewhere(self, run: str) -> bool:
        """Whether another process was quicker to take up what the server left."""
        if super().is_driving(run):
            return False
        if self._living(run) is None and self._is_open(run):
            super().wake(run)
            return False
        return True

    def _report_silence(self) -> None:
        now = time.monotonic()
        if self._line is not None and now - self._received_at > SILENT_S:
            self._received_at = now
            self._server.say("the local server does not answer; still waiting for it")

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
            began = time.monotonic()
            await self._line.hear(self._take)
            self._line = None
            if time.monotonic() - began < BRIEF_S:  # one that hangs up at once is not hurried
                await asyncio.sleep(BRIEF_S)
            self._line = await self._again()
            if self._line is not None:
                self._begin_again(self._line)
        self._go_on_here()

    def _begin_again(self, line: LocalServerLink) -> None:
        """Hand everything to the next server, and look at what was missed meanwhile."""
        self.server_pid = line.pid
        for run in self._handed:
            with contextlib.suppress(LoopwrightError):  # the disk may come back
                self._on_moved(run, self.log.version(run))
                if self._is_open(run):
                    self._send_request(run)

    async def _again(self) -> LocalServerLink | None:
        """The next server of this data directory, if one starts soon."""
        gone_at = silent_at = time.monotonic()
        while time.monotonic() - gone_at < GONE_S:
            if (
                lock_holder(self._server.settings.home) is not None
            ):  # one leaves, or the next one comes
                gone_at = time.monotonic()
                if line := await reach(self._server.settings, lambda _: None, TICK_S):
                    return line
            if time.monotonic() - silent_at > SILENT_S:
                silent_at = time.monotonic()
                self._server.say("the local server does not answer; still waiting for it")
            await asyncio.sleep(CONNECT_RETRY_S)
        return None

    def _go_on_here(self) -> None:
        """Drive what the server left."""
        self.server_pid = None
        left = [run for run in self._handed if self._is_open(run)]
        mine = [run for run in left if self._taken_here(run)]
        if mine:
            self._server.say("the local server has ended; continuing in this process")
        for handed in self._handed.values():
            handed.moved.set()
            handed.answered.set()

    def _taken_here(self, run: str) -> bool:
        try:
            super().wake(run)
        except LoopwrightError as error:
            if error.code != "already-driven":  # another command that waited for it, too
                self.trouble(run, error)
            return False
        return True

    def _on_moved(self, run: str, seq: int) -> None:
        with contextlib.suppress(Exception):  # a view that fails must not end the listening
            self._server.heard(run, seq)

    def _take(self, message: FromServer) -> None:
        self._received_at = time.monotonic()
        if isinstance(message, LiveTextSent):
            delta = Delta(
                run=message.run, effect=message.effect, kind=message.kind, text=message.text
            )
            self._server.bus.publish(delta)
        elif isinstance(message, DriveTrouble):
            self._note_problem(message.run, LoopwrightError(message.message))
        elif (
            isinstance(message, DriveAccepted | DriveRefused | RunMoved)
            and message.run in self._handed
        ):
            self._took(message, self._handed[message.run])

    def _took(self, message: DriveAccepted | DriveRefused | RunMoved, handed: _SentRequest) -> None:
        if isinstance(message, RunMoved):
            handed.seq = max(handed.seq, message.seq)
            self._on_moved(message.run, message.seq)
        elif (
            isinstance(message, DriveAccepted) or message.code != DRAINING
        ):  # then it is asked again
            handed.refusal = None if isinstance(message, DriveAccepted) else _refusal(message)
            handed.answered.set()
        handed.moved.set()

    async def close(self) -> None:
        """Close the connection. The server continues to drive its runs."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._line is not None:
            self._line.close()
        await super().close()


def _refusal(message: DriveRefused) -> LoopwrightError:
    """The error of the server, as it would be here."""
    kind = getattr(errors, message.kind, LoopwrightError)
    if not (isinstance(kind, type) and issubclass(kind, LoopwrightError | Conflict)):
        kind = LoopwrightError
    if kind is errors.DefinitionError:
        return LoopwrightError(message.message, code=message.code, hint=message.hint)
    return kind(message.message, code=message.code, hint=message.hint)
