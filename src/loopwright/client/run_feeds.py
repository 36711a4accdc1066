"""Runs that are followed while they are driven: their events with the lines that a terminal shows
for them, and the text that agents write.

`DrivenFeed` follows a run of this process and `ReadFeed` one that any process of this machine
drives; `http_transport.ServedFeed` follows one of a server.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.client.transport import Fed, Keeper, SeenEvent
from loopwright.errors import Conflict, StorageError
from loopwright.ports import OPEN_STATUSES, Delta
from loopwright.ports.headline import status_of
from loopwright.views.progress import Progress

if TYPE_CHECKING:
    from loopwright.operations.runs import Service
    from loopwright.operations.wiring import Local
    from loopwright.views.run_responses import RunSummary

TICK_S = 0.25
SLOW_TICK_S = 2.0  # of many runs at once: events of other processes are seen a little later
FEW_RUNS = 8


def open_progress(service: "Service", run: str, after: int | None) -> Progress:
    """The progress of a run up to an event; None: up to now."""
    events = service.events(run, after=0)
    progress = Progress(service.plan(events[0].event), service.read_text)
    for numbered in events:
        if after is not None and numbered.seq > after:
            break
        progress.take(numbered)
    return progress


class LocalFeeds:
    """The feeds of a process that drives runs. It gives each of them the events and the text of its
    run.
    """

    def __init__(self, here: "Local", home: Path) -> None:
        self.here, self.home = here, home
        self._feeds: dict[str, DrivenFeed] = {}
        self._ends = [here.log.subscribe(self._written), here.bus.listen(self._heard)]

    @property
    def tick_s(self) -> float:
        """How often a feed looks for events of other processes."""
        return TICK_S if len(self._feeds) <= FEW_RUNS else SLOW_TICK_S

    def open(self, run: str, after: int | None) -> "DrivenFeed":
        """Follow a run from now on."""
        feed = self._feeds[run] = DrivenFeed(self, run, after)
        return feed

    def close(self) -> None:
        """Follow nothing any more."""
        for end in self._ends:
            end()

    def _written(self, run: str, version: int) -> None:
        if (feed := self._feeds.get(run)) is not None:
            feed.move(version)

    def _heard(self, delta: Delta) -> None:
        if (feed := self._feeds.get(delta.run)) is not None:
            feed.hear(delta)


class DrivenFeed:
    """A run that this process drives, or the local server in its place."""

    def __init__(self, feeds: LocalFeeds, run: str, after: int | None) -> None:
        self.run = run
        self._feeds, self._here = feeds, feeds.here
        self.progress = open_progress(self._here.service, run, after)
        self._waiting: deque[int | Delta] = deque()  # the number of an event that was written
        self._moved = asyncio.Event()
        self._troubles = 0

    @property
    def other_driver(self) -> int | None:
        if self._here.driver.is_driving(self.run):
            return None
        row = self._here.log.row(self.run)  # read last: a run that has ended is not driven either
        if row.headline.status not in OPEN_STATUSES:
            return None
        from loopwright.operations.run_lists import driver_pid  # noqa: PLC0415 - rarely needed

        pid = driver_pid(self._here.log, row)
        return pid if row.owner is not None and row.owner.token != self._here.driver.token else None

    @property
    def keeper(self) -> Keeper:
        from loopwright.operations.data_directory import lock_holder  # noqa: PLC0415 - at the end only

        if self._here.driver.is_served:
            return "server"
        return "next-server" if lock_holder(self._feeds.home) is not None else "none"

    def move(self, version: int) -> None:
        """Events were written, up to this one."""
        self._waiting.append(version)
        self._moved.set()

    def hear(self, delta: Delta) -> None:
        """An agent has written text."""
        self._waiting.append(delta)
        self._moved.set()

    async def follow(self) -> AsyncGenerator[Fed, None]:
        self.move(self._here.log.version(self.run))
        resting: asyncio.Future[object] = asyncio.ensure_future(self._here.driver.rest(self.run))
        try:
            while True:
                for one in self._new():
                    yield one
                if resting.done():
                    resting.result()
                    self._raise_conflict()
                    seen, waiting = self.progress.seen, self._waiting
                    is_current = not waiting and self._here.log.version(self.run) <= seen
                    if is_current and status_of(self.progress.state) != "running":
                        return
                    # Only a timer is pending, or the run is just being taken up again.
                    await self._wait()
                    resting = asyncio.ensure_future(self._here.driver.rest(self.run))
                else:
                    await self._wait(resting)
        finally:
            resting.cancel()
            await asyncio.gather(resting, return_exceptions=True)

    async def read_summary(self) -> "RunSummary":
        from loopwright.views.summary import summary  # noqa: PLC0415 - at the end only

        for _ in self._events(None):
            pass
        return summary(self.progress.state, self._here.service.read_text)

    async def _wait(self, *others: "asyncio.Future[object]") -> None:
        """Until something happens, or it is time to look for events of other processes."""
        if self._waiting:
            return
        moved: asyncio.Future[object] = asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait(
                {moved, *others},
                timeout=self._feeds.tick_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            moved.cancel()
        # Read errors are reported once, by reading the events.
        with contextlib.suppress(StorageError):
            version = self._here.log.version(self.run)
            if version > self.progress.seen:
                self._waiting.append(version)

    def _new(self) -> Iterator[Fed]:
        """Events and text in the order in which they came, and new problems of the driver."""
        self._moved.clear()
        while self._waiting:
            one = self._waiting.popleft()
            if isinstance(one, Delta):
                self.progress.hear(one)
                yield one
            elif one > self.progress.seen:
                yield from self._events(one)
        problems = self._here.driver.problems
        for run, problem in problems[self._troubles :]:
            if run == self.run and not isinstance(problem, Conflict):
                yield f"warning: {problem}; it is tried again"
        self._troubles = len(problems)

    def _events(self, version: int | None) -> Iterator[SeenEvent]:
        for numbered in self._here.service.events(self.run, after=self.progress.seen):
            if version is not None and numbered.seq > version:
                return
            yield SeenEvent(numbered, self.progress.take(numbered))

    def _raise_conflict(self) -> None:
        for run, problem in self._here.driver.problems:
            if run == self.run and isinstance(problem, Conflict):
                raise problem


class ReadFeed:
    """A run that another process of this machine drives; it is read from the log."""

    other_driver = None
    keeper: Keeper = "none"

    def __init__(self, service: "Service", home: Path, run: str, after: int | None) -> None:
        self.run = run
        self._service, self._home = service, home
        self.progress = open_progress(service, run, after)

    async def follow(self) -> AsyncGenerator[Fed, None]:
        from loopwright.operations.run_tail import DriverWatch, tail_with_text  # noqa: PLC0415 - only here

        driver = DriverWatch(self._service, self.run)

        def is_over() -> bool:
            state, status = self.progress.state, status_of(self.progress.state)
            is_working = status == "running" or (status == "paused" and state.pending)
            return driver.is_gone() if is_working else True

        calls, after = self.progress.state.pending, self.progress.seen
        found = tail_with_text(
            self._service, self._home, self.run, after, calls=calls, is_over=is_over
        )
        async with aclosing(found) as events:
            async for one in events:
                if isinstance(one, Delta):
                    self.progress.hear(one)
                    yield one
                else:
                    yield SeenEvent(one, self.progress.take(one))

    async def read_summary(self) -> "RunSummary":
        from loopwright.operations.run_lists import is_left_behind  # noqa: PLC0415 - at the end only
        from loopwright.views.summary import final_line, summary  # noqa: PLC0415 - the same

        state = self.progress.state
        found = summary(state, self._service.read_text)
        if is_left_behind(self._service.log, self._service.log.row(self.run)):
            found.summary = final_line(state, left_behind=True)
        return found
