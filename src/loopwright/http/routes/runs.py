"""Runs: list, start, show, pause, resume, stop, fork, send messages, apply or discard worktrees."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from loopwright.errors import Conflict, InputError, StorageError
from loopwright.http.loop_disconnects import Looping
from loopwright.http.requests import (
    Answer,
    Body,
    OptionalBody,
    Query,
    Route,
    RouteFamily,
    RouteRequest,
    sent_files,
)
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.http.routes.events import facts_of
from loopwright.http.routes.run_views import DryRunReport
from loopwright.kernel.events import RunForked
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import Role
from loopwright.operations.agents.permissions import Rights
from loopwright.operations.definitions import check_promoted
from loopwright.operations.dialects import MOST_FILES, WorkspaceFiles
from loopwright.operations.dry_run.simulation import all_stories, played
from loopwright.operations.dry_run.simulation import rehearsed as told_rehearsal
from loopwright.operations.forks import Fork, fork
from loopwright.operations.loops.assistants import Parting
from loopwright.operations.preflight import check_programs, dry_run_warnings
from loopwright.operations.problems import missing_input, rendered, without_flags
from loopwright.operations.response_types import (
    Forked,
    ResumedSummary,
    RunPage,
    RunSnapshot,
    RunSummary,
    StartedRun,
    Status,
    StoppedRun,
)
from loopwright.operations.run_admission import rehearsal_of
from loopwright.operations.run_control import (
    ResumeChanges,
    pause_run,
    resume_run,
    wait_until_stopped,
)
from loopwright.operations.run_groups import Beside
from loopwright.operations.run_lists import run_item
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import StartRun, choices, prepare_file
from loopwright.operations.run_variables import RunEnv, env_choices
from loopwright.operations.run_workspaces import apply_run, discard_run, start_warnings
from loopwright.operations.shared_budget import RunFilter, filtered_runs, since_ms, total_of
from loopwright.operations.workspace_rules import SnapshotChoice, stricter_level
from loopwright.ports import RunRow
from loopwright.syntax.document import Diagnostic
from loopwright.views.summary import summary

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


class StartRunBody(Body):
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
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)] | None = None
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
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    time: str | None = None
    restart: bool = False
    allow_unknown_cost: bool = False
    accept_changes: bool = False
    env: RunEnv = {}  # values of variables that the run was started with; never in the log
    sandbox: SandboxLevel | None = None  # only stricter than what the server has set

    def changes(self) -> ResumeChanges:
        """The same as the use case has it."""
        return ResumeChanges(
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


async def started(asked: RouteRequest) -> Answer:
    check_open(asked)
    context, by = asked.context, asked.who.name
    prepared, found = _prepared(asked)
    start = context.service.admit(replace(prepared, by=by))
    await check_programs(start)
    parting = asked.body(StartRunBody).on_disconnect
    beside = context.part(Looping).beside(by, start, parting=parting)
    try:
        run = await context.service.start(replace(start, beside=beside))
    except Conflict as conflict:
        if conflict.code != "key-taken":
            raise
        raise RequestRefusal(
            409, "already-running", conflict.message, hint=conflict.hint
        ) from conflict
    return await _answer_started(asked, run, found)


async def rehearsed(asked: RouteRequest) -> Answer:
    """What a run could come to; nothing is called, and nothing kept."""
    (start, _), service = _prepared(asked, unbound=True), asked.context.service
    if service.admission is not None:  # what a start would refuse
        body = asked.body(StartRunBody)
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


def _prepared(
    asked: RouteRequest, *, unbound: bool = False
) -> tuple[RunStart, tuple[Diagnostic, ...]]:
    context, body = asked.context, asked.body(StartRunBody)
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
    wish = StartRun(
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


def check_open(asked: RouteRequest) -> None:
    """Nothing is begun by a server that is about to stop."""
    if asked.context.closing.is_set():
        raise RequestRefusal(
            503, "draining", "the server is about to stop", headers={"Retry-After": "5"}
        )


async def told_made(asked: RouteRequest, run: str) -> Answer:
    """The answer to a repeated request whose first answer is lost. It has no warnings of the
    definition, which may have changed since the run was started.
    """
    return await _answer_started(asked, run, ())


async def _answer_started(asked: RouteRequest, run: str, found: Sequence[Diagnostic]) -> Answer:
    """A run that was just started, and the warnings about its definition and its workspace."""
    warnings: list[JsonValue] = [*rendered(found)]
    warnings += start_warnings(asked.context.service, run)
    response = as_response({**await summary_of(asked, run), "warnings": warnings}, 201)
    response.headers["Location"] = f"{BASE}/{run}"
    return response


def _source(asked: RouteRequest, body: StartRunBody) -> tuple[str, bytes, str | None, Role]:
    """The definition of a request, its dialect, and the role of its author."""
    if body.definition is None and body.stored is None:
        hint = "give `definition`, the text of one, or `stored`, the name of one"
        raise missing_input("definition", hint=hint)
    if body.definition is not None and body.stored is not None:
        raise InputError("definition and stored exclude each other", code="mutually-exclusive")
    if body.definition is not None:
        text = body.definition.encode(errors="surrogatepass")
        return REQUEST, text, body.dialect, asked.who.role
    stored = asked.context.definitions.runnable(str(body.stored))
    text = stored.text.encode(errors="surrogatepass")
    return stored.name, text, stored.dialect, stored.role


async def shown(asked: RouteRequest) -> Answer:
    return await summary_of(asked, asked.params["run"])


async def snapshot(asked: RouteRequest) -> Answer:
    return await asked.context.gallery.snapshot(asked.params["run"])


async def paused(asked: RouteRequest) -> Answer:
    run = _run(asked)
    await pause_run(asked.context.service, run, by=asked.who.name)
    return await summary_of(asked, run)


async def resumed(asked: RouteRequest) -> Answer:
    run, body = _run(asked), asked.body(ResumeBody)
    one = await resume_run(asked.context.here, run, body.changes(), by=asked.who.name)
    return {**await summary_of(asked, run), "message": one.words}


async def stopped(asked: RouteRequest) -> Answer:
    """End a run and wait for its end; one that has ended stays as it is."""
    context, run = asked.context, _run(asked)
    await context.service.stop(run, by=asked.who.name)
    state = await wait_until_stopped(context.here.log, [run], is_closing=context.closing.is_set)
    left: list[JsonValue] = [*state.pids]
    return {**await summary_of(asked, run), "stop": state.word, "processes": left}


def _run(asked: RouteRequest) -> str:
    """The run that a path names, by its whole id."""
    return asked.context.here.log.row(asked.params["run"]).run


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
            path=BASE,
            handle=started,
            need="editor",
            say="Start a run",
            body=StartRunBody,
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
            body=StartRunBody,
            answer=DryRunReport,
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
    on_disconnect: Parting | None = None


async def forked(asked: RouteRequest) -> Answer:
    check_open(asked)
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


def beside(asked: RouteRequest, parting: Parting | None) -> Beside:
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
        ),
    ),
)
