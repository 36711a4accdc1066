"""One thing that an agent did, and the texts that it is described with."""

import shlex
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.agents.activity_targets import inside_shell
from loopwright.model.record import JsonValue

CallKind: TypeAlias = Literal["tool", "command", "edit", "read", "fetch", "status", "denied"]

LINE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing that an agent did, as far as its stream reports it."""

    kind: CallKind
    tool: str = ""
    target: str = ""
    ok: bool | None = None
    code: int | None = None
    ms: int | None = None
    text: str = ""
    arguments: str = ""
    result: str = ""


def one_line(words: str, chars: int = LINE_CHARS) -> str:
    """A text in one line of bounded length."""
    line = " ".join(words[: 4 * chars].split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def as_text(value: JsonValue) -> str:
    """Arguments or a result as one text: a text as it is, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def without_shell(line: str) -> str:
    """The command that a shell is given to run; any other command line is returned unchanged."""
    try:
        argv = shlex.split(line)
    except ValueError:
        return line
    return inside_shell(argv) or line
