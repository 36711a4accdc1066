"""Runs: list, start, look, pause, resume, stop."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from loopwright.app.access import Role
from loopwright.app.assistants import Parting
from loopwright.app.controlling import pause_run, resume_run
from loopwright.app.dialects import WorkspaceFiles
from loopwright.app.packing import MOST_FILES
from loopwright.app.preflight import check_sign_in, dry_run_warnings, preflight_checks
from loopwright.app.preparing import Wish, choices, prepare_file
from loopwright.app.problems import rendered, without_flags
from loopwright.app.promoting import check_promoted
from loopwright.app.rehearsing import all_stories, played
from loopwright.app.rehearsing import rehearsed as told_rehearsal
from loopwright.app.reopening import Changes
from loopwright.app.rights import Rights
from loopwright.app.run_admission import rehearsal_of
from loopwright.app.run_request import Start
from loopwright.app.run_variables import RunEnv, env_choices
from loopwright.app.sandbox_rules import stricter_level
from loopwright.app.snapshot_policy import SnapshotChoice
from loopwright.app.spend import RunFilter, filtered_runs, since_ms, total_of
from loopwright.app.stop_wait import wait_until_stopped
from loopwright.app.views.listing import run_item
from loopwright.app.views.summary import summary
from loopwright.app.worktree_runs import start_warnings
from loopwright.errors import Conflict, StorageError
from loopwright.model.actions import MAX_PASSES
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports import RunRow
from loopwright.server.answers import as_response
from loopwright.server.looping import Looping
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Body, Family, OptionalBody, Query, Route
from loopwright.server.sent_files import sent_files
from loopwright.server.shapes import (
    ResumedSummary,
    RunPage,
    RunSummary,
    Snapshot,
    StartedRun,
    Status,
    StoppedRun,
)
from loopwright.server.view_shapes import Rehearsal
from loopwright.syntax.diagnostic import Diagnostic

BASE = "/api/v1/runs"
REQUEST = "(request)"
DEFINITION_BYTES = 1_000_000


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


class StartBody(Body):
    """What a run is started with: the text of a definition, or the name of a stored one. The files
    that it names come with it (`files`, each by its path); without them they are those of the
    workspace.
    """

    free = ("definition", "files")

    definition: str | None = None
    files: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_FILES)] | None = None
    stored: str | None = None
    dialect: str | None = None
    message: str | None = None
    inputs: dict[str, JsonValue] = {}
    agent: str | None = None
    agents: dict[str, str] = {}
    workspace: str | None = None
    budget: str | None = None
    parallel: Annotated[int, msgspec.Meta(ge=1, le=1_000)] | None = None
    name: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSES)] | None = None
    base_branch: str | None = None
    worktree: bool = False  # in a Git worktree on the branch loopwright/RUN
    promoted: bool = False  # only if it was promoted as it is now
    deny: tuple[str, ...] = ()  # tools that chat models may not use
    ask: tuple[str, ...] = ()  # tools of which every call waits for a person
    file_tools_only: bool = False  # of the workspace, for chat models; no program is started
    sandbox: SandboxLevel | None = None  # only stricter than what the server has set
    labels: Annotated[tuple[str, ...], msgspec.Meta(max_length=50)] = ()
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    permission: Literal["ask", "edit", "all"] | None = None  # more than the definition is refused
    tools: tuple[str, ...] = ()  # the only ones of the agents
    protect: tuple[str, ...] = ()  # patterns of files that agents may not change
    snapshots: bool = True  # of the workspace; false: none are taken
    allow: tuple[str, ...] = ()  # refused: nothing is let pass unasked from elsewhere
    on_disconnect: Parting | None = None  # when the last socket of its starter is gone


class ResumeBody(OptionalBody):
    """For a run that has ended: the backends of its agents from now on, the budget of the whole run
    (with what it has spent), the iterations that its loop may make in total, and its time limit
    from now on. `restart` begins with the first step and iteration 1; without it the run continues
    at the iteration that did not finish. `accept_changes` accepts protected files as they are now.
    """

    agent: str | None = None
    agents: dict[str, str] = {}
    budget: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSES)] | None = None
    time: str | None = None
    restart: bool = False
    allow_unknown_cost: bool = False
    accept_changes: bool = False
    env: RunEnv = {}  # values of variables that the run was started with; never in the log
    sandbox: SandboxLevel | None = None  # only stricter than what the server has set

    def changes(self) -> Changes:
        """The same as the use case has it."""
        return Changes(
            agents=choices(self.agent, self.agents),
            budget=self.budget,
            passes=self.max,
            time=self.time,
            restart=self.restart,
            allow_unknown_cost=self.allow_unknown_cost,
            accept_changes=self.accept_changes,
            env=env_choices(self.env),
            sandbox=self.sandbox,
        )


async def listed(asked: Asked) -> Answer:
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


async def _item(asked: Asked, row: RunRow) -> dict[str, JsonValue]:
    try:
        return await asked.context.gallery.item(row)
    except StorageError:
        return run_item(asked.context.service, row)


async def started(asked: Asked) -> Answer:
    check_open(asked)
    context, by = asked.context, asked.who.name
    prepared, found = _prepared(asked)
    start = context.service.admit(replace(prepared, by=by))
    preflight_checks(start)
    await check_sign_in(start)
    parting = asked.body(StartBody).on_disconnect
    beside = context.part(Looping).beside(by, start, parting=parting)
    try:
        run = await context.service.start(replace(start, beside=beside))
    except Conflict as conflict:
        if conflict.code != "key-taken":
            raise
        raise Refusal(409, "already-running", conflict.message, hint=conflict.hint) from conflict
    return await _answer_started(asked, run, found)


async def rehearsed(asked: Asked) -> Answer:
    """What a run could come to; nothing is called, and nothing kept."""
    (start, _), service = _prepared(asked, unbound=True), asked.context.service
    if service.admission is not None:  # what a start would refuse
        body = asked.body(StartBody)
        known = service.admission.names()
        start = rehearsal_of(start, choices(body.agent, body.agents), known)
        start = service.admission.admit(replace(start, by=asked.who.name))
    plan, _ = service.decide_snapshots(start)
    plan = service.sandbox.decide(plan, start.sandbox)
    endings = []
    for story in all_stories(plan):  # one by one: a server that is to stop does not wait for all
        check_open(asked)
        endings.append(await asyncio.to_thread(played, plan, story))
    costs = service.costs
    limits: list[JsonValue] = [*costs.enforcement(plan)] if costs is not None else []
    warnings: list[JsonValue] = [*map(without_flags, dry_run_warnings(start))]
    return {**told_rehearsal(plan, endings).as_dict(), "limits": limits, "warnings": warnings}


def _prepared(asked: Asked, *, unbound: bool = False) -> tuple[Start, tuple[Diagnostic, ...]]:
    context, body = asked.context, asked.body(StartBody)
    workspace = Path(body.workspace or context.serving.workspace)
    if context.service.admission is not None:  # before anything in it is read
        context.service.admission.check_workspace(workspace, by=asked.who.name)
    file, data, dialect, author = _source(asked, body)
    # Whoever looks into the inbox is there to be asked.
    rights = Rights(
        allow=body.allow,
        deny=body.deny,
        ask=body.ask,
        file_tools_only=body.file_tools_only,
        attended=True,
        strict=True,
    )
    wish = Wish(
        message=body.message,
        agents=choices(body.agent, body.agents),
        values=body.inputs,
        workspace=str(workspace),
        budget=body.budget,
        parallel=body.parallel,
        name=body.name,
        default_agent=context.settings.agent,
        models=context.settings.models,
        home=context.settings.home,
        agent_names=context.service.agent_names(),
        rights=rights,
        max=body.max,
        base_branch=body.base_branch,
        worktree=body.worktree or None,
        unbound=unbound,
        allow_unknown_cost=body.allow_unknown_cost,
        labels=body.labels,
        permission=body.permission,
        tools=body.tools,
        sandbox=_level(context.settings.sandbox, body.sandbox),
    )
    files = WorkspaceFiles(workspace) if body.files is None else sent_files(body.files)
    start, definition = prepare_file(file, wish, data=data, dialect=dialect, files=files)
    if body.promoted:
        check_promoted(context.cards, definition, is_stored=body.stored is not None)
    choice = SnapshotChoice(off=not body.snapshots, protect=body.protect)
    return replace(start, snapshots=choice, author=author), definition.warnings


def _level(own: SandboxLevel, asked: SandboxLevel | None) -> SandboxLevel:
    """The level of a run. Whether it may be `off` is checked with its agents."""
    return asked if asked == "off" else stricter_level(own, asked)


def check_open(asked: Asked) -> None:
    """Nothing is begun by a server that is about to stop."""
    if asked.context.closing.is_set():
        raise Refusal(503, "draining", "the server is about to stop", headers={"Retry-After": "5"})


async def told_made(asked: Asked, run: str) -> Answer:
    """The answer to a repeated request whose first answer is lost. It has no warnings of the
    definition, which may have changed since the run was started.
    """
    return await _answer_started(asked, run, ())


async def _answer_started(asked: Asked, run: str, found: Sequence[Diagnostic]) -> Answer:
    """A run that was just started, and the warnings about its definition and its workspace."""
    warnings: list[JsonValue] = [*rendered(found)]
    warnings += start_warnings(asked.context.service, run)
    response = as_response({**await summary_of(asked, run), "warnings": warnings}, 201)
    response.headers["Location"] = f"{BASE}/{run}"
    return response


def _source(asked: Asked, body: StartBody) -> tuple[str, bytes, str | None, Role]:
    """The definition of a request, its dialect, and the role of its author."""
    if (body.definition is None) == (body.stored is None):
        raise Refusal(
            422, "bad-field", "give `definition`, the text of one, or `stored`, the name of one"
        )
    if body.definition is not None:
        text = body.definition.encode(errors="surrogatepass")
        return REQUEST, text, body.dialect, asked.who.role
    stored = asked.context.definitions.runnable(str(body.stored))
    text = stored.text.encode(errors="surrogatepass")
    return stored.name, text, stored.dialect, stored.role


async def shown(asked: Asked) -> Answer:
    return await summary_of(asked, asked.params["run"])


async def snapshot(asked: Asked) -> Answer:
    return await asked.context.gallery.snapshot(asked.params["run"])


async def paused(asked: Asked) -> Answer:
    run = _run(asked)
    await pause_run(asked.context.service, run, by=asked.who.name)
    return await summary_of(asked, run)


async def resumed(asked: Asked) -> Answer:
    run, body = _run(asked), asked.body(ResumeBody)
    one = await resume_run(asked.context.here, run, body.changes(), by=asked.who.name)
    return {**await summary_of(asked, run), "message": one.words}


async def stopped(asked: Asked) -> Answer:
    """End a run and wait for its end; one that has ended stays as it is."""
    context, run = asked.context, _run(asked)
    await context.service.stop(run, by=asked.who.name)
    state = await wait_until_stopped(context.here.log, [run], is_closing=context.closing.is_set)
    left: list[JsonValue] = [*state.pids]
    return {**await summary_of(asked, run), "stop": state.word, "processes": left}


def _run(asked: Asked) -> str:
    """The run that a path names, by its whole id."""
    return asked.context.here.log.row(asked.params["run"]).run


async def summary_of(asked: Asked, run: str) -> dict[str, JsonValue]:
    """A run as one object."""
    picture = await asked.context.gallery.picture(run)
    return summary(picture.state, asked.context.service.read_text)


FAMILY = Family(
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
            path=BASE,
            handle=started,
            need="editor",
            say="Start a run",
            body=StartBody,
            answer=StartedRun,
            status=201,
            again=told_made,
        ),
        Route(
            method="POST",
            path="/api/v1/rehearsals",
            handle=rehearsed,
            need="editor",
            say="A dry run: the steps, every way in which a run could end, and the worst case",
            body=StartBody,
            answer=Rehearsal,
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
            answer=Snapshot,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/pause",
            handle=paused,
            need="editor",
            say="Let a run hold before its next pass",
            answer=RunSummary,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/resume",
            handle=resumed,
            need="editor",
            say="Resume a run; one that has ended continues at the iteration that did not finish",
            body=ResumeBody,
            answer=ResumedSummary,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/stop",
            handle=stopped,
            need="editor",
            say="End a run now; one that has ended stays as it is",
            answer=StoppedRun,
        ),
    ),
)
