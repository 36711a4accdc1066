"""Output of a command: data, messages, the result of a run and its exit code.

Data goes to stdout, messages to stderr; colours and signs are decided for each stream
separately. `Terminal` also gives a command its common options, its settings and its remote
server.

Text that an agent or an author wrote must not control the terminal: escape sequences are
removed and other invisible characters are shown by their code. Widths are counted in cells, so
that a table keeps its columns whatever text it contains.

Exit codes: 0 completed · 3 failed or cancelled · 4 stopped by a limit · 5 waiting for a person
or paused · 130 and 143 signals. Those of errors are in `problems.py`.
"""

import contextlib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loopwright.client.client import Address, Client, CommandClient
    from loopwright.operations.api_types import Request
    from loopwright.operations.settings import Settings
    from loopwright.operations.use_cases.operation import Operation
    from loopwright.views.run_responses import RunSummary

    Q = TypeVar("Q", bound=Request)
    A = TypeVar("A")

# CSI …, OSC/DCS/SOS/PM/APC … up to their end (or the end of the text), and two-character ones.
_SEQUENCE = re.compile(
    r"""
      (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|\Z)?
    | \x1b[ -/]*[0-~]?
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x85\u2028\u2029]")

# Characters that change the text direction, so that a person would decide about another text.
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_TOOL = re.compile(r"(?:\([^)]*\)?|[^,(])+")
_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))


def cleaned(text: str) -> str:
    """Many lines as a terminal may have them; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_shown, _LINE_ENDS.sub("\n", _SEQUENCE.sub("", text))))


def names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Names that were given one by one or with commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def tools_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Tools that were given one by one or with commas; a comma in parentheses separates nothing."""
    found = (_TOOL.findall(text) for text in texts)
    return tuple(tool.strip() for tools in found for tool in tools if tool.strip())


def one_line(text: str, cells: int | None = None) -> str:
    """The text on one line with nothing hidden in it, cut to a width in cells."""
    flat = " ".join(cleaned(text).split())
    flat = "".join(char for char in flat if char not in _SELECTORS)
    flat = "".join(_coded(c) if unicodedata.category(c) == "Cf" else c for c in flat)
    return flat if cells is None else cut(flat, cells)


def file_name(name: str) -> str:
    """The name of a file on one line: line ends and whatever cannot be seen are shown by codes."""
    return "".join(_coded(char) if char in "\n\t\u2028\u2029" else _seen(char) for char in name)


def exact_lines(text: str) -> list[str]:
    """Every line of a text that needs a decision: whitespace is kept, and invisible characters are
    shown by their codes, including escape sequences.
    """
    lines = _LINE_ENDS.sub("\n", text).expandtabs(4).split("\n")
    return ["".join(map(_seen, line)) for line in lines]


def _seen(char: str) -> str:
    hidden = char in _SELECTORS or unicodedata.category(char) in ("Cf", "Cn", "Co")
    return _coded(char) if hidden else _shown(char)


def _shown(char: str) -> str:
    if char in "\n\t":
        return char
    hidden = unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTION
    return _coded(char) if hidden else char


def _coded(char: str) -> str:
    number = ord(char)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def width(text: str) -> int:
    """How many cells a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """The beginning of a text that fits, with a sign when something is missing."""
    if width(text) <= cells:
        return text
    kept, room = "", cells - 1
    for char in text:
        room -= _cells(char)
        if room < 0:
            break
        kept += char
    return f"{kept}…" if cells > 0 else ""


def padded(text: str, cells: int) -> str:
    """A text in a column of this width in cells."""
    text = cut(text, cells)
    return text + " " * (cells - width(text))


def last_lines(text: str, count: int) -> list[str]:
    """The last lines that say something, each clean and on its own."""
    lines = [line.rstrip() for line in cleaned(text).split("\n") if line.strip()]
    return lines[-count:] if count else []


