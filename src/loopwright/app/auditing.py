"""Who did what: the audit row of a fact that comes from outside, written together with it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from loopwright.kernel.facts import (
    AgentChanged,
    AnyFact,
    CancelRequested,
    GateAnswered,
    MessageSent,
    RunEdited,
    RunForked,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
)
from loopwright.ports import AuditRow

_REQUEST: ContextVar[str] = ContextVar("request", default="")
SHOWN = 200  # characters of what was said that stand in the row; the fact has all of it


@contextmanager
def under(request: str) -> Iterator[None]:
    """What is done in here has this key of a request in its audit rows: whoever asks again under
    it finds out that it was done.
    """
    token = _REQUEST.set(request)
    try:
        yield
    finally:
        _REQUEST.reset(token)


def request_key() -> str:
    """The key of the request that is at work here; empty where it has none."""
    return _REQUEST.get()


def audit_rows(run: str, facts: Iterable[AnyFact], via: str) -> list[AuditRow]:
    """A row for each fact that somebody wrote, by whichever door they came."""
    return [row for fact in facts if (row := _row(run, fact, via)) is not None]


def forgotten(runs: Iterable[str], *, at: int, by: str, via: str) -> list[AuditRow]:
    """Rows for runs that somebody lets the log forget; they outlive what they are about."""
    what, key = "run.forgotten", request_key()
    return [AuditRow(at=at, who=by, via=via, action=what, subject=run, request=key) for run in runs]


def _row(run: str, fact: AnyFact, via: str) -> AuditRow | None:
    match fact:
        case GateAnswered():
            said = f": {fact.text[:SHOWN]}" if fact.text else ""
            who, detail = fact.by, f"{fact.decision} {fact.gate}{said}"
        case CancelRequested():
            who, detail = fact.by, fact.reason
        case RunForked():
            who, detail = fact.by, f"from {fact.parent} after {fact.place}"
        case AgentChanged():
            who, detail = fact.by, fact.agent
        case MessageSent():
            who, detail = fact.sender, f"to {fact.to}"
        case RunStarted():
            who, detail = fact.by, fact.name
        case RunReopened():
            who, detail = fact.by, _reopened(fact)
        case RunEdited():
            who, detail = fact.by, ", ".join(edited(fact))
        case RunPaused() | RunResumed():
            who, detail = fact.by, ""
        case _:
            return None
    action = str(fact.__struct_config__.tag)
    return AuditRow(
        at=fact.at,
        who=who,
        action=action,
        subject=run,
        via=via,
        detail=detail,
        request=request_key(),
    )


def _reopened(fact: RunReopened) -> str:
    if fact.stage is not None:
        return f"{fact.stage}{f': {fact.note[:SHOWN]}' if fact.note else ''}"
    return fact.mode if fact.mode == "restart" else ""


def edited(fact: RunEdited) -> list[str]:
    """What an edit changes, by name."""
    names = {
        "goal": fact.message,
        "max_iterations": fact.passes,
        "metadata": fact.metadata,
        "labels": fact.labels,
    }
    return [name for name, value in names.items() if value is not None]
