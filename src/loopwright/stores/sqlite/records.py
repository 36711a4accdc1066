"""Small records beside the runs, their audit rows, and the deletion of runs that have ended.

A change of a record and its audit row are one transaction. Deleting a run removes its events,
its rows, and content that no other run names. Content is named by its hash, so whether it is
still needed must be read: the run to be deleted is read first, because only content that it
names can have become superfluous.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopwright.errors import Conflict, VersionConflict
from loopwright.ports import NOTICE, NOTICE_HEAD, OF_A_RUN, AuditRow, StoredRecord
from loopwright.stores import append_validation
from loopwright.stores.append_validation import check_audit, check_record, ids, is_id
from loopwright.stores.hash_chain import link
from loopwright.stores.sqlite.connection import STATUS_IS_OPEN
from loopwright.stores.sqlite.head_checks import audit_body, chain_before_audit
from loopwright.stores.sqlite.reader import Reader
from loopwright.stores.sqlite.write_connection import WriteConnection

_SELECT_RECORD = "SELECT kind, key, version, owner, due, CAST(body AS BLOB) FROM card"
_VERSION = "SELECT version FROM card WHERE kind = ? AND key = ?"
_PUT = (
    "INSERT OR REPLACE INTO card (kind, key, version, owner, due, body) VALUES (?, ?, ?, ?, ?, ?)"
)
_DROP = "DELETE FROM card WHERE kind = ? AND key = ?"
_AUDIT = """
    INSERT INTO audit (at, who, via, action, subject, detail, request, chain)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_AUDITED = "SELECT id, at, who, via, action, subject, detail, request FROM audit"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """The records."""

    kind: str
    owner: str | None = None
    due_by: int | None = None
    after: str = ""
    limit: int | None = None


def find_record(reader: Reader, kind: str, key: str) -> StoredRecord | None:
    """A record by its name."""
    rows = (
        reader.ask(f"{_SELECT_RECORD} WHERE kind = ? AND key = ?", kind, key) if is_id(key) else []
    )
    return _record(rows[0]) if rows else None


def select_records(reader: Reader, wanted: RecordQuery) -> list[StoredRecord]:
    """Records of a kind, in order."""
    terms, values = ["kind = ?", "key > ?"], [wanted.kind, wanted.after]
    bound: list[str | int | bytes | None] = [*values]
    if wanted.owner is not None:
        terms.append("owner = ?")
        bound.append(wanted.owner)
    if wanted.due_by is not None:
        terms.append("due IS NOT NULL AND due <= ?")
        bound.append(wanted.due_by)
    order = "due, key" if wanted.due_by is not None else "key"
    bound.append(-1 if wanted.limit is None else max(wanted.limit, 0))
    where = " AND ".join(terms)
    found = reader.ask(f"{_SELECT_RECORD} WHERE {where} ORDER BY {order} LIMIT ?", *bound)
    return [_record(row) for row in found]


def check_write(puts: Sequence[tuple[StoredRecord, int | None]], audit: Sequence[AuditRow]) -> None:
    """Refuse records that cannot be stored before anything is written."""
    for record, _ in puts:
        check_record(record)
    for row in audit:
        check_audit(row)


def write_record(
    db: sqlite3.Connection,
    puts: Sequence[tuple[StoredRecord, int | None]],
    drops: Sequence[tuple[str, str]],
    audit: Sequence[AuditRow],
) -> None:
    """Inside a transaction: everything, or VersionConflict and nothing."""
    put_record(db, puts)
    for kind, key in drops:
        db.execute(_DROP, (kind, key))
    insert_audit(db, audit)


def put_record(db: sqlite3.Connection, puts: Sequence[tuple[StoredRecord, int | None]]) -> None:
    """Inside a transaction: write records; VersionConflict if one was changed in the meantime."""
    for record, expected in puts:
        rows = db.execute(_VERSION, (record.kind, record.key)).fetchall()
        version = int(rows[0][0]) if rows else 0
        if expected is not None and expected != version:
            raise VersionConflict(
                f"{record.kind} {record.key} is at version {version}, not {expected}",
                hint="read it again and decide again",
            )
        db.execute(
            _PUT,
            (record.kind, record.key, version + 1, record.owner, record.due, bytes(record.body)),
        )


def insert_audit(db: sqlite3.Connection, rows: Sequence[AuditRow]) -> None:
    """Inside a transaction: record who made a change, in a hash chain over all rows."""
    if not rows:
        return
    chain = chain_before_audit(db)
    for row in rows:
        values = (row.at, row.who, row.via, row.action, row.subject, row.detail, row.request)
        chain = link(chain, audit_body(values))
        db.execute(_AUDIT, (*values, chain))


