"""Tables beside the events of runs: owners, what lists show, small records and the audit log.

Ownership is claimed and released for any number of runs at once. What lists show is written in
the transaction of the events that it is computed from. Runs are deleted with everything that
belongs to them.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from loopwright.errors import Conflict, StorageError, VersionConflict
from loopwright.kernel.events import Usage
from loopwright.ports import (
    NOTICE,
    NOTICE_HEAD,
    OF_A_RUN,
    AuditRow,
    ClosedGate,
    GateSubject,
    Liveness,
    OpenGate,
    Owner,
    RunDetails,
    RunListing,
    StoredRecord,
    UsageRow,
    encode_figures,
)
from loopwright.stores import appends
from loopwright.stores.appends import check_audit, check_record, ids, is_id, link
from loopwright.stores.sqlite.connection import STATUS_IS_OPEN
from loopwright.stores.sqlite.head_checks import audit_body, chain_before_audit
from loopwright.stores.sqlite.write_connection import WriteConnection, add_usage

_S = TypeVar("_S")
_OWNERS = f"""
    SELECT name, {STATUS_IS_OPEN}, owner_pid, owner_start, owner_boot, owner_token FROM run
    WHERE name IN (SELECT value FROM json_each(?))
"""
_TAKE = """
    UPDATE run SET owner_pid = ?, owner_start = ?, owner_boot = ?, owner_token = ?
    WHERE name IN (SELECT value FROM json_each(?))
"""
_GIVE = """
    UPDATE run
    SET owner_pid = NULL, owner_start = NULL, owner_boot = NULL, owner_token = NULL
    WHERE owner_token = ? AND name IN (SELECT value FROM json_each(?))
"""


def owner_of(columns: Sequence[object]) -> Owner | None:
    """The owner from its four columns."""
    pid, start, boot, token = columns
    if not (isinstance(pid, int) and isinstance(start, int)):
        return None
    return Owner(pid=pid, start=start, boot=str(boot), token=str(token))


def live_owners(
    owners: dict[str, Owner | None], claimant: Owner, alive: Liveness
) -> dict[str, Owner | None]:
    """For each run the living owner that keeps it from the claimant, or None. A claimant with the
    token of an owner was handed its runs.
    """
    verdicts = {
        owner: owner.token != claimant.token and alive(owner)
        for owner in set(owners.values())
        if owner is not None
    }
    return {
        run: owner if owner is not None and verdicts[owner] else None
        for run, owner in owners.items()
    }


def claim_runs(
    db: sqlite3.Connection,
    ledger: WriteConnection,
    runs: Sequence[str],
    owner: Owner,
    alive: Liveness,
) -> dict[str, Owner | None]:
    """Inside a transaction: claim runs without a living owner; a run that has ended has no
    owner.
    """
    rows = db.execute(_OWNERS, (ids(runs),)).fetchall()
    found = {name: owner_of(columns) if is_open else None for name, is_open, *columns in rows}
    for run in runs:
        if run not in found:
            raise appends.no_run_error(run)
    answer = live_owners({run: found[run] for run in runs}, owner, alive)
    ours = [run for run, keeper in answer.items() if keeper is None]
    db.execute(_TAKE, (owner.pid, owner.start, owner.boot, owner.token, ids(ours)))
    ledger.killpoint("claim.written")
    _fence(ledger, ours, owner.token)
    return answer


def release_runs(
    db: sqlite3.Connection, ledger: WriteConnection, runs: Sequence[str], owner: Owner
) -> None:
    """Inside a transaction: release our own runs among these."""
    db.execute(_GIVE, (owner.token, ids(runs)))
    ledger.killpoint("release.written")
    ours = [run for run in runs if run in ledger.known and ledger.known[run].token == owner.token]
    _fence(ledger, ours, None)


def _fence(ledger: WriteConnection, runs: Sequence[str], token: str | None) -> None:
    for run in runs:
        known = ledger.known.get(run)
        if known is not None:
            known.token = token


USAGE_SINCE = """
    SELECT r.name, u.agent, u.day, u.calls, u.input_tokens, u.output_tokens, u.usd, u.unpriced,
           u.cache_read_tokens, u.cache_write_tokens
    FROM usage u JOIN run r ON r.id = u.run WHERE u.day >= ? ORDER BY u.run, u.agent, u.day
"""
_SUM = """
    SELECT sum(u.input_tokens), sum(u.output_tokens), sum(u.usd), sum(u.unpriced),
           sum(u.cache_read_tokens), sum(u.cache_write_tokens)
    FROM usage u
"""
USAGE_SUM = f"{_SUM} WHERE u.day >= ?"
CALLER_USAGE_SUM = (
    f"{_SUM} JOIN run r ON r.id = u.run WHERE u.day >= ? AND r.name = ? AND u.agent = ?"
)
UNLISTED_RUNS = "SELECT name FROM run WHERE metered = 0 ORDER BY id"
_OPEN_GATE = "INSERT OR REPLACE INTO gate VALUES (?, ?, ?, ?, ?, ?, ?, NULL, '', '')"
_CLOSE_GATE = """
    UPDATE gate SET closed_at = ?, decision = ?, decided_by = ?
    WHERE gate = ? AND run = ? AND closed_at IS NULL
"""
_ADD_CLOSED = "INSERT OR IGNORE INTO gate VALUES (?, ?, '', '', '', 0, NULL, ?, ?, ?)"
_GATES = """
    SELECT g.gate, r.name, g.path, g.digest, g.message, g.opened_at, g.subject, g.closed_at,
           g.decision, g.decided_by
    FROM gate g JOIN run r ON r.id = g.run WHERE {}
