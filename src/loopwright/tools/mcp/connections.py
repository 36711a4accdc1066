"""MCP servers: started when first needed, reused, restarted after a failure, and ended at the end.

Their tools get our own names, `SERVER.TOOL`, and only granted ones are offered. The library of the
protocol is imported in a thread, when the first server is needed; this module must stay importable
without it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from loopwright.model.access import is_rule_for
from loopwright.model.record import JsonValue
from loopwright.tools.mcp.server_records import (
    Hold,
    ListedTool,
    ServerAnswer,
    ServerConnection,
    ServerGone,
    ServerPlace,
    ServerSpec,
)
from loopwright.tools.results import ToolRefusal

START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0
LIST_TOOLS = 256


class WorkspaceServer:
    """One server of one workspace."""

    def __init__(
        self, name: str, spec: ServerSpec, place: ServerPlace, *, backoff_s: float = 0.5
    ) -> None:
        self.name = name
        self._spec = spec
        self._place = place
        self._backoff_s = backoff_s
        self._keeper: asyncio.Task[None] | None = None
        self._connection: asyncio.Future[ServerConnection] | None = None
        self._let_go = asyncio.Event()
        self._failures = 0
        self._not_before = 0.0
        self._starting = asyncio.Lock()
        self._listed: list[ListedTool] | None = None
        self._closed = False
        self._why = ""

    async def tools(self) -> list[ListedTool]:
        """The tools of the server. Requested once for each start."""
        connection = await self._connected()
        if self._listed is None:
            try:
                self._listed = (await connection.tools())[:LIST_TOOLS]
            except ServerGone as error:
                raise self._unreachable(await self._dropped(str(error))) from None
            self._failures = 0
        return self._listed

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ServerAnswer:
        """Call a tool. After a crash in the middle it is not repeated automatically."""
        connection = await self._connected()
        try:
            answer = await connection.call(tool, arguments)
        except ServerGone as error:
            why = await self._dropped(str(error))
            raise ToolRefusal(
                "server-ended",
                f"the server {self.name} was lost during the call, so it is not known whether it "
                f"was done: {why}",
            ) from None
        self._failures = 0
        return answer

    async def close(self) -> None:
        """End the server and wait until it has ended."""
        self._closed = True
        keeper = self._keeper
        if keeper is None:
            return
        self._let_go.set()
        await asyncio.wait([keeper], timeout=CLOSE_SECONDS)
        keeper.cancel()
        await asyncio.wait([keeper])

    # -- starting

    async def _connected(self) -> ServerConnection:
        async with self._starting:
            if self._closed:
                raise ToolRefusal("server-closed", f"the server {self.name} was closed")
            if self._keeper is None or self._keeper.done() or self._connection is None:
                await self._start()
            assert self._connection is not None
            return await asyncio.shield(self._connection)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._keeper is not None and not self._keeper.done():
            self._let_go.set()
            await asyncio.wait([self._keeper])
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        self._listed, self._let_go, self._why = None, asyncio.Event(), ""
        self._connection = loop.create_future()
        # The result may never be read; this must not be logged as an error.
        self._connection.add_done_callback(lambda made: made.cancelled() or made.exception())
        self._keeper = loop.create_task(self._keep(self._connection, self._let_go))
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(self._connection)
        except TimeoutError:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            raise self._unreachable(f"no answer within {START_SECONDS:g} s") from None
        except ServerGone as error:
            await asyncio.wait([self._keeper])
            raise self._unreachable(str(error)) from None

    async def _keep(self, made: "asyncio.Future[ServerConnection]", let_go: asyncio.Event) -> None:
        """Holds one connection from its start to its end, in one task, as the library requires."""

        async def hold(connection: ServerConnection) -> None:
            made.set_result(connection)
            await let_go.wait()

        try:
            connect = await asyncio.to_thread(_load_connect)
            self._why = await connect(self._spec, self._place, hold)
        except ServerGone as error:
            self._why = str(error)
        finally:
            if self._connection is made:
                self._connection = None
            if not let_go.is_set():
                self._failed()
            if not made.done():
                made.set_exception(ServerGone(self._why or "it ended"))

    def _failed(self) -> None:
        wait = min(30.0, self._backoff_s * 2**self._failures)
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + wait

    async def _dropped(self, why: str) -> str:
        """The connection is unusable, the next call creates a new one. Returns why: the end of a
        program often says more than the end of the connection.
        """
        self._connection = None
        if not self._let_go.is_set():
            self._failed()
            self._let_go.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=_LAST_WORDS_SECONDS)
        return self._why or why

    def _unreachable(self, why: str) -> ToolRefusal:
        return ToolRefusal("server-unreachable", f"the server {self.name} cannot be used: {why}")


def _load_connect() -> Callable[[ServerSpec, ServerPlace, Hold], Awaitable[str]]:
    """The function that connects; the library of the protocol takes half a second to import."""
    from loopwright.tools.mcp.client import connect  # noqa: PLC0415 - see above

    return connect


# With a dot in a server's name, two servers could claim one tool.
_SERVER = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TOOL = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_OURS = frozenset({"fs", "shell", "result"})


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server."""

    server: str
    listed: ListedTool

    @property
    def schema(self) -> dict[str, JsonValue]:
        return self.listed.schema


def server_name_problem(name: str) -> str | None:
    """Why a server cannot have this name, or None."""
    if not _SERVER.fullmatch(name):
        return f"{name!r} is not a name for a server; use letters, digits, _ and -"
    if name in _OURS:
        return f"a server cannot be named {name!r}: the built-in tools are; choose another name"
    return None


async def offered(
    name: str, server: WorkspaceServer, allow: Sequence[str], deny: Sequence[str] = ()
) -> dict[str, McpTool] | ToolRefusal:
    """The granted tools of a server, by our own names; Refusal if it cannot be reached."""
    try:
        listed = await server.tools()
    except ToolRefusal as refusal:
        return refusal
    found: dict[str, McpTool] = {}
    for tool in listed:
        own = f"{name}.{tool.name}"
        granted = (tool.name in allow or "*" in allow) and not any(
            is_rule_for(d, own) for d in deny
        )
        if granted and _TOOL.fullmatch(tool.name):
            found.setdefault(own, McpTool(name, tool))
    return found
