"""Runs: list, show, dry run, fork, apply or discard worktrees."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from loopwright.errors import StorageError
from loopwright.http.loop_disconnects import Looping
from loopwright.http.operation_routes import app_of, body_of, caller_of, request_of
from loopwright.http.requests import (
    Answer,
    Body,
    OptionalBody,
    Query,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.http.routes.events import facts_of
from loopwright.http.routes.run_views import DryRunReport
from loopwright.kernel.events import RunForked
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue
from loopwright.operations.dry_run.simulation import all_stories, played
from loopwright.operations.dry_run.simulation import rehearsed as told_rehearsal
from loopwright.operations.forks import Fork, fork
from loopwright.operations.preflight import dry_run_warnings
from loopwright.operations.problems import without_flags
from loopwright.operations.response_types import (
    Forked,
    RunPage,
    RunSnapshot,
    RunSummary,
    Status,
)
from loopwright.operations.run_admission import rehearsal_of
from loopwright.operations.run_groups import Beside, OnDisconnect
from loopwright.operations.run_lists import run_item
from loopwright.operations.run_start import choices
from loopwright.operations.run_variables import RunEnv, env_choices
from loopwright.operations.run_workspaces import apply_run, discard_run
from loopwright.operations.shared_budget import RunFilter, filtered_runs, since_ms, total_of
from loopwright.operations.use_cases import runs as use_cases
from loopwright.operations.use_cases.runs import BASE, prepare_start
from loopwright.ports import RunRow
from loopwright.views.summary import summary

START_BODY = body_of(use_cases.start)


class RunsQuery(Query):
    """Which runs, and which page of them."""

    status: tuple[Status, ...] = ()
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None
    match: str | None = None  # an id, the beginning or end of one, or `last`
    since: str | None = None  # started since then: `7d`, `2026-11-01`
    name: str | None = None  # a part of the name, or a pattern with `*`
    label: tuple[str, ...] = ()  # runs that have all of them
    chats: bool | None = None  # true: chats only, false: no chats


async def listed(asked: RouteRequest) -> Answer:
    context, query = asked.context, asked.query(RunsQuery)
    if query.match is not None:
        row = context.service.log.row(context.service.find(query.match))
        return {"runs": [await _item(asked, row)], "next": None, "total": None}
    before = None
    if query.cursor is not None:
        before = context.cursors.place("runs", query.cursor)
    wanted = RunFilter(
        statuses=query.status,
        since=None if query.since is None else since_ms(query.since, context.clock.now_ms()),
        name=query.name or "",
        labels=query.label,
        chats=query.chats,
    )
    log = context.here.log
    if wanted == RunFilter(statuses=query.status):
        rows = log.rows(statuses=query.status, limit=query.limit + 1, before=before)
    else:
        rows = filtered_runs(log, wanted, limit=query.limit + 1, before=before)
    page = rows[: query.limit]
    more = context.cursors.after("runs", page[-1].run) if len(rows) > query.limit else None
    total = total_of(log, filtered_runs(log, wanted)) if query.cursor is None else None
    return {"runs": [await _item(asked, row) for row in page], "next": more, "total": total}


async def _item(asked: RouteRequest, row: RunRow) -> dict[str, JsonValue]:
    try:
        return await asked.context.gallery.item(row)
    except StorageError:
        return run_item(asked.context.service, row)


async def rehearsed(asked: RouteRequest) -> Answer:
    """What a run could come to; nothing is called, and nothing kept."""
    app, service = asked.context.part(app_of), asked.context.service
    body = request_of(use_cases.start, asked.body(START_BODY), {})
    start, _ = prepare_start(app, caller_of(asked.who), body, is_unbound=True)
    if service.admission is not None:  # what a start would refuse
        known = service.admission.names()
        start = rehearsal_of(start, choices(body.agent, body.agents), known)
        start = service.admission.admit(replace(start, by=asked.who.name))
    plan, _ = service.decide_snapshots(start)
    plan = service.sandbox.decide(plan, start.sandbox)
    endings = []
    for story in all_stories(plan):  # one by one: a server that is to stop does not wait for all
        app.refuse_while_draining()
        endings.append(await asyncio.to_thread(played, plan, story))
    costs = service.costs
    limits: list[JsonValue] = [*costs.enforcement(plan)] if costs is not None else []
    warnings: list[JsonValue] = [*map(without_flags, dry_run_warnings(start))]
    return {**told_rehearsal(plan, endings).as_dict(), "limits": limits, "warnings": warnings}


async def shown(asked: RouteRequest) -> Answer:
    return await summary_of(asked, asked.params["run"])


async def snapshot(asked: RouteRequest) -> Answer:
    return await asked.context.gallery.snapshot(asked.params["run"])


async def summary_of(asked: RouteRequest, run: str) -> dict[str, JsonValue]:
    """A run as one object."""
    picture = await asked.context.gallery.picture(run)
    return summary(picture.state, asked.context.service.read_text)


FAMILY = RouteFamily(
    name="runs",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Runs, newest first",
            query=RunsQuery,
            answer=RunPage,
        ),
        Route(
            method="POST",
            path="/api/v1/rehearsals",
            handle=rehearsed,
            need="editor",
            say="A dry run: the steps, every way in which a run could end, and the worst case",
            body=START_BODY,
            answer=DryRunReport,
            draining="refuse",
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{run}}",
            handle=shown,
            need="viewer",
            say="One run, as `run --json` prints it",
            answer=RunSummary,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{run}}/snapshot",
            handle=snapshot,
            need="viewer",
            say="One run with everything that a page shows, and the number of its newest fact",
            answer=RunSnapshot,
        ),
    ),
)


class ApplyBody(OptionalBody):
    """Nothing needs to be said."""


class DiscardBody(Body):
    """That the worktree and its branch shall be removed, with all that was not applied."""

    confirm: bool


class AppliedResult(msgspec.Struct):
    """The files that were changed in the checkout; none where it had the result already. `outside`
    are files that the run changed outside of its workspace, which are not applied.
    """

    run: str
    repository: str
    files: list[str]
    outside: list[str]


class DiscardedResult(msgspec.Struct):
    """What was removed."""

    run: str
    branch: str
    folder: str


async def applied(asked: RouteRequest) -> Answer:
    run = asked.context.here.log.row(asked.params["run"]).run
    return await apply_run(asked.context.service, run, by=asked.who.name)


async def discarded(asked: RouteRequest) -> Answer:
    run = asked.context.here.log.row(asked.params["run"]).run
    if not asked.body(DiscardBody).confirm:
        raise RequestRefusal(422, "not-confirmed", "send `confirm: true` to remove the worktree")
    return await discard_run(asked.context.service, run, by=asked.who.name)


WORKTREES_FAMILY = RouteFamily(
    name="worktrees",
    prefix=f"{BASE}/",
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/apply",
            handle=applied,
            need="editor",
            say="Merge the result of a worktree into the checkout it came from",
            body=ApplyBody,
            answer=AppliedResult,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/discard",
            handle=discarded,
            need="editor",
            say="Remove the worktree of a run and its branch",
            body=DiscardBody,
            answer=DiscardedResult,
        ),
    ),
)


class ForkBody(Body):
    """Where a run is forked, and what is different from there on."""

    at: str | None = (
        None  # a step or a pass that completed: main.2, or 3 for iteration 3, 3~1 of try 1
    )
    model: str | None = None
    edit: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    agent: str | None = None
    agents: dict[str, str] = {}
    workspace: str | None = None
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    env: RunEnv = {}  # values of variables that the run was started with; never in the log
    on_disconnect: OnDisconnect | None = None


async def forked(asked: RouteRequest) -> Answer:
    body, context = asked.body(ForkBody), asked.context
    wish = Fork(
        at=body.at,
        model=body.model,
        edit=body.edit,
        passes=body.max,
        agents=choices(body.agent, body.agents),
        workspace=Path(body.workspace) if body.workspace else None,
        beside=beside(asked, body.on_disconnect),
        workspaces=context.here.workspaces,
        allow_unknown_cost=body.allow_unknown_cost,
        env=env_choices(body.env),
    )
    run = context.here.log.row(asked.params["run"]).run
    made, _ = await fork(context.service, run, wish, by=asked.who.name)
    return await fork_response(asked, made)


def beside(asked: RouteRequest, parting: OnDisconnect | None) -> Beside:
    name = asked.context.here.log.row(asked.params["run"]).headline.name
    return asked.context.part(Looping).beside(asked.who.name, parting=parting, name=name)


async def fork_response(asked: RouteRequest, run: str) -> Answer:
    """A run that was just made, where it is, and how much of it is the other's."""
    known = 0
    async for one in facts_of(asked.context, run):
        if isinstance(one.fact, RunForked):
            known = one.seq - 1
    response = as_response({**await summary_of(asked, run), "seq": known}, 201)
    response.headers["Location"] = f"{BASE}/{run}"
    return response


FORKS_FAMILY = RouteFamily(
    name="forks",
    prefix=f"{BASE}/",
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/fork",
            handle=forked,
            need="editor",
            say="Fork: continue from a finished place of a run, as a new run",
            body=ForkBody,
            answer=Forked,
            status=201,
            again=fork_response,
            draining="refuse",
        ),
    ),
)
