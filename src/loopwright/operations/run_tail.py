"""Follow runs that any process drives: their events as they are written, and live text of agents.

Every interface that waits for events reads them with `RunTail`, for one run, or with
`EventFeed.changes`, for all of them.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from loopwright.engine.live_text import CONNECT_S, read_live_text
from loopwright.errors import LoopwrightError, StorageError
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunFinished,
)
from loopwright.operations.run_lists import driver_pid, is_left_behind
from loopwright.operations.runs import Service
from loopwright.ports import Delta, EventLog, NumberedEvent
from loopwright.ports.headline import has_calls

POLL_S = 0.1  # between looks at what other processes write
MOST_KNOWN = 10_000  # versions of runs

ReadEvents: TypeAlias = Callable[[str, int], list[NumberedEvent]]
"""Reads events of a run above a number."""

Guard: TypeAlias = Callable[[], AbstractContextManager[object]]
"""What a round of background work runs in, so that an error does not end it."""

GUARD: Guard = partial(contextlib.suppress, StorageError)


class EventFeed:
    """Wakes readers when a run has new events: at once for what this process writes, soon after for
    what other processes write. Events are never queued: a woken reader reads the log from its own
    position, so a slow one delays only itself. Used in the thread of its event loop.
    """

    def __init__(self, log: EventLog, guard: Guard = GUARD) -> None:
        self._log, self._guard = log, guard
        # the position of each reader
        self._waiting: dict[str, dict[asyncio.Future[bool], int]] = {}
        self._versions: dict[str, int] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._cursor = 0
        self._end = log.subscribe(self._written)
        self.closed = False

    def version(self, run: str) -> int:
        """The number of the newest event of a run; events of other processes count when they are
        noticed.
        """
        known = self._versions.get(run)
        if known is None:
            if len(self._versions) >= MOST_KNOWN:
                self._versions.clear()
            known = self._versions[run] = self._log.version(run)
        return known

    async def moved(
        self, run: str, after: int, seconds: float, woken: asyncio.Future[bool] | None = None
    ) -> bool:
        """Wait until a run has an event with a number above `after`, or `woken` has a result; False
        after a time-out.
        """
        loop = asyncio.get_running_loop()
        woken = woken or loop.create_future()
        self._waiting.setdefault(run, {})[woken] = after
        # Not `wait_for`: it would create a task for each of thousands of waits per second.
        late = loop.call_later(seconds, _time_is_up, woken)
        try:
            if self.closed or self.version(run) > after:
                return not self.closed
            if not await woken:
                self._versions.pop(run, None)  # it may have been deleted
                return False
            return not self.closed
        finally:
            late.cancel()
            del self._waiting[run][woken]
            if not self._waiting[run]:
                del self._waiting[run]

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(run)` whenever a run was changed; the returned function ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def changes(
        self, together_s: float, most_s: float | None = None
    ) -> AsyncIterator[list[str]]:
        """Runs that have changed, those of `together_s` seconds at once; an empty list at the
        beginning and after `most_s` seconds without any.
        """
        changed: dict[str, None] = {}
        woken = asyncio.Event()

        def note(run: str) -> None:
            changed[run] = None
            woken.set()

        end = self.listen(note)
        try:
            yield []
            while not self.closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(most_s):
                        await woken.wait()
                        await asyncio.sleep(together_s)
                woken.clear()
                runs = list(changed)
                changed.clear()
                yield runs
        finally:
            end()

    async def watch_others(self) -> None:
        """Notice what other processes write, while there are readers. No other loop of the package
        waits for events.
        """
        with self._guard():
            _, self._cursor = self._log.nudges(0)
        while not self.closed:
            await asyncio.sleep(POLL_S)
            if not self._waiting and not self._listeners:
                continue
            with self._guard():
                runs, self._cursor = self._log.nudges(self._cursor)
                for run in runs:
                    self._wake(run, self._read_again(run))

    def close(self) -> None:
        """Wake all readers."""
        self.closed = True
        self._end()
        for run in list(self._waiting):
            self._wake(run)

    @property
    def readers(self) -> int:
        """How many readers wait."""
        return sum(map(len, self._waiting.values()))

    def _written(self, run: str, version: int) -> None:
        if run in self._versions:  # a later one may be known already
            self._versions[run] = max(version, self._versions[run])
        self._wake(run, version)

    def _read_again(self, run: str) -> int | None:
        """The newest number of a run that was changed; None if it is not known."""
        self._versions.pop(run, None)
        if run in self._waiting:
            with contextlib.suppress(LoopwrightError):  # waiting readers find out
                return self.version(run)
        return None

    def _wake(self, run: str, version: int | None = None) -> None:
        """Wake the readers that have not read that far."""
        for woken, after in self._waiting.get(run, {}).items():
            if not woken.done() and (version is None or version > after):
                woken.set_result(True)
        for listener in self._listeners:
            listener(run)


def _time_is_up(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)


@asynccontextmanager
async def open_feed(log: EventLog) -> AsyncIterator[EventFeed]:
    """A feed for a command, as long as this context is open."""
    feed = EventFeed(log)
    watching = asyncio.ensure_future(feed.watch_others())
    try:
        yield feed
    finally:
        feed.close()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


class RunTail:
    """The events of one run above a number: those that there are, then those that are written."""

    def __init__(self, feed: EventFeed, run: str, read: ReadEvents, after: int = 0) -> None:
        self.run, self.seen = run, after
        self._feed, self._read = feed, read
        self._woken: asyncio.Future[bool] | None = None
        self._is_called = False

    async def batches(self, patience: Callable[[], float]) -> AsyncIterator[list[NumberedEvent]]:
        """Events in order. The list is empty if `patience()` seconds went by without any, or if the
        reader was woken for another reason. Ends when the feed is closed.
        """
        while True:
            events = self._read(self.run, self.seen)
            if events:
                self.seen = events[-1].seq
            yield events
            if self._feed.closed:
                return
            if not self._is_called:
                self._woken = asyncio.get_running_loop().create_future()
                await self._feed.moved(self.run, self.seen, patience(), self._woken)
                self._woken = None
            self._is_called = False

    def wake(self) -> None:
        """Let the reader look, although there may be no event."""
        self._is_called = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(True)


LAST_TEXT_S = 0.02  # for text that was sent just before the event that ends its call
GRACE_S = 10.0  # until a run counts as interrupted: a process may be about to take it up


class DriverWatch:
    """Notices that a run should proceed and that no process drives it."""

    def __init__(self, service: Service, run: str) -> None:
        self._service, self._run = service, run
        self._driven_at = time.monotonic()
        self._busy_version = 0  # a paused run with this version has calls under way

    def is_gone(self) -> bool:
        """Whether the run has been without a living process for a while."""
        row = self._service.log.row(self._run)
        if not is_left_behind(self._service.log, row):
            self._driven_at = time.monotonic()
        return time.monotonic() - self._driven_at > GRACE_S

    def needs_person(self) -> bool:
        """Whether only a person can advance the run: it is paused and its calls have ended, or it
        waits or should run and no process drives it.
        """
        row = self._service.log.row(self._run)
        if row.headline.status == "running":
            return self.is_gone()
        if driver_pid(self._service.log, row) is None:
            return True
        if row.headline.status != "paused" or row.version == self._busy_version:
            return False
        is_busy = has_calls(self._service.state(self._run))
        self._busy_version = row.version if is_busy else 0
        return not is_busy


def _has_ended(service: Service, run: str, seen: int) -> bool:
    """Whether everything was seen, and the last of it ended the run."""
    version = service.log.version(run)
    if version > seen:
        return False
    newest = service.events(run, after=version - 1)
    return bool(newest) and isinstance(newest[-1].event, RunFinished)


async def tail(
    service: Service, run: str, after: int = 0, *, is_over: Callable[[], bool] = lambda: False
) -> AsyncIterator[NumberedEvent]:
    """Every event of a run with a number above `after`; ends with the run, or when `is_over` says
    so after all events were read.
    """
    async with open_feed(service.log) as feed:
        reader = RunTail(feed, run, service.events, after)
        async for events in reader.batches(lambda: POLL_S):
            for numbered in events:
                yield numbered
            if _has_ended(service, run, reader.seen):
                return
            if feed.version(run) <= reader.seen and is_over():
                for numbered in service.events(run, after=reader.seen):
                    yield numbered
                return


async def wait_for_end(
    service: Service, run: str, *, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Wait until a run has ended, or `is_over` says so."""
    async for _ in tail(service, run, service.log.version(run) - 1, is_over=is_over):
        pass


