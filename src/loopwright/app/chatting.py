"""Chat models on this machine: the gateway and the tools behind one performer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from loopwright.app.desks import Desks
from loopwright.app.granting import Server, grant_of
from loopwright.app.rights import DENIED
from loopwright.app.schemas import schema_problem
from loopwright.app.stage_servers import LoopAnswers
from loopwright.app.toolroom import open_workshop
from loopwright.errors import LoopwrightError
from loopwright.gateway.catalogue import Catalogue
from loopwright.gateway.client import Gateway
from loopwright.gateway.turns import Turns
from loopwright.model.messages import CallPart
from loopwright.model.plan import Agent, encode_agent
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import effective_level
from loopwright.model.turns import WantedCall
from loopwright.ports import Bus, Clock, Job, Offered, ToolEnd, Tools
from loopwright.programs.sandbox import Sandbox
from loopwright.tools.outcome import ToolOutcome
from loopwright.tools.shelf import FolderShelf
from loopwright.tools.toolbox import Offer
from loopwright.tools.workshop import Workshop

MOST_TOOLBOXES = 256


NOBODY = "denied: nobody is here to be asked about {tool}; whoever starts the run allows it with "
NOBODY += "--allow {tool}"


class Denying:
    """Tools some of which are refused, each time and with the reason: nobody can be asked."""

    def __init__(self, tools: Tools, denied: frozenset[str]) -> None:
        self._tools = tools
        self._denied = denied

    async def specs(self) -> Offered:
        return await self._tools.specs()

    async def resolve(self, call: CallPart) -> WantedCall:
        wanted = await self._tools.resolve(call)
        if not self._is_denied(wanted.tool):
            return wanted
        return msgspec.structs.replace(wanted, problem=NOBODY.format(tool=wanted.tool))

    async def run(
        self, tool: str, arguments: JsonValue, *, approved: bool = False, key: str = ""
    ) -> ToolEnd:
        if self._is_denied(tool):  # never asked for, as a call with a problem is not run
            raise LoopwrightError(NOBODY.format(tool=tool), code="denied-tool")
        return await self._tools.run(tool, arguments, approved=approved, key=key)

    def repeatable(self, tool: str) -> bool:
        return self._tools.repeatable(tool)

    def _is_denied(self, tool: str) -> bool:
        return tool in self._denied or f"{tool.partition('.')[0]}.*" in self._denied


class ChatLoops(LoopAnswers, Protocol):
    """The loop tools of a chat model."""

    async def answer(
        self, name: str, arguments: dict[str, JsonValue], *, until_ended: bool = False
    ) -> ToolOutcome:
        """Use one of them; a start waits for the child run."""


FindChatLoops: TypeAlias = Callable[[Job, Agent], ChatLoops | None]


class WithLoops:
    """Tools together with the loop tools of an agent. A start answers when its run has ended, so no
    child run is without its parent after the call.
    """

    def __init__(self, tools: Tools, loops: ChatLoops) -> None:
        self._tools = tools
        self._loops = loops
        self._offered = {one.name: one for one in loops.specs()}

    async def specs(self) -> Offered:
        others = await self._tools.specs()
        return Offer(tools=(*others.tools, *self._offered.values()), problems=others.problems)

    async def resolve(self, call: CallPart) -> WantedCall:
        if call.tool in self._loops.refused:
            refusal = await self._loops.answer(call.tool, {})
            return WantedCall(id=call.id, tool=call.tool, arguments=call.args, problem=refusal.text)
        if call.tool not in self._offered:
            return await self._tools.resolve(call)
        try:
            arguments = msgspec.json.decode(call.args.strip() or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            problem: str | None = f"the arguments are not JSON: {error}"
        else:
            problem = schema_problem(self._offered[call.tool].schema, arguments)
        if problem is not None:
            return WantedCall(id=call.id, tool=call.tool, arguments=call.args, problem=problem)
        return WantedCall(id=call.id, tool=call.tool, arguments=arguments)

    async def run(
        self, tool: str, arguments: JsonValue, *, approved: bool = False, key: str = ""
    ) -> ToolEnd:
        if tool in self._offered and isinstance(arguments, dict):
            return await self._loops.answer(tool, arguments, until_ended=True)
        return await self._tools.run(tool, arguments, approved=approved, key=key)

    def repeatable(self, tool: str) -> bool:
        return self._tools.repeatable(tool) if tool not in self._offered else tool != "loop_start"


@dataclass(slots=True)
class Chats:
    """Everything that chat models need; nothing of it is loaded before one is asked."""

    environment: Mapping[str, str]
    clock: Clock
    token: str
    results: Path  # where long results of tools are kept
    servers: Mapping[str, Server] = field(default_factory=dict)
    desks: Desks | None = None
    catalogue: Catalogue | None = None
    sandbox: Sandbox = field(default_factory=Sandbox)
    find_loops: FindChatLoops = lambda job, agent: None
    _gateway: Gateway = field(init=False)
    workshop: Workshop = field(init=False)
    _boxes: dict[tuple[str, str, bytes], Tools] = field(init=False)

    def __post_init__(self) -> None:
        self._gateway = Gateway(env=self.environment, clock=self.clock, catalogue=self.catalogue)
        self.workshop = open_workshop(self.environment, self.token, self.sandbox)
        self._boxes = {}

    def performer(self, bus: Bus) -> Turns:
        return Turns(self._gateway, self._tools_of, bus, schema_problem, self.catalogue)

    def _tools_of(self, job: Job) -> Tools:
        """The tools of an agent in a run; they stay the same from turn to turn."""
        agent = self._with_level(job)
        key = job.run, job.workspace, encode_agent(agent)
        if key not in self._boxes:
            grant = grant_of(agent, self.servers)
            shelf = FolderShelf(self.results / job.run)
            desk = self.desks.of(job) if self.desks is not None else None
            identity = self.sandbox.workspace_identity(job.run, job.workspace)
            box: Tools = self.workshop.toolbox(job.workspace, grant, shelf, desk, identity)
            denied = agent.options.get(DENIED)
            if isinstance(denied, list):
                box = Denying(box, frozenset(one for one in denied if isinstance(one, str)))
            while len(self._boxes) >= MOST_TOOLBOXES:
                self._boxes.pop(next(iter(self._boxes)))
            self._boxes[key] = box
        loops = self.find_loops(job, agent)
        return self._boxes[key] if loops is None else WithLoops(self._boxes[key], loops)

    def _with_level(self, job: Job) -> Agent:
        """The agent of a job with the sandbox level of its run: its file tools keep to it, and so
        do the programs that it starts.
        """
        agent = job.agent or Agent()
        level = effective_level(
            job.sandbox, requested=agent.sandbox, default=self.sandbox.policy.default
        )
        return msgspec.structs.replace(agent, sandbox=level)

    async def close(self) -> None:
        """End servers and connections."""
        await self.workshop.close()
        await self._gateway.close()
