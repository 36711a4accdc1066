"""Runs: fork, send messages, dry runs, and the results of worktrees."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from loopwright.errors import InputError
from loopwright.kernel.events import RunForked
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.operations.api_types import Request
from loopwright.operations.dry_run.simulation import (
    DryRunReport,
    all_scenarios,
    play_scenario,
    summarise_results,
)
from loopwright.operations.forks import Fork
from loopwright.operations.forks import fork as fork_run
from loopwright.operations.messages import When, tell
from loopwright.operations.preflight import dry_run_warnings
from loopwright.operations.problems import without_flags
from loopwright.operations.run_admission import rehearsal_of
from loopwright.operations.run_groups import OnDisconnect
from loopwright.operations.run_request import RunEnv, StartRun
from loopwright.operations.run_start import choices
from loopwright.operations.run_variables import env_choices
from loopwright.operations.run_workspaces import (
    apply_run,
    check_discard,
    discard_run,
    require_worktree,
    unapplied_files,
)
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.run_queries import BASE, events_of, run_summary
from loopwright.operations.use_cases.runs import prepare_request
from loopwright.views.run_responses import AppliedResult, DiscardedResult, Forked


class ForkRun(Request):
    """Where a run is forked, and what is different from there on."""

    run: str
    at: str | None = None  # a completed step or iteration: main.2, or 3 for iteration 3
    model: str | None = None
    edit: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    agent: str | None = None
    agents: dict[str, str] = {}
    workspace: str | None = None
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    env: RunEnv = {}  # values of variables that the run was started with; never in the log
    on_disconnect: OnDisconnect | None = None


class LocalFork(ForkRun):
    """A fork on this machine: `restore` writes the files as they were at the place, with `force`
    also over changes that no snapshot has. A server does not know these fields.
    """

    restore: bool = False
    force: bool = False


class MessageRun(Request):
    """A message. The next agent call of the run reads it, or the agent of the step `to`."""

    free = ("text",)

    run: str
    text: str  # 1 to 262,144 bytes
    to: Annotated[str, msgspec.Meta(max_length=500)] = ""


class ApplyRun(Request):
    """A request without fields."""

    run: str


class DiscardRun(Request):
    """That the worktree and its branch shall be removed, with all that was not applied."""

    run: str
    confirm: bool


class RunMessageSent(msgspec.Struct):
    """A message that was recorded. `to` is `*` where any agent of the run may read it. `when` says
    when the agent reads it: claude and a program that reads its inbox `now`, a chat model before
    its `next-turn`, others at their `next-call`.
    """

    run: str
    message: str
    to: str
    when: When


class RunWorktree(msgspec.Struct):
    """The worktree of a run. `unapplied` are files of the result that would be lost with it."""

    run: str
    branch: str
    folder: str
    repository: str
    unapplied: list[str]


# -- dry runs --------------------------------------------------------------------------------------


@operation(
    "runs.dry_run",
    "query",
    "editor",
    "A dry run: the steps, every way in which a run could end, and the worst case",
    http=HttpRoute("POST", "/api/v1/rehearsals", schema="StartRunBody"),
    draining="refuse",
)
async def dry_run(app: App, caller: Caller, request: StartRun) -> DryRunReport:
    """Possible results of a run; no agent is called, and nothing is stored."""
    service = app.service
    start, _ = prepare_request(app, caller, request, needs_agents=False)
    if service.admission is not None:  # what a start would refuse
        known = service.admission.names()
        start = rehearsal_of(start, choices(request.agent, request.agents), known)
        start = service.admission.admit(replace(start, by=caller.name))
    plan, _ = service.decide_snapshots(start)
    plan = service.sandbox.decide(plan, start.sandbox)
    endings = []
    for scenario in all_scenarios(
        plan
    ):  # one by one: a server that is to stop does not wait for all
        app.refuse_while_draining()
        endings.append(await asyncio.to_thread(play_scenario, plan, scenario))
    return summarise_results(plan, endings).report(
        limits=[] if service.costs is None else service.costs.enforcement(plan),
        warnings=map(without_flags, dry_run_warnings(start)),
    )


# -- forks -----------------------------------------------------------------------------------------


async def _forked(app: App, _caller: Caller, run: str) -> Forked:
    """A run that was just created, and how many of its events are those of the other run."""
    known = 0
    async for one in events_of(app.service, run):
        if isinstance(one.event, RunForked):
            known = one.seq - 1
    return await run_summary(app, run, Forked, seq=known)


@operation(
    "runs.fork",
    "command",
    "editor",
    "Fork: continue from a finished place of a run, as a new run",
    http=HttpRoute(
        "POST",
        f"{BASE}/{{run}}/fork",
        status=201,
        location=f"{BASE}/{{run}}",
        schema="ForkBody",
    ),
    audit=("run.forked",),
    draining="refuse",
    again=_forked,
    family="forks",
)
async def fork(app: App, caller: Caller, request: ForkRun) -> Forked:
    """Create a run that continues from a finished place of another."""
    row, notes = app.service.log.row(request.run), list[str]()
    local = request if isinstance(request, LocalFork) else None
    options = Fork(
        at=request.at,
        model=request.model,
        edit=request.edit,
        passes=request.max,
        agents=choices(request.agent, request.agents),
        workspace=Path(request.workspace) if request.workspace else None,
        beside=app.beside(caller, request.on_disconnect, name=row.headline.name),
        workspaces=app.workspaces,
        restore=local is not None and local.restore,
        force=local is not None and local.force,
        allow_unknown_cost=request.allow_unknown_cost,
        env=env_choices(request.env),
        say=notes.append,
    )
    made, _ = await fork_run(app.service, row.run, options, by=caller.name)
    forked = await _forked(app, caller, made)
    forked.notes = notes
    return forked


# -- messages --------------------------------------------------------------------------------------


@operation(
    "runs.message",
    "command",
    "editor",
    "Send a message to the agents of a run; the next iteration reads it",
    http=HttpRoute("POST", f"{BASE}/{{run}}/messages", status=201, schema="MessageBody"),
    audit=("message.sent",),
    draining="refuse",
    family="messages",
)
async def send_message(app: App, caller: Caller, request: MessageRun) -> RunMessageSent:
    """Record a message for the agents of a run."""
    run = app.service.log.row(request.run).run
    sent = await tell(app.service, run, request.text, to=request.to, by=caller.name)
    return RunMessageSent(**sent._asdict())


# -- worktrees -------------------------------------------------------------------------------------


@operation(
    "runs.worktree",
    "query",
    "viewer",
    "The worktree of a run, and the files of its result that were never applied",
    http=HttpRoute("GET", f"{BASE}/{{run}}/worktree"),
    family="worktrees",
)
async def read_worktree(app: App, _caller: Caller, request: RunReference) -> RunWorktree:
    """What `discard` would remove; refused as long as the run needs it."""
    run = app.service.log.row(request.run).run
    worktree = require_worktree(app.service, run)
    check_discard(app.service, run)
    return RunWorktree(
        run=run,
        branch=worktree.branch,
        folder=worktree.folder,
        repository=worktree.repository,
        unapplied=await unapplied_files(app.service, run),
    )


@operation(
    "runs.apply",
    "command",
    "editor",
    "Merge the result of a worktree into the checkout it came from",
    http=HttpRoute("POST", f"{BASE}/{{run}}/apply", schema="ApplyBody", is_body_optional=True),
    audit=("run.applied",),
    draining="serve",
    family="worktrees",
)
async def apply_result(app: App, caller: Caller, request: ApplyRun) -> AppliedResult:
    """Merge the result of a worktree into its checkout."""
    run = app.service.log.row(request.run).run
    return await apply_run(app.service, run, by=caller.name)


@operation(
    "runs.discard",
    "command",
    "editor",
    "Remove the worktree of a run and its branch",
    http=HttpRoute("POST", f"{BASE}/{{run}}/discard", schema="DiscardBody"),
    audit=("run.discarded",),
    draining="serve",
    family="worktrees",
)
async def discard_worktree(app: App, caller: Caller, request: DiscardRun) -> DiscardedResult:
    """Remove the worktree of a run and its branch, if that is confirmed."""
    run = app.service.log.row(request.run).run
    if not request.confirm:
        raise InputError("send `confirm: true` to remove the worktree", code="not-confirmed")
    return await discard_run(app.service, run, by=caller.name)


OPERATIONS = (dry_run, fork, send_message, read_worktree, apply_result, discard_worktree)