class _TextOfCalls:
    """Text that agents write, until it is known to which place among the events it belongs."""

    def __init__(self, calls: Iterable[str]) -> None:
        self.held: deque[Delta] = deque()
        self._open = {*calls}
        self._waited: set[str] = set()  # open while we waited; earlier text is in the events

    def wait(self) -> None:
        """No event came for a moment."""
        self._waited |= self._open

    async def take(self, event: AnyEvent) -> None:
        """An event has come, and is returned next."""
        if isinstance(event, EffectRequested):
            self._open.add(event.effect)
        elif isinstance(event, EffectDone | EffectFailed):
            if event.effect in self._waited:
                await asyncio.sleep(LAST_TEXT_S)
            self._open.discard(event.effect)

    def ready(self) -> list[Delta]:
        """Text of calls whose start was returned."""
        found = [one for one in self.held if one.effect in self._waited]
        for one in found:
            self.held.remove(one)
        self._waited &= self._open
        return found


async def tail_with_text(
    service: Service,
    home: Path,
    run: str,
    after: int = 0,
    *,
    calls: Iterable[str] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[NumberedEvent | Delta, None]:
    """Events of a run as they are written, and the text that agents write meanwhile: after the
    event that started their call, and before the one that ends it. `calls` are
    those under way at the beginning.
    """
    text = _TextOfCalls(calls)
    reading = asyncio.ensure_future(_collect_text(service, home, run, text.held))
    events = aiter(tail(service, run, after, is_over=is_over))
    upcoming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=POLL_S)
            numbered = upcoming.result() if done else None
            if numbered is not None:
                await text.take(numbered.event)
            elif done:
                return
            else:
                text.wait()
            for delta in text.ready():
                yield delta
            if numbered is not None:
                yield numbered
                upcoming = asyncio.ensure_future(anext(events, None))
    finally:
        for task in (upcoming, reading):
            task.cancel()
        await asyncio.gather(upcoming, reading, return_exceptions=True)


async def _collect_text(service: Service, home: Path, run: str, found: deque[Delta]) -> None:
    async for one, _ in follow_text(service.log, home, run):
        found.append(one)


async def follow_text(
    log: EventLog, home: Path, run: str, *, own: str = "", tail: bool = True
) -> AsyncGenerator[tuple[Delta, bool], None]:
    """What agents write in a run, from whichever process drives it now, except the one with the
    token `own`. With `tail`, first the end of what was written before, which is marked.
    """
    while True:
        owner = log.row(run).owner
        if owner is not None and owner.token != own and log.alive(owner):
            async with contextlib.aclosing(
                read_live_text(home, owner.token, run, tail=tail)
            ) as deltas:
                async for delta in deltas:
                    yield delta, tail
                    tail = False
        await asyncio.sleep(CONNECT_S)
