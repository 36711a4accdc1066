"""Runs: start, pause, resume and stop."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from loopwright.errors import Conflict, InputError
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.agents.permissions import limit_warnings, unsupported_options
from loopwright.operations.api_types import Request
from loopwright.operations.cost_limits import token_warnings
from loopwright.operations.definition_files import sent_files
from loopwright.operations.dialects import ParsedDefinition, WorkspaceFiles
from loopwright.operations.problems import missing_input, rendered, without_flags
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
from loopwright.operations.run_request import RunEnv, RunStart, StartRun
from loopwright.operations.run_start import (
    DefinitionSource,
    StartPlace,
    agent_choices,
    choices,
    launch_run,
    prepare_start,
)
from loopwright.operations.run_variables import env_choices, read_variables
from loopwright.operations.runs import row_ended
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.run_queries import BASE, run_summary
from loopwright.ports import OPEN_STATUSES
from loopwright.views.run_responses import ResumedSummary, RunSummary, StartedRun, StoppedRun

if TYPE_CHECKING:
    from loopwright.operations.definitions import Definitions

REQUEST = "(request)"


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
    "command",
    "editor",
    "Start a run",
    http=HttpRoute(
        "POST",
        BASE,
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
    prepared, definition = prepare_request(app, caller, request)
    prepared = replace(prepared, by=caller.name)
    beside = app.beside(caller, request.on_disconnect, start=prepared)
    try:
        run = await launch_run(app.service, replace(prepared, beside=beside))
    except Conflict as conflict:
        if conflict.code != "key-taken":
            raise
        raise Conflict(conflict.message, code="already-running", hint=conflict.hint) from conflict
    return await _started(app, run, _warnings_of(definition, prepared))


def _warnings_of(definition: ParsedDefinition, start: RunStart) -> list[str]:
    """Those of a definition, and about what its agents are given that they do not use."""
    limits = limit_warnings(start.plan, start.workspace)
    unused = unsupported_options(definition.plan, start.plan)
    found = (*limits, *unused, *token_warnings(start.plan))
    return [*rendered(definition.warnings), *map(without_flags, found)]


def prepare_request(
    app: App, caller: Caller, request: StartRun, *, needs_agents: bool = True
) -> tuple[RunStart, ParsedDefinition]:
    """A run that can be started, and its definition. People who look into the inbox can be asked
    about calls of its agents.
    """
    service, settings = app.service, app.settings
    workspace = Path(request.workspace or app.workspace)
    if service.admission is not None:  # before anything in it is read
        service.admission.check_workspace(workspace, by=caller.name)
    source = _source(app, caller, request)
    files = WorkspaceFiles(workspace) if request.files is None else sent_files(request.files)
    place = StartPlace(
        settings=settings,
        workspace=workspace,
        agent_names=service.agent_names(),
        is_remote=True,
        can_ask=True,
        needs_agents=needs_agents,
    )
    prepared, definition = prepare_start(place, request, replace(source, files=files))
    if request.promoted:
        _stored(app).check_promoted(definition, is_stored=request.stored is not None)
    return prepared, definition


def _source(app: App, caller: Caller, request: StartRun) -> DefinitionSource:
    """The definition of a request: the text that was sent, or a stored one."""
    if request.definition is None and request.stored is None:
        hint = "give `definition`, the text of one, or `stored`, the name of one"
        raise missing_input("definition", hint=hint)
    if request.definition is not None and request.stored is not None:
        raise InputError("definition and stored exclude each other", code="mutually-exclusive")
    if request.definition is not None:
        text = request.definition.encode(errors="surrogatepass")
        return DefinitionSource(
            file=REQUEST, data=text, dialect=request.dialect, author=caller.role
        )
    stored = _stored(app).runnable(str(request.stored))
    return stored.source()


def _stored(app: App) -> "Definitions":
    assert app.definitions is not None, "this process has no stored definitions"
    return app.definitions()


async def _started(app: App, run: str, found: Sequence[str]) -> StartedRun:
    """A run that was just started, with these warnings and those about its workspace."""
    from loopwright.operations.run_workspaces import start_warnings  # noqa: PLC0415 - only here

    warnings = [*found, *start_warnings(app.service, run)]
    return await run_summary(app, run, StartedRun, warnings=warnings)


# -- control ---------------------------------------------------------------------------------------


@operation(
    "runs.pause",
    "command",
    "editor",
    "Pause a run before its next iteration",
    http=HttpRoute("POST", f"{BASE}/{{run}}/pause"),
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
    "command",
    "editor",
    "Resume a run; one that has ended continues at the iteration that did not finish",
    http=HttpRoute("POST", f"{BASE}/{{run}}/resume", schema="ResumeBody", is_body_optional=True),
    audit=("run.resumed", "run.reopened"),
    draining="refuse",
)
async def resume(app: App, caller: Caller, request: ResumeRun) -> ResumedSummary:
    """Resume a run, with changes if it has ended."""
    run = app.service.log.row(request.run).run
    resumed = await resume_run(app.service, run, request.changes(), by=caller.name)
    from loopwright.operations.run_workspaces import resume_warnings  # noqa: PLC0415 - only here

    warnings = resume_warnings(app.service, run)
    return await run_summary(app, run, ResumedSummary, message=resumed.words, warnings=warnings)


@operation(
    "runs.stop",
    "command",
    "editor",
    "End a run now; one that has ended stays as it is",
    http=HttpRoute("POST", f"{BASE}/{{run}}/stop"),
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
        raise ended_error(row.run, row.headline.status, row.headline.reason)
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
