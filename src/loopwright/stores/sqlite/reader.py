"""The read side of a database: every query is one statement, so it sees a committed state."""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loopwright.errors import StorageError
from loopwright.ports import (
    ClosedGate,
    Headline,
    NumberedEvent,
    OpenGate,
    RunRow,
    RunStatus,
    decode_figures,
)
from loopwright.stores import appends
from loopwright.stores.appends import Digest, Segment, followed, genesis, inspect, is_id, numbered
from loopwright.stores.sqlite import tables
from loopwright.stores.sqlite.connection import (
    DatabasePlace,
    as_storage_error,
    damaged_error,
    heads_beside,
    migrate,
    schema_of,
)
from loopwright.stores.sqlite.head_checks import (
    ONE_ROW,
    HeadProblem,
    as_error,
    check_audit_chain,
    check_audit_end,
    compare_all,
    compare_run,
    describe_gaps,
    find_missing,
    forget_identity,
    iterate_names,
    lost_run,
    stored_head,
    stored_identity,
    table_of,
)
from loopwright.stores.sqlite.head_file import (
    HeadTable,
    find_run,
    read_table,
    records_of,
    write_new,
)
from loopwright.stores.sqlite.tables import owner_of

_Value = str | int | bytes | None

_VERSION = """
    SELECT (SELECT s.last FROM segment s WHERE s.run = r.id ORDER BY s.seq DESC LIMIT 1)
    FROM run r WHERE r.name = ?
"""
# The segment that contains an event is the last one that does not start after it.
_START = """
    SELECT r.id, (SELECT max(s.seq) FROM segment s WHERE s.run = r.id AND s.seq <= ?)
    FROM run r WHERE r.name = ?
"""
_CHAIN_BEFORE = """
    SELECT CAST(chain AS BLOB) FROM segment WHERE run = ? AND seq < ? ORDER BY seq DESC LIMIT 1
"""
# Cast: a value that someone edited may have become text; this must be found, not cause an
# exception.
_PAGE = """
    SELECT seq, last, CAST(body AS BLOB), CAST(chain AS BLOB)
    FROM segment WHERE run = ? AND seq >= ? ORDER BY seq LIMIT ?
"""
_ROWS = """
    SELECT r.name, s.last,
           r.title, r.status, r.reason, r.dialect, r.workspace, r.started_at, r.updated_at,
           r.finished_at, r.wake_at, r.key, r.session, r.labels, r.surface,
           s.figures, r.details,
           (SELECT count(*) FROM gate WHERE run = r.id AND closed_at IS NULL),
           r.owner_pid, r.owner_start, r.owner_boot, r.owner_token
    FROM run r LEFT JOIN segment s
      ON s.run = r.id AND s.seq = (SELECT max(seq) FROM segment WHERE run = r.id)
"""
_NEWEST = "SELECT coalesce(max(rowid), 0) FROM segment"
_SINCE = """
    SELECT DISTINCT r.name FROM segment s JOIN run r ON r.id = s.run
    WHERE s.rowid >= ? AND s.rowid <= ?
"""
_LAST_CHARACTER = "\U0010ffff"
_MANY = 256
_MOST_AGREED = 10_000
_MISSING_SECONDS = 5.0  # a server lists runs more often than it looks for missing ones
_MAX = 2**63 - 1


