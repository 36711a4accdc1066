"""Small records beside the runs, and the rows that say who did what: one transaction for a change
and its audit.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.errors import VersionConflict
from loopwright.ports import AuditRow, Card
from loopwright.stores.chain import link
from loopwright.stores.edge import check_audit, check_card, is_id
from loopwright.stores.head_checks import audit_body, chain_before_audit
from loopwright.stores.reader import Reader

_CARD = "SELECT kind, key, version, owner, due, CAST(body AS BLOB) FROM card"
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
class Wanted:
    """Which records."""

    kind: str
    owner: str | None = None
    due_by: int | None = None
    after: str = ""
    limit: int | None = None


def find(reader: Reader, kind: str, key: str) -> Card | None:
    """A record by its name."""
    rows = reader.ask(f"{_CARD} WHERE kind = ? AND key = ?", kind, key) if is_id(key) else []
    return _card(rows[0]) if rows else None


def select(reader: Reader, wanted: Wanted) -> list[Card]:
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
    found = reader.ask(f"{_CARD} WHERE {where} ORDER BY {order} LIMIT ?", *bound)
    return [_card(row) for row in found]


def check(puts: Sequence[tuple[Card, int | None]], audit: Sequence[AuditRow]) -> None:
    """Refuse what cannot be stored before anything is begun."""
    for card, _ in puts:
        check_card(card)
    for row in audit:
        check_audit(row)


def write(
    db: sqlite3.Connection,
    puts: Sequence[tuple[Card, int | None]],
    drops: Sequence[tuple[str, str]],
    audit: Sequence[AuditRow],
) -> None:
    """Inside a transaction: everything, or VersionConflict and nothing."""
    put(db, puts)
    for kind, key in drops:
        db.execute(_DROP, (kind, key))
    insert_audit(db, audit)


def put(db: sqlite3.Connection, puts: Sequence[tuple[Card, int | None]]) -> None:
    """Inside a transaction: write records; VersionConflict where one was changed meanwhile."""
    for card, expected in puts:
        rows = db.execute(_VERSION, (card.kind, card.key)).fetchall()
        version = int(rows[0][0]) if rows else 0
        if expected is not None and expected != version:
            raise VersionConflict(
                f"{card.kind} {card.key} is at version {version}, not {expected}",
                hint="read it again and decide again",
            )
        db.execute(_PUT, (card.kind, card.key, version + 1, card.owner, card.due, bytes(card.body)))


def insert_audit(db: sqlite3.Connection, rows: Sequence[AuditRow]) -> None:
    """Inside a transaction: say who did it, in a hash chain over all rows."""
    if not rows:
        return
    chain = chain_before_audit(db)
    for row in rows:
        values = (row.at, row.who, row.via, row.action, row.subject, row.detail, row.request)
        chain = link(chain, audit_body(values))
        db.execute(_AUDIT, (*values, chain))


def audited(
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


def _card(row: Sequence[object]) -> Card:
    kind, key, version, owner, due, body = row
    assert isinstance(version, int)
    assert isinstance(body, bytes)
    return Card(
        kind=str(kind),
        key=str(key),
        body=body,
        version=version,
        owner=str(owner),
        due=due if isinstance(due, int) else None,
    )
