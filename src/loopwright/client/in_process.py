"""Calls of operations in this process, on a data directory that it opens itself."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

from loopwright.client.client import Followed, FollowOptions
from loopwright.operations.data_directory import open_reader
from loopwright.operations.loops.event_views import event_view
from loopwright.operations.run_request import Request
from loopwright.operations.run_tail import DriverWatch, tail, tail_with_text
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import App, Operation, local_app, local_caller
from loopwright.ports import Delta, NumberedEvent

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class InProcess:
    """Opens the data directory at the first call, or uses the service of a process that drives."""

    def __init__(
        self, settings: Settings, *, service: Service | None = None, workspace: Path | None = None
    ) -> None:
        self._settings = settings
        self._workspace = workspace
        self._service = service
        self._is_opened_here = False
        self._app: App | None = None

    @property
    def app(self) -> App:
        """What operations work with."""
        if self._app is None:
            if self._service is None:
                self._service = open_reader(self._settings)
                self._is_opened_here = True
            self._app = local_app(self._service, self._settings, self._workspace)
        return self._app

    async def call(self, operation: Operation[Q, A], request: Q) -> A:
        """Call an operation as the person who owns this process."""
        app = self.app
        return await operation(app, local_caller(app.service), request)

    async def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        """Events of a run. Following also ends when no process drives the run any more."""
        service = self.app.service
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
        self, service: Service, run: str, after: int, options: FollowOptions
    ) -> AsyncIterator[NumberedEvent | Delta]:
        if not options.until_end:
            for one in service.events(run, after=after):
                yield one
            return
        is_over = DriverWatch(service, run).is_gone
        if options.text:
            home = self._settings.home
            async for event in tail_with_text(service, home, run, after, is_over=is_over):
                yield event
            return
        async for numbered in tail(service, run, after, is_over=is_over):
            yield numbered

    async def close(self) -> None:
        """Close the data directory if it was opened here."""
        if self._is_opened_here and self._service is not None:
            self._service.log.close()
        self._app = self._service = None
        self._is_opened_here = False
