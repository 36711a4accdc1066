"""Compare a database with its head file: events that were recorded and are missing.

The head file may lag behind the database (a process was killed between the two), never the other
way round. So the head is always read first, then the database.

A database is bound to its head file when it is opened: both contain one random identity. A database
of an older version, or a copy made by `backup`, has none: it gets a head file that records its
current state. Any other combination that does not match is refused, because an empty or shorter log
must never be shown as if it were complete.
"""

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from loopwright.errors import StorageError
from loopwright.stores.appends import genesis, link
from loopwright.stores.sqlite.connection import DatabasePlace
from loopwright.stores.sqlite.head_file import (
    UNKNOWN,
    HeadFile,
    HeadTable,
    RecordedHead,
    head_record,
    identity_record,
    name_record,
    newest_position,
    read_identity,
    read_table,
    records_of,
    row_digest,
    write_new,
)

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
    """The newest data of a run in the database."""

    run: str
    head: RecordedHead


def stored_head(row: Sequence[Any]) -> StoredHead:
    """One row of the queries above."""
    name, last, chain, position, revision, *columns = row
    run = str(name)
    head = RecordedHead(
        last if isinstance(last, int) else 0,
        bytes(chain) if isinstance(chain, bytes) else genesis(run),
        position if isinstance(position, int) else 0,
        revision if isinstance(revision, int) else 0,
        row_digest(columns),
    )
    return StoredHead(run, head)


class HeadProblem(NamedTuple):
    """One difference from the head file."""

    run: str
    text: str
    # events are missing, so that not even the rest may be shown as if it were complete
    is_loss: bool


def lost_run(run: str, head: RecordedHead) -> HeadProblem:
    """A run that was recorded and not deleted, and is not in the database."""
    text = f"{run} is missing: {head.version} events were recorded, and it was never deleted"
    return HeadProblem(run, text, is_loss=True)


def compare_run(recorded: RecordedHead, stored: StoredHead, ask: Ask) -> HeadProblem | None:
    """The problems of a run in the database."""
    run, found = stored
    if found.version < recorded.version:
        text = (
            f"events {found.version + 1} to {recorded.version} of {run} are missing: they were "
            "recorded and are no longer in the database"
        )
        return HeadProblem(run, text, is_loss=True)
    chain = found.chain
    if found.version > recorded.version:
        rows = ask(_CHAIN_AT, run, recorded.version)
        chain = bytes(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else b""
    if chain != recorded.chain:
        text = (
            f"events of {run} up to number {recorded.version} are not as they were recorded: the "
            "hash chain ends in another value"
        )
        return HeadProblem(run, text, is_loss=False)
    return _compare_row(run, recorded, found)


def _compare_row(run: str, recorded: RecordedHead, found: RecordedHead) -> HeadProblem | None:
    if recorded.digest == UNKNOWN or found.revision > recorded.revision:
        return None
    if found.revision == recorded.revision and found.digest == recorded.digest:
        return None
    text = f"the row of {run} (its status, name, times or labels) is not as it was recorded"
    return HeadProblem(run, text, is_loss=False)


def describe_gaps(table: HeadTable, name: str) -> list[str]:
    """The problems of a head file; an unfinished write or a power failure is not one."""
    return [
        f"{name}: {gap.length} bytes at {gap.offset} were changed"
        for gap in table.gaps
        if gap.kind == "changed"
    ]


def as_error(problem: HeadProblem) -> StorageError:
    """The error for reading a run that does not match the head file."""
    return StorageError(problem.text, code="damaged", hint=REMEDY)


def find_missing(table: HeadTable, names: Iterable[str]) -> list[HeadProblem]:
    """Runs that are in the head file and not in the database."""
    there = {genesis(name) for name in names}
    return [
        lost_run(table.name_of(key), head)
        for key, head in table.heads.items()
        if key not in there and not table.is_forgotten(key)
    ]


def compare_all(table: HeadTable, ask: Ask) -> list[HeadProblem]:
    """Everything in the database that does not match a head file; reads no events."""
    problems: list[HeadProblem] = []
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
        HeadProblem(name, f"two different histories of {name} were recorded", is_loss=False)
        for name in map(table.name_of, table.conflicts)
    ]
    return problems


