"""Wiring: the one place where adapters are chosen and put together."""

import asyncio
import os
from collections import ChainMap
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from loopwright.agents.clis.command_line import StageServer
from loopwright.agents.performer import LocalPerformer
from loopwright.agents.processes.process_marks import sweep
from loopwright.agents.sandbox.bubblewrap import Sandbox
from loopwright.engine.activity import LiveBus
from loopwright.engine.driver import LocalDriver
from loopwright.engine.live_text import LiveText, serve_live_text
from loopwright.engine.services import SystemClock, schema_problem
from loopwright.errors import LoopwrightError, NotFound
from loopwright.gateway.models import Catalogue
from loopwright.kernel.event_parts import Worktree
from loopwright.kernel.events import RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.plan import Agent, stored_plan
from loopwright.operations.accounts.access import find_caller
from loopwright.operations.agents.programs import check_worktree
from loopwright.operations.agents.tool_grants import TrackerScopes, servers_of
from loopwright.operations.child_runs import TreeBudget
from loopwright.operations.cost_limits import PriceBook
from loopwright.operations.data_directory import (
    SERVED,
    LocalServerLink,
    Say,
    open_log,
    open_reader,
    open_service,
    reach,
    this_owner,
    workspaces_of,
)
from loopwright.operations.delegating_driver import DelegatingDriver, ServerHandle
from loopwright.operations.run_lists import presence_of
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_variables import RunVariables
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.shared_budget import BudgetedPerformer
from loopwright.operations.workspace_rules import confine_git, policy_of
from loopwright.ports import OPEN_STATUSES, Bus, Clock, EffectJob, Performer, Workspaces
from loopwright.stores.sqlite.log import SqliteLog
from loopwright.stores.trackers import SqliteTrackers
from loopwright.workspaces.worktrees import GitWorktrees

if TYPE_CHECKING:
    from loopwright.operations.agents.tools import ChatLoops, Chats, FindChatLoops, StageServers

