"""Chat models with tools on this machine, and the MCP server with tools for coding agents.

The MCP server lives as long as the call. It is this process itself, behind a socket in a folder
that only this user may enter. A client must run as this user and show the token of the call,
which is in a file of that folder and is removed with it. The server offers the trackers that
the level of the agent allows, and the loop tools that its definition names.
"""

import asyncio
import hmac
import os
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Protocol, TypeAlias

import msgspec

from loopwright import host
from loopwright.agents import pump
from loopwright.agents.clis.command_line import StageServer
from loopwright.agents.files import find_private
from loopwright.agents.processes.process import ProgramEnd, ProgramStart
from loopwright.agents.processes.process_tree import InsideRun, find_unix_peer
from loopwright.agents.processes.supervise import HAS_TABLE
from loopwright.agents.program_files import (
    SWEEP_VARIABLE,
    CannotStart,
    agent_environment,
    program_files,
    resolve_program,
)
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, works
from loopwright.engine.services import schema_problem
from loopwright.errors import LoopwrightError
from loopwright.gateway.client import Gateway
from loopwright.gateway.models import Catalogue
from loopwright.gateway.turns import ModelTurns
from loopwright.model.chat import CallPart, ChatTool, RequestedCall
from loopwright.model.plan import Agent, encode_agent
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import effective_level, strictest
from loopwright.operations.agents.permissions import DENIED
from loopwright.operations.agents.tool_grants import Server, TrackerScopes, grant_of, tracker_names
from loopwright.ports import AgentTools, Bus, Clock, EffectJob, OfferedTools, ToolEnd
from loopwright.tools.builtin import OnRunning, OnStdout, ToolCommand, WebPage
from loopwright.tools.results import FolderResultStore, ToolCallResult
from loopwright.tools.toolbox import Grant, Offer, Toolbox, Workshop
from loopwright.tools.workspace_tree import PrivateFolders

KEPT_STDOUT_BYTES = 64 * 1024
PRIVATE_SECONDS = 1.0


class SupervisedPrograms:
    """Runs the programs of tools as those of agents are run: under a supervisor that leaves
    no files, with an environment that contains only the allowed variables.
    """

    def __init__(
        self, environment: Mapping[str, str], token: str, sandbox: Sandbox | None = None
    ) -> None:
        self._sandbox = sandbox or Sandbox()
        self._base = environment
        self._token = token

    def environment(self, pass_on: Iterable[str]) -> dict[str, str]:
        handed_on = {name: self._base[name] for name in pass_on if name in self._base}
        return agent_environment(self._base, handed_on, {SWEEP_VARIABLE: self._token})

    def secret(self, name: str) -> str | None:
        return self._base.get(name)

    def find(self, argv0: str, cwd: str, path: str | None) -> str:
        try:
            return resolve_program(argv0, cwd, path)
        except CannotStart as why:
            raise LookupError(why.detail) from None

    async def run(
        self, command: ToolCommand, on_stdout: OnStdout, on_running: OnRunning | None = None
    ) -> ProgramEnd:
        program = ProgramStart(
            argv=command.argv,
            cwd=command.cwd,
            env=command.env,
            wall_s=command.wall_s,
            stdout_cap=KEPT_STDOUT_BYTES,
            stderr_cap=command.stderr_cap,
        )
        if command.root:  # it starts in the workspace, and then changes to the folder it is for
            program = replace(program, cwd=command.root)
        confinement = self._confinement(command)
        if self._sandbox.is_off(confinement):
            program = replace(program, cwd=command.cwd)
        return await self._sandbox.run(
            program, confinement, on_stdout=on_stdout, on_running=on_running
        )

    def _confinement(self, command: ToolCommand) -> Confinement:
        """How a command is confined. Where bubblewrap does not work, a command that reads is held
        by the rules about arguments alone.
        """
        level = command.sandbox or self._sandbox.policy.default
        reads = command.wall == "reading" and works() is None
        writes = command.wall == "writing"
        return Confinement(
            level=strictest(level, "readonly" if reads else "workspace" if writes else None),
            commands="reading" if command.wall == "reading" else "all",
            start=command.cwd,
            offline=command.offline,
        )


