"""Loops: list, start, change and control every run that repeats something.

`retry`, `skip` and `edit` have routes of our own API. `http/compat/coqui` serves all of them with
the payloads of that system.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.library import DefinitionLibrary, LibraryEntry
from loopwright.operations.loops import loop_details
from loopwright.operations.loops.loop_details import (
    FIELDS,
    ForgottenLoop,
    edit_of,
    forget,
    is_loop,
    loop_row,
)
from loopwright.operations.run_control import NO_CHANGES, ResumeChanges
from loopwright.operations.run_start import choices
from loopwright.operations.use_cases import gates, runs
from loopwright.operations.use_cases.operation import (
    MOST,
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.role_loops import (
    RoleLoops,
    StartedRoleLoop,
    StartRoleLoop,
    check_status,
)
from loopwright.operations.use_cases.trackers import sessions_of
from loopwright.ports import RunRow, RunStatus
from loopwright.views.role_loops import LiveLoop, loop_status

AT_ONCE = 500
RUN = "/api/v1/runs/{run}"
RUN_FAMILY = "runs"
GivenText: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
IterationLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)]


class LoopReference(Request):
    """A loop, by the whole id of its run."""

    loop: str


class ListLoops(Request):
    """Which loops, and which page of them; `headless` are those without a session."""

    status: str = ""
    headless: bool | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None


class DescribeLoops(Request):
    """Only loops of a status, where one is given."""

    status: str = ""


class EditLoop(RunReference):
    """What is different from the next stage of a loop of roles on; what is left out stays as it is.
    Without a number (null), iterations are unlimited. Metadata is merged into that of the loop.
    """

    goal: GivenText | UnsetType = UNSET
    max_iterations: IterationLimit | UnsetType | None = UNSET
    metadata: dict[str, JsonValue] | UnsetType = UNSET
    labels: list[GivenText] | UnsetType = UNSET


class SkipStage(RunReference):
    """A note for the next stage, which its prompt has once."""

    note: str = ""
    allow_unknown_cost: bool = False


class RetryStage(SkipStage):
    """A note for the stage that is tried again; for a loop that has ended also the backends of its
    roles and its limits from now on.
    """

    agent: str | None = None
    agents: dict[str, str] = {}
    budget: str | None = None


class ContinueLoop(LoopReference, kw_only=True):
    """What changes when a loop continues."""

    changes: ResumeChanges = NO_CHANGES


class SteeredLoop(msgspec.Struct):
    """A loop that was changed, and its status then."""

    run: str
    status: RunStatus


class LoopRows(msgspec.Struct):
    """A page of loops, and how many are running in all."""

    rows: list[RunRow]
    active: int
    next: str | None


@operation("loops.list", "query", "viewer", "Loops, newest first, from every interface")
async def list_loops(app: App, _caller: Caller, request: ListLoops) -> LoopRows:
    """A page of the runs that repeat something."""
    if request.status:
        check_status(request.status)
    cursor = request.cursor
    found = _page(app, request, None if cursor is None else app.cursors().place("loops", cursor))
    rows = found[: request.limit]
    more = app.cursors().after("loops", rows[-1].run) if len(found) > request.limit else None
    return LoopRows(rows=rows, active=_active(app), next=more)


def _page(app: App, request: ListLoops, before: str | None) -> list[RunRow]:
    """As many as are asked for and one more, if there are so many."""
    found: list[RunRow] = []
    while len(found) <= request.limit:
        rows = app.service.log.rows(before=before, limit=AT_ONCE)
        found += [row for row in rows if _fits(app, row, request)]
        if len(rows) < AT_ONCE:
            break
        before = rows[-1].run
    return found


def _fits(app: App, row: RunRow, request: ListLoops) -> bool:
    if request.status and loop_status(row) != request.status:
        return False
    if request.headless is not None and request.headless is bool(row.headline.session):
        return False
    return is_loop(app.service, row)


def _active(app: App) -> int:
    rows = app.service.log.rows(statuses=("running",))
    return sum(is_loop(app.service, row) for row in rows)


@operation(
    "loops.describe",
    "query",
    "viewer",
    "Loops that the caller may see, newest first, with a line for each",
)
async def describe(app: App, caller: Caller, request: DescribeLoops) -> list[str]:
    """The line of each loop."""
    return _loops(app, caller).lines(request.status)


@operation("loops.count", "query", "viewer", "How many loops are running")
async def count(app: App, _caller: Caller, _request: Request) -> int:
    """The number of loops that are running."""
    return _active(app)


@operation("loops.show", "query", "viewer", "A loop of any user")
async def show(app: App, _caller: Caller, request: LoopReference) -> RunRow:
    """The run of a loop."""
    return loop_row(app.service, request.loop)


@operation(
    "loops.live",
    "query",
    "viewer",
    "Where a loop is now, what it has spent, and what happened last",
)
async def live(app: App, _caller: Caller, request: LoopReference) -> LiveLoop:
    """The current stage and spend of a loop."""
    return loop_details.live(app.service, loop_row(app.service, request.loop).run)


@operation(
    "loops.start",
    "command",
    "editor",
    "Start a loop from a definition with a goal",
    audit=runs.start.audit,
    draining="refuse",
)
async def start(app: App, caller: Caller, request: StartRoleLoop) -> StartedRoleLoop:
    """Start a loop of roles, in a session if one is named; its description with warnings."""
    if request.is_stored_session:
        sessions_of(app).check(request.session)
    beside = app.beside(caller, request.on_disconnect, name=request.definition)
    return await _loops(app, caller, request.agents).start(request, beside)


@operation(
    "loops.edit",
    "command",
    "editor",
    "Change goal, cap, metadata or labels of a loop of roles that is open",
    http=HttpRoute("POST", f"{RUN}/edit", schema="EditRunBody"),
    audit=("run.edited",),
    draining="serve",
    family=RUN_FAMILY,
)
async def edit(app: App, caller: Caller, request: EditLoop) -> SteeredLoop:
    """Change a loop of roles; its next stage uses the new values."""
    given = {name: getattr(request, name) for name in FIELDS}
    wanted = edit_of({name: value for name, value in given.items() if value is not UNSET})
    run = app.service.log.row(request.run).run
    await loop_details.edit(app.service, run, wanted, by=caller.name)
    return _steered(app, run)


def _steered(app: App, run: str) -> SteeredLoop:
    return SteeredLoop(run=run, status=app.service.log.row(run).headline.status)


@operation(
    "loops.pause",
    "command",
    "editor",
    "Pause a running loop; the current stage is finished first",
    audit=runs.pause.audit,
    draining="serve",
)
async def pause(app: App, caller: Caller, request: LoopReference) -> RunRow:
    """Pause a loop."""
    return await _control(app, caller, "pause", request)


@operation(
    "loops.stop",
    "command",
    "editor",
    "End a loop now",
    audit=runs.stop.audit,
    draining="serve",
    waits_seconds=runs.stop.waits_seconds,
)
async def stop(app: App, caller: Caller, request: LoopReference) -> RunRow:
    """End a loop."""
    return await _control(app, caller, "stop", request)


async def _control(app: App, caller: Caller, action: str, request: LoopReference) -> RunRow:
    run = loop_row(app.service, request.loop).run
    await _loops(app, caller).control(action, run)
    return app.service.log.row(run)


@operation(
    "loops.resume",
    "command",
    "editor",
    "Resume a loop; one that failed continues at the iteration that did not finish",
    audit=runs.resume.audit,
    draining="refuse",
)
async def resume(app: App, caller: Caller, request: ContinueLoop) -> RunRow:
    """Resume a loop that is paused or has ended."""
    run = loop_row(app.service, request.loop).run
    await _loops(app, caller).resume(run, request.changes, by=caller.name)
    return app.service.log.row(run)


@operation(
    "loops.skip",
    "command",
    "editor",
    "Leave out the stage that a loop of roles stopped at",
    http=HttpRoute("POST", f"{RUN}/skip", schema="SkipStageBody", is_body_optional=True),
    audit=gates.approve.audit,
    draining="refuse",
    family=RUN_FAMILY,
)
async def skip(app: App, caller: Caller, request: SkipStage) -> SteeredLoop:
    """Continue a loop of roles without the stage that it stopped at."""
    changes = ResumeChanges(allow_unknown_cost=request.allow_unknown_cost)
    run = app.service.log.row(request.run).run
    await loop_details.skip(app.service, run, note=request.note, by=caller.name, changes=changes)
    return _steered(app, run)


@operation(
    "loops.retry",
    "command",
    "editor",
    "Try again what a loop of roles stopped at, with a note",
    http=HttpRoute("POST", f"{RUN}/retry", schema="RetryStageBody", is_body_optional=True),
    audit=gates.approve.audit,
    draining="refuse",
    family=RUN_FAMILY,
)
async def retry(app: App, caller: Caller, request: RetryStage) -> SteeredLoop:
    """Try again what a loop of roles stopped at."""
    changes = ResumeChanges(
        agents=choices(request.agent, request.agents),
        budget=request.budget,
        allow_unknown_cost=request.allow_unknown_cost,
    )
    run = app.service.log.row(request.run).run
    await loop_details.retry(app.service, run, note=request.note, by=caller.name, changes=changes)
    return _steered(app, run)


@operation(
    "loops.remove",
    "command",
    "editor",
    "Delete a loop that has ended",
    audit=("run.forgotten",),
    draining="serve",
)
async def remove(app: App, caller: Caller, request: LoopReference) -> ForgottenLoop:
    """Delete the run of a loop that has ended."""
    return forget(app.service, loop_row(app.service, request.loop).run, by=caller.name)


def _loops(app: App, caller: Caller, agents: tuple[str, ...] = ()) -> RoleLoops:
    assert app.here is not None, "only a process that drives runs controls loops"
    return RoleLoops(
        here=app.here,
        settings=app.settings,
        cwd=app.workspace,
        by=caller.name,
        app=app,
        agents=agents,
    )


# -- definitions of loops --------------------------------------------------------------------------


class NamedDefinition(Request):
    """A definition of a loop, by its name."""

    name: str


class SaveLoopDefinition(NamedDefinition):
    """A definition of a loop as JSON, and the version that it replaces."""

    data: bytes
    expected: str


class RemoveLoopDefinition(NamedDefinition):
    """A definition of a loop, and the version that is meant; None: any."""

    expected: str | None = None


class SavedLoopDefinition(msgspec.Struct):
    """A definition that was written."""

    entry: LibraryEntry
    is_new: bool


@operation(
    "loop_definitions.list",
    "query",
    "viewer",
    "Definitions of loops by name, and what is wrong with those that cannot be used",
)
async def list_definitions(app: App, _caller: Caller, _request: Request) -> list[LibraryEntry]:
    """The definitions of the workspace, of the data directory, and the built-in ones."""
    return _library(app).all()


@operation("loop_definitions.show", "query", "viewer", "One definition of a loop")
async def show_definition(app: App, _caller: Caller, request: NamedDefinition) -> LibraryEntry:
    """One definition by its name."""
    return _library(app).get(request.name)


@operation(
    "loop_definitions.save",
    "command",
    "editor",
    "Write a definition of a loop",
    audit=("loop-definition.saved",),
    draining="serve",
)
async def save_definition(
    app: App, caller: Caller, request: SaveLoopDefinition
) -> SavedLoopDefinition:
    """Write a definition into the data directory."""
    row = app.access().row(caller.name, "loop-definition.saved", request.name)
    entry, is_new = _library(app).save(
        request.name,
        request.data,
        expected=request.expected,
        noted=lambda: app.records.change(audit=[row]),
    )
    return SavedLoopDefinition(entry=entry, is_new=is_new)


@operation(
    "loop_definitions.remove",
    "command",
    "editor",
    "Delete a definition of a loop",
    audit=("loop-definition.deleted",),
    draining="serve",
)
async def remove_definition(app: App, caller: Caller, request: RemoveLoopDefinition) -> None:
    """Delete a definition of the data directory; one of its name that it hid is used again."""
    row = app.access().row(caller.name, "loop-definition.deleted", request.name)
    _library(app).delete(
        request.name,
        expected=request.expected,
        noted=lambda: app.records.change(audit=[row]),
    )


def _library(app: App) -> DefinitionLibrary:
    return DefinitionLibrary(app.settings.home, app.workspace)


OPERATIONS = (
    list_loops,
    describe,
    count,
    show,
    live,
    start,
    edit,
    pause,
    stop,
    resume,
    skip,
    retry,
    remove,
    list_definitions,
    show_definition,
    save_definition,
    remove_definition,
)
