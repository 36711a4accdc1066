"""Loop tools for an agent of a run, with the rights that its definition states (`loops`).

`start` starts child runs of the calling run, `look` shows that run and its child runs. Everything
else that people do with loops is refused (`inside-run`) and written to the audit log. The tools act
in the process that drives the run, so they also work for agents that cannot see the data directory.

A child run has no more rights than the agent that starts it: its agents are that agent with other
instructions, at the same sandbox level or a stricter one, and with what the budget has left. It
ends with the call that started it.
"""

import asyncio
import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from loopwright.agents.specs import Spec, parse_spec, unfit_agent
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.kernel.event_parts import AgentCall, ModelCall, ToolCall
from loopwright.kernel.events import RunStarted
from loopwright.model.access import DENIED_TOOLKITS, denied_toolkits, is_offline, narrower
from loopwright.model.chat import ChatTool
from loopwright.model.plan import Agent, LoopRight
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel, effective_level, strictest
from loopwright.operations.accounts.access import (
    Access,
    InsideRun,
    acting_as,
    find_caller,
    record_refusal,
)
from loopwright.operations.agents.allowlist import AgentRegistry
from loopwright.operations.agents.tool_grants import asking, granted_names
from loopwright.operations.child_runs import AgentRights
from loopwright.operations.dialects import OF_LOOPS
from loopwright.operations.mcp.loop_tools import (
    Arguments,
    LoopTools,
    check_arguments,
    read_parameters,
    read_text,
)
from loopwright.operations.problems import problem_words
from loopwright.operations.run_admission import ADMIN
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_tail import wait_for_end
from loopwright.operations.runs import row_ended
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.role_loops import RoleLoops, StartedRoleLoop, StartRoleLoop
from loopwright.operations.wiring import Local
from loopwright.ports import EffectJob
from loopwright.tools.builtin import schema, text, whole
from loopwright.tools.results import ToolCallResult

VIA = "agent"
"""How the audit log names what an agent did with its loop tools."""
CALL_ENDED = "parent_gone"
"""Why a child run was stopped: the call that started it has ended."""
MOST_OPEN = 8
"""Child runs that one agent may have open at the same time."""
LONGEST_WAIT_S = 50
"""Clients of the protocol commonly give a tool call 60 seconds."""
WAIT = "wait_seconds"
TOOLS_OF: Mapping[LoopRight, tuple[str, ...]] = {
    "start": ("loop_start", "loop_definitions"),
    "look": ("loop_list", "loop_status", "loop_activity", "loop_events", "loop_diff"),
}

