"""Runs: start, pause, resume and stop."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from loopwright.errors import Conflict, InputError
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import Role
from loopwright.operations.agents.permissions import Rights
from loopwright.operations.definition_files import sent_files
from loopwright.operations.dialects import MOST_FILES, WorkspaceFiles
from loopwright.operations.problems import missing_input, rendered
from loopwright.operations.run_control import (
    NO_CHANGES,
    STOP_SECONDS,
    ResumeChanges,
    ResumedRun,
    ended_error,
    pause_run,
    resume_run,
    stop_and_wait,
    stopping_error,
)
from loopwright.operations.run_groups import OnDisconnect
from loopwright.operations.run_launch import launch_run
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import StartOptions, agent_choices, choices, prepare_file
from loopwright.operations.run_variables import RunEnv, env_choices, read_variables
from loopwright.operations.runs import row_ended
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    Request,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.run_queries import BASE, run_summary
from loopwright.operations.workspace_rules import SnapshotChoice, stricter_level
from loopwright.ports import OPEN_STATUSES
from loopwright.syntax.document import Diagnostic
from loopwright.views.run_responses import ResumedSummary, RunSummary, StartedRun, StoppedRun

if TYPE_CHECKING:
    from loopwright.operations.definitions import Definitions

REQUEST = "(request)"


class StartRun(Request):
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
    on_disconnect: OnDisconnect | None = None  # when the last socket of its starter is gone


class ResumeRun(Request):
    """For a run that has ended: the backends of its agents from now on, the budget of the whole run
    (with what it has spent), the iterations that its loop may make in total, and its time limit
    from now on. `restart` begins with the first step and iteration 1; without it the run continues
    at the iteration that did not finish. `accept_changes` accepts protected files as they are now.
    """

    run: str
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
        """What is different from now on."""
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


def resume_request(run: str, changes: ResumeChanges) -> ResumeRun:
    """The request for options as they are written: `SPEC` or `NAME=SPEC`, and variables by name or
    with a value. Those by name are read from the environment of this process.
    """
    default, named = agent_choices(changes.agents)
    return ResumeRun(
        run=run,
        agent=default,
        agents=named,
        budget=changes.budget,
        max=changes.passes,
        time=changes.time,
        restart=changes.restart,
        allow_unknown_cost=changes.allow_unknown_cost,
        accept_changes=changes.accept_changes,
        env=read_variables(changes.env, os.environ),
        sandbox=changes.sandbox,
    )


async def resume_named(
    app: App, caller: Caller, reference: str, changes: ResumeChanges = NO_CHANGES
) -> ResumedRun:
    """Resume the run that a person named. Returns the number of its newest event before that, from
    which it is followed.
    """
    run = app.service.find(reference)
    seen = app.service.log.version(run)
    resumed = await resume(app, caller, resume_request(run, changes))
    return ResumedRun(run, seen, resumed.message)


# -- starting --------------------------------------------------------------------------------------


async def _started_again(app: App, _caller: Caller, run: str) -> StartedRun:
    """The response to a repeated request if the first one is lost. It has no warnings of the
    definition, which may have changed since the run was started.
    """
    return await _started(app, run, ())


@operation(
    "runs.start",
    kind="command",
    role="editor",
    summary="Start a run",
    request=StartRun,
    response=StartedRun,
    http=HttpRoute(
        method="POST",
        path=BASE,
        status=201,
        location=f"{BASE}/{{run}}",
        schema="StartRunBody",
    ),
    audit=("run.started",),
    draining="refuse",
    again=_started_again,
)
async def start(app: App, caller: Caller, request: StartRun) -> StartedRun:
    """Start a run of a definition, stored or sent."""
    prepared, warnings = prepare_start(app, caller, request)
    prepared = replace(prepared, by=caller.name)
    beside = app.beside(caller, request.on_disconnect, start=prepared)
    try:
        run = await launch_run(app.service, replace(prepared, beside=beside))
    except Conflict as conflict:
        if conflict.code != "key-taken":
            raise
        raise Conflict(conflict.message, code="already-running", hint=conflict.hint) from conflict
    return await _started(app, run, warnings)


def prepare_start(
    app: App, caller: Caller, request: StartRun, *, is_unbound: bool = False
) -> tuple[RunStart, Sequence[Diagnostic]]:
    """A run that can be started, and the warnings about its definition. In an `is_unbound` one no
    agent needs a backend, since none is called.
    """
    service, settings = app.service, app.settings
    workspace = Path(request.workspace or app.workspace)
    if service.admission is not None:  # before anything in it is read
        service.admission.check_workspace(workspace, by=caller.name)
    file, data, dialect, author = _source(app, caller, request)
    options = StartOptions(
        message=request.message,
        agents=choices(request.agent, request.agents),
        values=request.inputs,
        workspace=str(workspace),
        budget=request.budget,
        parallel=request.parallel,
        name=request.name,
        default_agent=settings.agent,
        models=settings.models,
        home=settings.home,
        agent_names=service.agent_names(),
        rights=_rights(request),
        max=request.max,
        base_branch=request.base_branch,
        worktree=request.worktree or None,
        unbound=is_unbound,
        allow_unknown_cost=request.allow_unknown_cost,
        labels=request.labels,
        permission=request.permission,
        tools=request.tools,
        sandbox=_level(settings.sandbox, request.sandbox),
    )
    files = WorkspaceFiles(workspace) if request.files is None else sent_files(request.files)
    prepared, definition = prepare_file(file, options, data=data, dialect=dialect, files=files)
    if request.promoted:
        _stored(app).check_promoted(definition, is_stored=request.stored is not None)
    snapshots = SnapshotChoice(off=not request.snapshots, protect=request.protect)
    return replace(prepared, snapshots=snapshots, author=author), definition.warnings


def _rights(request: StartRun) -> Rights:
    """The rights of the models of a run. People who look into the inbox can be asked."""
    return Rights(
        allow=request.allow,
        deny=request.deny,
        ask=request.ask,
        file_tools_only=request.file_tools_only,
        attended=True,
        strict=True,
    )


def _level(own: SandboxLevel, wanted: SandboxLevel | None) -> SandboxLevel:
    """The level of a run. Whether it may be `off` is checked with its agents."""
    return wanted if wanted == "off" else stricter_level(own, wanted)


def _source(app: App, caller: Caller, request: StartRun) -> tuple[str, bytes, str | None, Role]:
    """The definition of a request, its dialect, and the role of its author."""
    if request.definition is None and request.stored is None:
        hint = "give `definition`, the text of one, or `stored`, the name of one"
        raise missing_input("definition", hint=hint)
    if request.definition is not None and request.stored is not None:
        raise InputError("definition and stored exclude each other", code="mutually-exclusive")
    if request.definition is not None:
        text = request.definition.encode(errors="surrogatepass")
        return REQUEST, text, request.dialect, caller.role
    stored = _stored(app).runnable(str(request.stored))
    text = stored.text.encode(errors="surrogatepass")
    return stored.name, text, stored.dialect, stored.role


def _stored(app: App) -> "Definitions":
    assert app.definitions is not None, "this process has no stored definitions"
    return app.definitions()


async def _started(app: App, run: str, found: Sequence[Diagnostic]) -> StartedRun:
    """A run that was just started, and the warnings about its definition and its workspace."""
    from loopwright.operations.run_workspaces import start_warnings  # noqa: PLC0415 - only here

    warnings = [*rendered(found), *start_warnings(app.service, run)]
    return await run_summary(app, run, StartedRun, warnings=warnings)


# -- control ---------------------------------------------------------------------------------------


@operation(
    "runs.pause",
    kind="command",
    role="editor",
    summary="Let a run hold before its next pass",
    request=RunReference,
    response=RunSummary,
    http=HttpRoute(method="POST", path=f"{BASE}/{{run}}/pause"),
    audit=("run.paused",),
    draining="serve",
)
async def pause(app: App, caller: Caller, request: RunReference) -> RunSummary:
    """Pause a run; one that is paused stays as it is."""
    run = app.service.log.row(request.run).run
    await pause_run(app.service, run, by=caller.name)
    return await run_summary(app, run, RunSummary)


@operation(
    "runs.resume",
    kind="command",
    role="editor",
    summary="Resume a run; one that has ended continues at the iteration that did not finish",
    request=ResumeRun,
    response=ResumedSummary,
    http=HttpRoute(
        method="POST", path=f"{BASE}/{{run}}/resume", schema="ResumeBody", is_body_optional=True
    ),
    audit=("run.resumed", "run.reopened"),
    draining="refuse",
)
async def resume(app: App, caller: Caller, request: ResumeRun) -> ResumedSummary:
    """Resume a run, with changes if it has ended."""
    run = app.service.log.row(request.run).run
    resumed = await resume_run(app.service, run, request.changes(), by=caller.name)
    return await run_summary(app, run, ResumedSummary, message=resumed.words)


@operation(
    "runs.stop",
    kind="command",
    role="editor",
    summary="End a run now; one that has ended stays as it is",
    request=RunReference,
    response=StoppedRun,
    http=HttpRoute(method="POST", path=f"{BASE}/{{run}}/stop"),
    audit=("cancel.requested",),
    draining="serve",
    waits_seconds=STOP_SECONDS,
)
async def stop(app: App, caller: Caller, request: RunReference) -> StoppedRun:
    """End a run and wait until none of its processes is left. When the time is over, or the
    server is about to stop, the run is still `stopping`.
    """
    run = app.service.log.row(request.run).run
    state = await stop_and_wait(app.service, run, by=caller.name, is_closing=app.is_draining)
    return await run_summary(app, run, StoppedRun, stop=state.word, processes=state.pids)


async def stop_open(app: App, caller: Caller, run: str) -> StoppedRun:
    """Stop a run for an interface where it is a mistake to stop one that has ended, and where the
    next command expects that it has: a Conflict if it has ended, or does not end in time.
    """
    row = app.service.log.row(run)
    if row_ended(row):
        raise ended_error(row)
    stopped = await stop(app, caller, RunReference(run=run))
    if stopped.stop == "stopping":
        raise stopping_error(run, stopped.processes)
    return stopped


async def stop_all_open(app: App, caller: Caller) -> list[str]:
    """Stop every open run at once; the runs that were stopped. Problems of one are raised when
    the others have ended.
    """
    runs = [row.run for row in app.service.rows(OPEN_STATUSES)]
    answers = await asyncio.gather(
        *(stop_open(app, caller, run) for run in runs), return_exceptions=True
    )
    problems = [one for one in answers if isinstance(one, BaseException)]
    if problems:
        raise problems[0]
    return runs


OPERATIONS = (start, pause, resume, stop)
