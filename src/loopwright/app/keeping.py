"""Runs that keep others away: at most one open run has a key, and who has it is told."""

from pathlib import Path

from loopwright.errors import Conflict
from loopwright.model.plan import Plan
from loopwright.ports import OPEN_STATUSES, EventLog, RunRow
from loopwright.programs.marks import owner_alive


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
        f"{row.run} ({row.headline.name}) holds {key}: it is {_state(row)}",
        code=refusal.code,
        hint=f"`loopwright resume {row.run}` goes on with it, `loopwright stop {row.run}` ends it",
    )


def _state(row: RunRow) -> str:
    status = row.headline.status
    if status == "running" and (row.owner is None or not owner_alive(row.owner)):
        return "left behind by a process that is gone"
    return {"waiting": "waiting for a person"}.get(status, status)
