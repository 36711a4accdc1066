"""What a run keeps: others away, where at most one open run has its key; a name that is its own;
and records beside it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from loopwright.errors import Conflict
from loopwright.model.plan import Plan
from loopwright.ports import OPEN_STATUSES, Card, EventLog, RunRow

CANDIDATES = 5  # runs that are named where a reference fits several
Beside: TypeAlias = Callable[[str], Sequence[Card]]
"""The records that are written together with the first fact of a run, by its id."""


def alone(_run: str) -> Sequence[Card]:
    """Nothing is kept beside it."""
    return ()


def key_of(plan: Plan, workspace: Path, given: str | None) -> str | None:
    """What a run keeps for itself: what its definition is called, or the folder it works in."""
    if given is not None or plan.exclusive is None:
        return given
    return f"workspace {workspace.resolve()}"


def taken(log: EventLog, key: str, refusal: Conflict) -> Conflict:
    """The refusal of a key, with who has it, in which state, and how to get it."""
    held = [row for row in log.rows(statuses=OPEN_STATUSES) if row.headline.key == key]
    if not held:  # it has ended meanwhile
        return refusal
    row = held[0]
    return Conflict(
        f"{row.run} ({row.headline.name}) holds {key}: it is {_state(log, row)}",
        code=refusal.code,
        hint=f"`loopwright resume {row.run}` goes on with it, `loopwright stop {row.run}` ends it",
    )


def _state(log: EventLog, row: RunRow) -> str:
    status = row.headline.status
    if status == "running" and (row.owner is None or not log.alive(row.owner)):
        return "left behind by a process that is gone"
    return {"waiting": "waiting for a person"}.get(status, status)


def ambiguous(reference: str, runs: Sequence[str]) -> Conflict:
    """A reference that fits several runs, of which some are named."""
    listed = ", ".join(runs[:CANDIDATES]) + (", …" if len(runs) > CANDIDATES else "")
    return Conflict(
        f"{reference!r} fits more than one run: {listed}",
        code="ambiguous",
        hint="write more of the id or its end, or `last` for the newest run",
    )
