"""The transcript of one call: texts, tool calls, status messages and limits, event by event.

It is the same for every coding CLI. Status messages (retries, connections, limits, sign-in) are
read from what programs print for people. When a provider accepts requests again is read from
its message: a moment, a wait, or a time of day. Turning that into a moment needs a clock, and
is done by the adapter.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.events import Usage
from loopwright.model.access import inside_shell, tool_target
from loopwright.model.patterns import LazyPattern
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
    """The command in a call of a shell; any other command line is returned unchanged."""
    try:
        argv = shlex.split(line)
    except ValueError:
        return line
    return inside_shell(argv) or line


Kind: TypeAlias = Literal["text", "tool", "note"]
Ended: TypeAlias = Literal["well", "badly"]
# Why a turn failed, if an event contains a specific reason.
Trouble: TypeAlias = Literal["api", "turns", "budget", "session", "aborted", "other"]

TEXT_CHARS = 10 * 1024 * 1024
OPEN_CALLS = 1_000
"""Tool calls that may be running at the same time; further ones replace the oldest."""
STATUS_LINES = 200
"""Status messages of one call that are recorded; further ones are only shown."""
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """Something for the live view."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call whose result has not arrived."""

    kind: CallKind
    tool: str
    target: str
    arguments: str
    began_ms: int


def utc_time(seconds: int) -> str:
    """The time of day of a moment, in seconds since the epoch."""
    return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d} UTC"


@dataclass(slots=True)
class AgentText:
    """The text of the agent, and its answer."""

    parts: list[str] = field(default_factory=list)
    final: str | None = None  # the answer, where an event names it
    streaming: bool = False  # parts of a text were shown before the whole text came
    kept: int = 0  # characters in the parts

    def add(self, text: str, *, new_part: bool) -> None:
        """Store a text, up to a size that no answer needs."""
        if self.kept >= TEXT_CHARS:
            return
        text = text[: TEXT_CHARS - self.kept]
        self.kept += len(text)
        if new_part or not self.parts:
            self.parts.append(text)
        else:
            self.parts[-1] += text

    @property
    def answer(self) -> str:
        """The text marked as the answer, else the whole text."""
        return self.final if self.final is not None else "\n\n".join(self.parts)


@dataclass(slots=True)
class ReportedUsage:
    """What the program reports of tokens and cost."""

    usage: Usage | None = None
    turns: dict[str, tuple[str, Usage]] = field(default_factory=dict)  # by message: model, usage
    total: Usage | None = None  # of the whole session so far, if nothing else is reported


@dataclass(slots=True)
class TurnEnding:
    """How the turn ended, and why it failed."""

    ended: Ended | None = None  # by the event that ends a turn
    trouble: Trouble = "other"
    status: int | None = None  # of the provider's last refusal
    problem: str = ""  # as text


@dataclass(slots=True)
class RateLimitReport:
    """When the provider accepts requests again."""

    resets_at: int | None = None  # seconds since the epoch: when a rate limit is renewed
    retry_after: float | None = None  # in seconds
    blocked: bool = False  # a rate limit is reached, as reported by the program itself


@dataclass(slots=True)
class StreamCounts:
    """Numbers of events: tools used, lines that are not events, events that were cut."""

    tools: int = 0
    garbage: int = 0
    cut: int = 0