def select_audit(
    reader: Reader, *, before: int | None, subject: str, request: str, limit: int
) -> list[AuditRow]:
    """Audit rows, newest first."""
    terms: list[str] = []
    bound: list[str | int | bytes | None] = []
    if before is not None:
        terms.append("id < ?")
        bound.append(before)
    if subject:
        terms.append("subject = ?")
        bound.append(subject)
    if request:
        terms.append("request = ?")
        bound.append(request)
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    found = reader.ask(f"{_AUDITED} {where} ORDER BY id DESC LIMIT ?", *bound, max(limit, 0))
    names = ("id", "at", "who", "via", "action", "subject", "detail", "request")
    return [AuditRow(**dict(zip(names, row, strict=True))) for row in found]


def _record(row: Sequence[object]) -> StoredRecord:
    kind, key, version, owner, due, body = row
    assert isinstance(version, int)
    assert isinstance(body, bytes)
    return StoredRecord(
        kind=str(kind),
        key=str(key),
        body=body,
        version=version,
        owner=str(owner),
        due=due if isinstance(due, int) else None,
    )


_HASH = re.compile(rb"[0-9a-f]{32}")
_FOUND = (
    f"SELECT name, id, {STATUS_IS_OPEN} FROM run WHERE name IN (SELECT value FROM json_each(?))"
)
_OF = "IN (SELECT value FROM json_each(?))"
_NEWEST = "SELECT coalesce(max(rowid), 0) FROM segment"
NAMING = ("SELECT CAST(body AS BLOB) FROM segment",)
"""Every table that may name content. A new table that does so has to be added."""

NOBODY = 0  # the run of the row that keeps the numbers of appends growing


def open_run_error(run: str) -> Conflict:
    """Only runs that have ended can be deleted."""
    return Conflict(
        f"{run} has not ended", code="not-ended", hint=f"`loopwright stop {run}` ends it"
    )


def content_hashes(bodies: Iterable[bytes]) -> set[bytes]:
    """Every name of content in these texts, and possibly words that only look like one."""
    return {found for body in bodies for found in _HASH.findall(body)}


def delete_runs(
    db: sqlite3.Connection,
    ledger: WriteConnection,
    runs: Sequence[str],
    audit: Sequence[AuditRow] = (),
) -> int:
    """Inside a transaction: delete runs. Returns the number of deleted pieces of content."""
    found = {name: (row, is_open) for name, row, is_open in db.execute(_FOUND, (ids(runs),))}
    for run in runs:
        if run not in found:
            raise append_validation.no_run_error(run)
        if found[run][1]:
            raise open_run_error(run)
    rows = "[{}]".format(", ".join(str(row) for row, _ in found.values()))
    [(newest,)] = db.execute(_NEWEST).fetchall()
    bodies = db.execute(f"SELECT CAST(body AS BLOB) FROM segment WHERE run {_OF}", (rows,))
    named = content_hashes(body for (body,) in bodies)
    db.execute(f"DELETE FROM gate WHERE run {_OF}", (rows,))
    db.execute(f"DELETE FROM usage WHERE run {_OF}", (rows,))
    db.execute(f"DELETE FROM segment WHERE run {_OF}", (rows,))
    db.execute(f"DELETE FROM run WHERE id {_OF}", (rows,))
    db.execute(f"DELETE FROM card WHERE kind {_OF} AND key {_OF}", (ids(OF_A_RUN), ids(runs)))
    about = f"DELETE FROM card WHERE kind = ? AND substr(key, ?) {_OF}"
    db.execute(about, (NOTICE, NOTICE_HEAD + 1, ids(runs)))
    _keep_counting(db, newest)
    if ledger.heads is not None:
        ledger.heads.add_forgotten(list(runs), newest)
    ledger.killpoint("forget.rows")
    for query in NAMING:
        for (body,) in db.execute(query):
            if not named:
                break
            named.difference_update(_HASH.findall(body))
    removed = [(name.decode(),) for name in named]
    count = db.executemany("DELETE FROM blob WHERE hash = ?", removed).rowcount if removed else 0
    insert_audit(db, audit)
    ledger.killpoint("forget.blobs")
    for run in runs:
        ledger.known.pop(run, None)
    return max(0, count)


def _keep_counting(db: sqlite3.Connection, newest: int) -> None:
    """Other processes look for rows above the newest that they have seen: its number is never used
    again.
    """
    db.execute("DELETE FROM segment WHERE run = ?", (NOBODY,))
    [(left,)] = db.execute(_NEWEST).fetchall()
    if left < newest:
        db.execute(
            "INSERT INTO segment (rowid, run, seq, last, body, chain) VALUES (?, ?, 1, 1, '', '')",
            (newest, NOBODY),
        )
