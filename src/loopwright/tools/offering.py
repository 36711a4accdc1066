"""Tools of MCP servers under our own names: `SERVER.TOOL`, and only those that are granted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.model.record import JsonValue
from loopwright.model.toolnames import speaks_of
from loopwright.tools.outcome import Refusal
from loopwright.tools.servers import Listed, Server

# A dot in a server's name would let two servers claim one tool.
_SERVER = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TOOL = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_OURS = frozenset({"fs", "shell", "result"})


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server."""

    server: str
    listed: Listed

    @property
    def schema(self) -> dict[str, JsonValue]:
        return self.listed.schema


def server_name_problem(name: str) -> str | None:
    """Why a server cannot have this name, or None."""
    if not _SERVER.fullmatch(name):
        return f"{name!r} is no name for a server; use letters, digits, _ and -"
    if name in _OURS:
        return f"a server cannot be named {name!r}: the built-in tools are; choose another name"
    return None


async def offered(
    name: str, server: Server, allow: Sequence[str], deny: Sequence[str] = ()
) -> dict[str, McpTool] | Refusal:
    """What a server offers of what is granted, by our own names; Refusal if it cannot be asked."""
    try:
        listed = await server.tools()
    except Refusal as refusal:
        return refusal
    found: dict[str, McpTool] = {}
    for tool in listed:
        own = f"{name}.{tool.name}"
        granted = (tool.name in allow or "*" in allow) and not any(speaks_of(d, own) for d in deny)
        if granted and _TOOL.fullmatch(tool.name):
            found.setdefault(own, McpTool(name, tool))
    return found
