"""Failures of one call: how its program ended, its cost limits, and the limits of the provider.

A policy reads these failures. The provider's statement about its limits is converted to a time on
our clock.
"""

import contextlib
import re
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import TypeAlias

from msgspec.structs import replace

from loopwright.agents.clis.transcript import LimitReset, TimeOfDay
from loopwright.agents.processes.process import ProgramEnd
from loopwright.kernel.event_parts import Failure, Usage
from loopwright.kernel.limits import COST_UNKNOWN
from loopwright.model.plan import Agent
from loopwright.model.policy import FailureKind
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess

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
    """Why a program's end is a failure, or None if it ended with code 0. `status` is the agent's
    last report about its own state, which often explains a timeout.
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
    """A duration in the format of `--budget`."""
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
    """An exit with output on stderr; the text may show that a retry is worthwhile."""
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
    neither indented nor without letters.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_ERROR.match(line) and not _RUNTIME.match(line)]
    chosen = named[-1:] or lines[-1:]
    return chosen[0].strip()[:LAST_LINE_CHARS] if chosen else ""


PriceUsage: TypeAlias = Callable[[Agent, str, Usage], Usage]
"""The usage of an agent's call with its cost, where a price is known; the text names the model."""

UNKNOWN_COST = Usage(unpriced=1)


def as_reported(agent: Agent, model: str, usage: Usage) -> Usage:
    """A price list without any price."""
    return usage


def live_failure(job: EffectJob, agent: Agent, usage: Usage) -> Failure | None:
    """Why a running call must end now: the limit that its usage exceeds."""
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        return _over_call_limit(agent.max_usd, usage)
    words = job.meter.report(usage)
    return None if words is None else Failure(type="budget_limit", detail=words, outer=True)


def limited(job: EffectJob, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call that has ended, unless it cost more than one call may, or an unknown
    amount where USD are limited.
    """
    usage = answer.usage
    if usage is None or isinstance(answer, EffectFailure):
        return answer
    failure: Failure | None = None
    if agent.max_usd is not None and usage.usd > agent.max_usd:
        failure = _over_call_limit(agent.max_usd, usage)
    elif (
        usage.unpriced and job.limits.covered and (job.limits.budgeted or agent.max_usd is not None)
    ):
        failure = Failure(type="budget_limit", detail=COST_UNKNOWN)
    return answer if failure is None else _failed(answer, failure)


def call_budget(job: EffectJob, agent: Agent) -> float | None:
    """The USD that one call may cost: the agent's own limit or what the budgets around it leave."""
    known = [one for one in (agent.max_usd, job.limits.remaining_usd) if one is not None]
    return min(known, default=None)


def is_outer_limit(job: EffectJob, agent: Agent) -> bool:
    """Whether a budget around the call is the smaller limit of the two."""
    left = job.limits.remaining_usd
    return left is not None and (agent.max_usd is None or left <= agent.max_usd)


def with_price(price: PriceUsage, agent: Agent, answer: Answer) -> Answer:
    """The answer of a call with its cost."""
    if answer.usage is None or not answer.usage.unpriced:
        return answer
    return replace(answer, usage=price(agent, answer.model, answer.usage))


def _over_call_limit(most: float, usage: Usage) -> Failure:
    detail = f"spent {usage.usd:.4f} of {most:g} USD in one call"
    return Failure(type="budget_limit", detail=detail)


def _failed(answer: EffectSuccess, failure: Failure) -> EffectFailure:
    return EffectFailure(
        error=failure,
        output=answer.output,
        usage=answer.usage,
        session=answer.session,
        code=answer.code,
        mark=answer.mark,
        tools=answer.tools,
        model=answer.model,
    )


LONGEST_S = 8 * 86_400
"""A longer time is not a rate limit that will be renewed, but an error."""
MARGIN_S = 2


def resets_at(reset: LimitReset | None, now_s: float) -> int | None:
    """When a limit ends, in milliseconds since the epoch; None if unknown."""
    if reset is None:
        return None
    moment = _moment(reset, now_s) + MARGIN_S
    if not 0 < moment - now_s <= LONGEST_S:
        return None
    return int(moment * 1_000)


def _moment(reset: LimitReset, now_s: float) -> float:
    if reset.at is not None:
        return max(float(reset.at), now_s)
    if reset.after is not None:
        return now_s + reset.after
    assert reset.clock is not None
    return _next(reset.clock, now_s)


def _next(clock: TimeOfDay, now_s: float) -> float:
    """The next time that a clock in that zone shows this time of day."""
    here = datetime.fromtimestamp(now_s, tz=_zone(clock.zone)).astimezone(_zone(clock.zone))
    due = here.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (due if due > here else due + timedelta(days=1)).timestamp()


def _zone(name: str) -> tzinfo | None:
    """A zone by its name; the zone of this machine if there is no name or it is unknown."""
    if name:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - takes time to load

        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(name)
    return datetime.now().astimezone().tzinfo
