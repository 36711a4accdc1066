"""Compare a database with its head file: what was recorded and is no longer there.

The head file may lag behind the database (a process was killed between the two), never the other
way round. So the head is always read first, then the database.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from loopwright.errors import StorageError
from loopwright.stores.chain import genesis, link
from loopwright.stores.heads import UNKNOWN, Head, HeadTable, row_digest

Ask = Callable[..., list[Any]]

COLUMNS = """
    r.title, r.status, r.reason, r.dialect, r.workspace, r.session, r.started_at, r.updated_at,
    r.finished_at, r.wake_at, r.key, r.labels, r.surface
"""
_ROWS = f"""
    SELECT r.name, s.last, CAST(s.chain AS BLOB), s.rowid, r.revision, {COLUMNS}
    FROM run r LEFT JOIN segment s
      ON s.run = r.id AND s.seq = (SELECT max(seq) FROM segment WHERE run = r.id)
"""
ONE_ROW = f"{_ROWS} WHERE r.name = ?"
ALL_ROWS = f"{_ROWS} ORDER BY r.id"
ROWS_AFTER = f"{_ROWS} WHERE r.id IN (SELECT run FROM segment WHERE rowid > ?)"
_CHAIN_AT = """
    SELECT CAST(s.chain AS BLOB) FROM segment s JOIN run r ON r.id = s.run
    WHERE r.name = ? AND s.last = ?
"""
_AUDIT_ROWS = """
    SELECT id, at, who, via, action, subject, detail, request, CAST(chain AS BLOB) FROM audit
    WHERE id > ? ORDER BY id LIMIT 1000
