"""The client of the Model Context Protocol, with the official library.

Only this module and `server` use that library. It is imported by name (see `connections`).
"""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import anyio
import httpx2
import mcp_types
import msgspec
from mcp import ClientSession, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from loopwright.model.record import JsonValue
from loopwright.tools.builtin import RunningToolCommand, ToolCommand
from loopwright.tools.mcp.server_records import (
    STDERR_CHARS,
    Hold,
    HttpServer,
    ListedTool,
    ServerAnswer,
    ServerGone,
    ServerPlace,
    ServerSpec,
    StdioServer,
)
from loopwright.tools.results import as_json

LINE_BYTES = 16 * 1024 * 1024
WAITING_MESSAGES = 10_000
FINISH_SECONDS = 2.0
DESCRIPTION_CHARS = 4_000
SCHEMA_BYTES = 64 * 1024
PAGES = 20
UNREADABLE = (
    "the server's answer cannot be read: it is not JSON, or has characters that are not valid"
)

# It logs errors that the model and the person receive anyway; on stderr they are noise.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False

# Errors answered by a server that is alive; any other error is about the connection.
_ANSWERS = frozenset(
    {
        mcp_types.METHOD_NOT_FOUND,
        mcp_types.INVALID_PARAMS,
        mcp_types.INTERNAL_ERROR,
    }
)


async def connect(spec: ServerSpec, place: ServerPlace, hold: Hold) -> str:
    """Connect, hold, disconnect. Returns the end of the server's stderr."""
    message = _ServerErrors()
    try:
        async with AsyncExitStack() as stack:
            if isinstance(spec, StdioServer):
                streams = await stack.enter_async_context(_program(spec, place, message))
            else:
                client = await stack.enter_async_context(_http(spec, place))
                streams = await stack.enter_async_context(
                    streamable_http_client(spec.url, http_client=client)
                )
            session = await stack.enter_async_context(ClientSession(*streams))
            await session.initialize()
            holding = asyncio.ensure_future(hold(_Connected(session)))
            ended = asyncio.ensure_future(message.ended.wait())
            try:
                await asyncio.wait([holding, ended], return_when=asyncio.FIRST_COMPLETED)
            finally:
                holding.cancel()
                ended.cancel()
    except Exception as error:  # any failure of a server, a network or the library is data here
        raise ServerGone(message.why or _reason(error)) from None
    return message.why


@dataclass
class _ServerErrors:
    """The details of a server's program after its end."""

    why: str = ""

    def __post_init__(self) -> None:
        self.ended = asyncio.Event()


