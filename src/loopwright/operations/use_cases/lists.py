"""Lists of runs and gates, and what runs have spent. Commands that only list import this module, so
it imports little.
"""

from functools import partial
from typing import Annotated

import msgspec

from loopwright.operations.api_types import Inbox, Request, RunPage, SpendReport
from loopwright.operations.run_lists import (
    By,
    RunFilter,
    filtered_runs,
    inbox_gates,
    list_old_runs,
    read_text,
    run_item,
    since_ms,
    spend,
    total_of,
)
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    oldest_first,
    operation,
    page_of,
)
from loopwright.ports import OpenGate, RunStatus

BASE = "/api/v1/runs"
GATES = "/api/v1/gates"
MOST_RUNS = 200  # in a page


class ListRuns(Request):
    """Which runs, and which page of them."""

    status: tuple[RunStatus, ...] = ()
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RUNS)] = 50
    cursor: str | None = None
    match: str | None = None  # an id, the beginning or end of one, or `last`
    since: str | None = None  # started since then: `7d`, `2026-11-01`
    name: str | None = None  # a part of the name, or a pattern with `*`
    label: tuple[str, ...] = ()  # runs that have all of them
    chats: bool | None = None  # true: chats only, false: no chats


@operation(
    "runs.list",
    "query",
    "viewer",
    "Runs, newest first",
    http=HttpRoute("GET", BASE, schema="RunsQuery"),
)
async def list_runs(app: App, _caller: Caller, request: ListRuns) -> RunPage:
    """A page of runs; the first one with the total of all that fit."""
    log, limit = app.log, request.limit
    if request.match is not None:
        row = log.row(app.service.find(request.match))
        return RunPage(runs=[run_item(log, row)], next=None, total=None)
    wanted = RunFilter(
        statuses=request.status,
        since=None if request.since is None else since_ms(request.since, app.clock.now_ms()),
        name=request.name or "",
        labels=request.label,
        chats=request.chats,
    )
    if request.cursor is None:
        rows = filtered_runs(log, wanted)
    else:
        before = app.cursors().place("runs", request.cursor)
        most = limit + 1 if app.visible_rows is None else None
        rows = filtered_runs(log, wanted, limit=most, before=before)
    if app.visible_rows is not None:
        rows = app.visible_rows(rows)
    total = total_of(log, rows) if request.cursor is None else None
    page = rows[:limit]
    more = app.cursors().after("runs", page[-1].run) if len(rows) > limit else None
    return RunPage(runs=[run_item(log, row) for row in page], next=more, total=total)


class ListGates(PageRequest):
    """Which page of the list; or the gate that a person names: by its id, by the beginning of one,
    or by a run that waits at this gate only.
    """

    match: str | None = None


@operation(
    "gates.list",
    "query",
    "viewer",
    "What waits for a person, oldest first",
    http=HttpRoute("GET", GATES, schema="GatesQuery"),
)
async def list_open(app: App, _caller: Caller, request: ListGates) -> Inbox:
    """A page of the open gates, or one of them."""
    list_old_runs(app.log)
    read = partial(read_text, app.log)
    if request.match is not None:
        found = [app.service.find_gate(request.match)]
        return Inbox(gates=inbox_gates(app.log, found, read), next=None)
    page = page_of(
        app.cursors,
        "gates",
        app.log.gates(),
        _place,
        limit=request.limit,
        cursor=request.cursor,
    )
    gates = inbox_gates(app.log, page.entries, read)
    return Inbox(gates=gates, next=page.next)


def _place(gate: OpenGate) -> str:
    return oldest_first(gate.opened_at, gate.gate)


class ReadSpend(Request):
    """Since when (`7d`, `2026-11-01`), and how it is grouped."""

    since: str | None = None
    by: By = "agent"


@operation(
    "spend.show",
    "query",
    "viewer",
    "What runs have cost, by agent, definition, label or day",
    http=HttpRoute("GET", "/api/v1/spend", schema="SpendQuery"),
)
async def show_spend(app: App, _caller: Caller, request: ReadSpend) -> SpendReport:
    """What runs have cost."""
    now = app.clock.now_ms()
    since = None if request.since is None else since_ms(request.since, now)
    budget = app.settings.budget
    return spend(app.log, by=request.by, since=since, budget=budget, now_ms=now)
