"""Runs: list them, and show one."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, TypeVar

import msgspec

from loopwright.errors import StorageError
from loopwright.operations.response_types import RunPage
from loopwright.operations.run_lists import run_detail, run_item
from loopwright.operations.run_request import Request
from loopwright.operations.runs import Service
from loopwright.operations.shared_budget import RunFilter, filtered_runs, since_ms, total_of
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.ports import NumberedEvent, RunRow, RunStatus
from loopwright.views.run_responses import RunItem, RunSnapshot, RunSummary
from loopwright.views.summary import summary

BASE = "/api/v1/runs"
AT_ONCE = 500
_T = TypeVar("_T")
_R = TypeVar("_R", bound=RunSummary)


class ListRuns(Request):
    """Which runs, and which page of them."""

    status: tuple[RunStatus, ...] = ()
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None
    match: str | None = None  # an id, the beginning or end of one, or `last`
    since: str | None = None  # started since then: `7d`, `2026-11-01`
    name: str | None = None  # a part of the name, or a pattern with `*`
    label: tuple[str, ...] = ()  # runs that have all of them
    chats: bool | None = None  # true: chats only, false: no chats


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
    "runs.list",
    kind="query",
    role="viewer",
    summary="Runs, newest first",
    request=ListRuns,
    response=RunPage,
    http=HttpRoute(method="GET", path=BASE, schema="RunsQuery"),
)
async def list_runs(app: App, _caller: Caller, request: ListRuns) -> RunPage:
    """A page of runs; the first one with the total of all that fit."""
    service = app.service
    if request.match is not None:
        row = service.log.row(service.find(request.match))
        return RunPage(runs=[await _item(app, row)], next=None, total=None)
    before = None
    if request.cursor is not None:
        before = app.cursors().place("runs", request.cursor)
    wanted = RunFilter(
        statuses=request.status,
        since=None if request.since is None else since_ms(request.since, service.clock.now_ms()),
        name=request.name or "",
        labels=request.label,
        chats=request.chats,
    )
    log, limit = service.log, request.limit
    if wanted == RunFilter(statuses=request.status):
        rows = log.rows(statuses=request.status, limit=limit + 1, before=before)
    else:
        rows = filtered_runs(log, wanted, limit=limit + 1, before=before)
    page = rows[:limit]
    more = app.cursors().after("runs", page[-1].run) if len(rows) > limit else None
    total = total_of(log, filtered_runs(log, wanted)) if request.cursor is None else None
    items = [await _item(app, row) for row in page]
    return RunPage(runs=items, next=more, total=total)


async def _item(app: App, row: RunRow) -> RunItem:
    if app.read_item is None:
        return run_item(app.service, row)
    try:
        return await app.read_item(row)
    except StorageError:
        return run_item(app.service, row)


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
