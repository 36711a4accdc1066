"""Who uses this process: the person who owns it, or a program of a run; and in which role.

A program of a run is recognised by the process tree, whatever its environment says. Commands
that only list import this module, so it imports little.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

import msgspec

from loopwright.agents.processes.process_tree import InsideRun, find_inside_run
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.operations.accounts.access import Role
from loopwright.ports import AuditRow, EventLog, RecordStore, StoredRecord

__all__ = ["InsideRun"]

DENIED = "denied"
_ORIGIN = ("origin", "inside-run")
HINT = "a person does that outside of the run; see what an agent can do in docs/security.md"
SHOWN = 200  # characters of what was asked for that are recorded


def find_caller(environment: Mapping[str, str] | None = None) -> InsideRun | None:
    """The run that this process belongs to, or None for a process of a person."""
    return find_inside_run(environment=os.environ if environment is None else environment)


def inside_run_error(inside: InsideRun, what: str, *, hint: str = HINT) -> NotAllowed:
    """The refusal; `what` completes "cannot …"."""
    return NotAllowed(f"{inside.actor} cannot {what}", code="inside-run", hint=hint)


def record_refusal(
    records: RecordStore, inside: InsideRun, what: str, *, at: int, via: str, who: str = ""
) -> None:
    """Write an attempt to the audit log. It is refused also where that cannot be written."""
    name = f", as {who}" if who else ""
    row = AuditRow(
        at=at,
        who=inside.actor,
        action=DENIED,
        subject=what[:SHOWN],
        via=via,
        detail=f"inside-run{name}",
    )
    with contextlib.suppress(LoopwrightError):
        records.change(audit=[row])


def mark_origin(records: RecordStore, inside: InsideRun) -> None:
    """Record that a new data directory was created inside a run."""
    kind, key = _ORIGIN
    body = msgspec.json.encode(inside.runs)
    with contextlib.suppress(LoopwrightError):
        records.change([(StoredRecord(kind=kind, key=key, body=body), 0)])


def is_private(records: RecordStore, inside: InsideRun) -> bool:
    """Whether a data directory was created by a program of the same run."""
    record = records.record(*_ORIGIN)
    if record is None:
        return False
    return not {*msgspec.json.decode(record.body, type=list[str])}.isdisjoint(inside.runs)


def has_run(log: EventLog, run: str) -> bool:
    """Whether a run is in this data directory."""
    return any(row.run == run for row in log.rows(prefix=run, limit=1))


def current_user() -> str:
    """Who acts: the person by the user id of this process, or the agent that it descends from.

    Variables such as USER are not asked, since every program can set them.
    """
    inside = find_caller()
    if inside is not None:
        return inside.actor
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container a number may be all that there is
        return f"uid-{os.getuid()}"


EDITOR: Role = "editor"
_ACTING: ContextVar[Role | None] = ContextVar("acting_role", default=None)


@contextlib.contextmanager
def acting_as(role: Role) -> Iterator[None]:
    """Runs that are started in here are started by a caller with this role."""
    token = _ACTING.set(role)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_role() -> Role:
    """The role of the caller; editor if it is not given."""
    return _ACTING.get() or EDITOR
