"""One commit of many appends: each is judged alone, what passes is written together.

An append that is refused leaves no trace, and the others do not notice. Segments and blobs of the
whole group are written by few large statements: every call into SQLite lets go of the interpreter
lock, and getting it back from a busy event loop costs more than the row.
"""

import sqlite3
from collections.abc import Sequence

from loopwright.errors import LoopwrightError
from loopwright.ports import OPEN_STATUSES, Append, Headline
from loopwright.stores import cards, refusals, usage
from loopwright.stores.chain import link
from loopwright.stores.edge import Entry
from loopwright.stores.head_recorder import HeadRecorder
from loopwright.stores.heads import row_digest
from loopwright.stores.ledger import Known, Ledger
from loopwright.stores.schema import STATUS_IS_OPEN

_CHUNKS = (256, 64, 16, 4, 1)
_HOLDER = f"SELECT name FROM run WHERE key = ? AND {STATUS_IS_OPEN} AND key IS NOT NULL"
_CREATE = """
    INSERT INTO run (title, status, reason, dialect, workspace, session,
                     started_at, updated_at, finished_at, wake_at, key, labels, surface, name,
                     owner_pid, owner_start, owner_boot, owner_token, metered)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
"""
_UPDATE = """
    UPDATE run SET title = ?, status = ?, reason = ?, dialect = ?, workspace = ?, session = ?,
                   started_at = ?, updated_at = ?, finished_at = ?, wake_at = ?, key = ?,
                   labels = ?, surface = ?, revision = ?
    WHERE id = ?
"""
_GATE_ELSEWHERE = """
    SELECT r.name FROM gate g JOIN run r ON r.id = g.run WHERE g.gate = ? AND r.name <> ?
"""
_OPEN_GATE = "INSERT OR REPLACE INTO gate VALUES (?, ?, ?, ?, ?, ?)"
_CLOSE_GATE = "DELETE FROM gate WHERE gate = ? AND run = ?"


def _inserts(head: str, width: int, tail: str = "") -> tuple[tuple[int, str], ...]:
    row = "({})".format(", ".join("?" * width))
    return tuple((n * width, f"{head} VALUES {', '.join([row] * n)}{tail}") for n in _CHUNKS)


_SEGMENTS = _inserts("INSERT INTO segment (run, seq, last, body, chain)", 5)
# Content that is there stays as it is, unless a disk has changed it: then it is whole again.
_BLOBS = _inserts(
    "INSERT INTO blob (hash, body)",
    2,
    " ON CONFLICT (hash) DO UPDATE SET body = excluded.body WHERE body IS NOT excluded.body",
)