START = ChatTool(
    name="loop_start",
    description="Start a loop from a definition with a goal, as a child run of this run. It uses "
    "the budget of this run and ends with this call at the latest; wait for it with loop_status.",
    schema=schema(
        ("definition", "goal"),
        definition=text("Name of a definition; loop_definitions lists them"),
        goal=text("The goal of the loop"),
        max_iterations=whole("Most iterations"),
        agent=text(
            "Agent of its stages: the name of an agent of this run or of the list of "
            "agents; without it, the agent that calls"
        ),
        parameters={
            "type": ["string", "object"],
            "description": "Parameters of the definition, as a JSON object",
        },
    ),
)
STATUS = ChatTool(
    name="loop_status",
    description="One run in detail: status, iteration, stages and output. With wait_seconds it "
    "answers when the run has ended, or after that time.",
    schema=schema(
        ("id",),
        id=text("Id of the run, or the beginning of it"),
        wait_seconds={"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_S},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingAgent:
    """The agent that uses the tools, and its run."""

    run: str
    name: str
    agent: Agent
    workspace: Path
    level: SandboxLevel
    agents: Mapping[str, Agent]  # all agents of the run


def find_agent_loops(
    here: Local, settings: Settings, job: EffectJob, agent: Agent
) -> "AgentLoops | None":
    """The loop tools of the agent of a job; None without a right, and in stages of role loops."""
    if not agent.loops:
        return None
    first = here.log.read(job.run, limit=1)[0].event
    if not isinstance(first, RunStarted) or first.dialect == OF_LOOPS:
        return None
    called = job.call
    name = called.agent if isinstance(called, AgentCall | ModelCall | ToolCall) else ""
    caller = CallingAgent(
        run=job.run,
        name=name,
        agent=agent,
        workspace=Path(job.workspace),
        level=effective_level(
            job.confinement.sandbox,
            requested=agent.sandbox,
            access=agent.access,
            offline=is_offline(agent),
            default=settings.sandbox,
        ),
        agents=here.service.plan(first).agents,
    )
    return AgentLoops(here=here, settings=settings, caller=caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoops:
    """The loop tools of one call."""

    here: Local
    settings: Settings
    caller: CallingAgent
    started: list[str] = field(default_factory=list)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: set["asyncio.Task[StartedRoleLoop]"] = field(default_factory=set)

    # -- what is offered

    @property
    def offered(self) -> tuple[str, ...]:
        return tuple(name for right in self.caller.agent.loops for name in TOOLS_OF[right])

    @property
    def refused(self) -> frozenset[str]:
        """Names of loop tools that the agent does not have: using them is recorded."""
        return self._tools().all_names() - {*self.offered}

    def specs(self) -> list[ChatTool]:
        own = {one.name: one for one in self._tools().specs()} | {
            one.name: one for one in (START, STATUS)
        }
        return [own[name] for name in self.offered]

    async def answer(
        self, name: str, arguments: Arguments, *, until_ended: bool = False
    ) -> ToolCallResult:
        """Use a tool. With `until_ended`, a start answers when the child run has ended."""
        try:
            if name not in self.offered:
                self._rights().refuse("use the tool", name)
            own = next((one for one in (START, STATUS) if one.name == name), None)
            if own is not None:
                check_arguments(own, arguments)
            if name == START.name:
                return ToolCallResult(text=await self._start(arguments, until_ended=until_ended))
            if name == STATUS.name:
                await self._wait(arguments)
        except LoopwrightError as error:
            return _failed(error)
        passed = {key: value for key, value in arguments.items() if key != WAIT}
        return await self._tools().answer(name, passed if name == STATUS.name else arguments)

    # -- starting

    async def _start(self, given: Arguments, *, until_ended: bool) -> str:
        try:
            async with self.starting:  # one after the other, as each counts those before it
                begun = await self._create(given)
            run = begun.loop_id
            if until_ended:
                await self._rest(run)
        finally:
            if until_ended:
                await self.close()
        if not until_ended:
            return msgspec.json.encode(begun).decode()
        return (await self._tools().answer(STATUS.name, {"id": run})).text

    async def _create(self, given: Arguments) -> StartedRoleLoop:
        open_runs = [run for run in self.started if not self._has_ended(run)]
        if len(open_runs) >= MOST_OPEN:
            raise LoopwrightError(
                f"{MOST_OPEN} child runs of this call are open",
                code="too-many",
                hint="wait for one of them with loop_status",
            )
        most = given.get("max_iterations")
        options = StartRoleLoop(
            definition=read_text(given, "definition"),
            goal=read_text(given, "goal"),
            parameters=read_parameters(given.get("parameters")),
            max_iterations=most if isinstance(most, int) else None,
        )
        spec = self._spec(read_text(given, "agent"))
        loops = replace(self._loops(), agents=(spec,), confine=self._confined)
        # The agent can only choose from agents that the owner of its run could start.
        with acting_as(ADMIN):
            task = asyncio.ensure_future(self._record(loops, options))
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        return await asyncio.shield(task)  # a call that ends meanwhile still knows its child run

    async def _record(self, loops: RoleLoops, options: StartRoleLoop) -> StartedRoleLoop:
        begun = await loops.start(options)
        self.started.append(begun.loop_id)
        return begun

    def _spec(self, name: str) -> str:
        """The spec of the agents of a child run: of the caller, its run, or the list of agents."""
        caller = self.caller
        if not name:
            return caller.agent.spec or ""
        own = caller.agents.get(name)
        registry = AgentRegistry(
            Access(self.here.log, self.here.service.clock), self.settings.agent
        )
        spec = own.spec if own is not None else registry.names().get(name)
        if spec is None:
            raise NotAllowed(
                f"agent {name[:80]!r} is neither of {caller.run} nor on the list of agents",
                code="agent-not-listed",
                hint=f"its agents are {', '.join(caller.agents)}",
            )
        return spec

    def _confined(self, start: RunStart) -> RunStart:
        """The start with no more rights than the caller has."""
        plan = start.plan
        agents = {
            name: confine_agent(name, agent, self.caller.agent, self.caller.level)
            for name, agent in plan.agents.items()
        }
        level = strictest(plan.sandbox, self.caller.level)
        changed = msgspec.structs.replace(
            plan, agents=agents, sandbox=None if level == "off" else level
        )
        return replace(start, plan=changed)

    # -- waiting and ending

    async def _wait(self, given: Arguments) -> None:
        seconds = given.get(WAIT)
        if isinstance(seconds, int) and seconds > 0:
            run = self._loops().here.service.find(read_text(given, "id"))
            with suppress(TimeoutError):
                if run != self.caller.run:  # that would only end after this call
                    async with asyncio.timeout(min(seconds, LONGEST_WAIT_S)):
                        await self._rest(run)

    async def _rest(self, run: str) -> None:
        """Wait until a run has ended; one that waits for a person has not."""
        if not self._has_ended(run):
            await wait_for_end(self.here.service, run)
        await self.here.driver.rest(run)

    def _has_ended(self, run: str) -> bool:
        return row_ended(self.here.log.row(run))

    async def close(self) -> None:
        """Stop the child runs that are still open. A driver that is closed leaves them unchanged:
        the next driver of the parent stops them.
        """
        await asyncio.gather(*self.pending, return_exceptions=True)
        for run in self.started:
            if self.here.driver.is_closed or self._has_ended(run):
                continue
            with suppress(LoopwrightError):
                await self.here.service.stop(run, by=self._inside().actor, reason=CALL_ENDED)
                await self.here.driver.rest(run)

    # -- who acts

    def check_caller(self, inside: InsideRun | None) -> bool:
        """Whether a process is one of the agent; any other one is written to the audit log."""
        caller, around = self.caller, find_caller()
        # All runs count: a program can start a supervisor of its own that names another run.
        runs = (caller.run, *(around.runs if around is not None else ()))
        if inside is not None and (inside.runs, inside.agent) == (runs, caller.name):
            return True
        what = f"use the loop tools of {self._inside().actor}"
        at, log = self.here.service.clock.now_ms(), self.here.log
        record_refusal(log, inside or InsideRun(), what, at=at, via=VIA)
        return False

    def _inside(self) -> InsideRun:
        caller = self.caller
        return InsideRun(run=caller.run, agent=caller.name, runs=(caller.run,))

    def _rights(self) -> AgentRights:
        log, clock = self.here.log, self.here.service.clock
        return AgentRights(inside=self._inside(), log=log, records=log, clock=clock, via=VIA)

    def _loops(self) -> RoleLoops:
        """The loops as the agent may use them."""
        service = copy.copy(self.here.service)
        service.inside, service.rights, service.via = self._inside(), self._rights(), VIA
        return RoleLoops(
            here=replace(self.here, service=service),
            settings=self.settings,
            cwd=self.caller.workspace,
            by=self._inside().actor,
        )

    def _tools(self) -> LoopTools:
        return LoopTools(loops=self._loops())


def confine_agent(name: str, agent: Agent, caller: Agent, level: SandboxLevel) -> Agent:
    """An agent of a child run with no more rights than the agent that starts it."""
    is_limited = caller.tools is not None or any(
        (caller.deny_tools, caller.permission, caller.approvals)
    )
    kinds = {_kind(one) for one in (agent, caller)}
    if is_limited and len(kinds) > 1:
        raise NotAllowed(
            "the agent that starts the run is limited by `tools`, `permission` or `approvals`, "
            f"which mean something else for {agent.spec!r}",
            code="widens",
            hint="leave `agent` out, or name an agent of the same kind",
        )
    is_same = agent.spec == caller.spec
    tools = tuple(granted_names(caller)) if caller.is_chat else caller.tools
    taken: list[JsonValue] = [*sorted(denied_toolkits(agent) | denied_toolkits(caller))]
    options = {**agent.options, **caller.options, **({DENIED_TOOLKITS: taken} if taken else {})}
    confined = msgspec.structs.replace(
        agent,
        tools=tools if agent.tools is None else agent.tools,
        deny_tools=(*agent.deny_tools, *caller.deny_tools),
        permission=caller.permission or agent.permission,
        approvals={**agent.approvals, **caller.approvals},
        access=narrower(agent.access, caller.access),
        sandbox=agent.sandbox if level == "off" else strictest(agent.sandbox, level),
        options=options,
        model=agent.model or (caller.model if is_same else None),
        env={**caller.env, **agent.env} if is_same else agent.env,
        pass_env=caller.pass_env if is_same else (),
        max_usd=caller.max_usd if agent.max_usd is None else agent.max_usd,
        loops=(),
    )
    spec = parse_spec(confined.spec or "")
    problem = unfit_agent(spec, confined) if isinstance(spec, Spec) else None
    if problem is not None:
        raise LoopwrightError(f"agent {name!r}: {problem}", code="bad-agent")
    return asking(confined) if confined.is_chat else confined


def _kind(agent: Agent) -> str:
    spec = parse_spec(agent.spec or "")
    return spec.kind if isinstance(spec, Spec) else ""


def _failed(error: LoopwrightError) -> ToolCallResult:
    return ToolCallResult(text=problem_words(error), error=True)
