"""Use cases of runs: start, look, answer, pause, resume, stop. Every interface uses them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import stored_text
from loopwright.errors import (
    RESTORE_HINT,
    Conflict,
    LoopwrightError,
    NotFound,
    StorageError,
    VersionConflict,
)
from loopwright.kernel.event_parts import Worktree
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    CancelRequested,
    GateAnswered,
    GateOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.snapshots import is_last_under_way
from loopwright.kernel.state import State
from loopwright.model.actions import Decision
from loopwright.model.plan import (
    Agent,
    Plan,
    content_hash,
    encode_plan,
    stored_plan,
)
from loopwright.model.record import Text
from loopwright.model.trackers import Trackers
from loopwright.operations.accounts.access import InsideRun
from loopwright.operations.agents.backends import check_scripts
from loopwright.operations.agents.programs import create_worktree
from loopwright.operations.child_runs import AgentRights, Runs, adoptable, check_sandbox, nested
from loopwright.operations.cost_limits import CostRules
from loopwright.operations.dialects import OF_LOOPS
from loopwright.operations.gates import (
    AS_ASKED,
    CallAnswer,
    check_answer,
    check_arguments,
    check_other_person,
    gate_named,
    not_open,
    only_gate,
)
from loopwright.operations.run_groups import (
    CANDIDATES,
    ProjectChoice,
    ambiguous,
    key_of,
    project_for,
    taken,
)
from loopwright.operations.run_lists import inbox_gates, list_old_runs, read_text
from loopwright.operations.run_request import Admission, RunStart, StoredVariables
from loopwright.operations.workspace_rules import SandboxRules, decide_snapshots, with_artifacts
from loopwright.ports import (
    NO_BLOBS,
    OPEN_STATUSES,
    Append,
    Clock,
    EventLog,
    Headline,
    NumberedEvent,
    OpenGate,
    RunRow,
    RunStatus,
    Worktrees,
    encode_figures,
)
from loopwright.ports.headline import closed_gate, figures_after, figures_of
from loopwright.views.event_records import audit_rows, forgotten, sortable_id
from loopwright.views.formats import details_of
from loopwright.views.run_responses import InboxGate

CAS_TRIES = 50
Shown: TypeAlias = RunStatus | Literal["unchanged"]
SHORTEST_END = 4  # of an id; the beginnings of ids of one day are all alike
MANY = 1_000


class Service:
    """Runs as people and programs use them. With a driver it drives too; without, it looks."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        driver: LocalDriver | None,
        sandbox: SandboxRules,
        *,
        via: str = "cli",
        four_eyes: bool = False,
    ) -> None:
        self.admission: Admission | None = None  # which agents may run, at a server
        self.costs: CostRules | None = None  # whether limits in USD can be enforced
        self.four_eyes = four_eyes  # who started a run approves nothing in it
        self.via = via  # the interface of the caller
        self.artifacts: Path | None = None  # where runs have a folder for what they make
        self.log = log
        self.clock = clock
        self.driver = driver
        self.sandbox = sandbox  # how the level of a run is decided: no service is without rules
        self.takes_snapshots = False  # where neither the definition nor the start says so
        self.trackers: Trackers | None = None  # where loops of roles have their projects
        self.worktrees: Worktrees | None = None  # where runs can have a checkout of their own
        self.variables: StoredVariables | None = None  # values that were given with --env
        self.inside: InsideRun | None = None  # the run whose program calls, if it is one
        self.rights: AgentRights | None = None  # what such a program may do; None: everything

    # -- starting ------------------------------------------------------------------------------

    def check_cost(self, start: RunStart) -> None:
        """Refuse a start whose limits in USD could not be enforced, before anything is created."""
        self._covered(start.plan, allow=start.allow_unknown_cost)

    def _covered(self, plan: Plan, *, allow: bool = False, remedy: str = "") -> Plan:
        if self.costs is None:
            return plan
        return self.costs.covered(plan, allow=allow, remedy=remedy)

    def _project(self, start: RunStart, run: str) -> str:
        """The project of a loop of roles that was started without one: a new project."""
        if self.trackers is None or start.plan.dialect != OF_LOOPS:
            return ""
        options = ProjectChoice(
            definition=start.plan.name, goal=start.message, session=start.session
        )
        return project_for(self.trackers, options, now_ms=self.clock.now_ms(), key=run).id

    def _sandboxed(self, plan: Plan, start: RunStart) -> Plan:
        """The plan with its sandbox level; refused if that cannot be enforced."""
        decided = self.sandbox.decide(plan, start.sandbox)
        self.sandbox.check(decided, allow_off=start.allow_off)
        return decided

    async def start(self, start: RunStart) -> str:
        """Create a run; with `drive`, it begins at once in this process."""
        if self.rights is not None:
            self.rights.check_start()
        start = self.admit(start)
        start.check_workspace()
        decided, _ = self.decide_snapshots(start)
        nest = nested(Runs(self.log, self.state), start.plan.limits, self.inside)
        now = self.clock.now_ms()
        run = start.run or f"run_{sortable_id(now)}"
        limited = decided
        if nest.limits is not decided.limits:
            limited = msgspec.structs.replace(decided, limits=nest.limits)
        limited = self._covered(limited, allow=start.allow_unknown_cost or nest.allow_unknown_cost)
        sandboxed = self._sandboxed(limited, start)
        bound = with_artifacts(sandboxed, self.artifacts, run, start.workspace)
        encoded = encode_plan(bound)
        plan = content_hash(encoded)
        driver = self.driver if start.drive else None
        if driver is not None:
            bound = driver.shared_plan(plan, bound)
        message, blobs = stored_text(start.message)
        blobs[plan] = encoded
        folder, worktree = await self._checkout(start, run)
        workspace = self._without_links(folder)
        key = key_of(start.plan, folder, start.key)
        first = RunStarted(
            at=now,
            run=run,
            plan=plan,
            name=start.plan.name,
            message=message,
            inputs=dict(start.inputs),
            workspace=workspace,
            dialect=start.plan.dialect,
            by=start.by,
            key=key,
            session=start.session,
            project=start.project or self._project(start, run),
            parent=nest.parent,
            depth=nest.depth,
            labels=start.labels,
            worktree=worktree,
        )
        state = fold(bound, [first])
        headline = Headline(
            name=start.plan.name,
            status="running",
            dialect=start.plan.dialect,
            workspace=workspace,
            started_at=now,
            updated_at=now,
            key=key,
            session=start.session,
            labels=start.labels,
            surface=start.plan.settings.get("surface", ""),
        )
        append = Append(
            run=run,
            expected=0,
            events=[first],
            blobs=blobs,
            headline=headline,
            figures=encode_figures(figures_of(state)),
            details=details_of(bound, first),
            owner=driver.first_owner if driver else start.owner,
            audit=audit_rows(run, [first], self.via),
            records=start.beside(run),
        )
        try:
            await self.log.append(append)
        except BaseException as problem:
            if worktree is not None and self.worktrees is not None:
                await self.worktrees.discard(worktree)
            if not isinstance(problem, Conflict):
                raise
            raise taken(self.log, key or "", problem) from problem
        if driver is not None:
            driver.adopt(first, headline, state)
        return run

    def admit(self, start: RunStart) -> RunStart:
        """The start as it is allowed here. It is checked again when the run is created; a caller
        who starts a program before that, to look at something, asks first.
        """
        start = start if self.admission is None else self.admission.admit(start)
        check_scripts(start.plan.agents)
        return start

    def agent_names(self) -> Mapping[str, str]:
        """The specs of listed agents by name; at a server only."""
        return {} if self.admission is None else self.admission.names()

    def decide_snapshots(self, start: RunStart) -> tuple[Plan, str]:
        """The plan of a run with the decision about snapshots, and a note about it for people."""
        return decide_snapshots(
            start.plan, start.workspace, start.snapshots, default=self.takes_snapshots
        )

    async def _checkout(self, start: RunStart, run: str) -> tuple[Path, Worktree | None]:
        """The folder that a run works in: the given one, or a worktree of its repository."""
        if not start.plan.workspace.worktree:
            return start.workspace, None
        if self.worktrees is None:
            raise LoopwrightError("worktrees are not available here", code="no-worktrees")
        return await create_worktree(self.worktrees, run, start.plan, start.workspace)

    def _without_links(self, folder: Path) -> str:
        """A link may be swapped while a person decides. What was admitted has no links, and what is
        put in its place later is refused by the sandbox.
        """
        return os.path.realpath(folder) if self.admission is None else str(folder)

    # -- looking -------------------------------------------------------------------------------

    def find(self, reference: str) -> str:
        """A run by its id, by the beginning or the end of one when only one fits, or `last`."""
        found = self.log.rows(limit=1) if reference == "last" else []
        if reference == "last":
            self._refuse_newer_missing(found)
        if reference and not found:
            found = self.log.rows(prefix=reference, limit=CANDIDATES + 1)
        if not found and len(reference) >= SHORTEST_END:
            found = [row for row in self.log.rows(limit=MANY) if row.run.endswith(reference)]
        runs = [row.run for row in found]
        if reference in runs or len(runs) == 1:
            run = reference if reference in runs else runs[0]
            if self.rights is not None:
                self.rights.check_own(run, "use a run that it did not start")
            return run
        if not runs:
            self._refuse_missing(reference)
            raise NotFound(f"no run {reference!r}", hint="`loopwright ls` lists them")
        raise ambiguous(reference, runs)

    def _refuse_newer_missing(self, newest: Sequence[RunRow]) -> None:
        """The last run is not the one before the last: ids are in the order of their times."""
        for run in self.log.missing():
            if not newest or run > newest[0].run:
                self.log.row(run)  # says so

    def _refuse_missing(self, reference: str) -> None:
        """A run that was recorded and is missing is damage, not a mistake of the caller."""
        for run in self.log.missing():
            if reference and (run.startswith(reference) or run.endswith(reference)):
                self.log.row(run)  # says so

    def rows(self, statuses: tuple[RunStatus, ...] = (), limit: int | None = None) -> list[RunRow]:
        if self.rights is None:
            return self.log.rows(statuses=statuses, limit=limit)
        return self.visible_rows(self.log.rows(statuses=statuses))[:limit]

    def visible_rows(self, rows: list[RunRow]) -> list[RunRow]:
        """Those of the runs that the caller may look at."""
        rights = self.rights
        return rows if rights is None else [row for row in rows if rights.is_own(row.run)]

    def events(self, run: str, after: int = 0) -> list[NumberedEvent]:
        """The events of a run; one that has no events is damaged."""
        if not (found := self.log.read(run, after=after)) and after <= 0:
            raise StorageError(f"{run} has no events", code="damaged", hint=RESTORE_HINT)
        return found

    def state(self, run: str) -> State:
        """The state of a run, folded now."""
        events = [numbered.event for numbered in self.events(run)]
        return fold(self.plan(events[0]), events)

    def plan(self, first: AnyEvent) -> Plan:
        assert isinstance(first, RunStarted)
        return stored_plan(self.log.blob, first.plan)

    def read_text(self, text: Text | None) -> str:
        """A text of an event, whole."""
        if text is None or isinstance(text, str):
            return text or ""
        return read_text(self.log, text)

    def gates(self) -> list[OpenGate]:
        return self.log.gates()

    def inbox(self, gates: Sequence[OpenGate] | None = None) -> list[InboxGate]:
        """Open gates, oldest first, or some of them, as rows of the inbox."""
        list_old_runs(self.log)
        return inbox_gates(self.log, self.gates() if gates is None else gates, self.read_text)

    def find_gate(self, reference: str) -> OpenGate:
        """An open gate by its id, the beginning of one, or a run that waits at one gate only."""
        return self._gate(reference)

    # -- deciding ------------------------------------------------------------------------------

    async def answer(
        self,
        reference: str,
        decision: Decision,
        *,
        text: str = "",
        by: str = "",
        digest: str | None = None,
        call: CallAnswer = AS_ASKED,
    ) -> str:
        """Answer a gate, once. The reference is a gate, or a run with exactly one open gate."""
        gate = self._gate(reference)  # once: the next gate of a run was never shown to anybody
        opened = self.opened(gate)
        text = text.encode(errors="replace").decode()  # of bytes that are not text, no store takes
        check_answer(opened, decision, text=text, digest=digest, call=call)
        if self.rights is not None:
            self.rights.refuse("answer a gate", gate.gate)
        check_sandbox(self.log, gate.run, self.inside)
        if self.four_eyes and decision == "approve":
            check_other_person(self.log, gate.run, by)
        if call.arguments is not None:
            check_arguments(self.log.read(gate.run), opened, call.arguments)
        arguments, blobs = stored_text(call.arguments or "")
        for _ in range(CAS_TRIES):
            version = self.log.version(gate.run)
            if gate.gate not in {row.gate for row in self.log.gates(gate.run)}:
                raise not_open(self.log, gate.gate)
            event = GateAnswered(
                at=self.clock.now_ms(),
                path=opened.path,
                iteration=opened.iteration,
                gate=gate.gate,
                decision=decision,
                text=text,
                by=by,
                arguments=None if call.arguments is None else arguments,
                remember=call.remember,
            )
            try:
                await self._append_event(
                    gate.run, event, expected=version, status=None, blobs=blobs
                )
            except VersionConflict:
                continue
            return gate.run
        raise Conflict("the run changes too fast to answer; try again", code="busy")

    def _gate(self, reference: str) -> OpenGate:
        if reference.startswith("gate_"):
            return gate_named(self.log, reference)
        return only_gate(self.log, self.find(reference))

    def opened(self, gate: OpenGate) -> GateOpened:
        """The event by which a gate was opened."""
        for numbered in reversed(self.log.read(gate.run)):
            if isinstance(numbered.event, GateOpened) and numbered.event.gate == gate.gate:
                return numbered.event
        raise NotFound(f"no gate {gate.gate!r}")

    async def pause(self, run: str, by: str = "") -> None:
        """Nothing new begins after this; active calls run to their end."""
        if self._open(run).headline.status != "paused":
            await self._control(run, RunPaused(at=self.clock.now_ms(), by=by), "paused")

    async def change_agent(self, run: str, name: str, agent: Agent, by: str = "") -> None:
        """Edit an agent of a run that is under way: its next call sees it. What decides when the
        loop ends stays as it was when the run started.
        """
        self._open(run)
        plan = self.state(run).plan
        if name not in plan.agents:
            raise NotFound(f"{run} has no agent {name!r}", code="unknown-agent")
        if self.admission is not None:
            folder = Path(self.log.row(run).headline.workspace)
            admitted = self.admission.admit_agents({name: agent}, run=run, by=by, workspace=folder)
            agent = admitted[name]
        check_scripts({name: agent})
        becomes = msgspec.structs.replace(plan, agents={**plan.agents, name: agent})
        self._covered(becomes, remedy=f"stop {run}, and start it again with allow_unknown_cost")
        event = AgentChanged(at=self.clock.now_ms(), agent=name, becomes=agent, by=by)
        await self._control(run, event, "unchanged")

    async def resume(self, run: str, by: str = "") -> bool:
        """Resume a paused run, and drive one that no process drives. False when the run was not
        paused, or if it was resumed by another caller in the meantime.
        """
        self._open(run)
        check_sandbox(self.log, run, self.inside)
        self.admit_resume(self.state(run), by=by)
        if self.state(run).control.paused:
            event = RunResumed(at=self.clock.now_ms(), by=by)
            return await self._control(
                run, event, "running", lambda: self.state(run).control.paused
            )
        if self.driver is not None:
            self.driver.wake(run)
        return False

    def admit_resume(self, state: State, *, by: str, agents: Sequence[AnyEvent] = ()) -> None:
        """Refuse to resume a run that the caller could not start as it is, with these agents."""
        first = state.started
        if self.admission is None or first is None:
            return
        changed = {one.agent: one.becomes for one in agents if isinstance(one, AgentChanged)}
        plan = msgspec.structs.replace(state.plan, agents={**state.plan.agents, **changed})
        self.admission.admit_run(
            plan, run=state.run, by=by, workspace=Path(first.workspace), worktree=first.worktree
        )

    async def stop(self, run: str, by: str = "", reason: str = "stopped") -> bool:
        """End a run now; False when it had ended. A second stop skips the last snapshot."""
        self.check_control(run)
        if row_ended(self.log.row(run)):
            return False
        state = self.state(run)
        if state.control.cancel is not None and not is_last_under_way(state):
            if self.driver is not None:  # its driver only has to look at the log
                self.look(run)
            return True
        event = CancelRequested(at=self.clock.now_ms(), reason=reason, by=by)
        try:
            await self._control(run, event, "running")
        except Conflict:
            if row_ended(self.log.row(run)):
                return False
            raise
        return True

    def check_control(self, run: str) -> None:
        """Refuse a program of a run that would control another run than those it started."""
        if self.rights is not None:
            self.rights.check_child(run, "control a run that it did not start")

    def _open(self, run: str) -> RunRow:
        self.check_control(run)
        row = self.log.row(run)
        if row_ended(row):
            raise Conflict(
                f"{run} has ended: {row.headline.status} ({row.headline.reason})", code="ended"
            )
        return row

    async def _control(
        self,
        run: str,
        event: AnyEvent,
        status: Shown,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Append an event about a run, while it is wanted; whether that was done."""
        if self.driver is None or not self.driver.is_driving(run):
            self.events(run)  # a log that someone changed stays as it is
        for _ in range(CAS_TRIES):
            try:
                await self._append_event(run, event, expected=self.log.version(run), status=status)
            except VersionConflict:
                if not is_wanted():
                    return False
                continue
            return True
        raise Conflict("the run changes too fast; try again", code="busy")

    async def _append_event(
        self,
        run: str,
        event: AnyEvent,
        *,
        expected: int,
        status: Shown | None,
        blobs: Mapping[str, bytes] = NO_BLOBS,
    ) -> None:
        """Append an event from outside the driver, and wake the driver of the run. Without a
        status of its own the event gives a waiting run work, and leaves a paused one paused.
        """
        row = self.log.row(run)
        if row_ended(row):
            raise Conflict(f"{run} has ended", code="no-longer-waiting")
        shown: RunStatus = row.headline.status
        if status != "unchanged":
            shown = status or ("paused" if shown == "paused" else "running")
        headline = replace(row.headline, status=shown, updated_at=event.at)
        is_answer = isinstance(event, GateAnswered)  # which may allow more iterations
        await self.log.append(
            Append(
                run=run,
                expected=expected,
                events=[event],
                blobs=blobs,
                headline=headline,
                figures=figures_after(self.state(run), [event]) if is_answer else "",
                gates_closed=[closed_gate(run, event)] if isinstance(event, GateAnswered) else [],
                audit=audit_rows(run, [event], self.via),
            )
        )
        if self.driver is not None:
            self.look(run)

    def forget(self, runs: Sequence[str], *, by: str) -> int:
        """Forget runs that have ended; the audit keeps who wanted it."""
        if self.rights is not None:
            self.rights.refuse("delete runs", ", ".join(runs))
        return self.log.forget(runs, forgotten(runs, at=self.clock.now_ms(), by=by, via=self.via))

    def look(self, run: str) -> None:
        """Let this process drive a run on, unless another living one does."""
        assert self.driver is not None
        try:
            self.driver.wake(run)
        except Conflict as conflict:
            if conflict.code != "already-driven":
                raise

    def recover(self) -> list[str]:
        """Take up every run that a process left behind; those that wait for a person stay rows."""
        assert self.driver is not None
        return self.driver.recover(adoptable(self.log, self.log.rows(statuses=OPEN_STATUSES)))


def row_ended(row: RunRow) -> bool:
    return row.headline.status not in OPEN_STATUSES
