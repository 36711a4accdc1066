"""Loops by name: start, list, inspect, control. Every interface to loops calls only these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.state import State
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import acting_role, current_user
from loopwright.operations.agents.backends import check_not_empty, unknown_input
from loopwright.operations.api_types import Request
from loopwright.operations.library import DefinitionLibrary, LibraryEntry
from loopwright.operations.loops.loop_details import is_loop, retry, skip
from loopwright.operations.preflight import check_worker
from loopwright.operations.problems import rendered
from loopwright.operations.run_control import (
    NO_CHANGES,
    ResumeChanges,
    ended_error,
)
from loopwright.operations.run_groups import (
    Beside,
    OnDisconnect,
    ProjectChoice,
    alone,
    project_for,
)
from loopwright.operations.run_lists import driver_pid
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import (
    DefinitionSource,
    StartPlace,
    check_start,
    launch_run,
    prepare_start,
    start_request,
)
from loopwright.operations.run_workspaces import start_warnings
from loopwright.operations.runs import row_ended
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases import runs
from loopwright.operations.use_cases.operation import App, Caller, RunReference, local_app
from loopwright.operations.wiring import Local
from loopwright.ports import OPEN_STATUSES, RunRow
from loopwright.ports.headline import figures_of
from loopwright.views.formats import UsageAmounts, figures_amounts
from loopwright.views.role_loops import (
    GOAL_CHARS,
    DispatchView,
    Seen,
    StageInSession,
    loop_status,
    seen,
    shown_time,
)
from loopwright.views.run_responses import ResumedSummary
from loopwright.views.status_text import RESUMABLE
from loopwright.views.status_text import goal as goal_of

ALL = "all"
ACTIONS = ("pause", "resume", "stop", "retry", "skip")
STATUSES = ("running", "paused", "blocked", "completed", "failed", "cancelled")
_FITS = {
    "pause": ("running", "waiting"),
    "resume": ("paused",),
    "stop": OPEN_STATUSES,
}
_DONE = {"pause": "paused", "resume": "resumed", "stop": "stopped"}
OF_ONE = {"retry": "tries again", "skip": "continues without the stage"}


class StartRoleLoop(Request):
    """What a loop of roles is started with."""

    definition: str
    goal: str
    parameters: Mapping[str, JsonValue] = {}
    agents: tuple[str, ...] = ()
    max_iterations: int | None = None
    worktree: bool = False  # in a Git worktree on a branch of its own
    allow_unknown_cost: bool = False
    project_id: str = ""
    project_slug: str = ""
    session: str = ""
    is_stored_session: bool = False  # whether the session is a record, which has to be open
    on_disconnect: OnDisconnect | None = None


class StartedRoleLoop(msgspec.Struct):
    """A loop that was just started, and the warnings about its definition and its workspace."""

    loop_id: str
    definition: str
    goal: str
    max_iterations: int | None
    parameters: dict[str, JsonValue]
    roles: list[str]
    termination: JsonValue
    project_id: str
    warnings: list[str]
    message: str


class RoleLoopStatus(msgspec.Struct):
    """One loop in detail."""

    id: str
    definition: str
    status: str
    outcome: str | None
    reason: str | None
    goal: str
    current_iteration: int
    current_stage: int
    max_iterations: int | None
    started_at: str | None
    completed_at: str | None
    elapsed_seconds: float
    metadata: dict[str, JsonValue | DispatchView]
    labels: list[str]
    usage: UsageAmounts
    current_iteration_status: str
    session_id: str
    stages: list[StageInSession]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLoops:
    """The loops of a data directory, driven by this process."""

    here: Local
    settings: Settings
    cwd: Path
    agents: Sequence[str] = ()  # backends of the roles, as in `--agent`
    by: str | None = None  # who acts; without a name, the user of this machine
    app: App | None = None  # of a server; without one, this process has opened the data directory
    confine: Callable[[RunStart], RunStart] | None = (
        None  # takes rights from a run before it starts
    )

    # -- definitions and starting

    @property
    def definitions(self) -> DefinitionLibrary:
        return DefinitionLibrary(self.settings.home, self.cwd)

    @property
    def app_here(self) -> App:
        """What operations work with here."""
        if self.app is not None:
            return self.app
        app = local_app(self.here.service, self.settings, self.cwd)
        return replace(app, here=self.here, get_workspaces=lambda: self.here.workspaces)

    def caller(self, by: str = "") -> Caller:
        """Who acts: the person who is named, or the person or agent behind this process."""
        service = self.here.service
        name = by or self.by or current_user()
        return Caller(name=name, role=acting_role(), interface=service.via)

    async def start(self, options: StartRoleLoop, beside: Beside = alone) -> StartedRoleLoop:
        """Start a loop, and keep something beside it. Nothing is created unless all of it can be
        created and a driver is available.
        """
        check_worker(self.here.driver, self.cwd, self.here.service.clock.now_ms())
        _check(options)
        listed = self.definitions.get(options.definition)
        given = {name: _text(name, value) for name, value in options.parameters.items()}
        if listed.is_valid:  # otherwise `prepare_start` says what is wrong with the file
            _check_known(listed, given)
        request = start_request(
            {
                "message": options.goal,
                "values": given,
                "agents": self.agents,
                "max": options.max_iterations,
                "worktree": options.worktree or None,
                "allow_unknown_cost": options.allow_unknown_cost,
            }
        )
        place = StartPlace(
            settings=self.settings,
            workspace=self.cwd,
            agent_names=self.here.service.agent_names(),
        )
        # Anybody who can write files here, an agent too, may have written the definition.
        source = DefinitionSource(file=options.definition, author="editor", library=self.cwd)
        start, definition = prepare_start(place, request, source)
        if self.confine is not None:
            start = self.confine(start)
        start = replace(start, by=self.by or start.by)
        start = await check_start(self.here.service, start)
        project = project_for(
            self.here.trackers,
            ProjectChoice(
                definition=options.definition,
                goal=options.goal,
                session=options.session,
                id=options.project_id,
                slug=options.project_slug,
            ),
            now_ms=self.here.service.clock.now_ms(),
        )
        start = replace(start, session=options.session, project=project.id, beside=beside)
        run = await launch_run(self.here.service, start, is_checked=True)
        rounds = seen(definition.plan, (), lambda _: "")
        return StartedRoleLoop(
            loop_id=run,
            definition=options.definition,
            goal=options.goal,
            max_iterations=options.max_iterations or rounds.most,
            parameters=dict(start.inputs),
            roles=[one.role for one in rounds.stages],
            termination=listed.termination,
            project_id=project.id,
            warnings=[
                *rendered(replace(one, file=options.definition) for one in definition.warnings),
                *start_warnings(self.here.service, run),
            ],
            message=f"The loop has started. loop_status with id {run} tells how it goes.",
        )

    # -- looking

    def rows(self, status: str = "") -> list[RunRow]:
        """Loops, newest first; only those of a status, where one is given."""
        if status:
            check_status(status)
        service = self.here.service
        found = [row for row in service.rows() if status in ("", loop_status(row))]
        return [row for row in found if is_loop(service, row)]

    def lines(self, status: str = "") -> list[str]:
        """A line for each loop."""
        return [self._line(row) for row in self.rows(status)]

    def _line(self, row: RunRow) -> str:
        seen_loop, state = self._seen(row.run)
        goal = goal_of(state)
        begun = shown_time(row.headline.started_at)
        of = f"/{seen_loop.most}" if seen_loop.most else ""
        where = f"iteration {seen_loop.iteration}{of}, stage {seen_loop.stage}"
        return f"{row.run}  {loop_status(row)}  {where}  {goal[:GOAL_CHARS]}  {begun}"

    def status(self, reference: str) -> RoleLoopStatus:
        """One loop in detail."""
        run = self.here.service.find(reference)
        row = self.here.log.row(run)
        seen_loop, state = self._seen(run)
        head = row.headline
        session = head.session or run
        until = head.finished_at or self.here.service.clock.now_ms()
        return RoleLoopStatus(
            id=run,
            definition=head.name,
            status=loop_status(row),
            outcome=head.status if head.finished_at is not None else None,
            reason=head.reason,
            goal=goal_of(state),
            current_iteration=seen_loop.iteration,
            current_stage=seen_loop.stage,
            max_iterations=seen_loop.most,
            started_at=shown_time(head.started_at),
            completed_at=shown_time(head.finished_at),
            elapsed_seconds=round((until - head.started_at) / 1_000, 3),
            metadata={
                **state.control.metadata,
                "dispatch": seen_loop.dispatch(loop_status(row)),
            },
            labels=[*state.control.labels],
            usage=figures_amounts(figures_of(state)),
            current_iteration_status=seen_loop.round_status,
            session_id=session,
            stages=[
                StageInSession(**msgspec.structs.asdict(one.view()), parent_session_id=session)
                for one in seen_loop.stages
            ],
        )

    def _seen(self, run: str) -> tuple[Seen, State]:
        service = self.here.service
        state = service.state(run)
        events = [one.event for one in service.events(run)]
        return seen(state.plan, events, service.read_text), state

    # -- control

    async def resume(
        self, reference: str, changes: ResumeChanges = NO_CHANGES, *, by: str = ""
    ) -> ResumedSummary:
        """Resume a loop that is paused, has ended, or was left behind by a process that is gone."""
        run = self.here.service.find(reference)
        if not row_ended(self.here.log.row(run)):  # otherwise the operation says what is wrong
            self._check_fits("resume", run)
        return await runs.resume(self.app_here, self.caller(by), runs.resume_request(run, changes))

    def _check_fits(self, action: str, run: str) -> None:
        row = self.here.log.row(run)
        status = row.headline.status
        is_left = status == "running" and driver_pid(self.here.log, row) is None  # by a crash
        resumable = action == "resume" and (status in RESUMABLE or is_left)
        if status not in _FITS[action] and not resumable:
            if row_ended(row):
                if action == "stop":
                    raise ended_error(row.run, row.headline.status, row.headline.reason)
                raise Conflict(f"{run} has ended: {status} ({row.headline.reason})", code="ended")
            raise Conflict(
                f"{run} is {loop_status(row)}, so it cannot be {_DONE[action]}", code="wrong-state"
            )

    async def control(
        self,
        action: str,
        reference: str,
        *,
        note: str = "",
        by: str = "",
        changes: ResumeChanges = NO_CHANGES,
    ) -> str:
        """Pause, resume or stop one loop, or every one that it can be done to; try again or leave
        out what one stopped at, with `changes`.
        """
        if action not in ACTIONS:
            raise LoopwrightError(
                f"there is no action {action!r}",
                code="bad-action",
                hint=f"there are {', '.join(ACTIONS)}",
            )
        if action in OF_ONE:
            do, service = (retry if action == "retry" else skip), self.here.service
            who, loop = self.caller(by).name, _one(action, reference)
            run = await do(service, loop, note=note, by=who, changes=changes)
            return f"{run}: {OF_ONE[action]}"
        if reference.casefold() == ALL:
            return await self._control_all(action)
        run = self.here.service.find(reference)
        self._check_fits(action, run)
        await self._do(action, run)
        return f"{run}: {_DONE[action]}"

    async def _control_all(self, action: str) -> str:
        found = [row.run for row in self.rows() if row.headline.status in _FITS[action]]
        for run in found:
            await self._do(action, run)
        if not found:
            return f"no loop can be {_DONE[action]} now"
        return f"{len(found)} {'loop' if len(found) == 1 else 'loops'} {_DONE[action]}"

    async def _do(self, action: str, run: str) -> None:
        caller = self.caller()
        match action:
            case "pause":
                await runs.pause(self.app_here, caller, RunReference(run=run))
            case "resume":
                await runs.resume(self.app_here, caller, runs.ResumeRun(run=run))
            case _:
                await runs.stop_open(self.app_here, caller, run)


def _one(action: str, reference: str) -> str:
    if reference.casefold() == ALL:
        raise LoopwrightError(f"{action} is for one loop: name it", code="one-loop")
    return reference


def _check(options: StartRoleLoop) -> None:
    if not options.definition.strip():
        raise LoopwrightError("missing: definition", code="missing-field")
    check_not_empty(options.goal)
    most = options.max_iterations
    if most is not None and not 1 <= most <= MAX_ITERATIONS:
        raise LoopwrightError(
            f"max_iterations must be at least 1 and at most {MAX_ITERATIONS}", code="out-of-range"
        )
    if options.project_id and options.project_slug:
        raise LoopwrightError(
            "name a project by its id or by its slug, not by both", code="two-projects"
        )


def _check_known(listed: LibraryEntry, given: Mapping[str, str]) -> None:
    """Refuse parameters that the definition does not declare, as they would change nothing, and
    name those that it needs.
    """
    known = sorted(listed.parameter_names)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise unknown_input(unknown[0], known)
    missing = [name for name in listed.required_parameters if name not in given]
    if missing:
        raise LoopwrightError(
            f"missing input: {', '.join(missing)}",
            code="missing-input",
            hint="give them as `parameters`, a JSON object",
        )


def check_status(status: str) -> None:
    """Refuse a status that loops do not have."""
    if status not in STATUSES:
        raise LoopwrightError(
            f"there is no status {status[:80]!r}",
            code="bad-status",
            hint=f"there are {', '.join(STATUSES)}",
        )


def _text(name: str, value: JsonValue) -> str:
    """Parameters are texts; what has parts is none."""
    if isinstance(value, dict | list):
        raise LoopwrightError(
            f"parameter {name!r} must be a text or a number", code="bad-parameter"
        )
    return value if isinstance(value, str) else str(value)