class _Connected:
    """A connection, in our own words."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def tools(self) -> list[ListedTool]:
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            try:
                params = mcp_types.PaginatedRequestParams(cursor=cursor)
                page = await self._session.list_tools(params=params)
            except Exception as error:  # an invalid listing is treated as none
                raise ServerGone(_reason(error)) from None
            found += [one for tool in page.tools if (one := _listed(tool)) is not None]
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ServerAnswer:
        try:
            result = await self._session.call_tool(tool, arguments)
        except MCPError as error:
            if error.code == mcp_types.PARSE_ERROR:
                return ServerAnswer(text=UNREADABLE, error=True)
            if error.code in _ANSWERS:
                return ServerAnswer(text=_reason(error), error=True)
            raise ServerGone(_reason(error)) from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, httpx2.HTTPError) as error:
            raise ServerGone(_reason(error)) from None
        except Exception as error:  # the library's own rules about results, and servers' bugs
            return ServerAnswer(text=_reason(error), error=True)
        return _called(result)


def _listed(tool: mcp_types.Tool) -> ListedTool | None:
    schema = cast("dict[str, JsonValue]", tool.input_schema)
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
        return None
    return ListedTool(
        name=tool.name, description=(tool.description or "")[:DESCRIPTION_CHARS], schema=schema
    )


def _called(result: mcp_types.CallToolResult) -> ServerAnswer:
    blocks = "\n".join(_block(block) for block in result.content)
    if result.structured_content is None:
        return ServerAnswer(text=blocks, error=result.is_error)
    value = cast("JsonValue", result.structured_content)
    if result.is_error:
        return ServerAnswer(text=blocks.strip() or _message(value) or as_json(value), error=True)
    return ServerAnswer(text=as_json(value))


def _message(value: JsonValue) -> str | None:
    """The message of an error object, in the forms that servers use."""
    if isinstance(value, dict):
        found = value.get("error", value.get("message"))
        return found if isinstance(found, str) else _message(found)
    return None


def _block(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent(text=text):
            return text
        case mcp_types.ImageContent(mime_type=kind, data=data):
            return f"[an image, {kind}, {len(data) * 3 // 4} bytes]"
        case mcp_types.AudioContent(mime_type=kind, data=data):
            return f"[a sound, {kind}, {len(data) * 3 // 4} bytes]"
        case mcp_types.ResourceLink(uri=uri):
            return f"[a resource: {uri}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case _:
            return "[content that is not text]"


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).strip()[:STDERR_CHARS] or type(error).__name__


# -- transports


@asynccontextmanager
async def _http(spec: HttpServer, place: ServerPlace) -> AsyncIterator[httpx2.AsyncClient]:
    headers: dict[str, str] = {}
    for header, name in spec.header_env:
        headers[header] = _secret(place, name)
    if spec.bearer_env is not None:
        headers["Authorization"] = f"Bearer {_secret(place, spec.bearer_env)}"
    async with create_mcp_http_client(headers=headers) as client:
        yield client


def _secret(place: ServerPlace, name: str) -> str:
    value = place.programs.secret(name)
    if value is None:
        raise ServerGone(f"the variable {name} is not set")
    return value


@asynccontextmanager
async def _program(
    spec: StdioServer, place: ServerPlace, message: _ServerErrors
) -> AsyncIterator[TransportStreams]:
    """A server under a supervisor; its two pipes as the library needs them."""
    for name in spec.pass_env:
        _secret(place, name)  # a server without it would fail with a less helpful message
    inbox, for_session = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
    from_session, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    running: asyncio.Future[RunningToolCommand] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(_serve(spec, place, message, _Lines(inbox), running))
    sending = asyncio.create_task(_send(to_send, running))
    try:
        yield for_session, from_session
    finally:
        sending.cancel()
        if running.done() and not running.cancelled():
            running.result().end_input()
            running.result().finish(FINISH_SECONDS)
        else:
            serving.cancel()
        try:
            await asyncio.wait([serving, sending])
        except asyncio.CancelledError:
            serving.cancel()
            await asyncio.wait([serving, sending])
            raise
        finally:
            for stream in (inbox, for_session, from_session, to_send):
                stream.close()


async def _serve(
    spec: StdioServer,
    place: ServerPlace,
    message: _ServerErrors,
    lines: "_Lines",
    running: "asyncio.Future[RunningToolCommand]",
) -> None:
    command = ToolCommand(
        argv=spec.argv,
        cwd=place.workspace,
        env=place.programs.environment(spec.pass_env),
        sandbox=place.sandbox,
    )
    try:
        end = await place.programs.run(command, lines.take, running.set_result)
        tail = end.stderr_tail.decode(errors="replace").strip()[-STDERR_CHARS:]
        how = end.error or (f"signal {end.signal}" if end.signal else f"exit code {end.code}")
        message.why = f"it ended ({how})" + (f": {tail}" if tail else "")
    except _TooMuch as error:
        message.why = str(error)
    finally:
        message.ended.set()
        lines.close()


async def _send(
    to_send: "anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage]",
    running: "asyncio.Future[RunningToolCommand]",
) -> None:
    program = await running
    async for message in to_send:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        program.write(text.encode() + b"\n")


def _unreadable(line: bytes) -> mcp_types.JSONRPCMessage | None:
    """An answer that is not text, as an error of the call that waits for it; else None."""
    try:
        message = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    number = message.get("id") if isinstance(message, dict) else None
    if not isinstance(number, int | str) or not ({"result", "error"} & set(message)):
        return None
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=UNREADABLE)
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=number, error=error)


class _TooMuch(Exception):
    """A server sends more output than can be read; raised into its supervisor, which ends it."""


class _Lines:
    """Parses messages from a pipe."""

    def __init__(
        self, inbox: "anyio.streams.memory.MemoryObjectSendStream[SessionMessage | Exception]"
    ) -> None:
        self._inbox = inbox
        self._rest = bytearray()

    def take(self, data: bytes) -> None:
        *whole, rest = (bytes(self._rest) + data).split(b"\n") if b"\n" in data else [data]
        if whole:
            self._rest = bytearray(rest)
        else:
            self._rest += rest
        if len(self._rest) > LINE_BYTES:
            raise _TooMuch(f"it was ended: a line of more than {LINE_BYTES} bytes")
        if self._inbox.statistics().current_buffer_used > WAITING_MESSAGES:
            raise _TooMuch("it was ended: it sends faster than anybody reads")
        for line in whole:
            self._message(line.strip())

    def _message(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            return  # programs print banners; a message is an object
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            unread = _unreadable(line)
            if unread is None:
                return
            message = unread
        try:
            self._inbox.send_nowait(SessionMessage(message))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # the reader has gone: the server is being ended

    def close(self) -> None:
        self._inbox.close()
