"""Our own tools for other programs, with the official library of the Model Context Protocol.

Served over standard input and output, or over an existing connection. Calls run concurrently, as
the library runs them; a failure of a tool is reported to the client as its error.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from loopwright import __version__
from loopwright.model.chat import ChatTool
from loopwright.model.record import JsonValue
from loopwright.tools.results import ToolCallResult

LINE_BYTES = 16 * 1024 * 1024
WAITING_MESSAGES = 1_000
LAST_SECONDS = 10.0  # for the answers to calls that run when a client has closed its input

Answering: TypeAlias = Callable[[str, dict[str, JsonValue]], Awaitable[ToolCallResult]]
"""Calls a tool by the name under which it was offered."""

_Streams: TypeAlias = tuple[
    anyio.abc.ObjectReceiveStream[SessionMessage | Exception],
    anyio.abc.ObjectSendStream[SessionMessage],
]

logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False


def _server(
    name: str,
    tools: Sequence[ChatTool],
    answer: Answering,
    instructions: str,
    refused: Collection[str] = (),
) -> "Server[dict[str, object]]":
    listed = [
        mcp_types.Tool(
            name=one.name,
            description=one.description,
            input_schema=one.schema,
            annotations=_annotated(one.name),
        )
        for one in tools
    ]
    known = {*(one.name for one in tools), *refused}

    async def on_list(_context: object, _params: object) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=listed)

    async def on_call(
        _context: object, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        if params.name not in known:
            outcome = ToolCallResult(text=f"there is no tool {params.name[:100]!r}", error=True)
        else:
            outcome = await answer(params.name, dict(params.arguments or {}))
        text = mcp_types.TextContent(type="text", text=outcome.text)
        return mcp_types.CallToolResult(content=[text], is_error=outcome.error)

    return Server(
        name,
        version=__version__,
        instructions=instructions,
        on_list_tools=on_list,
        on_call_tool=on_call,
    )


def _annotated(name: str) -> mcp_types.ToolAnnotations:
    """Hints for a client: some ask a person about every tool without them."""
    looks = name.endswith(("_list", "_read", "_more", "_status", "_definitions", "_events"))
    ends = name.endswith(("_delete", "_control", "_answer"))
    return mcp_types.ToolAnnotations(
        read_only_hint=looks, destructive_hint=ends, open_world_hint=False
    )


async def serve_stdio(
    name: str,
    tools: Sequence[ChatTool],
    answer: Answering,
    *,
    instructions: str = "",
    refused: Collection[str] = (),
) -> None:
    """Serve until the client has disconnected. Calls of the `refused` names are answered, not
    offered.
    """
    server = _server(name, tools, answer, instructions, refused)
    async with stdio_server() as streams, _last_answers(*streams) as (read, write):
        await server.run(read, write, server.create_initialization_options())


@asynccontextmanager
async def _last_answers(
    source: anyio.abc.ObjectReceiveStream[SessionMessage | Exception],
    target: anyio.abc.ObjectSendStream[SessionMessage],
) -> AsyncIterator[_Streams]:
    """The same streams, whose input ends only when every request has its answer: the library stops
    its calls at the end of its input.
    """
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, out = anyio.create_memory_object_stream[SessionMessage](0)
    waiting: set[object] = set()
    answered = asyncio.Event()

    async def take() -> None:
        async with into:
            async for message in source:
                if isinstance(message, SessionMessage) and hasattr(message.message, "method"):
                    waiting.add(getattr(message.message, "id", None))
                await into.send(message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    while waiting - {None}:
                        answered.clear()
                        await answered.wait()

    async def give() -> None:
        async with target:
            async for message in out:
                await target.send(message)
                waiting.discard(getattr(message.message, "id", None))
                answered.set()

    tasks = [asyncio.ensure_future(work()) for work in (take, give)]
    try:
        yield read, write
        await write.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (source, into, read, write, out, target):
            await stream.aclose()


async def serve_connection(
    name: str,
    tools: Sequence[ChatTool],
    answer: Answering,
    *,
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    refused: Collection[str] = (),
) -> None:
    """Serve over a connection, one message on a line, until the other side has disconnected."""
    reader, writer = streams
    server = _server(name, tools, answer, "", refused)
    async with _lines(reader, writer) as (read, write):
        await server.run(read, write, server.create_initialization_options())


@asynccontextmanager
async def _lines(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[_Streams]:
    """A connection as the two streams that the library needs."""
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](WAITING_MESSAGES)
    write, out = anyio.create_memory_object_stream[SessionMessage](WAITING_MESSAGES)

    async def take() -> None:
        async with into:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                while line := await reader.readline():
                    await into.send(_message(line))

    async def give() -> None:
        async with out:
            with contextlib.suppress(OSError):
                async for message in out:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode() + b"\n")
                    await writer.drain()

    tasks = [asyncio.ensure_future(work()) for work in (take, give)]
    try:
        yield read, write
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line))
    except ValueError as error:
        return error
