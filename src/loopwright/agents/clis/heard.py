"""What an agent said in one call, collected event by event, whichever program it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.agents.activity_targets import tool_target
from loopwright.agents.clis.tool_calls import Act, CallKind, as_text, one_line
from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue

Kind: TypeAlias = Literal["text", "tool", "note"]
Ended: TypeAlias = Literal["well", "badly"]
# Why a turn ended badly, as far as an event says so in its own terms.
Trouble: TypeAlias = Literal["api", "turns", "budget", "session", "aborted", "other"]

TEXT_CHARS = 10 * 1024 * 1024
OPEN_CALLS = 1_000
"""Tool calls that may be under way at the same time; further ones replace the oldest."""
STATUS_LINES = 200
"""Status messages of one call that are recorded; further ones are only shown."""
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Said:
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
class Heard:
    """Everything that counts of a stream of events."""

    parts: list[str] = field(default_factory=list)  # what the agent said, part by part
    final: str | None = None  # the answer, where an event names it
    data: JsonValue = None
    usage: Usage | None = None
    turns: dict[str, tuple[str, Usage]] = field(default_factory=dict)  # by message: model, usage
    total: Usage | None = None  # of the whole session so far, where that is all that is told
    session: str | None = None
    model: str = ""  # that answered, where an event names it
    ended: Ended | None = None  # by the event that ends a turn
    trouble: Trouble = "other"
    status: int | None = None  # of the provider's last refusal
    problem: str = ""  # in words
    denied: list[str] = field(default_factory=list)
    resets_at: int | None = None  # seconds since the epoch: when a used-up allowance is renewed
    retry_after: float | None = None  # in seconds
    blocked: bool = False  # an allowance is used up, as the program itself says
    tools: int = 0
    garbage: int = 0
    cut: int = 0
    read_messages: set[str] = field(default_factory=set)  # ids of those sent while it worked
    streaming: bool = False  # parts of a text were shown before the whole text came
    now_ms: int = 0  # when the events that are being read arrived
    # Whether some event of the newest chunk was neither a status nor a retry.
    progress: bool = field(default=False, compare=False)
    status_line: str = ""  # the newest status message
    time_text: Callable[[int], str] = utc_time  # how people are shown a moment
    _kept: int = 0
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
        """A tool call has begun, or more is known about one that has."""
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
        """A tool call has ended; one that is not under way has been recorded before."""
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
        `words` are for people, where it is known who denied it.
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

    def tell_status(self, words: str) -> list[Said]:
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
        return [Said("note", line)]

    def end_calls(self) -> None:
        """The stream has ended: what is still under way is recorded without a result."""
        for call in list(self._open):
            self.end_call(call, ok=None)

    def drain(self) -> list[Act]:
        """What was recorded since this was last called."""
        acts, self._acts = self._acts, []
        return acts

    # -- text --------------------------------------------------------------------------------------

    def say(self, text: str, *, new_part: bool = True) -> None:
        """Keep a text of the agent, up to a size that no answer needs."""
        if self._kept >= TEXT_CHARS:
            return
        text = text[: TEXT_CHARS - self._kept]
        self._kept += len(text)
        if new_part or not self.parts:
            self.parts.append(text)
        else:
            self.parts[-1] += text

    def end(self, how: Ended, problem: str = "", trouble: Trouble = "other") -> None:
        """The event that ends the turn has come."""
        self.ended, self.problem, self.trouble = how, problem, trouble

    @property
    def output(self) -> str:
        """The answer: what is named as such, else all that was said."""
        return self.final if self.final is not None else "\n\n".join(self.parts)


def tool_line(name: str, about: str = "") -> Said:
    """A tool that the agent uses, in one short line."""
    line = " ".join(f"{name} {about}".split())
    return Said("tool", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")


def note(text: str) -> Said:
    """Something about the call that is no answer, in one short line."""
    line = " ".join(text.split())
    return Said("note", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")
