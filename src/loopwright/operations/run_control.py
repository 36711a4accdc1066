"""Pause, resume and stop runs, whichever process drives them.

`resume` also continues a run that ended without completing, from where it stopped. A run is
stopped when its log says so and none of its processes is left; until then it is stopping. This
rule is the same for all interfaces.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from loopwright.agents.processes.process_tree import describe_processes, find_processes
from loopwright.agents.processes.supervise import ProcessEntry
from loopwright.errors import Conflict, LoopwrightError, StorageError, VersionConflict
from loopwright.kernel.events import AgentChanged, AnyEvent, RunReopened
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.limits import used_up
from loopwright.kernel.reopened_runs import loops_that_failed_at_cap, unfinished_places
from loopwright.kernel.state import State
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import current_user
from loopwright.operations.agents.allowlist import with_entry_names
from loopwright.operations.agents.backends import bind_agents, check_scripts
from loopwright.operations.agents.permissions import rights_of, with_rights
from loopwright.operations.child_runs import check_sandbox
from loopwright.operations.cost_limits import CostRules
from loopwright.operations.loop_definition import tightened
from loopwright.operations.preflight import preflight_agents
from loopwright.operations.run_groups import taken
from loopwright.operations.run_lists import driver_pid
from loopwright.operations.run_request import Admission
from loopwright.operations.run_start import agent_choices
from loopwright.operations.run_variables import renewed_variables
from loopwright.operations.runs import CAS_TRIES, Service, row_ended
from loopwright.operations.wiring import Local
from loopwright.ports import OPEN_STATUSES, Append, EventLog, RunRow
from loopwright.ports.headline import figures_after, iterations
from loopwright.views.event_records import audit_rows
from loopwright.views.status_text import (
    RESUMABLE,
    capped_loops,
    capped_words,
    is_stopped_by_plan,
    next_iteration,
    resume_command,
    resumed_words,
    spent_inside,
)

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class StopState:
    """What is still running of runs that were asked to stop."""

    open_runs: tuple[str, ...] = ()  # their drivers have not ended them yet
    processes: dict[str, list[ProcessEntry]] = field(default_factory=dict)

    @property
    def is_stopped(self) -> bool:
        return not self.open_runs and not self.processes

    @property
    def word(self) -> str:
        return "stopped" if self.is_stopped else "stopping"

    @property
    def pids(self) -> list[int]:
        return sorted(entry.pid for entries in self.processes.values() for entry in entries)

    def describe(self) -> str:
        """Which processes of which runs are left."""
        return "; ".join(
            f"{run} is stopping: {describe_processes(entries)} not ended yet"
            for run, entries in self.processes.items()
        )


async def wait_until_stopped(
    log: EventLog,
    runs: Sequence[str],
    *,
    seconds: float = STOP_SECONDS,
    is_closing: Callable[[], bool] = lambda: False,
) -> StopState:
    """Wait until nothing is left of these runs, or until the time is over."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        still = tuple(run for run in runs if log.row(run).headline.status in OPEN_STATUSES)
        left = {} if still else await asyncio.to_thread(find_processes, runs)
        state = StopState(still, left)
        if state.is_stopped or is_closing() or asyncio.get_running_loop().time() >= end:
            return state
        await asyncio.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeChanges:
    """What is different when a run is resumed: other agents, another budget, another time limit,
    other numbers of iterations; `restart` begins with the first one. `accept_changes` accepts
    protected files as they are now. With `stage`, a loop of roles continues at the stage at which
    it stopped, and `note` is added to the prompt of that stage.
    """

    agents: Sequence[str] = ()
    budget: str | None = None
    passes: int | None = None
    time: str | None = None
    restart: bool = False
    stage: Literal["retry", "skip"] | None = None
    note: str = ""
    allow_unknown_cost: bool = False
    accept_changes: bool = False
    env: Sequence[str] = ()  # NAME=VALUE or NAME, for variables that the run was started with
    sandbox: SandboxLevel | None = None  # of the run from now on

    def __bool__(self) -> bool:
        return self != NO_CHANGES


NO_CHANGES = ResumeChanges()


def has_ended(service: Service, run: str) -> bool:
    return row_ended(service.log.row(run))