class Reader:
    """One read connection. It never waits for a writer, in this or another process."""

    def __init__(self, place: DatabasePlace) -> None:
        self._place = place
        self._db = _open(place)
        self._has_heads = False
        self._agreed: set[str] = set()  # runs that were compared with the head file
        self._missing: list[str] = []
        self._look_again = 0.0

    def use_heads(self) -> None:
        """Compare runs with the head file before they are shown."""
        self._has_heads = True

    def use_migrated_copy(self) -> None:
        """From now on read a copy in memory with the newest tables, because the file has older
        ones and cannot be written.
        """
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.backup(copy)
        migrate(copy, self._place.options.steps, self._place.killpoint)
        self._db.close()
        self._db = copy

    def read(
        self, run: str, after: int, limit: int | None, *, as_is: bool = False
    ) -> list[NumberedEvent]:
        """See the port."""
        after = max(after, 0)
        self._compare(run, as_is=as_is)
        row, start = self._find(run, after + 1)
        if limit is not None and limit <= 0:
            return []
        end = None if limit is None else after + limit
        events: list[NumberedEvent] = []
        before = self._chain_before(run, row, start)
        for segment in self._segments(row, start, _MANY if limit is None else limit):
            if as_is:
                events += numbered(run, segment.seq, segment.body)
            else:
                events += followed(run, before, segment)
            before = segment.chain
            if end is not None and segment.last >= end:
                break
        # The first segment may begin, and the last may end, outside of the requested range.
        skipped = after + 1 - events[0].seq if events else 0
        return events[skipped : None if limit is None else skipped + limit]

    def nudges(self, after: int) -> tuple[list[str], int]:
        """See the port. Rows of appends are numbered in the order of their commits."""
        [(newest,)] = self._all(_NEWEST)
        names = self._all(_SINCE, after, newest) if after else []
        return [str(name) for (name,) in names], int(newest) + 1

    def version(self, run: str) -> int:
        """See the port."""
        self._compare(run)
        rows = self._all(_VERSION, run) if is_id(run) else []
        if not rows:
            raise appends.no_run_error(run)
        return int(rows[0][0] or 0)

    def head(self, run: str) -> str:
        """See the port."""
        newest = self.version(run)
        row, _ = self._find(run, newest)
        return self._chain_before(run, row, newest + 1).hex()

    def find_blob(self, digest: str) -> bytes | None:
        """Content by its hash, if it is stored."""
        rows = (
            self._all("SELECT CAST(body AS BLOB) FROM blob WHERE hash = ?", digest)
            if is_id(digest)
            else []
        )
        return bytes(rows[0][0]) if rows else None

    def row(self, run: str) -> RunRow:
        """See the port."""
        self._compare(run)
        rows = self._all(f"{_ROWS} WHERE r.name = ?", run) if is_id(run) else []
        if not rows:
            raise appends.no_run_error(run)
        return self._run_row(rows[0])

    def rows(
        self,
        *,
        statuses: Sequence[RunStatus],
        prefix: str,
        limit: int | None,
        before: str | None = None,
        session: str | None = None,
        key: str | None = None,
    ) -> list[RunRow]:
        """See the port."""
        terms: list[str] = []
        values: list[_Value] = []
        if session is not None:
            terms.append("r.session = ?")
            values.append(session)
        if statuses:
            terms.append(f"r.status IN ({', '.join('?' * len(statuses))})")
            values += statuses
        if prefix:
            if not is_id(prefix):
                return []
            terms.append("r.name >= ? AND r.name < ?")
            values += (prefix, prefix + _LAST_CHARACTER)
        if before is not None:
            if not is_id(before):
                return []
            terms.append("r.id < (SELECT id FROM run WHERE name = ?)")
            values.append(before)
        if key is not None:
            if not is_id(key):
                return []
            terms.append("r.key = ?")
            values.append(key)
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        values.append(-1 if limit is None else max(limit, 0))
        found = self._all(f"{_ROWS} {where} ORDER BY r.id DESC LIMIT ?", *values)
        return [self._run_row(row) for row in found]

    def gates(self, run: str | None) -> list[OpenGate]:
        """See the port."""
        if run is None:
            rows = self._all(tables.ALL_GATES)
        else:
            rows = self._all(tables.GATES_OF_RUN, run) if is_id(run) else []
        found = map(tables.gate_of, rows)
        return [gate for gate in found if isinstance(gate, OpenGate)]

    def find_gates(self, beginning: str, limit: int) -> list[OpenGate | ClosedGate]:
        """See the port."""
        if not is_id(beginning):
            return []
        values = beginning, beginning + _LAST_CHARACTER, max(limit, 0)
        return [*map(tables.gate_of, self._all(tables.GATES_NAMED, *values))]

    def check_end(self, run: str) -> None:
        """See the port."""
        self._compare(run)
        row, start = self._find(run, _MAX)
        before = self._chain_before(run, row, start)
        for segment in self._segments(row, start, 1):
            followed(run, before, segment)
            return
        raise damaged_error(self._place.path, f"{run} has no events")

    def query(self, statement: str, *values: _Value) -> list[Any]:
        """The rows of one statement."""
        return self._all(statement, *values)

    def identity(self) -> tuple[int, int]:
        """The application id of the file, and the version of its tables."""
        [[application]] = self._all("PRAGMA application_id")
        return int(application), schema_of(self._db)

    def data_version(self) -> int:
        """A number that changes when any other connection has written."""
        return int(self._all("PRAGMA data_version")[0][0])

    def verify(self, run: str, digest: Digest | None) -> list[str]:
        """The problems of a run."""
        row, _ = self._find(run, 1)
        problem: HeadProblem | None = None
        try:
            problem = self._disagreement(run)
            found = inspect(run, self._segments(row, -_MAX, _MANY), self.find_blob, digest)
        except StorageError as error:
            found = [f"{run}: {error.message}"]
        return found or ([problem.text] if problem is not None else [])

    def missing(self) -> list[str]:
        """Runs that were recorded and not deleted, and do not exist."""
        now = time.monotonic()
        if now >= self._look_again:
            lost = self._find_missing()
            # Twice: a run that is being deleted still existed when the file was read.
            self._missing = [run for run in self._find_missing() if run in lost] if lost else []
            self._look_again = now + _MISSING_SECONDS
        return self._missing

    def _find_missing(self) -> list[str]:
        table = self._table()
        names = iterate_names(self._all)
        return [] if table is None else [one.run for one in find_missing(table, names)]

    def head_problems(self, file: Path | None, *, deep: bool) -> list[str]:
        """Differences from a head file, and the problems of the file itself."""
        table = self._table() if file is None else read_table(file)
        if table is None:
            return [] if file is None else [f"{file} does not exist"]
        found = describe_gaps(table, (file or self._place.heads).name)
        if table.identity != stored_identity(self._all):
            found.append(f"{file or self._place.heads}: belongs to another database")
        found += [problem.text for problem in compare_all(table, self._all)]
        check = check_audit_chain if deep else check_audit_end
        return found + check(table.audit, self._all)

    def export_heads(self, to: Path) -> int:
        """The heads of all runs as a new file."""
        table = self._table()
        if table is None:
            table = table_of(b"", self._all)
        try:
            made = write_new(to, records_of(table), replace=False)
        except OSError as error:
            raise as_storage_error(error, to) from error
        if not made:
            raise StorageError(f"{to} exists", code="exists", hint="name a new file")
        return sum(1 for key in table.heads if not table.is_forgotten(key))

    def check(self) -> list[str]:
        """The problems of the file itself, by SQLite's own full check."""
        try:
            found = [str(row[0]) for row in self._all("PRAGMA integrity_check")]
        except StorageError as error:
            return [error.message]
        return [] if found == ["ok"] else found

    def backup(self, to: Path) -> None:
        """A consistent copy of the database as a new file, even while others write. It has no head
        file: it gets one when it is first opened.
        """
        heads = heads_beside(to)
        if heads.exists():
            raise StorageError(
                f"{heads} exists", code="exists", hint="name a new file for the backup"
            )
        try:
            os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError as error:
            raise StorageError(
                f"{to} exists", code="exists", hint="name a new file for the backup"
            ) from error
        except OSError as error:
            raise as_storage_error(error, to) from error
        try:
            target = sqlite3.connect(to)
            try:
                self._db.backup(target)
                forget_identity(target)  # from now on the copy is independent
                target.commit()
            finally:
                target.close()
        except BaseException as error:
            to.unlink(missing_ok=True)
            raise as_storage_error(error, to) from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _table(self) -> HeadTable | None:
        return read_table(self._place.heads) if self._has_heads else None

    def _compare(self, run: str, *, as_is: bool = False) -> None:
        """Refuse a run that does not match its record; once for each run, since writes of this
        process need not be compared again.
        """
        if not self._has_heads or run in self._agreed or not is_id(run):
            return
        problem = self._disagreement(run)
        if problem is not None and (problem.is_loss or not as_is):
            raise as_error(problem)
        if problem is None:
            if len(self._agreed) >= _MOST_AGREED:
                self._agreed.clear()
            self._agreed.add(run)

    def _disagreement(self, run: str) -> HeadProblem | None:
        """The objections of the head file to a run; the file is read first, because it may lag."""
        if not self._has_heads:
            return None
        key = genesis(run)
        table = find_run(self._place.heads, run)
        recorded = table.heads.get(key)
        if recorded is None:
            return None
        rows = self._all(ONE_ROW, run)
        if not rows:  # it may have been deleted just now: that is recorded before the deletion
            forgotten = find_run(self._place.heads, run).is_forgotten(key)
            return None if forgotten else lost_run(run, recorded)
        stored = stored_head(rows[0])
        if table.head_of(key, stored.head.position) is None:
            return None
        return compare_run(recorded, stored, self._all)

    def _find(self, run: str, seq: int) -> tuple[int, int]:
        """The row of a run, and the start of its segment with an event."""
        rows = self._all(_START, seq, run) if is_id(run) else []
        if not rows:
            raise appends.no_run_error(run)
        return rows[0][0], rows[0][1] or 0

    def _chain_before(self, run: str, row: int, start: int) -> bytes:
        """The chain value before a segment."""
        found = self._all(_CHAIN_BEFORE, row, start) if start > 1 else []
        return bytes(found[0][0]) if found else genesis(run)

    def _segments(self, row: int, start: int, many: int) -> Iterator[Segment]:
        """Segments from that one on, a few at a time: no statement stays open in between."""
        many = min(many, _MANY)
        while page := self._all(_PAGE, row, start, many):
            if not all(isinstance(one[0], int) and isinstance(one[1], int) for one in page):
                raise damaged_error(self._place.path, "the numbers of events are damaged")
            yield from map(Segment._make, page)
            start = page[-1][0] + 1

    def _run_row(self, columns: Sequence[Any]) -> RunRow:
        row = _run_row(columns)
        head = row.headline
        texts = (
            *(row.run, head.name, head.status, head.reason, head.dialect),
            *(head.workspace, head.session),
        )
        times = (row.version, head.started_at, head.updated_at)
        if not (all(map(_is_text, texts)) and all(map(_is_number, times))):
            raise damaged_error(self._place.path, "the row of a run is damaged")
        return row

    def ask(self, statement: str, *values: _Value) -> list[Any]:
        """The rows that a statement finds."""
        return self._all(statement, *values)

    def _all(self, statement: str, *values: _Value) -> list[Any]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise as_storage_error(error, self._place.path) from error