__all__ = [
    "Local",
    "check_worktree_programs",
    "local",
    "near",
    "open_log",
    "open_reader",
    "sweep_leftovers",
    "this_owner",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Everything one process needs to drive runs on this machine."""

    service: Service
    driver: LocalDriver
    log: SqliteLog
    bus: LiveBus
    live: LiveText
    trackers: SqliteTrackers
    tracker_scopes: TrackerScopes
    workspaces: Workspaces
    sandbox: Sandbox
    jumped: Callable[[], int] = lambda: 0  # by how many ms the clock was set since the start


@asynccontextmanager
async def near(
    settings: Settings, via: str = "cli", *, say: Say = lambda _: None, alone: bool = False
) -> AsyncIterator[Local]:
    """All services, with runs driven by the local server if there is one."""
    # What an agent of a run starts is driven below that agent, and ends with it.
    alone = alone or find_caller() is not None
    line = None if alone else await reach(settings, say)
    async with local(settings, via, line=line, say=say) as here:
        yield here


@asynccontextmanager
async def local(
    settings: Settings,
    via: str = "cli",
    *,
    line: LocalServerLink | None = None,
    say: Say = lambda _: None,
) -> AsyncIterator[Local]:
    """Open everything, and close it in order, whatever happens. Runs are driven here, or at the
    other end of the line.
    """
    bus, clock = LiveBus(), SystemClock()
    owner = this_owner()
    with closing(open_log(settings)) as log, presence_of(settings).held(owner.token):
        sweep_leftovers(log)
        trackers = SqliteTrackers(log)
        tracker_scopes = TrackerScopes(
            log=log, trackers=trackers, clock=clock, data_directory=settings.home
        )
        price_book = PriceBook(settings.prices)
        sandbox = Sandbox(policy_of(settings, served=via == SERVED))
        tools = ToolsOfAgents(
            settings=settings,
            clock=clock,
            token=owner.token,
            tracker_scopes=tracker_scopes,
            catalogue=price_book.catalogue,
            sandbox=sandbox,
        )
        base = ChainMap({"LOOPWRIGHT_HOME": str(settings.home)}, os.environ)
        performer = LocalPerformer(
            bus, schema_problem, base, models=tools.models, price=price_book.price, sandbox=sandbox
        )
        paid = _within_budgets(performer, settings, log, clock)
        if line is None:
            driver = LocalDriver(log, paid, clock=clock, owner=owner, check_schema=schema_problem)
        else:
            driver = DelegatingDriver(
                log,
                paid,
                clock=clock,
                owner=owner,
                check_schema=schema_problem,
                server=ServerHandle(
                    line=line, settings=settings, bus=bus, heard=log.heard, say=say
                ),
            )
        performer.ask = driver.ask
        performer.stage = tools.serve_stage
        performer.look = tracker_scopes.look
        variables, worktrees = RunVariables(settings.home), _worktrees_of(settings)
        variables.remove_expired(lambda run: _is_open(log, run))
        performer.variables = variables.read
        driver.end_through(variables.remove, partial(_save_worktree, worktrees))
        workspaces = workspaces_of(settings)
        performer.workspaces = workspaces
        driver.open()
        try:
            service = open_service(settings, log, driver, via=via, book=price_book)
            async with serve_live_text(bus, settings.home, owner.token) as live:
                with _traced(service, driver):
                    here = Local(
                        service=service,
                        driver=driver,
                        log=log,
                        bus=bus,
                        live=live,
                        trackers=trackers,
                        tracker_scopes=tracker_scopes,
                        workspaces=workspaces,
                        sandbox=sandbox,
                        jumped=clock.jump_ms,
                    )
                    tools.find_loops = partial(_find_loops, here, settings)
                    yield here
        finally:
            await driver.close()
            await tools.close()


def _traced(service: Service, driver: LocalDriver) -> AbstractContextManager[object]:
    """Traces of the runs of a driver, if the environment has settings for them."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return nullcontext()
    from loopwright.operations.traces import traced

    return traced(service, driver, os.environ)


@dataclass(kw_only=True)
class ToolsOfAgents:
    """Chat models, and the servers with tools of coding agents. They are loaded when the first
    agent needs them: many runs have only agents that are programs.
    """

    settings: Settings
    clock: Clock
    token: str
    tracker_scopes: TrackerScopes
    catalogue: Catalogue
    sandbox: Sandbox
    find_loops: "FindChatLoops" = lambda job, agent: None

    def models(self, bus: Bus) -> Performer:
        """What performs the calls of chat models."""
        return self._chats.performer(bus)

    def serve_stage(
        self, job: EffectJob, agent: Agent
    ) -> AbstractAsyncContextManager[StageServer | None]:
        """The server with the tools of a coding agent, for one call."""
        return self._stages.serve(job, agent)

    async def close(self) -> None:
        """End servers and connections."""
        if "_chats" in self.__dict__:
            await self._chats.close()

    @cached_property
    def _chats(self) -> "Chats":
        from loopwright.operations.agents.tools import Chats

        return Chats(
            environment=os.environ,
            clock=self.clock,
            token=self.token,
            results=self.settings.results,
            servers=servers_of(self.settings.mcp),
            tracker_scopes=self.tracker_scopes,
            catalogue=self.catalogue,
            sandbox=self.sandbox,
            find_loops=self.find_loops,
        )

    @cached_property
    def _stages(self) -> "StageServers":
        from loopwright.operations.agents.tools import StageServers

        stages = StageServers(self.tracker_scopes, self._chats.workshop, self.settings.results)
        stages.find_loops = self.find_loops
        return stages


def _find_loops(
    here: Local, settings: Settings, job: EffectJob, agent: Agent
) -> "ChatLoops | None":
    """The loop tools of an agent, where its definition names them; loaded when first needed."""
    if not agent.loops:
        return None
    from loopwright.operations.mcp.agent_loop_tools import find_agent_loops

    return find_agent_loops(here, settings, job, agent)


async def _save_worktree(worktrees: GitWorktrees, worktree: Worktree) -> None:
    """Commit the result of a run. A failure here fails nothing: `apply` commits it too."""
    with suppress(LoopwrightError, OSError):
        await worktrees.save(worktree)


def _within_budgets(
    performer: Performer, settings: Settings, log: SqliteLog, clock: Clock
) -> Performer:
    """The performer, held to the budget of all runs and to those of the runs above a run."""
    if not settings.budget.is_open:
        performer = BudgetedPerformer(performer, settings.budget, log, clock)
    return TreeBudget(performer, log, clock, partial(_read_state, log))


def _read_state(log: SqliteLog, run: str) -> State:
    """The state of a run, folded now."""
    events = [numbered.event for numbered in log.read(run)]
    assert isinstance(events[0], RunStarted)
    return fold(stored_plan(log.blob, events[0].plan), events)


def _is_open(log: SqliteLog, run: str) -> bool:
    try:
        return log.row(run).headline.status in OPEN_STATUSES
    except NotFound:
        return False


def _worktrees_of(settings: Settings) -> GitWorktrees:
    return GitWorktrees(settings.worktrees, confine_git(settings))


def check_worktree_programs(settings: Settings, start: RunStart) -> None:
    """Refuse a run whose programs would be missing in its worktree, before anything is made."""
    plan = start.plan
    if plan.workspace.worktree:
        asyncio.run(check_worktree(_worktrees_of(settings), plan, start.workspace))


def sweep_leftovers(log: SqliteLog) -> int:
    """End processes of drivers that died without being able to."""
    rows = log.rows(statuses=("running", "paused", "waiting"))
    dead = {row.owner.token for row in rows if row.owner and not log.alive(row.owner)}
    return sweep(dead) if dead else 0