def open_workshop(
    environment: Mapping[str, str], token: str, sandbox: Sandbox | None = None
) -> Workshop:
    """The workshop of this process; `token` marks every process that it starts."""
    sandbox = sandbox or Sandbox()
    programs = SupervisedPrograms(environment, token, sandbox)
    return Workshop(
        programs,
        schema_problem,
        find_private=_PrivatePaths(sandbox).find,
        web=_Web(),
        record_work=sandbox.record_work,
    )


class _Web:
    """Pages of the public web; what fetches them is loaded for the first page."""

    async def get(self, url: str, seconds: float) -> WebPage:
        from loopwright.operations.outgoing_requests import (  # noqa: PLC0415 - takes time to load
            PublicWeb,
        )

        return await PublicWeb().get(url, seconds)


class _PrivatePaths:
    """What file tools in a workspace do not see. It is looked up again after a second: one search
    opens thousands of files.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._known: dict[str, tuple[float, PrivateFolders]] = {}

    def find(self, workspace: str) -> PrivateFolders:
        now = monotonic()
        known = self._known.get(workspace)
        if known is not None and now - known[0] < PRIVATE_SECONDS:
            return known[1]
        found = find_private(self._sandbox.hidden_paths(workspace))
        private = PrivateFolders(found.folders | found.files, found.worktrees)
        self._known = {workspace: (now, private)}
        return private


NAME = "loopwright"
TOKEN_SECONDS = 10.0
_PEER = struct.Struct("3i")


class LoopAnswers(Protocol):
    """The loop tools of one call."""

    @property
    def refused(self) -> frozenset[str]:
        """Names of loop tools that the agent does not have."""

    def specs(self) -> list[ChatTool]:
        """The tools that it has."""

    async def answer(self, name: str, arguments: dict[str, JsonValue]) -> ToolCallResult:
        """Use one of them, or refuse."""

    def check_caller(self, inside: InsideRun | None) -> bool:
        """Whether a process is one of the agent; any other one is written to the audit log."""

    async def close(self) -> None:
        """End what it has started."""


FindLoops: TypeAlias = Callable[[EffectJob, Agent], LoopAnswers | None]
"""Makes the loop tools of a call; None for an agent without a right to them."""


@dataclass(slots=True)
class Served:
    """One stage: its tools under the names that agents can use, and what it was asked before."""

    job: EffectJob
    box: Toolbox
    specs: tuple[ChatTool, ...]
    own: dict[str, str]  # the name that was offered: the tool's own
    requests: Counter[str] = field(default_factory=Counter)
    loops: LoopAnswers | None = None

    @property
    def offered(self) -> tuple[ChatTool, ...]:
        return (*self.specs, *(self.loops.specs() if self.loops is not None else ()))

    @property
    def refused(self) -> frozenset[str]:
        """Names that are answered with a refusal, which is recorded."""
        return self.loops.refused if self.loops is not None else frozenset()

    async def answer(self, name: str, arguments: dict[str, JsonValue]) -> ToolCallResult:
        if self.loops is not None and name not in self.own:
            return await self.loops.answer(name, arguments)
        tool = self.own[name]
        digest = blake2b(msgspec.json.encode(arguments, order="sorted"), digest_size=12).hexdigest()
        call = f"{tool}/{digest}"
        self.requests[call] += 1
        key = f"{self.job.run}/{self.job.effect}/{call}/{self.requests[call]}"
        return await self.box.run(tool, arguments, key=key)


class StageServers:
    """Makes a server for each call of a coding agent that has a level."""

    def __init__(self, tracker_scopes: TrackerScopes, workshop: Workshop, results: Path) -> None:
        self._tracker_scopes = tracker_scopes
        self._workshop = workshop
        self._results = results
        self.find_loops: FindLoops = lambda job, agent: None

    @asynccontextmanager
    async def serve(self, job: EffectJob, agent: Agent) -> AsyncIterator[StageServer | None]:
        """The server, as the configuration of an agent names it; none for an agent that has neither
        a level nor a right to loops.
        """
        names, loops = tuple(tracker_names(agent)), self.find_loops(job, agent)
        if not names and loops is None:
            yield None
            return
        served = await self._served(job, names)
        served.loops = loops
        folder = Path(tempfile.mkdtemp(prefix="loopwright-stage-"))  # for this user alone
        token = token_hex(24)
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                if await _is_let_in(reader, writer, token) and _is_caller(loops, writer):
                    await _speak(served, reader, writer)
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_unix_server(
            connected, folder / "socket", limit=16 * 1024 * 1024
        )
        try:
            yield _write_server(folder, token)
        finally:
            server.close()
            for task in [*tasks]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            shutil.rmtree(folder, ignore_errors=True)
            if loops is not None:
                await loops.close()

    async def _served(self, job: EffectJob, names: tuple[str, ...]) -> Served:
        shelf = FolderResultStore(self._results / job.run)
        box = self._workshop.toolbox(
            job.workspace, Grant(native=names), shelf, self._tracker_scopes.of(job)
        )
        tools = (await box.specs()).tools
        own = {one.name.replace(".", "_"): one.name for one in tools}
        specs = tuple(
            msgspec.structs.replace(one, name=one.name.replace(".", "_")) for one in tools
        )
        return Served(job=job, box=box, specs=specs, own=own)


async def _is_let_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> bool:
    """Whether the connecting process belongs to this user and knows the token."""
    if host.peer_user(writer.get_extra_info("socket")) != os.getuid():
        return False
    with suppress(TimeoutError, ValueError):
        digest = await asyncio.wait_for(reader.readline(), TOKEN_SECONDS)
        return hmac.compare_digest(digest.strip(), token.encode())
    return False


def _is_caller(loops: LoopAnswers | None, writer: asyncio.StreamWriter) -> bool:
    """Whether a process of the agent itself connects. At `guard` other agents of this user can read
    the token, so it is not enough for loop tools: without a process table they are refused.
    """
    if loops is None:
        return True
    return HAS_TABLE and loops.check_caller(find_unix_peer(writer.get_extra_info("socket")))


async def _speak(
    served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    from loopwright.tools.mcp.server import serve_connection  # noqa: PLC0415 - takes 0.5 s

    await serve_connection(
        NAME, served.offered, served.answer, streams=(reader, writer), refused=served.refused
    )


def _write_server(folder: Path, token: str) -> StageServer:
    """The files that are passed to a program, and its arguments for the server."""
    secret = folder / "token"
    secret.touch(mode=0o600)
    secret.write_text(f"{token}\n", encoding="utf-8")
    argv = (sys.executable, "-I", "-S", pump.__file__, str(folder / "socket"), str(secret))
    command: dict[str, JsonValue] = {"command": argv[0], "args": list(argv[1:])}
    config = folder / "servers.json"
    config.write_bytes(
        msgspec.json.encode({"mcpServers": {NAME: {"type": "stdio", "trust": True, **command}}})
    )
    shown = (str(folder), pump.__file__, *program_files(sys.executable))
    return StageServer(name=NAME, argv=argv, config=str(config), shows=shown)


MOST_TOOLBOXES = 256


NOBODY = "denied: no person can be asked about {tool}; to allow it, start the run with "
NOBODY += "--allow {tool}"


class Denying:
    """Tools of which some calls are refused, each time with the reason: no one can be asked."""

    def __init__(self, tools: AgentTools, denied: frozenset[str]) -> None:
        self._tools = tools
        self._denied = denied

    async def specs(self) -> OfferedTools:
        return await self._tools.specs()

    async def resolve(self, call: CallPart) -> RequestedCall:
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
    ) -> ToolCallResult:
        """Use one of them; a start waits for the child run."""


FindChatLoops: TypeAlias = Callable[[EffectJob, Agent], ChatLoops | None]


class WithLoops:
    """Tools together with the loop tools of an agent. A start answers when its run has ended, so no
    child run is without its parent after the call.
    """

    def __init__(self, tools: AgentTools, loops: ChatLoops) -> None:
        self._tools = tools
        self._loops = loops
        self._offered = {one.name: one for one in loops.specs()}

    async def specs(self) -> OfferedTools:
        others = await self._tools.specs()
        return Offer(tools=(*others.tools, *self._offered.values()), problems=others.problems)

    async def resolve(self, call: CallPart) -> RequestedCall:
        if call.tool in self._loops.refused:
            refusal = await self._loops.answer(call.tool, {})
            return RequestedCall(
                id=call.id, tool=call.tool, arguments=call.args, problem=refusal.text
            )
        if call.tool not in self._offered:
            return await self._tools.resolve(call)
        try:
            arguments = msgspec.json.decode(call.args.strip() or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            problem: str | None = f"the arguments are not JSON: {error}"
        else:
            problem = schema_problem(self._offered[call.tool].schema, arguments)
        if problem is not None:
            return RequestedCall(id=call.id, tool=call.tool, arguments=call.args, problem=problem)
        return RequestedCall(id=call.id, tool=call.tool, arguments=arguments)

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
    tracker_scopes: TrackerScopes | None = None
    catalogue: Catalogue | None = None
    sandbox: Sandbox = field(default_factory=Sandbox)
    find_loops: FindChatLoops = lambda job, agent: None
    _gateway: Gateway = field(init=False)
    workshop: Workshop = field(init=False)
    _boxes: dict[tuple[str, str, bytes], AgentTools] = field(init=False)

    def __post_init__(self) -> None:
        self._gateway = Gateway(env=self.environment, clock=self.clock, catalogue=self.catalogue)
        self.workshop = open_workshop(self.environment, self.token, self.sandbox)
        self._boxes = {}

    def performer(self, bus: Bus) -> ModelTurns:
        return ModelTurns(self._gateway, self._tools_of, bus, schema_problem, self.catalogue)

    def _tools_of(self, job: EffectJob) -> AgentTools:
        """The tools of an agent in a run; they stay the same from turn to turn."""
        agent = self._with_level(job)
        key = job.run, job.workspace, encode_agent(agent)
        if key not in self._boxes:
            grant = grant_of(agent, self.servers)
            shelf = FolderResultStore(self.results / job.run)
            tracker_scope = self.tracker_scopes.of(job) if self.tracker_scopes is not None else None
            identity = self.sandbox.workspace_identity(job.run, job.workspace)
            box: AgentTools = self.workshop.toolbox(
                job.workspace, grant, shelf, tracker_scope, identity
            )
            denied = agent.options.get(DENIED)
            if isinstance(denied, list):
                box = Denying(box, frozenset(one for one in denied if isinstance(one, str)))
            while len(self._boxes) >= MOST_TOOLBOXES:
                self._boxes.pop(next(iter(self._boxes)))
            self._boxes[key] = box
        loops = self.find_loops(job, agent)
        return self._boxes[key] if loops is None else WithLoops(self._boxes[key], loops)

    def _with_level(self, job: EffectJob) -> Agent:
        """The agent of a job with the sandbox level of its run: its file tools keep to it, and so
        do the programs that it starts.
        """
        agent = job.agent or Agent()
        level = effective_level(
            job.confinement.sandbox, requested=agent.sandbox, default=self.sandbox.policy.default
        )
        return msgspec.structs.replace(agent, sandbox=level)

    async def close(self) -> None:
        """End servers and connections."""
        await self.workshop.close()
        await self._gateway.close()
