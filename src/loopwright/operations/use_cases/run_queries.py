"""Runs: list them, and show one."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import msgspec

from loopwright.operations.run_details import run_detail
from loopwright.operations.runs import Service
from loopwright.operations.use_cases.lists import list_runs
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.ports import NumberedEvent
from loopwright.views.run_responses import RunSnapshot, RunSummary
from loopwright.views.summary import summary

BASE = "/api/v1/runs"
AT_ONCE = 500
_T = TypeVar("_T")
_R = TypeVar("_R", bound=RunSummary)


def typed(kind: type[_T], value: Mapping[str, object]) -> _T:
    """A view that is still built as a mapping, as the struct that it is."""
    return msgspec.convert(value, kind)


async def run_summary(app: App, run: str, kind: type[_R], **more: object) -> _R:
    """A run as one object, with what an operation adds to it."""
    shown = msgspec.structs.asdict(summary(await app.state(run), app.service.read_text))
    return kind(**shown | more)


async def events_of(service: Service, run: str, after: int = 0) -> AsyncIterator[NumberedEvent]:
    """All events of a run that there are now, above a number; a run without any is damaged."""
    first = service.log.row(run).run
    events = service.log.read(first, after=after, limit=AT_ONCE)
    if not events and not after:
        events = service.events(first)
    while events:
        for one in events:
            yield one
        await asyncio.sleep(0)  # others have their turn
        events = service.log.read(run, after=events[-1].seq, limit=AT_ONCE)


@operation(
    "runs.show",
    kind="query",
    role="viewer",
    summary="One run, as `run --json` prints it",
    request=RunReference,
    response=RunSummary,
    http=HttpRoute(method="GET", path=f"{BASE}/{{run}}"),
)
async def show(app: App, _caller: Caller, request: RunReference) -> RunSummary:
    """A run as it is now."""
    return await run_summary(app, request.run, RunSummary)


@operation(
    "runs.snapshot",
    kind="query",
    role="viewer",
    summary="One run with everything that a page shows, and the number of its newest event",
    request=RunReference,
    response=RunSnapshot,
    http=HttpRoute(method="GET", path=f"{BASE}/{{run}}/snapshot"),
)
async def snapshot(app: App, _caller: Caller, request: RunReference) -> RunSnapshot:
    """Everything that a page shows of a run."""
    if app.read_snapshot is None:
        return run_detail(app.service, request.run)
    return await app.read_snapshot(request.run)


OPERATIONS = (list_runs, show, snapshot)
