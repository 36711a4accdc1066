"""MCP servers: started when first needed, kept, started again after their death, ended at the end.

The library that speaks the protocol is loaded, in a thread, when the first server is needed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeAlias, cast

from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.outcome import Refusal
from loopwright.tools.processes import Programs

LIBRARY = "loopwright.tools.wire"
START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0
LIST_TOOLS = 256
STDERR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioServer:
    """A server that is a program. Secrets reach it by the names of variables only."""

    argv: tuple[str, ...]
    pass_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """A server behind an address. Secrets reach it by the names of variables only."""

    url: str
    bearer_env: str | None = None  # the variable whose value is the bearer token
    header_env: tuple[tuple[str, str], ...] = ()  # header and the variable with its value


ServerSpec: TypeAlias = StdioServer | HttpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What a server answered."""

    text: str
    error: bool = False


class Gone(Exception):
    """The connection ended; it is not known whether a call that was under way has been done."""


class Connection(Protocol):
    """A server while one is connected to it."""

    async def tools(self) -> list[Listed]:
        """Everything the server offers; Gone."""

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> Called:
        """Have a tool done; Gone. What goes wrong inside is in the answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and with what a server is run."""

    workspace: str
    programs: Programs
    sandbox: SandboxLevel | None = None


Hold: TypeAlias = Callable[[Connection], Awaitable[None]]
"""Called with the connection; the connection is kept until it returns."""


class Library(Protocol):
    """What `wire` offers."""

    async def connect(self, spec: ServerSpec, place: Place, hold: Hold) -> str:
        """Connect, hold, disconnect. The answer is what the server last said on stderr."""


class Server:
    """One server of one workspace."""

    def __init__(
        self, name: str, spec: ServerSpec, place: Place, *, backoff_s: float = 0.5
    ) -> None:
        self.name = name
        self._spec = spec
        self._place = place
        self._backoff_s = backoff_s
        self._keeper: asyncio.Task[None] | None = None
        self._connection: asyncio.Future[Connection] | None = None
        self._let_go = asyncio.Event()
        self._failures = 0
        self._not_before = 0.0
        self._starting = asyncio.Lock()
        self._listed: list[Listed] | None = None
        self._closed = False
        self._why = ""

    async def tools(self) -> list[Listed]:
        """What the server offers. Asked once for each start."""
        connection = await self._connected()
        if self._listed is None:
            try:
                self._listed = (await connection.tools())[:LIST_TOOLS]
            except Gone as error:
                raise self._unreachable(await self._dropped(str(error))) from None
            self._failures = 0
        return self._listed

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> Called:
        """Have a tool done. After a death in the middle it is not tried again by itself."""
        connection = await self._connected()
        try:
            answer = await connection.call(tool, arguments)
        except Gone as error:
            why = await self._dropped(str(error))
            raise Refusal(
                "server-ended",
                f"the server {self.name} was lost during the call, so it is not known whether it "
                f"was done: {why}",
            ) from None
        self._failures = 0
        return answer

    async def close(self) -> None:
        """End the server and wait until it is gone."""
        self._closed = True
        keeper = self._keeper
        if keeper is None:
            return
        self._let_go.set()
        await asyncio.wait([keeper], timeout=CLOSE_SECONDS)
        keeper.cancel()
        await asyncio.wait([keeper])

    # -- starting

    async def _connected(self) -> Connection:
        async with self._starting:
            if self._closed:
                raise Refusal("server-closed", f"the server {self.name} was closed")
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
        # Somebody may never ask for the result; that is no reason for a complaint in the log.
        self._connection.add_done_callback(lambda made: made.cancelled() or made.exception())
        self._keeper = loop.create_task(self._keep(self._connection, self._let_go))
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(self._connection)
        except TimeoutError:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            raise self._unreachable(f"no answer within {START_SECONDS:g} s") from None
        except Gone as error:
            await asyncio.wait([self._keeper])
            raise self._unreachable(str(error)) from None

    async def _keep(self, made: "asyncio.Future[Connection]", let_go: asyncio.Event) -> None:
        """Holds one connection from its start to its end, in one task, as the library wants it."""

        async def hold(connection: Connection) -> None:
            made.set_result(connection)
            await let_go.wait()

        try:
            self._why = await (await _library()).connect(self._spec, self._place, hold)
        except Gone as error:
            self._why = str(error)
        finally:
            if self._connection is made:
                self._connection = None
            if not let_go.is_set():
                self._failed()
            if not made.done():
                made.set_exception(Gone(self._why or "it ended"))

    def _failed(self) -> None:
        wait = min(30.0, self._backoff_s * 2**self._failures)
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + wait

    async def _dropped(self, why: str) -> str:
        """The connection is of no more use, the next call makes a new one. Answers why: a program
        that has ended often says more about it than the connection does.
        """
        self._connection = None
        if not self._let_go.is_set():
            self._failed()
            self._let_go.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper], timeout=_LAST_WORDS_SECONDS)
        return self._why or why

    def _unreachable(self, why: str) -> Refusal:
        return Refusal("server-unreachable", f"the server {self.name} cannot be used: {why}")


async def _library() -> Library:
    return cast(Library, await asyncio.to_thread(import_module, LIBRARY))
