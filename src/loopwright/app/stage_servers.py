"""Trackers and loop tools for coding agents: an MCP server that lives as long as the call.

The server is this process itself, behind a socket in a folder that only this user may enter. Who
connects must be of this user and show the token of the call, which is in a file of that folder and
gone with it. It offers the trackers that the level of the agent has, at the desk of its run, and
the loop tools that its definition names (`agent_loops`).
"""

import asyncio
import hmac
import os
import shutil
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Protocol, TypeAlias

import msgspec

from loopwright.agents.clis.arguments import StageServer
from loopwright.app.desks import Desks
from loopwright.app.granting import tracker_names
from loopwright.model.messages import ToolSpec
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.ports import Job
from loopwright.programs import pump
from loopwright.programs.lineage import InsideRun
from loopwright.programs.program_files import program_files
from loopwright.programs.socket_peers import find_unix_peer
from loopwright.programs.supervise import HAS_TABLE
from loopwright.tools.outcome import ToolOutcome
from loopwright.tools.shelf import FolderShelf
from loopwright.tools.toolbox import Grant, Toolbox
from loopwright.tools.workshop import Workshop

NAME = "loopwright"
TOKEN_SECONDS = 10.0
_PEER = struct.Struct("3i")


class LoopAnswers(Protocol):
    """The loop tools of one call."""

    @property
    def refused(self) -> frozenset[str]:
        """Names of loop tools that the agent does not have."""

    def specs(self) -> list[ToolSpec]:
        """The tools that it has."""

    async def answer(self, name: str, arguments: dict[str, JsonValue]) -> ToolOutcome:
        """Use one of them, or refuse."""

    def check_caller(self, inside: InsideRun | None) -> bool:
        """Whether a process is one of the agent; any other one is written to the audit log."""

    async def close(self) -> None:
        """End what it has started."""


FindLoops: TypeAlias = Callable[[Job, Agent], LoopAnswers | None]
"""Makes the loop tools of a call; None for an agent without a right to them."""


@dataclass(slots=True)
class Served:
    """One stage: its tools under the names that agents can use, and what it was asked before."""

    job: Job
    box: Toolbox
    specs: tuple[ToolSpec, ...]
    own: dict[str, str]  # the name that was offered: the tool's own
    asked: Counter[str] = field(default_factory=Counter)
    loops: LoopAnswers | None = None

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        return (*self.specs, *(self.loops.specs() if self.loops is not None else ()))

    @property
    def refused(self) -> frozenset[str]:
        """Names that are answered with a refusal, which is recorded."""
        return self.loops.refused if self.loops is not None else frozenset()

    async def answer(self, name: str, arguments: dict[str, JsonValue]) -> ToolOutcome:
        if self.loops is not None and name not in self.own:
            return await self.loops.answer(name, arguments)
        tool = self.own[name]
        said = blake2b(msgspec.json.encode(arguments, order="sorted"), digest_size=12).hexdigest()
        call = f"{tool}/{said}"
        self.asked[call] += 1
        key = f"{self.job.run}/{self.job.effect}/{call}/{self.asked[call]}"
        return await self.box.run(tool, arguments, key=key)


class StageServers:
    """Makes a server for each call of a coding agent that has a level."""

    def __init__(self, desks: Desks, workshop: Workshop, results: Path) -> None:
        self._desks = desks
        self._workshop = workshop
        self._results = results
        self.find_loops: FindLoops = lambda job, agent: None

    @asynccontextmanager
    async def serve(self, job: Job, agent: Agent) -> AsyncIterator[StageServer | None]:
        """The server, as an agent is told to start it; none for an agent that has neither a level
        nor a right to loops.
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
            yield _told(folder, token)
        finally:
            server.close()
            for task in [*tasks]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            shutil.rmtree(folder, ignore_errors=True)
            if loops is not None:
                await loops.close()

    async def _served(self, job: Job, names: tuple[str, ...]) -> Served:
        shelf = FolderShelf(self._results / job.run)
        box = self._workshop.toolbox(job.workspace, Grant(native=names), shelf, self._desks.of(job))
        tools = (await box.specs()).tools
        own = {one.name.replace(".", "_"): one.name for one in tools}
        specs = tuple(
            msgspec.structs.replace(one, name=one.name.replace(".", "_")) for one in tools
        )
        return Served(job=job, box=box, specs=specs, own=own)


async def _is_let_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> bool:
    """Whether whoever connects is this user and knows the token."""
    line: socket.socket = writer.get_extra_info("socket")
    if hasattr(socket, "SO_PEERCRED"):
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[1] != os.getuid():
            return False
    with suppress(TimeoutError, ValueError):
        said = await asyncio.wait_for(reader.readline(), TOKEN_SECONDS)
        return hmac.compare_digest(said.strip(), token.encode())
    return False


def _is_caller(loops: LoopAnswers | None, writer: asyncio.StreamWriter) -> bool:
    """Whether a process of the agent itself connects. At `guard` other agents of this user can read
    the token, so it is not enough for loop tools.
    """
    if loops is None or not HAS_TABLE:
        return True
    return loops.check_caller(find_unix_peer(writer.get_extra_info("socket")))


async def _speak(
    served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    library = import_module("loopwright.tools.serving")  # half a second to load, when first asked
    await library.serve_connection(
        NAME, served.offered, served.answer, streams=(reader, writer), refused=served.refused
    )


def _told(folder: Path, token: str) -> StageServer:
    """The files that a program is told of, and its words for the server."""
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