def _open(place: DatabasePlace) -> sqlite3.Connection:
    """A read connection, with as many permissions as available."""
    queries = ["mode=rw", "mode=ro"]
    if not (place.wal.exists() and place.wal.stat().st_size):
        # In a read-only directory without other users of the file: the file alone is enough.
        queries.append("immutable=1")
    failure: sqlite3.Error | None = None
    for query in queries:
        db: sqlite3.Connection | None = None
        try:
            db = place.open(query)
            db.execute("SELECT count(*) FROM sqlite_master").fetchall()
            return db
        except sqlite3.Error as error:
            if db is not None:
                db.close()
            failure = failure or error
            if not isinstance(error, sqlite3.OperationalError):
                break  # damaged; fewer permissions will not help
    assert failure is not None
    raise failure


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _run_row(columns: Sequence[Any]) -> RunRow:
    run, version, name, status, reason, dialect, workspace, *rest = columns
    started, updated, finished, wake, key, session, labels, surface, *rest = rest
    figures, details, gates, *owner = rest
    return RunRow(
        run=run,
        version=version or 0,
        headline=Headline(
            name=name,
            status=status,
            reason=reason,
            dialect=dialect,
            workspace=workspace,
            started_at=started,
            updated_at=updated,
            finished_at=finished,
            wake_at=wake,
            key=key,
            session=session,
            labels=() if labels == "[]" else tables.labels_of(labels),
            surface=surface,
        ),
        owner=owner_of(owner),
        figures=decode_figures(figures),
        details=tables.details_of(details),
        gates=gates,
    )