Tone = Literal["good", "bad", "warn", "dim", "bold", "plain"]
_STYLES: dict[Tone, Callable[[str], str]] = {
    "good": partial(click.style, fg="green"),
    "bad": partial(click.style, fg="red"),
    "warn": partial(click.style, fg="yellow"),
    "dim": partial(click.style, dim=True),
    "bold": partial(click.style, bold=True),
}


@dataclass(slots=True)
class CommonOptions:
    """The flags that every command takes, before or after its name."""

    as_json: bool = False
    data_dir: str | None = None
    no_color: bool = False
    quiet: bool = False
    server: str | None = None
    no_retry: bool = False
    here: bool = False


class Terminal:
    """One command's way to speak and to learn its settings."""

    def __init__(self, options: CommonOptions) -> None:
        self.options = options

    @property
    def as_json(self) -> bool:
        return self.options.as_json

    @property
    def quiet(self) -> bool:
        return self.options.quiet

    @cached_property
    def settings(self) -> "Settings":
        from loopwright.operations.settings import load_settings  # noqa: PLC0415 - help stays quick

        resolved = load_settings(data_dir=self.options.data_dir)
        for warning in resolved.warnings:
            self.say(f"warning: {warning}", tone="warn")
        return resolved.settings

    @property
    def server_url(self) -> str:
        """The URL of the server that `--server` names; empty for the local data directory."""
        if self.options.server is None:
            return ""
        if self.options.here:
            raise click.UsageError("--here and --server exclude each other")
        from loopwright.client.servers import parse_address  # noqa: PLC0415 - only when asked for

        return parse_address(self.options.server).url

    @property
    def server_suffix(self) -> str:
        """What suggested commands end with: the server that is used, if one was named."""
        url = self.server_url
        return f" --server {url}" if url else ""

    @contextlib.contextmanager
    def client(self, *, drives: bool = False) -> "Iterator[CommandClient]":
        """The client of this command, for several calls. One that `drives` uses the local server if
        there is one; otherwise this process drives the runs that it starts or stops.
        """
        from loopwright.client.client import CommandClient, open_client  # noqa: PLC0415 - help stays quick

        address = self._address(drives=drives)
        with CommandClient(open_client(address, say=self.say, warn=self._warn)) as client:
            yield client

    def open_client(self, *, drives: bool, say: "Callable[[str], None]") -> "Client":
        """The client of a command that follows runs; `say` gets messages about the connection."""
        from loopwright.client.client import RemoteServer, ThisProcess, open_client  # noqa: PLC0415 - help stays quick

        address: Address = RemoteServer(self.server_url)
        if not self.server_url:
            address = ThisProcess(self.settings, drives=drives, alone=self.options.here)
        return open_client(address, say=say, warn=self._warn)

    def _warn(self, text: str) -> None:
        self.tell(f"warning: {text}", tone="warn")

    def call(self, operation: "Operation[Q, A]", request: "Q", *, drives: bool = False) -> "A":
        """The response of one operation."""
        with self.client(drives=drives) as client:
            return client.call(operation, request)

    def _address(self, *, drives: bool) -> "Address":
        from loopwright.client.client import (  # noqa: PLC0415 - help stays quick
            LocalServer,
            RemoteServer,
            ThisProcess,
            has_local_server,
        )

        if url := self.server_url:
            return RemoteServer(url)
        if drives and not self.options.here and has_local_server(self.settings):
            return LocalServer(self.settings)
        return ThisProcess(self.settings, drives=drives, alone=self.options.here)

    # -- speaking ------------------------------------------------------------------------------

    def put(self, text: str) -> None:
        """Data, unchanged; the caller has checked its characters."""
        put(text)

    def put_json(self, value: object) -> None:
        """One object on stdout."""
        put(as_json(value, indent=2 if sys.stdout.isatty() else None))

    def done(self, words: str, told: object) -> None:
        """The result: as JSON if requested, else as text."""
        if self.as_json:
            self.put_json(told)
        else:
            self.say(words)

    def say(self, text: str, *, tone: Tone = "plain") -> None:
        """A line of talk on stderr."""
        if not self.quiet:
            self.tell(text, tone=tone)

    def tell(self, text: str, *, tone: Tone = "plain") -> None:
        """A message that is printed even with --quiet: an error, a question."""
        stream = sys.stderr
        with contextlib.suppress(OSError):  # the output was closed, which does not stop the command
            stream.write(self.painted(cleaned(text), tone, stream) + "\n")
            stream.flush()

    def painted(self, text: str, tone: Tone, stream: TextIO) -> str:
        style = _STYLES.get(tone)
        if style is None or not self.has_color(stream):
            return text
        return style(text)

    # -- what the terminal can do --------------------------------------------------------------

    def has_color(self, stream: TextIO) -> bool:
        if self.options.no_color:
            return False
        choice = color_choice(os.environ)
        if choice is not None:
            return choice
        configured = self._configured_color()
        if configured != "auto":
            return configured == "always"
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def _configured_color(self) -> str:
        # Only when it was read already: an error about the settings is spoken without them.
        settings = self.__dict__.get("settings")
        return settings.color if settings is not None else "auto"

    @staticmethod
    def has_signs(stream: TextIO) -> bool:
        """Whether signs beyond ASCII can be written."""
        return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask: questions need a terminal on both sides."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def color_choice(env: "Mapping[str, str]") -> bool | None:
    """The setting for colour in the environment, or None if there is none."""
    if env.get("NO_COLOR"):
        return False
    forced = env.get("FORCE_COLOR")
    return forced not in ("0", "false") if forced else None