def table_of(identity: bytes, ask: Ask) -> HeadTable:
    """The current heads of a database."""
    table = HeadTable(identity=identity)
    for row in ask(ALL_ROWS):
        run, head = stored_head(row)
        table.names[genesis(run)] = run
        table.heads[genesis(run)] = head
    newest = ask("SELECT id, CAST(chain AS BLOB) FROM audit ORDER BY id DESC LIMIT 1")
    if newest and newest[0][1] is not None:
        table.audit = RecordedHead(newest[0][0], bytes(newest[0][1]), newest[0][0], 0, UNKNOWN)
    return table


# -- the audit log ---------------------------------------------------------------------------------


def audit_body(values: Iterable[str | int | None]) -> bytes:
    """A row of the audit log as it is hashed."""
    return repr(tuple(values)).encode("utf-8", "surrogatepass")


def chain_before_audit(db: sqlite3.Connection) -> bytes:
    """The value before the next row of the audit log. Rows of older versions have no hash: the
    first one with a hash covers all of them.
    """
    newest = db.execute("SELECT chain FROM audit ORDER BY id DESC LIMIT 1").fetchall()
    if newest and newest[0][0] is not None:
        return bytes(newest[0][0])
    chain = genesis("audit")
    columns = "at, who, via, action, subject, detail, request"
    for row in db.execute(f"SELECT {columns} FROM audit ORDER BY id"):
        chain = link(chain, audit_body(row))
    return chain


def check_audit_chain(recorded: RecordedHead | None, ask: Ask) -> list[str]:
    """The problems of the audit log."""
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


def check_audit_end(recorded: RecordedHead | None, ask: Ask) -> list[str]:
    """The quick part: whether the newest recorded row of the audit log exists."""
    if recorded is None or _has_audit(recorded, ask):
        return []
    return [f"row {recorded.version} of the audit log is missing or not as it was recorded"]


def _has_audit(recorded: RecordedHead, ask: Ask) -> bool:
    rows = ask(_AUDIT_AT, recorded.version)
    return bool(rows) and rows[0][0] == recorded.chain


def iterate_names(ask: Ask) -> Iterator[str]:
    """Ids of all runs."""
    return (str(name) for (name,) in ask("SELECT name FROM run"))


_T = TypeVar("_T")
META = "heads"
POSITION = "heads_position"
_PUT_POSITION = """
    INSERT INTO meta VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)
"""
_BYTES = 16
_IDENTITY = f"SELECT value FROM meta WHERE key = '{META}'"
_NEWEST = "SELECT coalesce(max(rowid), 0) FROM segment"
REBUILD = (
    "put a backup of both files in their place; if you replaced them yourself, "
    "`loopwright doctor --rebuild-heads` records the database as it is now"
)


def refuse(path: Path, finding: str) -> StorageError:
    """A database and a head file that do not belong together."""
    return StorageError(f"{path}: {finding}", code="damaged", hint=REBUILD)


def prepare_new(place: DatabasePlace) -> bytes:
    """Before a database is created: its future identity. Refused if a head file has runs: their
    database is missing.
    """
    path = place.heads
    write_new(path, [identity_record(secrets.token_bytes(_BYTES))], replace=False)
    table = read_table(path)
    if table is None or not table.identity:
        raise refuse(path, "this file is not a list of heads")
    lost = sum(1 for key in table.heads if not table.is_forgotten(key))
    # Another process may have created the database in the meantime, and recorded its first runs.
    if lost and not place.path.exists():
        raise refuse(
            place.path, f"the database is missing, but {path.name} has the heads of {lost} runs"
        )
    return table.identity


def bind(place: DatabasePlace, ask: Ask) -> bool:
    """Ensure that database and head file belong together. Returns whether there is a head file: a
    read-only directory can be without one.
    """
    identity = stored_identity(ask)
    if identity is None:
        return _adopt(place)
    if not place.heads.exists():
        raise refuse(
            place.heads,
            "the head file of this database is missing, so it is not known whether events were "
            "removed",
        )
    if read_identity(place.heads) != identity:
        raise refuse(
            place.path, f"this is not the database that {place.heads.name} was written for"
        )
    _refuse_shortened(place, ask)
    return True


