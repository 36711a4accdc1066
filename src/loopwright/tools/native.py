"""What a built-in tool is: its face for the model, its rules, and what it does."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import NamedTuple, Protocol, TypeAlias

from loopwright.model.messages import ToolSpec
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.desk import Desk
from loopwright.tools.gate import Limit
from loopwright.tools.outcome import Refusal, ToolOutcome
from loopwright.tools.processes import Programs, Wall
from loopwright.tools.protecting import Protection
from loopwright.tools.shelf import Shelf
from loopwright.tools.tree import Parts, Tree

Arguments: TypeAlias = dict[str, JsonValue]


ANY_PROGRAM = "*"
"""In an allow list: every program that is not denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRules:
    """Which programs `shell.exec` starts: nothing that is not allowed, nothing that is denied.

    An entry is a program and, if more words follow, the first arguments that it must have
    (`npm test`). In the deny list further words are arguments anywhere (`git push --force`), and
    an entry that begins with a dash speaks of every program (`--no-verify`). Behind a wall that is
    for reading, only commands that read are started, whatever the list says.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()  # names of variables that programs are given
    wall: Wall = "none"
    offline: bool = False  # programs have no network
    sandbox: SandboxLevel | None = None  # of programs, and of MCP servers that are programs


class Page(NamedTuple):
    """A page that was fetched."""

    url: str
    status: int
    type: str
    body: bytes
    truncated: bool


class Web(Protocol):
    """Fetches pages of public addresses, and of no others."""

    async def get(self, url: str, seconds: float) -> Page:
        """The page, after redirects; Refusal when the address may not be used or not be reached."""


RecordWork: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Records that an agent works in a folder, for as long as the context is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the tools of one agent work with."""

    tree: Tree
    protection: Protection
    programs: Programs
    shelf: Shelf
    commands: ShellRules
    desk: Desk | None = None
    web: Web | None = None
    record_work: RecordWork = nullcontext

    def recorded(self) -> AbstractContextManager[object]:
        """Around what writes files: what an agent leaves in a workspace is not trusted."""
        return self.record_work(self.tree.root)


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way: its arguments, and what a person or the clock has said about it."""

    arguments: Arguments
    approved: bool = False  # a person has seen this very call
    seconds: float = 60.0
    stop: Event = field(default_factory=Event)  # set when nobody waits any more
    key: str = ""  # the call's own, the same when it is made again after a crash

    def text(self, name: str, default: str = "") -> str:
        value = self.arguments.get(name, default)
        return value if isinstance(value, str) else default

    def number(self, name: str, default: int) -> int:
        value = self.arguments.get(name, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, name: str) -> bool:
        return self.arguments.get(name) is True

    def checkpoint(self) -> None:
        """Refusal when nobody waits for the result any more."""
        if self.stop.is_set():
            raise Refusal("cancelled", "the call was given up")


Work: TypeAlias = Callable[[Bench, Call], ToolOutcome]
"""Done in a thread; raises Refusal."""
AsyncWork: TypeAlias = Callable[[Bench, Call], Awaitable[ToolOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """A built-in tool."""

    spec: ToolSpec
    limit: Limit
    repeatable: bool  # may be done again after a crash: it changes nothing
    path: str | None = None  # the argument that is a path, when the call touches nothing else
    slack_s: float = 0.0  # beyond the limit, for a tool that keeps it by itself and tells of it
    work: Work | None = None
    async_work: AsyncWork | None = None
    adapt: Callable[[Arguments], Arguments] | None = None  # from the words that others use


def place(bench: Bench, call: Call, *, writes: bool = False) -> Parts:
    """The real place that a call names; Refusal when it is outside or may not be written to."""
    parts = bench.tree.locate(call.text("path", "."))
    if writes and not call.approved and bench.protection.covers(parts):
        raise Refusal(
            "protected-path",
            f"{Path(*parts).as_posix()!r} is protected and is not written to without a person's "
            f"approval; leave it as it is",
        )
    return parts


def schema(required: tuple[str, ...], **properties: JsonValue) -> dict[str, JsonValue]:
    """The JSON Schema of arguments: these and no others."""
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