"""
ALL_GATES = _GATES.format("g.closed_at IS NULL ORDER BY g.opened_at, g.rowid")
GATES_OF_RUN = _GATES.format("g.closed_at IS NULL AND r.name = ? ORDER BY g.opened_at, g.rowid")
GATES_NAMED = _GATES.format(
    "g.gate >= ? AND g.gate < ? ORDER BY g.closed_at IS NOT NULL, g.gate LIMIT ?"
)


def open_gates(db: sqlite3.Connection, run: int, gates: Sequence[OpenGate]) -> None:
    """Add gates to the inbox."""
    for gate in gates:
        values = (gate.gate, run, gate.path, gate.digest, gate.message, gate.opened_at)
        subject = None if gate.subject is None else msgspec.json.encode(gate.subject).decode()
        db.execute(_OPEN_GATE, (*values, subject))


def close_gates(db: sqlite3.Connection, run: int, gates: Sequence[ClosedGate]) -> None:
    """Remove gates from the inbox. Their rows stay, with the decision."""
    for gate in gates:
        end = gate.at, gate.decision, gate.by
        if not db.execute(_CLOSE_GATE, (*end, gate.gate, run)).rowcount:
            db.execute(_ADD_CLOSED, (gate.gate, run, *end))


def gate_of(columns: Sequence[Any]) -> OpenGate | ClosedGate:
    """A row of the table of gates."""
    gate, run, path, digest, message, opened_at, subject, closed_at, decision, by = columns
    if closed_at is not None:
        return ClosedGate(gate, run, closed_at, decision, by)
    return OpenGate(
        gate=gate,
        run=run,
        path=path,
        digest=digest,
        message=message,
        opened_at=opened_at,
        subject=_decoded(subject, GateSubject),
    )


def _decoded(text: object, kind: type[_S]) -> _S | None:
    """A column of JSON; None if it is empty or cannot be read: it is computed from the events."""
    try:
        return msgspec.json.decode(text, type=kind) if isinstance(text, str) else None
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def details_text(details: RunDetails | None) -> str | None:
    """Details in the format of the column."""
    return None if details is None else msgspec.json.encode(details).decode()


def details_of(text: object) -> RunDetails | None:
    """The details of a column."""
    return _decoded(text, RunDetails)


def put_listing(db: sqlite3.Connection, name: str, listing: RunListing) -> None:
    """Inside a transaction: store what lists show of a run. A run that has changed in the meantime
    is not updated; its listing is computed again.
    """
    found = db.execute(
        "SELECT id, (SELECT max(last) FROM segment WHERE run = run.id) FROM run WHERE name = ?",
        (name,),
    ).fetchall()
    if not found:
        raise appends.no_run_error(name)
    [(run, newest)] = found
    if newest != listing.version:
        return
    db.execute("DELETE FROM usage WHERE run = ?", (run,))
    add_usage(db, run, listing.usage)
    figures = encode_figures(listing.figures)
    db.execute("UPDATE segment SET figures = ? WHERE run = ? AND last = ?", (figures, run, newest))
    close_gates(db, run, listing.closed_gates)
    open_gates(db, run, listing.open_gates)
    head, details = listing.headline, details_text(listing.details)
    db.execute(
        "UPDATE run SET metered = 1, labels = ?, surface = ?, details = ?, revision = revision + 1 "
        "WHERE id = ?",
        (labels_text(head.labels), head.surface, details, run),
    )


def labels_text(labels: Sequence[str]) -> str:
    """Labels in the format of the column."""
    return msgspec.json.encode(list(labels)).decode()


def labels_of(text: object) -> tuple[str, ...]:
    """The labels of a column."""
    try:
        return tuple(msgspec.json.decode(str(text), type=list[str]))
    except msgspec.MsgspecError as error:
        raise StorageError("the labels of a run are damaged", code="damaged") from error


def usage_sum_of(columns: Sequence[Any]) -> Usage:
    """A row of sums; without any usage they are null."""
    read, written, usd, unpriced, cached, cache_written = (one or 0 for one in columns)
    return Usage(read, written, round(float(usd), 9), unpriced, cached, cache_written)


def usage_row_of(columns: Sequence[Any]) -> UsageRow:
    """A row of the table."""
    run, agent, day, calls, read, written, usd, unpriced, cached, cache_written = columns
    return UsageRow(
        run=run,
        agent=agent,
        day=day,
        calls=calls,
        usage=Usage(read, written, usd, unpriced, cached, cache_written),
    )


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


class Asking(Protocol):
    """A connection that committed data is read through."""

    def ask(self, statement: str, *values: str | int | bytes | None) -> list[Any]:
        """The rows that a statement finds."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """The records."""

    kind: str
    owner: str | None = None
    due_by: int | None = None
    after: str = ""
    limit: int | None = None


def find_record(reader: Asking, kind: str, key: str) -> StoredRecord | None:
    """A record by its name."""
    rows = (
        reader.ask(f"{_SELECT_RECORD} WHERE kind = ? AND key = ?", kind, key) if is_id(key) else []
    )
    return _record(rows[0]) if rows else None


def select_records(reader: Asking, wanted: RecordQuery) -> list[StoredRecord]:
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
    reader: Asking, *, before: int | None, subject: str, request: str, limit: int
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
            raise appends.no_run_error(run)
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
