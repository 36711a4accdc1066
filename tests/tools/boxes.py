"""Toolboxes for tests, on the real supervisor."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loopwright.model.chat import CallPart, RequestedCall
from loopwright.operations.agents.tools import open_workshop
from loopwright.tools.builtin import ShellRules
from loopwright.tools.mcp.server_records import StdioServer
from loopwright.tools.results import FolderResultStore, ToolCallResult
from loopwright.tools.toolbox import NATIVE, Grant, ServerGrant, Toolbox, Workshop
from tests.agents import leaping

CANARY = "canary-5f2d81c0a9"
SERVER = Path(__file__).with_name("mcp_server.py")
MCP_TOOLS = (
    "echo", "add", "fail", "mute_failure", "error_object", "picture", "die", "wait", "variables",
    "secret", "long", "pid",
)  # fmt: skip
T = TypeVar("T")


def environment(**more: str) -> dict[str, str]:
    """Like that of a person, with a secret in it that no tool may ever tell."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "MY_API_KEY": CANARY, **more}


def stdio(*arguments: str, pass_env: tuple[str, ...] = ()) -> StdioServer:
    return StdioServer(argv=(sys.executable, str(SERVER), *arguments), pass_env=pass_env)


def bench_server(*arguments: str, allow: tuple[str, ...] = MCP_TOOLS) -> ServerGrant:
    return ServerGrant(name="bench", spec=stdio(*arguments), allow=allow)


WORKSPACE = tuple(name for name in NATIVE if name.startswith(("fs.", "shell.")))
"""The tools of the workspace; those of trackers need a scope."""

ALL = Grant(native=WORKSPACE, commands=ShellRules(allow=("cat", "echo", "ls", "sleep", "head")))


@dataclass
class Room:
    """A workspace with a neighbour who has a secret, and a way to toolboxes in it."""

    folder: Path
    workshop: Workshop

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def box(self, grant: Grant = ALL) -> Toolbox:
        return self.workshop.toolbox(
            str(self.work), grant, FolderResultStore(self.folder / "shelf")
        )


def furnish(folder: Path) -> Path:
    """A workspace `work` beside a file that must stay unread."""
    work = folder / "work"
    (work / "src").mkdir(parents=True)
    (work / "src" / "main.py").write_text("print('hello')\n")
    (work / "README.md").write_text("# Read me\nhello\n")
    (folder / "neighbour").mkdir()
    (folder / "neighbour" / "secret.txt").write_text(CANARY)
    return work


@asynccontextmanager
async def opened(folder: Path, **variables: str) -> AsyncIterator[Room]:
    furnish(folder)
    async with open_workshop(environment(**variables), "token-of-a-test") as workshop:
        yield Room(folder, workshop)


def inside(folder: Path, play: Callable[[Room], Awaitable[T]], **variables: str) -> T:
    """Play something in a room and leave it."""

    async def whole() -> T:
        async with opened(folder, **variables) as room:
            return await play(room)

    return leaping.play(whole())


def run(folder: Path, tool: str, arguments: Any, grant: Grant = ALL, **how: bool) -> ToolCallResult:
    """One call in a fresh room."""
    if not (folder / "work").exists():
        furnish(folder)

    async def play() -> ToolCallResult:
        async with open_workshop(environment(), "token-of-a-test") as workshop:
            return await Room(folder, workshop).box(grant).run(tool, arguments, **how)

    return asyncio.run(play())


def resolved(folder: Path, name: str, args: str = "{}", grant: Grant = ALL) -> RequestedCall:
    if not (folder / "work").exists():
        furnish(folder)

    async def play() -> RequestedCall:
        async with open_workshop(environment(), "token-of-a-test") as workshop:
            return (
                await Room(folder, workshop)
                .box(grant)
                .resolve(CallPart(id="c1", tool=name, args=args))
            )

    return asyncio.run(play())


def value(outcome: ToolCallResult) -> Any:
    return msgspec.json.decode(outcome.text)


def problem(outcome: ToolCallResult) -> str:
    """The slug of a refusal."""
    assert outcome.error, outcome
    return str(value(outcome)["type"])