def as_json(value: object, *, indent: int | None = None) -> str:
    """JSON that any stdout can carry."""
    ascii_only = not Terminal.has_signs(sys.stdout)
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only, default=msgspec.to_builtins)


def put(text: str) -> None:
    """A line on stdout. A closed output is not an error."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


EXIT_CODES = {
    "completed": 0,
    "failed": 3,
    "cancelled": 3,
    "exhausted": 4,
    "waiting": 5,
    "paused": 5,
    "running": 0,
}
_WORST_FIRST = (3, 4, 5)
_ENDED_BADLY = ("failed", "exhausted")
_NOT_COMPLETED = (*_ENDED_BADLY, "cancelled")
_OPEN = ("running", "waiting", "paused")
_TONES: "dict[str, Tone]" = {"completed": "good", "failed": "bad", "exhausted": "warn"}


def exit_code(status: str, reason: str, other: "Mapping[str, int] | None" = None) -> int:
    """The exit code of a run that rests; `other` has those of another system."""
    codes = {**EXIT_CODES, **(other or {})}
    return codes.get(reason, codes[status]) if status in _ENDED_BADLY else codes[status]


def worst_exit_code(codes: list[int]) -> int:
    """One exit code for several runs."""
    return next((code for code in _WORST_FIRST if code in codes), max(codes, default=0))


def put_result(terminal: Terminal, summary: "RunSummary") -> None:
    """The run's output on stdout, as text that cannot drive a terminal."""
    if terminal.as_json:
        terminal.put_json(summary)
        return
    output = cleaned(summary.output)
    if output.strip():
        sys.stdout.write(output if output.endswith("\n") else f"{output}\n")
        sys.stdout.flush()


def say_final_line(
    terminal: Terminal, run: str, line: str, status: str, *, several: bool = False
) -> None:
    """Print the final line of a run, and where to read more about one that has ended. With --quiet,
    only the line of a run that did not complete; as JSON, the result has the error.
    """
    is_needed = status in _NOT_COMPLETED and not terminal.as_json
    speak = terminal.tell if is_needed else terminal.say
    speak(f"{run}: {line}" if several else line, tone=_TONES.get(status, "plain"))
    if not several and status not in _OPEN:
        terminal.say(f"  loopwright show {run}{terminal.server_suffix}", tone="dim")