async def reopen(
    service: Service, run: str, *, by: str = "", changes: ResumeChanges = NO_CHANGES
) -> str:
    """Resume a run that failed, met a limit or was stopped; its id, what completed and what was
    spent stay. Returns where it continues, in words.
    """
    for _ in range(CAS_TRIES):
        row = service.log.row(run)
        state = service.state(run)
        _check(row, changes, state)
        _check_agent(service, run, changes)
        check_sandbox(service.log, run, service.inside)
        check_folder(state)
        if service.driver is not None:
            service.driver.take(run)
        _check_work(state, changes)
        events = _events(service, state, by=by, changes=changes)
        service.admit_resume(state, by=by, agents=events)
        _keep_variables(service, state, changes.env)
        words = _words(state, events[0])
        headline = replace(
            row.headline,
            status="running",
            reason="",
            finished_at=None,
            updated_at=events[0].at,
        )
        try:
            await service.log.append(
                Append(
                    run=run,
                    expected=row.version,
                    events=events,
                    headline=headline,
                    figures=figures_after(state, events),
                    audit=audit_rows(run, events, service.via),
                )
            )
        except VersionConflict:
            continue
        except Conflict as refusal:
            raise taken(service.log, headline.key or "", refusal) from refusal
        if service.driver is not None:
            service.look(run)
        return words
    raise Conflict("the run changes too fast; try again", code="busy")


def _check_agent(service: Service, run: str, changes: ResumeChanges) -> None:
    """A program of a run resumes what it started as it was, with the limits that it had."""
    service.check_control(run)
    if service.rights is not None and changes:
        service.rights.refuse("change the limits or agents of a run", run)


def _keep_variables(service: Service, state: State, given: Sequence[str]) -> None:
    """Store the values of variables that are given again."""
    if service.variables is None:
        return
    stored = service.variables.read(state.run)
    values = renewed_variables(state.plan, state.run, given, stored)
    if values != stored:
        service.variables.write(state.run, values)


def check_folder(state: State) -> None:
    """Refuse to resume a run whose worktree was removed, before anything is recorded."""
    found = state.started.worktree if state.started is not None else None
    if found is None or Path(found.folder).is_dir():
        return
    raise Conflict(
        f"{state.run} cannot be resumed: its worktree was discarded",
        code="worktree-gone",
        hint=f"`loopwright fork {state.run} --at N --restore` continues from an iteration in a new "
        "worktree, or start again",
    )


def _words(state: State, event: AnyEvent) -> str:
    assert isinstance(event, RunReopened)
    apply(state, event)
    return resumed_words(state, msgspec.structs.replace(event, by=""))


def _check(row: RunRow, changes: ResumeChanges, state: State) -> None:
    status, reason = row.headline.status, row.headline.reason
    if not row_ended(row):
        raise Conflict(f"{row.run} has not ended: it is {status}", code="not-ended")
    if status not in RESUMABLE:
        raise Conflict(
            f"{row.run} has ended: {status} ({reason}), there is nothing left to do",
            code="ended",
            hint=_fork_hint(state, changes, reason) or "start a new run",
        )
    if changes.stage is not None and status == "cancelled":
        raise Conflict(
            f"{row.run} was stopped ({reason}): no stage of it has failed",
            code="ended",
            hint=f"`loopwright resume {row.run}` continues it",
        )


def _fork_hint(state: State, changes: ResumeChanges, reason: str) -> str:
    """How a loop that completed at its limit makes more iterations."""
    made = iterations(state)
    wanted = changes.passes
    if wanted is None and reason == "max_iterations":
        wanted = 2 * made
    if not made or wanted is None or wanted <= made:
        return ""
    words = f"loopwright fork {state.run} --at {made} --max {wanted}"
    return f"more iterations are a new run that continues it: `{words}`"


def _check_work(state: State, changes: ResumeChanges) -> None:
    """Refuse what would end again at once; an option that cannot be read is reported first."""
    _limits(state, changes)
    if changes.accept_changes and not state.plan.workspace.protect:
        raise LoopwrightError(
            f"--accept-changes is for runs with protected files, and {state.run} has none",
            code="nothing-protected",
            hint=f"leave out --accept-changes: loopwright resume {state.run}",
        )
    if changes.stage is not None:
        _check_budget(state, changes)
        return
    if is_stopped_by_plan(state) and not changes.restart:
        raise Conflict(
            f"{state.run} was stopped by a step of its definition, which would stop it again",
            code="ended",
            hint=f"`loopwright resume {state.run} --restart` begins with the first step",
        )
    if not changes.restart:
        _check_iterations(state, changes.passes)
    _check_budget(state, changes)


