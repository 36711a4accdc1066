"""MCP servers, their tools and their answers, as records that need no library of the protocol."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.builtin import ToolPrograms

STDERR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioServer:
    """A server that is a program. It receives secrets by the names of variables only."""

    argv: tuple[str, ...]
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """A server at an address. It receives secrets by the names of variables only."""

    url: str
    bearer_env: str | None = None  # the variable whose value is the bearer token
    header_env: tuple[tuple[str, str], ...] = ()  # header and the variable with its value


ServerSpec: TypeAlias = StdioServer | HttpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The answer of a server."""

    text: str
    error: bool = False


class ServerGone(Exception):
    """The connection ended; whether a running call has completed is unknown."""


class ServerConnection(Protocol):
    """A server with an open connection."""

    async def tools(self) -> list[ListedTool]:
        """Everything the server offers; Gone."""

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ServerAnswer:
        """Call a tool; Gone. Failures of the tool are in the answer."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """The folder and the services that a server runs with."""

    workspace: str
    programs: ToolPrograms
    sandbox: SandboxLevel | None = None


Hold: TypeAlias = Callable[[ServerConnection], Awaitable[None]]
"""Called with the connection; the connection is kept until it returns."""