class Group:
    """The appends of one transaction."""

    def __init__(self, db: sqlite3.Connection, ledger: Ledger) -> None:
        self._db = db
        self._ledger = ledger
        self._known = ledger.known
        self._kill = ledger.killpoint
        self._segments: list[int | bytearray] = []
        self._appended: list[Known] = []  # one for each segment
        self._moved: dict[str, Known] = {}  # runs whose head this changes
        self._listed = False  # whether lists show something else of one of them
        self._blobs: dict[str, bytes] = {}
        self._audited = False

    def write(self, entries: Sequence[Entry]) -> list[LoopwrightError | None]:
        """Write what may be written; answers, for each entry, None or why not."""
        if len(entries) == 1:  # the usual case
            [entry] = entries
            if entry.append.run not in self._known:
                self._ledger.load(self._db, (entry.append.run,))
            answers = [self._stage(entry)]
        else:
            unknown = {one.append.run for one in entries} - self._known.keys()
            if unknown:
                self._ledger.load(self._db, unknown)
            answers = [self._stage(entry) for entry in entries]
        self._kill("rows.written")
        if self._blobs:
            blobs = ((name, bytearray(body)) for name, body in self._blobs.items())
            self._insert(_BLOBS, [value for pair in blobs for value in pair])
            self._kill("blobs.written")
        newest = self._insert(_SEGMENTS, self._segments)
        self._kill("segments.written")
        if self._ledger.heads is not None:
            self._record_heads(self._ledger.heads, newest)
        return answers

    def _insert(
        self, chunks: tuple[tuple[int, str], ...], values: Sequence[str | int | bytearray]
    ) -> int:
        """Insert all of them; answers the number of the last row.

        Bytes come as a bytearray: the sqlite3 module looks for an adapter of each value that is
        not of a type it knows, and it knows bytearray and not bytes.
        """
        start, end, cursor = 0, len(values), self._ledger.cursor
        if end == chunks[-1][0]:  # the usual case: one row
            return cursor.execute(chunks[-1][1], values).lastrowid or 0
        for size, statement in chunks:
            while end - start >= size:
                cursor.execute(statement, values[start : start + size])
                start += size
        return (cursor.lastrowid or 0) if end else 0

    def _record_heads(self, heads: HeadRecorder, newest: int) -> None:
        """Rows of segments are numbered one by one, so the last number tells all of them."""
        for position, known in enumerate(self._appended, start=newest - len(self._appended) + 1):
            known.position = position
        for run, known in self._moved.items():
            if known.is_new:
                heads.add_new(run, known.key)
                known.is_new = False
            head = known.version, known.chain, known.position, known.revision, known.digest
            heads.add_head(known.key, head, at_once=self._listed)
        if self._audited:
            heads.add_audit(self._db)

    def _stage(self, entry: Entry) -> LoopwrightError | None:
        append = entry.append
        known = self._known.get(append.run)
        refusal = self._refusal(append, known)
        if refusal is not None:
            return refusal
        if known is None:
            known = self._create(append)
        elif append.headline is not None:
            self._update(append.headline, known)
            self._moved[append.run] = known
        if append.gates_opened or append.gates_closed:
            self._change_gates(append, known.row)
        if append.usage:
            usage.add(self._db, known.row, append.usage)
        if append.blobs:
            self._blobs.update(append.blobs)
        if append.audit:
            cards.insert_audit(self._db, append.audit)
            self._audited = True
        if append.cards:
            cards.put(self._db, [(card, None) for card in append.cards])
        if entry.count:
            last = known.version + entry.count
            chain = link(known.chain, entry.body)
            segment = known.row, known.version + 1, last, bytearray(entry.body), bytearray(chain)
            self._segments += segment
            known.version = last
            known.chain = chain
            self._appended.append(known)
            self._moved[append.run] = known
        return None

    def _update(self, headline: Headline, known: Known) -> None:
        columns = _columns(headline)
        known.revision += 1
        known.digest = row_digest(columns)
        self._listed = True
        self._db.execute(_UPDATE, (*columns, known.revision, known.row))

    def _refusal(self, append: Append, known: Known | None) -> LoopwrightError | None:
        if known is not None and known.problem is not None:
            return known.problem
        if append.token is not None and (known is None or known.token != append.token):
            return refusals.fenced(append.run)
        version = 0 if known is None else known.version
        if append.expected != version:
            return refusals.stale(append, version)
        headline = append.headline
        if headline is not None and headline.key and headline.status in OPEN_STATUSES:
            for (holder,) in self._db.execute(_HOLDER, (headline.key,)).fetchall():
                if holder != append.run:
                    return refusals.key_taken(headline.key, holder)
        for gate in append.gates_opened:
            for (other,) in self._db.execute(_GATE_ELSEWHERE, (gate.gate, append.run)).fetchall():
                return refusals.gate_taken(gate.gate, other)
        return None

    def _create(self, append: Append) -> Known:
        assert append.headline is not None  # seen to at the edge
        owner = append.owner
        mark = (owner.pid, owner.start, owner.boot, owner.token) if owner else (None,) * 4
        columns = _columns(append.headline)
        values = (*columns, append.run, *mark)
        row = self._db.execute(_CREATE, values).lastrowid
        assert row is not None
        token = owner.token if owner else None
        known = Known(append.run, row, token)
        self._listed = True
        known.digest, known.is_new = row_digest(columns), True
        self._known[append.run] = known
        return known

    def _change_gates(self, append: Append, row: int) -> None:
        for gate in append.gates_opened:
            values = (gate.gate, row, gate.path, gate.digest, gate.message, gate.opened_at)
            self._db.execute(_OPEN_GATE, values)
        for closed in append.gates_closed:
            self._db.execute(_CLOSE_GATE, (closed, row))


def _columns(headline: Headline) -> tuple[str | int | None, ...]:
    return (
        headline.name,
        headline.status,
        headline.reason,
        headline.dialect,
        headline.workspace,
        headline.session,
        headline.started_at,
        headline.updated_at,
        headline.finished_at,
        headline.wake_at,
        headline.key,
        usage.labels_text(headline.labels) if headline.labels else "[]",
        headline.surface,
    )