@dataclass(slots=True)
class Transcript:
    """Everything that counts of a stream of events."""

    spoken: AgentText = field(default_factory=AgentText)
    data: JsonValue = None
    spent: ReportedUsage = field(default_factory=ReportedUsage)
    session: str | None = None
    model: str = ""  # that answered, where an event names it
    ending: TurnEnding = field(default_factory=TurnEnding)
    denied: list[str] = field(default_factory=list)
    limit: RateLimitReport = field(default_factory=RateLimitReport)
    counts: StreamCounts = field(default_factory=StreamCounts)
    read_messages: set[str] = field(default_factory=set)  # ids of those sent while it worked
    now_ms: int = 0  # when the events that are being read arrived
    # Whether some event of the newest chunk was neither a status nor a retry.
    progress: bool = field(default=False, compare=False)
    status_line: str = ""  # the newest status message
    time_text: Callable[[int], str] = utc_time  # how people are shown a moment
    _acts: list[Act] = field(default_factory=list)
    _open: dict[str, OpenCall] = field(default_factory=dict)
    _denied_calls: set[str] = field(default_factory=set)
    _statuses: set[str] = field(default_factory=set)

    # -- activity ----------------------------------------------------------------------------------

    def begin_call(
        self,
        call: str,
        tool: str,
        arguments: JsonValue,
        *,
        kind: CallKind | None = None,
        target: str = "",
    ) -> OpenCall:
        """A tool call has started, or has more details."""
        before = self._open.pop(call, None)
        if len(self._open) >= OPEN_CALLS:
            self.end_call(next(iter(self._open)), ok=None)
        found = tool_target(tool, arguments)
        opened = OpenCall(
            kind=kind or found.kind,
            tool=tool,
            target=one_line(target or found.target),
            arguments=as_text(arguments),
            began_ms=self.now_ms if before is None else before.began_ms,
        )
        self._open[call] = opened
        return opened

    def end_call(
        self,
        call: str,
        *,
        ok: bool | None,
        code: int | None = None,
        result: str = "",
        ms: int | None = None,
    ) -> None:
        """A tool call has ended; if it is not running, it has been recorded before."""
        opened = self._open.pop(call, None)
        if opened is None:
            return
        self._acts.append(
            Act(
                kind=opened.kind,
                tool=opened.tool,
                target=opened.target,
                ok=ok,
                code=code,
                ms=ms if ms is not None or ok is None else max(0, self.now_ms - opened.began_ms),
                text=one_line(result) if ok is False else "",
                arguments=opened.arguments,
                result=result,
            )
        )

    def deny(
        self,
        call: str,
        tool: str,
        arguments: JsonValue = None,
        *,
        reason: str = "",
        code: int | None = None,
        words: str = "",
    ) -> None:
        """A tool call was denied: it is recorded at once, and its result is not recorded again.
        `words` is the message for people, if it is known why it was denied.
        """
        if call and call in self._denied_calls:
            return
        self._denied_calls.add(call)
        name = tool
        opened = self._open.pop(call, None)
        if opened is None:
            target, given = one_line(tool_target(tool, arguments).target), as_text(arguments)
        else:
            tool, target, given = opened.tool or tool, opened.target, opened.arguments
        self.denied.append(name or tool)
        self._acts.append(
            Act(
                kind="denied",
                tool=tool,
                target=target,
                ok=False,
                code=code,
                text=words,
                arguments=given,
                result=reason,
            )
        )

    def note_status(self, words: str) -> list[LiveEntry]:
        """A message of the agent about its own state. A repeated one is neither recorded nor
        shown again.
        """
        line = one_line(words, SHOWN_CHARS)
        if not line or line == self.status_line:
            return []
        self.status_line = line
        if line not in self._statuses and len(self._statuses) < STATUS_LINES:
            self._statuses.add(line)
            self._acts.append(Act(kind="status", text=line))
        return [LiveEntry("note", line)]

    def end_calls(self) -> None:
        """The stream has ended: running calls are recorded without a result."""
        for call in list(self._open):
            self.end_call(call, ok=None)

    def drain(self) -> list[Act]:
        """What was recorded since this was last called."""
        acts, self._acts = self._acts, []
        return acts

    # -- text --------------------------------------------------------------------------------------

    def add_text(self, text: str, *, new_part: bool = True) -> None:
        """Store a text of the agent, up to a size that no answer needs."""
        self.spoken.add(text, new_part=new_part)

    def end(self, how: Ended, problem: str = "", trouble: Trouble = "other") -> None:
        """The event that ends the turn has come."""
        self.ending.ended, self.ending.problem, self.ending.trouble = how, problem, trouble

    @property
    def output(self) -> str:
        """The answer: the text marked as the answer, else the whole text."""
        return self.spoken.answer