def _check_iterations(state: State, wanted: int | None) -> None:
    """A loop that has made all its iterations continues only where it may make more of them."""
    capped = capped_loops(state)
    if wanted is None:
        failed = loops_that_failed_at_cap(state.root.body)
        if capped and not failed and not _has_other_work(state):
            raise Conflict(
                f"{state.run}: {capped_words(state)}",
                code="at-cap",
                hint="or begin with iteration 1: --restart",
            )
        return
    loops = [*capped, *_loops_of_plan(state)]
    if not loops:
        raise Conflict(
            f"--max is for loops, and {state.run} has none that is unfinished",
            code="not-at-cap",
            hint=f"leave out --max: loopwright resume {state.run}",
        )
    made = max(next_iteration(body) for body in loops) - 1
    if wanted <= made:
        raise LoopwrightError(
            f"--max {wanted}: {state.run} has made {made} iterations already",
            code="bad-max",
            hint=f"give more than that: --max {2 * made}",
        )


def _loops_of_plan(state: State) -> list[RepeatBody]:
    """The loops at the top of the plan that did not complete, except those over a list."""
    bodies = [owner.body for owner in state.root.body.unfinished.values()]
    return [one for one in bodies if isinstance(one, RepeatBody) and one.action.each is None]


def _has_other_work(state: State) -> bool:
    """Whether a step did not complete that has no loop at its cap, and may run beside those."""
    if state.plan.on_failure == "abort":
        return False
    capped = {id(body) for body in capped_loops(state)}
    for owner in state.root.body.unfinished.values():
        inside = [owner.body, *(place.body for place in unfinished_places(owner.body))]
        if not any(id(body) in capped for body in inside):
            return True
    return False


def _check_budget(state: State, changes: ResumeChanges) -> None:
    """A run that has spent its budget continues only with a larger one."""
    text = changes.budget or ""
    spends = any(name in text for name in ("usd", "tokens"))
    limits = _limits(state, changes) or state.plan.limits
    spent = used_up(limits, state.root.spent)
    if spent is None and not spends and not changes.restart and changes.stage is None:
        spent = spent_inside(state) or None
    if spent is None:
        return
    if not spends:
        raise Conflict(
            f"{state.run} has used up its budget: {spent}",
            code="budget-spent",
            hint=f"give it a larger one for the whole run: {resume_command(state)}",
        )
    raise LoopwrightError(
        f"--budget {text}: {state.run} has already {spent}",
        code="bad-budget",
        hint="the budget is for the whole run, with what it has spent so far; give a larger one",
    )


def _limits(state: State, changes: ResumeChanges) -> Limits | None:
    """The limits of the run from now on, or None where they stay as they are."""
    time = f"time={changes.time}" if changes.time else ""
    given = [changes.budget] if changes.budget is not None else []
    text = ",".join([*given, time] if time else given)
    return tightened(state.plan.limits, text) if given or time else None


def _events(service: Service, state: State, *, by: str, changes: ResumeChanges) -> list[AnyEvent]:
    at = service.clock.now_ms()
    limits = _limits(state, changes)
    mode: Literal["", "continue", "restart"] = "restart" if changes.restart else "continue"
    timed = changes.time or "time" in (changes.budget or "")
    agents = changed_agents(state, changes.agents, at=at, by=by, admission=service.admission)
    uncovered = uncovered_agents(
        service.costs, state.plan, limits, agents, allow=changes.allow_unknown_cost
    )
    level = changes.sandbox
    if level is not None:  # refused if it cannot be enforced
        level = service.sandbox.change(state.plan, level)
    opened = RunReopened(
        at=at,
        by=by,
        mode="" if changes.stage is not None else mode,
        limits=limits,
        uncovered=uncovered,
        allow_unknown_cost=changes.allow_unknown_cost,
        passes=changes.passes,
        stage=changes.stage,
        note=changes.note,
        time_ms=limits.wall_ms if limits is not None and timed else None,
        accept_changes=changes.accept_changes,
        sandbox=level,
    )
    return [opened, *agents]


def uncovered_agents(
    costs: CostRules | None,
    plan: Plan,
    limits: Limits | None,
    agents: Sequence[AnyEvent],
    *,
    allow: bool,
) -> tuple[str, ...] | None:
    """Agents that limits in USD do not cover from now on; refused unless that is allowed."""
    if costs is None:
        return None
    changed = {one.agent: one.becomes for one in agents if isinstance(one, AgentChanged)}
    becomes = msgspec.structs.replace(
        plan, limits=limits or plan.limits, agents={**plan.agents, **changed}
    )
    found = costs.covered(becomes, allow=allow).uncovered
    return None if found == plan.uncovered else found


