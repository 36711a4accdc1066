"""How a call came out: exit code, last event and error flag, judged together.

None of the three can be trusted alone: one program ends with 0 after being interrupted, another
with 1 and an event that says `success`, a third with 0 and no last event at all. A call went well
when its last event says so and its code does not say otherwise.
"""

import re
from dataclasses import dataclass

from loopwright.agents.clis.heard import Heard
from loopwright.agents.clis.limits import Reset, reset_in
from loopwright.agents.clis.table import Cli
from loopwright.kernel.facts import Failure
from loopwright.model.policy import FailureKind

TAIL_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the program ended. `ours` says that we ended it, after its last event."""

    code: int | None = None
    signal: int | None = None
    stderr: str = ""
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call failed, and when another one makes sense, where that is known."""

    failure: Failure
    reset: Reset | None = None


_SIGNED_OUT = re.compile(
    r"not (?:logged|signed) in|please run /login|invalid api key|invalid x-api-key|unauthori[sz]ed"
    r"|authenticat|api key not valid|no api key|must specify the \w+api_key|set an auth method"
    r"|\b401\b",
    re.I,
)
_LIMITED = re.compile(
    r"rate.?limit|usage limit|session limit|limit reached|hit your \S* ?limit|too many requests"
    r"|quota|resource.?exhausted|\b429\b",
    re.I,
)
_BUSY = re.compile(
    r"overloaded|high demand|service unavailable|at capacity|server.?side issue|internal server"
    r"|cannot connect|connection (?:failed|refused|error)|unable to connect|\b(?:50[023]|529)\b"
    # The service cannot be reached: name resolution or the network fails.
    r"|can(?:no|')t reach the api|getaddrinfo|could ?n[o']t resolve|dns error"
    r"|name or service not known|failure in name resolution|failed to lookup address"
    r"|error sending request|network is unreachable|no route to host"
    r"|\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENETDOWN|EHOSTUNREACH|ECONNREFUSED)\b",
    re.I,
)
_SPEAKS_OF: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
    (_LIMITED, "rate_limited"),
    (_SIGNED_OUT, "not_signed_in"),
    (_BUSY, "overloaded"),
)
_NO_SESSION = re.compile(
    r"no conversation found|session not found|no (?:saved )?session|invalid session"
    r"|thread\S* (?:\S+ )?not found|no rollout found|error resuming session",
    re.I,
)
_ROOT = re.compile(r"cannot be used with root|root/sudo privileges", re.I)
_ROOT_FIX = "run as another user, or set IS_SANDBOX=1 if this machine is a sandbox"


def refusal(cli: Cli, heard: Heard, end: Exit) -> Refusal | None:
    """Why a call failed, or None when it went well."""
    if heard.ended == "well":
        if end.ours or end.code == 0:
            return None
        detail = f"{cli.title} gave an answer and then {_ended(end)}"
        return Refusal(Failure(type="exit", detail=_with_tail(detail, end.stderr)))
    if heard.ended == "badly":
        return _said_so(cli, heard)
    return _without_last_event(cli, heard, end)


def _said_so(cli: Cli, heard: Heard) -> Refusal:
    said = heard.problem.strip()[-TAIL_CHARS:] or "it said so"
    match heard.trouble:
        case "turns":
            return Refusal(Failure(type="turn_limit", detail=said))
        case "budget":
            return Refusal(Failure(type="budget_limit", detail=said))
        case "session":
            return Refusal(Failure(type="session_gone", detail=said))
        case "aborted":
            detail = f"{cli.title} was interrupted ({said})"
            return Refusal(Failure(type="crashed", detail=detail))
    if heard.denied and said.startswith("permission denied"):
        detail = f"{said}; allow it with --permission or --tools"
        return Refusal(Failure(type="permission_denied", detail=detail))
    return _by_words(cli, heard, said, otherwise="agent")


def _without_last_event(cli: Cli, heard: Heard, end: Exit) -> Refusal:
    """Ended before its turn did. What it said on stderr may tell why."""
    said = end.stderr.strip()[-TAIL_CHARS:]
    if _NO_SESSION.search(said):
        return Refusal(Failure(type="session_gone", detail=said))
    if _ROOT.search(said):
        return Refusal(Failure(type="permission_denied", detail=f"{said}; {_ROOT_FIX}"))
    if end.code == 0:
        detail = _with_tail(f"{cli.title} exited with code 0 but never finished its turn", said)
        return Refusal(Failure(type="crashed", detail=detail))
    detail = _with_tail(f"{cli.title} {_ended(end)} before its turn was finished", said)
    found = _by_words(cli, heard, said, otherwise="crashed")
    if found.failure.type == "crashed":
        return Refusal(Failure(type="crashed", detail=detail))
    return found


def _by_words(cli: Cli, heard: Heard, said: str, *, otherwise: FailureKind) -> Refusal:
    """The kind of a failure by the provider's own number, else by what is said."""
    by_status: FailureKind | None = "rate_limited" if heard.blocked else _by_status(heard.status)
    said_of = (kind for pattern, kind in _SPEAKS_OF if pattern.search(said))
    kind = by_status if by_status is not None else next(said_of, otherwise)
    if kind == "not_signed_in":
        return Refusal(Failure(type=kind, detail=f"{said or 'no access'}; {cli.sign_in}"))
    if kind == "rate_limited":
        return Refusal(Failure(type=kind, detail=said), _reset(heard, said))
    return Refusal(Failure(type=kind, detail=said))


def _by_status(status: int | None) -> FailureKind | None:
    match status:
        case 401 | 403:
            return "not_signed_in"
        case 429:
            return "rate_limited"
        case int() if status >= 500:
            return "overloaded"
    return None


def _reset(heard: Heard, said: str) -> Reset | None:
    if heard.resets_at is not None and heard.blocked:
        return Reset(at=heard.resets_at)
    if heard.retry_after is not None:
        return Reset(after=heard.retry_after)
    return reset_in(said)


def _ended(end: Exit) -> str:
    if end.signal is not None:
        return f"was ended by signal {end.signal}"
    return f"exited with code {end.code}"


def _with_tail(detail: str, said: str) -> str:
    said = said.strip()[-TAIL_CHARS:]
    return f"{detail}: {said}" if said else detail
