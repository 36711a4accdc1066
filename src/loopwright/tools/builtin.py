"""A built-in tool: its description for the model, its rules, its function and its calls.

Also what tools receive: the interface for running programs, whose implementation (which leaves no
process behind) is chosen by the caller, and concurrency limits: a maximum number of calls of each
tool, and tools that run alone. A call has a time limit and a thread, and a long result is shown in
part.

`web.fetch` reads a page of the public web as text, for agents with full access.
"""

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from threading import Event
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from loopwright.model.chat import ChatTool
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.results import ResultStore, ToolCallResult, ToolRefusal, json_outcome
from loopwright.tools.tracker_scope import TrackerScope
from loopwright.tools.workspace_tree import Parts, Protection, WorkspaceTree


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimit:
    """The limits of one tool."""

    seconds: float = 60.0
    at_once: int | None = None  # calls of this tool, in one workspace
    exclusive: bool = False  # alone: after all earlier calls, before all later ones


@dataclass(eq=False, slots=True)
class _SlotRequest:
    tool: str
    limit: ToolLimit
    turn: asyncio.Future[None]


class ToolSlots:
    """Admits calls, in the order of their arrival, as their limits allow."""

    def __init__(self) -> None:
        self._waiting: deque[_SlotRequest] = deque()
        self._running: Counter[str] = Counter()
        self._alone = False

    @asynccontextmanager
    async def turn(self, tool: str, limit: ToolLimit) -> AsyncIterator[None]:
        """Wait for a slot and keep it until the end of the block."""
        ticket = _SlotRequest(tool, limit, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self._admit()
        try:
            await ticket.turn
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._admit()
            else:
                self._leave(ticket)
            raise
        try:
            yield
        finally:
            self._leave(ticket)

    def _leave(self, ticket: _SlotRequest) -> None:
        self._running[ticket.tool] -= 1
        self._alone = self._alone and not ticket.limit.exclusive
        self._admit()

    def _admit(self) -> None:
        held_back: deque[_SlotRequest] = deque()
        while self._waiting and not self._alone:
            ticket = self._waiting.popleft()
            if ticket.limit.exclusive and (held_back or self._running.total()):
                held_back.append(ticket)
                break
            cap = ticket.limit.at_once
            if cap is not None and self._running[ticket.tool] >= cap:
                held_back.append(ticket)
                continue
            self._running[ticket.tool] += 1
            self._alone = ticket.limit.exclusive
            if not ticket.turn.cancelled():
                ticket.turn.set_result(None)
        self._waiting.extendleft(reversed(held_back))


SandboxAccess: TypeAlias = Literal["none", "reading", "writing"]
"""The sandbox of a program: none, a file system that can only be read, or one in which only the
workspace can be written. Where no sandbox for reading is available, only the rules apply.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCommand:
    """A program to run. Its text form omits the environment, which may contain secrets."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)  # all of it
    wall_s: float | None = None
    stderr_cap: int = 8 * 1024
    root: str = ""  # the workspace, of which `cwd` is a part
    wall: SandboxAccess = "none"
    offline: bool = False  # it has no network; without a sandbox it is not started
    sandbox: SandboxLevel | None = None  # of the agent; None: the setting of this machine


class RunningToolCommand(Protocol):
    """A program while it runs."""

    def write(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def finish(self, within_s: float) -> None: ...


class ToolCommandEnd(Protocol):
    """How a program ended."""

    @property
    def how(self) -> str: ...
    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> bytes: ...
    @property
    def stderr_bytes(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...


OnStdout: TypeAlias = Callable[[bytes], None]
OnRunning: TypeAlias = Callable[[RunningToolCommand], None]


class ToolPrograms(Protocol):
    """Runs programs without a shell, each with its whole tree under a supervisor."""

    def environment(self, pass_on: Iterable[str]) -> dict[str, str]:
        """The environment of a program: the harmless variables, and these by name."""

    def secret(self, name: str) -> str | None:
        """The value of a variable of our own environment."""

    def find(self, argv0: str, cwd: str, path: str | None) -> str:
        """The file of the first word of a command; LookupError says why there is none."""

    def run(
        self, command: ToolCommand, on_stdout: OnStdout, on_running: OnRunning | None = None
    ) -> Awaitable[ToolCommandEnd]:
        """Run it to its end; cancelling ends the whole tree first."""


Arguments: TypeAlias = dict[str, JsonValue]


ANY_PROGRAM = "*"
"""In an allow list: every program that is not denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRules:
    """Which programs `shell.exec` starts: only allowed ones, and none that is denied.

    An entry is a program and, if more words follow, the first arguments that it must have (`npm
    test`). In the deny list further words are arguments anywhere (`git push --force`), and an entry
    that begins with a dash applies to every program (`--no-verify`). In a sandbox for reading, only
    commands that read are started, whatever the list says.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()  # names of variables that programs receive
    wall: SandboxAccess = "none"
    offline: bool = False  # programs have no network
    sandbox: SandboxLevel | None = None  # of programs, and of MCP servers that are programs


class WebPage(NamedTuple):
    """A page that was fetched."""

    url: str
    status: int
    type: str
    body: bytes
    truncated: bool


class Web(Protocol):
    """Fetches pages of public addresses, and of no others."""

    async def get(self, url: str, seconds: float) -> WebPage:
        """The page, after redirects; Refusal if the address is not allowed or cannot be reached."""


RecordWork: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Records that an agent works in a folder while the context is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The services that the tools of one agent use."""

    tree: WorkspaceTree
    protection: Protection
    programs: ToolPrograms
    shelf: ResultStore
    commands: ShellRules
    tracker_scope: TrackerScope | None = None
    web: Web | None = None
    record_work: RecordWork = nullcontext

    def recorded(self) -> AbstractContextManager[object]:
        """Wraps code that writes files: what an agent leaves in a workspace is not trusted."""
        return self.record_work(self.tree.root)


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """A call in progress: its arguments, its approval, and whether it was abandoned."""

    arguments: Arguments
    approved: bool = False  # a person has approved this very call
    seconds: float = 60.0
    stop: Event = field(default_factory=Event)  # set when the result is no longer awaited
    key: str = ""  # the key of the call, unchanged when it is repeated after a crash

    def text(self, name: str, default: str = "") -> str:
        value = self.arguments.get(name, default)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: int) -> int:
        value = self.arguments.get(name, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, name: str) -> bool:
        return self.arguments.get(name) is True

    def checkpoint(self) -> None:
        """Refusal if the result is no longer awaited."""
        if self.stop.is_set():
            raise ToolRefusal("cancelled", "the call was given up")


Work: TypeAlias = Callable[[Bench, BuiltinCall], ToolCallResult]
"""Executed in a thread; raises Refusal."""
AsyncWork: TypeAlias = Callable[[Bench, BuiltinCall], Awaitable[ToolCallResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinTool:
    """A built-in tool."""

    spec: ChatTool
    limit: ToolLimit
    repeatable: bool  # can be repeated after a crash: it changes nothing
    path: str | None = None  # the argument that is a path, if the call touches nothing else
    slack_s: float = 0.0  # above the limit, for a tool that enforces and reports its own limit
    work: Work | None = None
    async_work: AsyncWork | None = None
    adapt: Callable[[Arguments], Arguments] | None = None  # from names that other systems use


def place(bench: Bench, call: BuiltinCall, *, writes: bool = False) -> Parts:
    """The real path that a call names; Refusal if it is outside or not writable."""
    parts = bench.tree.locate(call.text("path", "."))
    if writes and not call.approved and bench.protection.covers(parts):
        raise ToolRefusal(
            "protected-path",
            f"{Path(*parts).as_posix()!r} is protected and is not written to without a person's "
            f"approval; leave it as it is",
        )
    return parts


def schema(required: tuple[str, ...], **properties: JsonValue) -> dict[str, JsonValue]:
    """The JSON Schema of arguments: only these."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def text(description: str, *, most: int | None = None) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"type": "string", "description": description}
    return found if most is None else {**found, "maxLength": most}


def whole(description: str, least: int = 1) -> dict[str, JsonValue]:
    return {"type": "integer", "minimum": least, "description": description}


def yes_no(description: str) -> dict[str, JsonValue]:
    return {"type": "boolean", "description": description}


RESULT_BYTES = 32 * 1024
HEAD_BYTES = 8 * 1024
# How long to wait for an abandoned call, so that it does nothing unnoticed.
_LAST_SECONDS = 5.0


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """Refusal if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ToolRefusal("timeout", f"the time limit of {seconds:g} s was reached") from None


async def done_in_thread(work: Work, bench: Bench, call: BuiltinCall) -> ToolCallResult:
    """Run it outside the event loop. If the wait is cancelled, the work is notified and awaited."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, bench, call))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        call.stop.set()
        await asyncio.wait([doing], timeout=_LAST_SECONDS)
        if doing.done() and not doing.cancelled():
            doing.exception()  # retrieved, so that no warning is logged
        raise


def capped(outcome: ToolCallResult, shelf: ResultStore) -> ToolCallResult:
    """The outcome, only its head if it is long; the rest is stored and can be read later."""
    data = outcome.text.encode(errors="replace")
    if len(data) <= RESULT_BYTES:
        return outcome
    handle = shelf.put(data)
    head = data[:HEAD_BYTES].decode(errors="ignore")
    size = len(head.encode())
    note = f"[the first {size} of {len(data)} bytes; read on with result.more: {handle}]"
    return replace(outcome, text=f"{head}\n{note}")


SECONDS = 60
_HIDDEN = ("script", "style", "noscript", "template", "svg")
_BLOCKS = ("p", "div", "br", "li", "tr", "section", "article", "pre", "h1", "h2", "h3", "h4")
_LINES = re.compile(r"[ \t]*\n\s*\n\s*")
_TEXTS = ("text/", "application/json", "application/xml", "application/xhtml", "+json", "+xml")


async def _fetch(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    if bench.web is None or bench.commands.offline:
        raise ToolRefusal("no-network", "this agent has no network")
    page = await bench.web.get(call.text("url"), call.seconds)
    if page.type and not any(one in page.type.lower() for one in _TEXTS):
        raise ToolRefusal("not-text", f"{page.url} is {page.type}, not text")
    content = page.body.decode(errors="replace")
    if "html" in page.type.lower():
        content = html_text(content)
    return json_outcome(
        {
            "url": page.url,
            "status": page.status,
            "type": page.type,
            "text": content,
            "truncated": page.truncated,
        },
        error=page.status >= 400,
    )


def html_text(html: str) -> str:
    """The visible text of a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return _LINES.sub("\n\n", "".join(reader.parts)).strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


WEB_TOOL = BuiltinTool(
    spec=ChatTool(
        name="web.fetch",
        description="Read a page of the public web as text. Addresses of this machine and of its "
        "network are refused.",
        schema=schema(("url",), url=text("https://HOST/PATH", most=2_000)),
    ),
    limit=ToolLimit(seconds=SECONDS, at_once=4),
    repeatable=True,
    async_work=_fetch,
)