def tool_line(name: str, about: str = "") -> LiveEntry:
    """A tool that the agent uses, in one short line."""
    line = " ".join(f"{name} {about}".split())
    return LiveEntry("tool", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")


def note(text: str) -> LiveEntry:
    """A note about the call that is not part of the answer, in one short line."""
    line = " ".join(text.split())
    return LiveEntry("note", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")


_STATUS = LazyPattern(
    r"retry(?:ing)?\b|reconnect|rate.?limit|quota|overloaded|too many requests|try again"
    r"|log ?in required|not (?:logged|signed) in|waiting for (?:auth|approval|quota)",
    re.I,
)
# A line in the log of OpenCode; a request that fails is made again, or an event ends the call.
_LOGGED = LazyPattern(r"timestamp=\S+ level=[A-Z]+ ")
_FAILED_REQUEST = LazyPattern(
    r'message="stream error" .*\bsmall=false\b.* '
    r'error\.error="(?:\w+: )?(?P<words>(?:[^"\\]|\\.)+)"'
)
_COLOURS = LazyPattern(r"\x1b\[[0-9;]*[A-Za-z]")


def status_in(line: str) -> str:
    """The status message on a line, or an empty text when the line is something else."""
    plain = _COLOURS.sub("", line)
    if _LOGGED.match(plain):
        failed = _FAILED_REQUEST.search(plain)
        return one_line(f"request failed: {failed['words']}") if failed else ""
    return one_line(plain) if _STATUS.search(plain) else ""


def without_log(text: str) -> str:
    """What a program printed for people, without lines of its log."""
    return "".join(line for line in text.splitlines(keepends=True) if not _LOGGED.match(line))


_EPOCH = LazyPattern(r"\|\s*(\d{10})(\d{3})?\b")
_UNIT = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
_SPAN = rf"\d{{1,9}}(?:\.\d{{1,9}})?\s?{_UNIT}\b"
# Written together (`1h20m`), there is no word boundary between the units.
_TIGHT = r"(?:\d{1,9}d)?(?:\d{1,9}h)?(?:\d{1,9}m)?(?:\d{1,9}(?:\.\d{1,9})?s)?"
_WAIT = LazyPattern(
    rf"(?:again|retry|resets?|available|wait)\s+(?:in|after)?\s*"
    rf"((?:{_SPAN})(?:,?\s+(?:and\s+)?{_SPAN})*|(?=\d){_TIGHT})",
    re.I,
)
_PART = LazyPattern(r"(\d{1,9}(?:\.\d{1,9})?)\s?(ms|milli|s|m|h|d)", re.I)
_AFTER = LazyPattern(r"retry.?after[\"':= ]+(\d{1,9})", re.I)
_CLOCK = LazyPattern(
    r"(?:again|resets?)\s+(?:at\s+)?(\d{1,2})(?::(\d{2}))?\s?([ap])\.?m\b\.?"
    r"(?:\s*\(([A-Za-z][\w+-]*(?:/[\w+-]+)*)\))?",
    re.I,
)
_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOfDay:
    """A time of day, in a named zone or in that of this machine."""

    hour: int
    minute: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReset:
    """When another try makes sense; exactly one of the three is known."""

    at: int | None = None  # seconds since the epoch
    after: float | None = None  # seconds from now
    clock: TimeOfDay | None = None


def reset_in(words: str) -> LimitReset | None:
    """The delay in the text of a rejection; None if there is none."""
    epoch = _EPOCH.search(words)
    if epoch is not None:
        return LimitReset(at=int(epoch.group(1)))
    after = _AFTER.search(words)
    if after is not None:
        return LimitReset(after=float(after.group(1)))
    clock = _time_of_day(words)
    if clock is not None:
        return LimitReset(clock=clock)
    wait = _WAIT.search(words)
    return LimitReset(after=_sum(wait.group(1))) if wait is not None else None


def reset_seconds(words: str) -> float | None:
    """The number of seconds that a header names."""
    words = words.strip()
    return float(words) if words.isascii() and words.isdigit() and len(words) < 10 else None


def _sum(span: str) -> float:
    return sum(float(n) * _SECONDS[unit.lower()] for n, unit in _PART.findall(span))


def _time_of_day(words: str) -> TimeOfDay | None:
    found = _CLOCK.search(words)
    if found is None:
        return None
    hour, minute = int(found.group(1)), int(found.group(2) or 0)
    if not 1 <= hour <= 12 or minute > 59:
        return None
    afternoon = found.group(3).lower() == "p"
    return TimeOfDay(
        hour=hour % 12 + (12 if afternoon else 0), minute=minute, zone=found.group(4) or ""
    )
