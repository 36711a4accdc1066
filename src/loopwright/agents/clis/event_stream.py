"""The output of a coding CLI: from bytes to events, and from the last event to the outcome.

Lines are read as they arrive, cut anywhere, of any length, with other text between them.

Exit code, last event and error flag are judged together, because none of the three is reliable
alone: one program ends with 0 after an interruption, another with 1 and an event `success`, a third
with 0 and without a last event. A call succeeded if its last event says so and its exit code does
not contradict it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loopwright.agents.clis import claude, codex, gemini, opencode
from loopwright.agents.clis.catalogue import Cli
from loopwright.agents.clis.loose_json import decode_object
from loopwright.agents.clis.transcript import LimitReset, LiveEntry, Transcript, reset_in
from loopwright.kernel.event_parts import Failure
from loopwright.model.patterns import LazyPattern
from loopwright.model.policy import FailureKind
from loopwright.model.record import JsonValue

LINE_BYTES = 32 * 1024 * 1024
"""The longest line that is parsed: a tool result of some megabytes is one line."""

ReadEvent: TypeAlias = Callable[[Transcript, JsonValue], list[LiveEntry]]

READERS: Mapping[str, ReadEvent] = {
    "claude": claude.read_event,
    "codex": codex.read_event,
    "gemini": gemini.read_event,
    "opencode": opencode.read_event,
}
_IS_PROGRESS: Mapping[str, Callable[[JsonValue], bool]] = {
    "claude": claude.is_progress,
    "codex": codex.is_progress,
    "gemini": gemini.is_progress,
    "opencode": opencode.is_progress,
}


class LineSplitter:
    """Splits chunks into lines; one that is too long is left out as a whole and counted."""

    def __init__(self, most: int = LINE_BYTES) -> None:
        self._most = most
        self._rest: list[bytes] = []
        self._size = 0
        self._skipping = False
        self.cut = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        lines = [line for end in ends if (line := self._complete(end)) is not None]
        self._keep(rest)
        return lines

    def last(self) -> list[bytes]:
        """The text after the last newline at the end of the stream."""
        line = self._complete(b"")
        return [line] if line else []

    def _complete(self, end: bytes) -> bytes | None:
        self._keep(end)
        line = None if self._skipping else b"".join(self._rest).rstrip(b"\r")
        self._rest, self._size, self._skipping = [], 0, False
        return line

    def _keep(self, piece: bytes) -> None:
        if self._skipping or not piece:
            return
        self._size += len(piece)
        if self._size > self._most:
            self._rest, self._skipping = [], True
            self.cut += 1
            return
        self._rest.append(piece)


class EventStream:
    """The events of one call, as they are parsed."""

    def __init__(self, cli: str, *, line_bytes: int = LINE_BYTES) -> None:
        self.transcript = Transcript()
        self._read_event = READERS[cli]
        self._is_progress = _IS_PROGRESS[cli]
        self._lines = LineSplitter(line_bytes)

    def feed(self, chunk: bytes, now_ms: int = 0) -> list[LiveEntry]:
        """What the next bytes have for the live view. `now_ms` is when they arrived, by any clock
        that never goes back.
        """
        self.transcript.now_ms = now_ms
        lines = self._lines.feed(chunk)
        self.transcript.progress = not lines  # a part of a long line is output, too
        return self._read_lines(lines)

    def close(self, now_ms: int = 0) -> list[LiveEntry]:
        """The same for an unfinished last line at the end of the stream."""
        self.transcript.now_ms = now_ms or self.transcript.now_ms
        message = self._read_lines(self._lines.last())
        self.transcript.end_calls()
        return message

    def _read_lines(self, lines: list[bytes]) -> list[LiveEntry]:
        message: list[LiveEntry] = []
        for line in lines:
            event = decode_object(line)
            if event is not None:
                message += self._read_event(self.transcript, event)
                self.transcript.progress = self.transcript.progress or self._is_progress(event)
            elif line.strip():
                self.transcript.counts.garbage += 1
        self.transcript.counts.cut = self._lines.cut
        return message


TAIL_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How the program ended. `ours` is true if we ended it, after its last event."""

    code: int | None = None
    signal: int | None = None
    stderr: str = ""
    ours: bool = False


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call failed, and when another one makes sense, where that is known."""

    failure: Failure
    reset: LimitReset | None = None


_SIGNED_OUT = LazyPattern(
    r"not (?:logged|signed) in|please run /login|invalid api key|invalid x-api-key|unauthori[sz]ed"
    r"|authenticat|api key not valid|no api key|must specify the \w+api_key|set an auth method"
    r"|\b401\b",
    re.I,
)
_LIMITED = LazyPattern(
    r"rate.?limit|usage limit|session limit|limit reached|hit your \S* ?limit|too many requests"
    r"|quota|resource.?exhausted|\b429\b",
    re.I,
)
_BUSY = LazyPattern(
    r"overloaded|high demand|service unavailable|at capacity|server.?side issue|internal server"
    r"|cannot connect|connection (?:failed|refused|error)|unable to connect|\b(?:50[023]|529)\b"
    # The service cannot be reached: name resolution or the network fails.
    r"|can(?:no|')t reach the api|getaddrinfo|could ?n[o']t resolve|dns error"
    r"|name or service not known|failure in name resolution|failed to lookup address"
    r"|error sending request|network is unreachable|no route to host"
    r"|\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENETDOWN|EHOSTUNREACH|ECONNREFUSED)\b",
    re.I,
)
_FAILURE_PATTERNS: tuple[tuple[LazyPattern, FailureKind], ...] = (
    (_LIMITED, "rate_limited"),
    (_SIGNED_OUT, "not_signed_in"),
    (_BUSY, "overloaded"),
)
_NO_SESSION = LazyPattern(
    r"no conversation found|session not found|no (?:saved )?session|invalid session"
    r"|thread\S* (?:\S+ )?not found|no rollout found|error resuming session",
    re.I,
)
_ROOT = LazyPattern(r"cannot be used with root|root/sudo privileges", re.I)
_ROOT_FIX = "run as another user, or set IS_SANDBOX=1 if this machine is a sandbox"


def find_failure(cli: Cli, transcript: Transcript, end: ProcessExit) -> CallFailure | None:
    """Why a call failed, or None when it went well."""
    if transcript.ending.ended == "well":
        if end.ours or end.code == 0:
            return None
        detail = f"{cli.title} gave an answer and then {_ended(end)}"
        return CallFailure(Failure(type="exit", detail=_with_tail(detail, end.stderr)))
    if transcript.ending.ended == "badly":
        return _stated_failure(cli, transcript)
    return _without_last_event(cli, transcript, end)


def _stated_failure(cli: Cli, transcript: Transcript) -> CallFailure:
    message = transcript.ending.problem.strip()[-TAIL_CHARS:] or "it reported a failure"
    match transcript.ending.trouble:
        case "turns":
            return CallFailure(Failure(type="turn_limit", detail=message))
        case "budget":
            return CallFailure(Failure(type="budget_limit", detail=message))
        case "session":
            return CallFailure(Failure(type="session_gone", detail=message))
        case "aborted":
            detail = f"{cli.title} was interrupted ({message})"
            return CallFailure(Failure(type="crashed", detail=detail))
    if transcript.denied and message.startswith("permission denied"):
        detail = f"{message}; allow it with --permission or --tools"
        return CallFailure(Failure(type="permission_denied", detail=detail))
    return _by_words(cli, transcript, message, otherwise="agent")


def _without_last_event(cli: Cli, transcript: Transcript, end: ProcessExit) -> CallFailure:
    """Ended before its turn did. Its stderr may explain why."""
    message = end.stderr.strip()[-TAIL_CHARS:]
    if _NO_SESSION.search(message):
        return CallFailure(Failure(type="session_gone", detail=message))
    if _ROOT.search(message):
        return CallFailure(Failure(type="permission_denied", detail=f"{message}; {_ROOT_FIX}"))
    if end.code == 0:
        detail = _with_tail(f"{cli.title} exited with code 0 but never finished its turn", message)
        return CallFailure(Failure(type="crashed", detail=detail))
    detail = _with_tail(f"{cli.title} {_ended(end)} before its turn was finished", message)
    found = _by_words(cli, transcript, message, otherwise="crashed")
    if found.failure.type == "crashed":
        return CallFailure(Failure(type="crashed", detail=detail))
    return found


def _by_words(
    cli: Cli, transcript: Transcript, message: str, *, otherwise: FailureKind
) -> CallFailure:
    """The kind of a failure by the provider's own number, else by the text."""
    by_status: FailureKind | None = (
        "rate_limited" if transcript.limit.blocked else _by_status(transcript.ending.status)
    )
    kinds_named = (kind for pattern, kind in _FAILURE_PATTERNS if pattern.search(message))
    kind = by_status if by_status is not None else next(kinds_named, otherwise)
    if kind == "not_signed_in":
        return CallFailure(Failure(type=kind, detail=f"{message or 'no access'}; {cli.sign_in}"))
    if kind == "rate_limited":
        return CallFailure(Failure(type=kind, detail=message), _reset(transcript, message))
    return CallFailure(Failure(type=kind, detail=message))


def _by_status(status: int | None) -> FailureKind | None:
    match status:
        case 401 | 403:
            return "not_signed_in"
        case 429:
            return "rate_limited"
        case int() if status >= 500:
            return "overloaded"
    return None


def _reset(transcript: Transcript, message: str) -> LimitReset | None:
    if transcript.limit.resets_at is not None and transcript.limit.blocked:
        return LimitReset(at=transcript.limit.resets_at)
    if transcript.limit.retry_after is not None:
        return LimitReset(after=transcript.limit.retry_after)
    return reset_in(message)


def _ended(end: ProcessExit) -> str:
    if end.signal is not None:
        return f"was ended by signal {end.signal}"
    return f"exited with code {end.code}"


def _with_tail(detail: str, message: str) -> str:
    message = message.strip()[-TAIL_CHARS:]
    return f"{detail}: {message}" if message else detail