"""
_AUDIT_AT = "SELECT CAST(chain AS BLOB) FROM audit WHERE id = ?"
REMEDY = (
    "keep a copy of the data directory, then put back a backup; "
    "`loopwright doctor --deep` lists everything that does not agree"
)


class StoredHead(NamedTuple):
    """The newest that the database has of a run."""

    run: str
    head: Head


def stored_head(row: Sequence[Any]) -> StoredHead:
    """One row of the queries above."""
    name, last, chain, position, revision, *columns = row
    run = str(name)
    head = Head(
        last if isinstance(last, int) else 0,
        bytes(chain) if isinstance(chain, bytes) else genesis(run),
        position if isinstance(position, int) else 0,
        revision if isinstance(revision, int) else 0,
        row_digest(columns),
    )
    return StoredHead(run, head)


class Problem(NamedTuple):
    """One thing that does not agree with the head file."""

    run: str
    text: str
    is_loss: bool  # events are missing, so that not even the rest may be shown as if it were all


def lost_run(run: str, head: Head) -> Problem:
    """A run that was recorded and not deleted, and is not in the database."""
    text = f"{run} is missing: {head.version} events were recorded, and it was never deleted"
    return Problem(run, text, is_loss=True)


def compare_run(recorded: Head, stored: StoredHead, ask: Ask) -> Problem | None:
    """What is wrong with a run that is in the database."""
    run, found = stored
    if found.version < recorded.version:
        text = (
            f"events {found.version + 1} to {recorded.version} of {run} are missing: they were "
            "recorded and are no longer in the database"
        )
        return Problem(run, text, is_loss=True)
    chain = found.chain
    if found.version > recorded.version:
        rows = ask(_CHAIN_AT, run, recorded.version)
        chain = bytes(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else b""
    if chain != recorded.chain:
        text = (
            f"events of {run} up to number {recorded.version} are not as they were recorded: the "
            "hash chain ends in another value"
        )
        return Problem(run, text, is_loss=False)
    return _compare_row(run, recorded, found)


def _compare_row(run: str, recorded: Head, found: Head) -> Problem | None:
    if recorded.digest == UNKNOWN or found.revision > recorded.revision:
        return None
    if found.revision == recorded.revision and found.digest == recorded.digest:
        return None
    text = f"the row of {run} (its status, name, times or labels) is not as it was recorded"
    return Problem(run, text, is_loss=False)


def describe_gaps(table: HeadTable, name: str) -> list[str]:
    """What is wrong with a head file; an unfinished write or a loss of power is not."""
    return [
        f"{name}: {gap.length} bytes at {gap.offset} were changed"
        for gap in table.gaps
        if gap.kind == "changed"
    ]


def as_error(problem: Problem) -> StorageError:
    """The refusal of whoever asks for a run that does not agree with the head file."""
    return StorageError(problem.text, code="damaged", hint=REMEDY)


def find_missing(table: HeadTable, names: Iterable[str]) -> list[Problem]:
    """Runs that the head file has and the database has not."""
    there = {genesis(name) for name in names}
    return [
        lost_run(table.name_of(key), head)
        for key, head in table.heads.items()
        if key not in there and not table.is_forgotten(key)
    ]


def compare_all(table: HeadTable, ask: Ask) -> list[Problem]:
    """Everything in the database that does not agree with a head file; reads no events."""
    problems: list[Problem] = []
    names: list[str] = []
    for row in ask(ALL_ROWS):
        stored = stored_head(row)
        names.append(stored.run)
        recorded = table.head_of(genesis(stored.run), stored.head.position)
        found = None if recorded is None else compare_run(recorded, stored, ask)
        if found is not None:
            problems.append(found)
    problems += find_missing(table, names)
    problems += [
        Problem(name, f"two different histories of {name} were recorded", is_loss=False)
        for name in map(table.name_of, table.conflicts)
    ]
    return problems


def table_of(identity: bytes, ask: Ask) -> HeadTable:
    """The heads of a database as it is now."""
    table = HeadTable(identity=identity)
    for row in ask(ALL_ROWS):
        run, head = stored_head(row)
        table.names[genesis(run)] = run
        table.heads[genesis(run)] = head
    newest = ask("SELECT id, CAST(chain AS BLOB) FROM audit ORDER BY id DESC LIMIT 1")
    if newest and newest[0][1] is not None:
        table.audit = Head(newest[0][0], bytes(newest[0][1]), newest[0][0], 0, UNKNOWN)
    return table


# -- the audit log ---------------------------------------------------------------------------------


def audit_body(values: Iterable[str | int | None]) -> bytes:
    """A row of the audit log as it is hashed."""
    return repr(tuple(values)).encode("utf-8", "surrogatepass")


def chain_before_audit(db: sqlite3.Connection) -> bytes:
    """What the next row of the audit log follows. Rows of older versions have no hash: the first
    one that has follows all of them.
    """
    newest = db.execute("SELECT chain FROM audit ORDER BY id DESC LIMIT 1").fetchall()
    if newest and newest[0][0] is not None:
        return bytes(newest[0][0])
    chain = genesis("audit")
    columns = "at, who, via, action, subject, detail, request"
    for row in db.execute(f"SELECT {columns} FROM audit ORDER BY id"):
        chain = link(chain, audit_body(row))
    return chain


def check_audit_chain(recorded: Head | None, ask: Ask) -> list[str]:
    """What is wrong with the audit log."""
    chain, count, after, broken = genesis("audit"), 0, 0, 0
    while page := ask(_AUDIT_ROWS, after):
        for number, *values, stored in page:
            chain = link(chain, audit_body(values))
            if stored is not None and stored != chain and not broken:
                broken = number
            chain = stored if stored is not None else chain
            after, count = number, count + 1
    problems = []
    if broken:
        problems.append(f"the audit log was changed at row {broken} or before it")
    if recorded is not None and recorded.version > after:
        problems.append(
            f"rows {after + 1} to {recorded.version} of the audit log are missing: they were "
            "recorded and are no longer in the database"
        )
    elif recorded is not None and not _has_audit(recorded, ask):
        problems.append(f"row {recorded.version} of the audit log is not as it was recorded")
    return problems


def check_audit_end(recorded: Head | None, ask: Ask) -> list[str]:
    """The cheap part: whether the newest recorded row of the audit log is there."""
    if recorded is None or _has_audit(recorded, ask):
        return []
    return [f"row {recorded.version} of the audit log is missing or not as it was recorded"]


def _has_audit(recorded: Head, ask: Ask) -> bool:
    rows = ask(_AUDIT_AT, recorded.version)
    return bool(rows) and rows[0][0] == recorded.chain


def iterate_names(ask: Ask) -> Iterator[str]:
    """Ids of all runs."""
    return (str(name) for (name,) in ask("SELECT name FROM run"))
