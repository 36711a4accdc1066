"""From the way a program ended to a failure that a policy can read."""

import re

from loopwright.kernel.facts import Failure
from loopwright.model.policy import FailureKind
from loopwright.programs.process import ProgramEnd

TAIL_CHARS = 2_000
LAST_LINE_CHARS = 400

# A bare number may as well be that of a line in a traceback.
_CODE = r"(?:https?(?:/[\d.]+)?|status|error|code)[\s:=(]{0,4}(?:code[\s:=]{0,3})?"
_BUSY = r"service unavailable|at capacity|overloaded(?! (?:function|method|operator))"
_SPEAKS_OF: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
    (re.compile(rf"rate.?limit|too many requests|{_CODE}429\b", re.I), "rate_limited"),
    (re.compile(rf"{_BUSY}|{_CODE}(?:503|529)\b", re.I), "overloaded"),
)
_NAMES_ERROR = re.compile(r"(?=\S).*[^\W\d_]")
_RUNTIME = re.compile(r"Node\.js v[\d.]+\s*$")  # follows the stack trace of Node
_RETRY_AFTER = re.compile(r"retry.?after[\"':= ]+(\d{1,6})", re.I)


def failure_of(end: ProgramEnd, status: str = "") -> Failure | None:
    """Why a program's end is a failure, or None when it ended with code 0. `status` is what an
    agent said last about its own state, which often explains a timeout.
    """
    last = f"; the agent's last status: {status}" if status else ""
    match end.how:
        case "exited" if end.code == 0:
            return None
        case "answered":
            return None
        case "exited":
            return _spoken(f"the program exited with code {end.code}", end)
        case "signalled":
            return _spoken(f"the program was ended by signal {end.signal}", end)
        case "idle_timeout":
            detail = (
                f"timed out (inactivity) after {end.seconds:.1f} s{_silence(end.limit_s, last)}"
            )
            return Failure(type="idle_timeout", detail=detail)
        case "wall_timeout":
            limit = f" (limit: {_length(end.limit_s)})" if end.limit_s else ""
            detail = f"timed out (wall-clock) after {end.seconds:.1f} s{limit}{last}"
            return Failure(type="wall_timeout", detail=detail)
        case "not_started":
            return not_started(end.error or "the program could not be started")


def _silence(limit_s: float | None, last: str) -> str:
    """The limit on silence, the last status of the agent, and how to raise the limit."""
    if limit_s is None:
        return last
    return (
        f": no output for {_length(limit_s)}{last}; allow more with --budget "
        f"idle={_length(2 * limit_s)} or `idle` in the definition"
    )


def _length(seconds: float) -> str:
    """A length of time as `--budget` takes it."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


def not_started(error: str) -> Failure:
    """A program that could not be started; a shortage of the machine is waited out."""
    problem, _, detail = error.partition(": ")
    kinds: dict[str, FailureKind] = {
        "workspace-gone": "workspace_gone",
        "resource": "host_shortage",
        "git-settings-changed": "exit",
    }
    return Failure(type=kinds.get(problem, "not_found"), detail=detail or error)


def _spoken(what: str, end: ProgramEnd) -> Failure:
    """An exit with words on stderr; the words may tell that another try is worth it."""
    tail = end.stderr_tail.decode(errors="replace").strip()[-TAIL_CHARS:]
    kind: FailureKind = "exit"
    for pattern, speaks_of in _SPEAKS_OF:
        if pattern.search(tail):
            kind = speaks_of
            break
    wait = _RETRY_AFTER.search(tail)
    return Failure(
        type=kind,
        detail=_with_error(what, tail),
        retry_after_ms=int(wait.group(1)) * 1_000 if wait and kind != "exit" else None,
    )


def _with_error(what: str, tail: str) -> str:
    """What happened with the error itself on the first line, which headlines show, and the whole
    text below it.
    """
    if not tail:
        return what
    error = error_line(tail)
    return f"{what}: {tail}" if tail.startswith(error) else f"{what}: {error}\n{tail}"


def error_line(text: str) -> str:
    """The line of an error output that names the error: the last one, as in a traceback, that is
    neither indented nor without words.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_ERROR.match(line) and not _RUNTIME.match(line)]
    chosen = named[-1:] or lines[-1:]
    return chosen[0].strip()[:LAST_LINE_CHARS] if chosen else ""
