"""Calls of operations in this process, on a data directory that it opens itself."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from loopwright.client.transport import Followed, FollowOptions
from loopwright.engine.services import SystemClock
from loopwright.errors import Conflict, StorageError
from loopwright.operations.api_types import Request
from loopwright.operations.run_lists import open_data_log, open_empty_log
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import (
    App,
    Operation,
    list_app,
    local_app,
    local_caller,
)
from loopwright.ports import Delta, NumberedEvent
from loopwright.views.event_records import request_name, under

if TYPE_CHECKING:
    from loopwright.client.run_feeds import LocalFeeds
    from loopwright.client.transport import RunFeed
    from loopwright.operations.runs import Service
    from loopwright.ports import Workspaces

MOST_ROWS = 1_000
Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class InProcess:
    """Opens the data directory at the first call: for reading, or with a driver for runs that are
    started or stopped here.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        drives: bool = False,
        alone: bool = False,
        say: Callable[[str], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._drives, self._alone = drives, alone
        self._say, self._warn = say, warn
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()  # of concurrent calls only the first one opens
        self._app: App | None = None
        self._feeds: LocalFeeds | None = None

    async def open_feed(self, run: str, after: int | None, options: FollowOptions) -> "RunFeed":
        """Follow a run: as the process that drives it, or as one that reads."""
        from loopwright.client.run_feeds import LocalFeeds, ReadFeed  # noqa: PLC0415 - lists need less

        app, home = await self.app(), self._settings.home
        if app.here is None:
            return ReadFeed(app.service, home, run, after)
        if self._feeds is None:
            self._feeds = LocalFeeds(app.here, home)
            self._open.callback(self._feeds.close)
        return self._feeds.open(run, after)

    async def app(self) -> App:
        """What operations work with."""
        async with self._opening:
            if self._app is not None:
                return self._app
            if self._drives:
                self._app = await self._driving_app()
            else:
                self._app = self._reading_app()
            return self._app

    async def _driving_app(self) -> App:
        from loopwright.operations.wiring import near  # noqa: PLC0415 - reading needs no adapters

        driving = near(self._settings, say=self._say, alone=self._alone)
        here = await self._open.enter_async_context(driving)
        app = local_app(here.service, self._settings)
        return replace(app, here=here, get_workspaces=lambda: here.workspaces)

    def _workspaces(self) -> "Workspaces":
        from loopwright.operations.data_directory import workspaces_of  # noqa: PLC0415 - lists need less

        return workspaces_of(self._settings)

    def _reading_app(self, *, is_empty: bool = False) -> App:
        """The log alone; `is_empty` where there is no data directory, which a query leaves so."""
        log = open_empty_log(self._open) if is_empty else open_data_log(self._settings)
        self._open.callback(log.close)
        opened: list[Service] = []

        def service() -> "Service":
            if not opened:
                from loopwright.operations.data_directory import open_reader  # noqa: PLC0415 - lists need less

                opened.append(open_reader(self._settings, log))
            return opened[0]

        return list_app(log, self._settings, SystemClock(), service, self._workspaces)

    def _has_no_directory(self) -> bool:
        """Whether nothing has the name of the data directory; a file there is an error."""
        return not os.path.lexists(self._settings.home)

    async def call(self, operation: Operation[Q, A], request: Q, key: str = "") -> A:
        """Call an operation as the person who owns this process. A command that was done under this
        key before is not repeated.
        """
        reads_nothing = operation.kind == "query" and not self._drives and self._has_no_directory()
        app = self._reading_app(is_empty=True) if reads_nothing else await self.app()
        caller = local_caller()
        if not key:
            return await operation(app, caller, request)
        name = request_name(caller.name, key)
        if done := app.records.audited(request=name, limit=MOST_ROWS):
            if operation.again is None:
                raise Conflict(
                    f"this was done ({done[-1].action} {done[-1].subject}), and the server ended "
                    "before it could answer",
                    code="answer-lost",
                    hint="look at it; there is no need to ask again",
                )
            return await operation.again(app, caller, done[-1].subject)
        with under(name):
            return await operation(app, caller, request)

    async def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        """Events of a run. Following also ends when only a person can advance the run."""
        service = (await self.app()).service
        from loopwright.operations.loops.dialect_events import event_view  # noqa: PLC0415 - lists need less

        records = event_view(service, run, options.view)
        # A record of these views may combine earlier events, so all of them are read.
        first = options.after if options.view == "events" else 0
        async for one in self._events(service, run, first, options):
            if isinstance(one, Delta):
                yield one
                continue
            found = records(one)
            if one.seq > options.after:
                for record in found:
                    yield record

    async def _events(
        self, service: "Service", run: str, after: int, options: FollowOptions
    ) -> AsyncIterator[NumberedEvent | Delta]:
        if not options.until_end:
            for one in self._existing(service, run, after, options):
                yield one
            return

        from loopwright.operations.run_tail import DriverWatch, tail, tail_with_text  # noqa: PLC0415 - lists need less

        is_over = DriverWatch(service, run).needs_person
        if options.text:
            home = self._settings.home
            async for event in tail_with_text(service, home, run, after, is_over=is_over):
                yield event
            return
        async for numbered in tail(service, run, after, is_over=is_over):
            yield numbered

    def _existing(
        self, service: "Service", run: str, after: int, options: FollowOptions
    ) -> Sequence[NumberedEvent]:
        """The events that exist now. Records are also read from a log that someone changed."""
        try:
            return service.events(run, after=after)
        except StorageError as error:
            if error.code != "damaged" or options.view != "events":
                raise
            found = service.log.read(run, after=after, as_is=True)
            if not found:
                raise
            self._warn(error.message)
            return found

    async def read_health(self) -> object:
        """Nothing, because no server is asked."""
        return None

    async def close(self) -> None:
        """Close what was opened here."""
        self._app = self._feeds = None
        await self._open.aclose()