def _refuse_shortened(place: DatabasePlace, ask: Ask) -> None:
    """The last records usually show that the file is complete."""
    found = ask("SELECT value FROM meta WHERE key = ?", POSITION)
    reached = found[0][0] if found and isinstance(found[0][0], int) else 0
    if newest_position(place.heads) >= reached:
        return
    table = read_table(place.heads)
    if table is None or table.position < reached:
        raise refuse(place.heads, "records were removed from the end of this file")


def stored_identity(ask: Ask) -> bytes | None:
    """The identity of a database; None for one that has none yet."""
    found = ask(_IDENTITY)
    try:
        return bytes.fromhex(found[0][0]) if found else None
    except (TypeError, ValueError):
        return b""


def store_identity(db: sqlite3.Connection, identity: bytes) -> None:
    """Inside a transaction: give a database an identity."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (META, identity.hex()))


def store_position(db: sqlite3.Connection, position: int) -> None:
    """Inside a transaction: record the length of the head file durably."""
    db.execute(_PUT_POSITION, (POSITION, position))


def forget_identity(db: sqlite3.Connection) -> None:
    """Give a copy of a database its own head file."""
    db.execute("DELETE FROM meta WHERE key IN (?, ?)", (META, POSITION))


def catch_up(place: DatabasePlace, ask: Ask, heads: HeadFile) -> None:
    """Record the newest appends, if a process was killed before it recorded them."""
    position = newest_position(place.heads)
    [(newest,)] = ask(_NEWEST)
    if newest <= position:
        return
    for row in ask(ROWS_AFTER, position):
        run, head = stored_head(row)
        heads.append(name_record(genesis(run), run) + head_record(genesis(run), head))


def rebuild(place: DatabasePlace) -> int:
    """Record the current state of the database, whatever was recorded before. Returns the number of
    runs.
    """

    def write(db: sqlite3.Connection) -> int:
        _refuse_in_use(place)
        table = table_of(secrets.token_bytes(_BYTES), _ask(db))
        forget_identity(db)
        store_identity(db, table.identity)
        write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        return len(table.heads)

    return _write(place, write)


def _refuse_in_use(place: DatabasePlace) -> None:
    """A process that has the file open would continue with the one that is replaced."""
    try:
        handle = os.open(place.heads, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(
            f"{place.heads}: another process writes to this data directory",
            code="busy",
            hint="stop the server and running commands, then try again",
        ) from error
    finally:
        os.close(handle)


def _adopt(place: DatabasePlace) -> bool:
    def write(db: sqlite3.Connection) -> None:
        ask = _ask(db)
        if stored_identity(ask) is not None:
            return  # another process was faster
        table = read_table(place.heads)
        if table is not None and table.heads:
            _refuse_others(place, table, ask)
        elif table is None or not table.identity:
            table = table_of(secrets.token_bytes(_BYTES), ask)
            write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        else:
            table = table_of(table.identity, ask)
            write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        store_identity(db, table.identity)

    try:
        _write(place, write)
    except OSError:
        return False
    except sqlite3.OperationalError:
        return False
    return True


def _refuse_others(place: DatabasePlace, table: HeadTable, ask: Ask) -> None:
    """A crash while a database got its head file leaves one that matches it."""
    if not table.identity or table.gaps or compare_all(table, ask):
        raise refuse(
            place.path, f"this is not the database that {place.heads.name} was written for"
        )


def _write(place: DatabasePlace, work: Callable[[sqlite3.Connection], _T]) -> _T:
    with closing(place.open_writer()) as db:
        db.execute("BEGIN IMMEDIATE")
        answer = work(db)
        db.execute("COMMIT")
    return answer


def _ask(db: sqlite3.Connection) -> Ask:
    return lambda statement, *values: db.execute(statement, values).fetchall()


def _mode(place: DatabasePlace) -> int:
    return os.stat(place.path).st_mode & 0o777
