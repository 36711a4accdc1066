"""A small MCP server for tests: over stdio, or over HTTP when the argument is `http PORT`."""

import os
import sys
from pathlib import Path
from typing import TextIO

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent

server = MCPServer("workbench", log_level="ERROR")
HERE = Path.cwd()


def say(where: TextIO, text: str) -> None:
    where.write(f"{text}\n")
    where.flush()


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool()
def fail(message: str) -> str:
    """Fail with a message."""
    raise ToolError(message)


@server.tool(structured_output=False)
def mute_failure() -> CallToolResult:
    """Fail and say nothing."""
    return CallToolResult(content=[], is_error=True)


@server.tool(structured_output=False)
def error_object() -> CallToolResult:
    """Fail with an object instead of a text."""
    return CallToolResult(
        content=[],
        structured_content={"error": {"code": "E1", "message": "no luck"}},
        is_error=True,
    )


@server.tool(structured_output=False)
def picture() -> CallToolResult:
    """Answer with text and a picture."""
    return CallToolResult(
        content=[
            TextContent(type="text", text="see:"),
            ImageContent(type="image", data="AAAA", mime_type="image/png"),
        ]
    )


@server.tool()
def die(code: int) -> str:
    """End the whole server."""
    say(sys.stderr, "the bench has collapsed")
    os._exit(code)


@server.tool()
async def wait(seconds: float) -> str:
    """Answer later, and note when it was given up."""
    try:
        (HERE / "waits").touch()
        await anyio.sleep(seconds)
    except BaseException:
        (HERE / "given-up").touch()
        raise
    return "waited"


@server.tool()
def variables() -> dict[str, str]:
    """All variables of this process."""
    return dict(os.environ)


@server.tool()
def secret() -> str:
    """Tell what nobody should tell."""
    return os.environ.get("BENCH_TOKEN", "none")


@server.tool()
def long(size: int) -> str:
    """Say a lot."""
    return "x" * size


@server.tool()
def hidden() -> str:
    """Not on any allow list."""
    (HERE / "hidden-was-run").touch()
    return "run"


@server.tool()
def pid() -> int:
    """The process behind all this."""
    return int(os.environ["LOOPWRIGHT_SUPERVISOR"].split(":")[0])


if __name__ == "__main__":
    if "noisy" in sys.argv:
        say(sys.stdout, "a banner that is no message")
    if "broken" in sys.argv:
        say(sys.stderr, "cannot find my settings")
        sys.exit(3)
    if "http" in sys.argv:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[-1]))
    else:
        server.run("stdio")
