"""Forgetting runs that have ended: their facts, their rows, and content that nobody else names.

Content is named by its hash, so whether anybody still names it is a matter of reading. What is
forgotten is looked up first; only the content that it named can have become superfluous.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence

from loopwright.errors import Conflict
from loopwright.ports import NOTICE, NOTICE_HEAD, OF_A_RUN, AuditRow
from loopwright.stores import refusals
from loopwright.stores.cards import insert_audit
from loopwright.stores.edge import ids
from loopwright.stores.ledger import Ledger
from loopwright.stores.schema import STATUS_IS_OPEN

_HASH = re.compile(rb"[0-9a-f]{32}")
_FOUND = (
    f"SELECT name, id, {STATUS_IS_OPEN} FROM run WHERE name IN (SELECT value FROM json_each(?))"
)
_OF = "IN (SELECT value FROM json_each(?))"
_NEWEST = "SELECT coalesce(max(rowid), 0) FROM segment"
NAMING = ("SELECT CAST(body AS BLOB) FROM segment",)
"""Everything that may name content. A table that does so too has to be read here."""

NOBODY = 0  # the run of the row that keeps the numbers of appends growing


def still_open(run: str) -> Conflict:
    """Only what has ended can be forgotten."""
    return Conflict(
        f"{run} has not ended", code="not-ended", hint=f"`loopwright stop {run}` ends it"
    )


def hashes(bodies: Iterable[bytes]) -> set[bytes]:
    """Every name of content in these texts, and maybe words that only look like one."""
    return {found for body in bodies for found in _HASH.findall(body)}


def forget(
    db: sqlite3.Connection, ledger: Ledger, runs: Sequence[str], audit: Sequence[AuditRow] = ()
) -> int:
    """Inside a transaction: remove runs. Answers how many pieces of content went with them."""
    found = {name: (row, is_open) for name, row, is_open in db.execute(_FOUND, (ids(runs),))}
    for run in runs:
        if run not in found:
            raise refusals.no_run(run)
        if found[run][1]:
            raise still_open(run)
    rows = "[{}]".format(", ".join(str(row) for row, _ in found.values()))
    [(newest,)] = db.execute(_NEWEST).fetchall()
    bodies = db.execute(f"SELECT CAST(body AS BLOB) FROM segment WHERE run {_OF}", (rows,))
    named = hashes(body for (body,) in bodies)
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
    """Others look for rows above the newest that they have seen: its number is never used again."""
    db.execute("DELETE FROM segment WHERE run = ?", (NOBODY,))
    [(left,)] = db.execute(_NEWEST).fetchall()
    if left < newest:
        db.execute(
            "INSERT INTO segment (rowid, run, seq, last, body, chain) VALUES (?, ?, 1, 1, '', '')",
            (newest, NOBODY),
        )