def changed_agents(
    state: State, given: Sequence[str], *, at: int, by: str, admission: Admission | None
) -> list[AnyEvent]:
    """Agents that have something else behind them from now on: `SPEC` for all, or `NAME=SPEC`."""
    plan = state.plan
    if admission is not None and given:
        given = with_entry_names(given, admission.names())
    default, named = agent_choices(given)
    if not default and not named:
        return []
    here = Path.cwd()
    bound = bind_agents(plan, default=default, named=named, base=here, cwd=here)
    bound = with_rights(bound, rights_of(plan))
    changed: Mapping[str, Agent] = {
        name: agent for name, agent in bound.agents.items() if agent != plan.agents.get(name)
    }
    if state.started is not None:
        folder = Path(state.started.workspace)
        if admission is not None:
            changed = admission.admit_agents(changed, run=state.run, by=by, workspace=folder)
        check_scripts(changed)
        preflight_agents(changed, folder, plan.pass_env)
    return [
        AgentChanged(at=at, agent=name, becomes=agent, by=by) for name, agent in changed.items()
    ]


class ResumedRun(NamedTuple):
    """A run that was resumed, the number of its newest event before that, and where it continues,
    in words. `is_own` is false for one that another process has resumed at the same time.
    """

    run: str
    seen: int
    words: str
    is_own: bool = True


def runs_to_pause(service: Service) -> list[str]:
    """Every run that could continue by itself or after an answer."""
    return [row.run for row in service.rows(("running", "waiting"))]


async def pause_run(service: Service, run: str, *, by: str | None = None) -> bool:
    """Pause a run; False when it was paused already."""
    if service.log.row(run).headline.status == "paused":
        return False
    await service.pause(run, by=current_user() if by is None else by)
    return True


# -- resuming ------------------------------------------------------------------------------------


async def resume_run(
    service: Service, reference: str, changes: ResumeChanges = NO_CHANGES, *, by: str | None = None
) -> ResumedRun:
    """Resume a run. One that has ended without completing continues where it stopped. One that
    waits for a time is checked at once, if this service drives runs.
    """
    one = await _resume(service, reference, changes, by=by)
    row = service.log.row(one.run)
    if (
        service.driver is not None
        and row.headline.status == "waiting"
        and row.headline.wake_at is not None
    ):
        service.look(one.run)
    return one


async def _resume(
    service: Service, reference: str, changes: ResumeChanges, *, by: str | None
) -> ResumedRun:
    run, who = service.find(reference), current_user() if by is None else by
    seen = service.log.version(run)
    if has_ended(service, run):
        words = await reopen(service, run, by=who, changes=changes)
        return ResumedRun(run, seen, words)
    if changes:
        raise Conflict(
            f"{run} has not ended, so nothing about it can be changed now",
            code="not-ended",
            hint=f"`loopwright stop {run}` ends it, and then `loopwright resume {run}` takes these "
            "options",
        )
    check_folder(service.state(run))
    await service.resume(run, by=who)
    return ResumedRun(run, seen, f"{run} resumed")


async def resume_all(here: Local) -> list[ResumedRun]:
    """Resume all runs that are paused or that no process drives; not those that another process
    drives.
    """
    seen = {row.run: row.version for row in here.service.rows(OPEN_STATUSES)}
    resumed: list[str] = []
    others: set[str] = set()
    for row in here.service.rows(("paused",)):
        if driver_pid(here.log, row) in (None, here.driver.server_pid, os.getpid()):
            try:
                is_own = await here.service.resume(row.run, by=current_user())
            except StorageError as error:  # one that is damaged must not hold up the others
                here.driver.trouble(row.run, error)
            else:
                resumed.append(row.run)
                others |= set() if is_own else {row.run}
    # A quick one has already ended; it is reported too.
    taken = dict.fromkeys([*resumed, *here.service.recover()])
    return [
        ResumedRun(run, version, f"{run} resumed", is_own=run not in others)
        for run, version in seen.items()
        if run in taken
    ]


# -- stopping ------------------------------------------------------------------------------------


async def stop_and_wait(
    service: Service, run: str, *, by: str, is_closing: Callable[[], bool] = lambda: False
) -> StopState:
    """End a run and wait until nothing is left of it, at most `STOP_SECONDS`. A run that has ended
    stays as it is.
    """
    await service.stop(run, by=by)
    return await wait_until_stopped(service.log, [run], is_closing=is_closing)


def ended_error(run: str, status: str, reason: str) -> Conflict:
    """A run that cannot be stopped because it has ended."""
    return Conflict(f"{run} has already ended: {status} ({reason})", code="ended")


def stopping_error(run: str, pids: Sequence[int]) -> Conflict:
    """A run that did not end in time after it was stopped, with the processes that still live."""
    listed = ", ".join(map(str, pids))
    why = f"its processes {listed} have not ended yet" if pids else "it has not ended yet"
    return Conflict(
        f"{run} is stopping: {why}",
        code="stopping",
        hint="`loopwright stop` again waits for it; end the processes yourself if they stay",
    )
