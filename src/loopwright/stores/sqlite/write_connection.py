"""The write connection: transactions, cached rows of runs, and the heads of committed events.

The cached data of a run (its row, version, chain and fence) saves a query for every append. It is
valid as long as no other process has written, which SQLite reports by `data_version` at the start
of every transaction. After any failure the connection is not trusted: it is closed, and the next
transaction starts with a new one.

Commits of an active run follow each other quickly, and only the newest head of a run matters. So
heads are collected and written when 20 ms have passed since the last write, even if no further
commit follows (the writer ensures that). A commit that changes what lists show of a run (its start,
its end or an open gate) is recorded at once, with everything that was collected.

With durability `full` a commit is on the disk before its head is written. With `normal` it may be
lost in a power failure, and its head must not survive it: heads are then written at most once a
second, after the write-ahead log has been synced.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from loopwright.errors import LoopwrightError, StorageError
from loopwright.ports import UsageRow
from loopwright.stores.appends import genesis, ids
from loopwright.stores.sqlite.connection import (
    CACHE_KIB,
    DatabasePlace,
    as_storage_error,
    ignore_killpoint,
    is_busy,
    newer_schema_error,
    schema_of,
)
from loopwright.stores.sqlite.head_checks import (
    ONE_ROW,
    HeadProblem,
    StoredHead,
    as_error,
    compare_run,
    stored_head,
)
from loopwright.stores.sqlite.head_file import (
    UNKNOWN,
    HeadFile,
    RecordedHead,
    audit_record,
    find_run,
    forgotten_record,
    head_record,
    name_record,
)

_NEWEST_AUDIT = "SELECT id, chain FROM audit ORDER BY id DESC LIMIT 1"
_MOST_COMPARED = 50_000
_SECONDS = 0.02
_SYNC_SECONDS = 1.0

Fields = tuple[int, bytes, int, int, bytes]  # of a head


class HeadRecorder:
    """The records of the transactions of one process. Belongs to one thread at a time."""

    def __init__(self, place: DatabasePlace) -> None:
        self._place = place
        self._file = HeadFile(place.heads)
        self.begin = self._file.open  # before a transaction
        # Of the open transaction: heads, and other records, which are written at once.
        self._fresh: dict[bytes, Fields] = {}
        self._fresh_records: list[bytes] = []
        self._at_once = False
        # Committed and not written yet.
        self._held: dict[bytes, Fields] = {}
        self._held_records: list[bytes] = []
        self._syncs = place.durability != "full"
        self.seconds = _SYNC_SECONDS if self._syncs else _SECONDS  # maximum delay of a head
        self._next = 0.0
        self.is_long = False  # whether the file has become much longer than necessary
        self._audit = 0
        self._position = 0
        self._compared: dict[str, int] = {}  # runs that matched the file, and at which version

    @property
    def waits(self) -> bool:
        """Whether there are committed heads that are not written yet."""
        return bool(self._held or self._held_records)

    def add_head(self, key: bytes, head: Fields, *, at_once: bool) -> None:
        """Inside a transaction: the run will have this head."""
        self._fresh[key] = head
        self._position = head[2]
        if at_once:
            self._at_once = True

    def add_new(self, run: str, key: bytes) -> None:
        """Inside a transaction: the run is created by it."""
        self._fresh_records.append(name_record(key, run))

    def add_run(self, db: sqlite3.Connection, run: str) -> None:
        """Inside a transaction: the run will have the head that the database has now."""
        for row in db.execute(ONE_ROW, (run,)).fetchall():
            self._fresh_records.append(head_record(genesis(run), stored_head(row).head))

    def add_audit(self, db: sqlite3.Connection) -> None:
        """Inside a transaction: rows may have been added to the audit log."""
        for number, chain in db.execute(_NEWEST_AUDIT).fetchall():
            if number != self._audit and chain is not None:
                self._audit = number
                self._fresh_records.append(audit_record(number, bytes(chain)))

    def add_forgotten(self, runs: list[str], position: int) -> None:
        """Inside a transaction that deletes runs: record it before the commit. If the commit fails,
        the runs still exist and the record has no effect.
        """
        self.write()
        self._file.append_durably(b"".join(forgotten_record(run, position) for run in runs))
        for run in runs:
            self._compared.pop(run, None)

    def committed(self) -> None:
        """After a commit: record its changes, or delay them for a moment."""
        if self._fresh:
            self._held.update(self._fresh)
            self._fresh.clear()
        at_once, self._at_once = self._at_once, False
        if self._fresh_records:
            self._held_records += self._fresh_records
            self._fresh_records.clear()
            at_once = True
        if (at_once and not self._syncs) or time.monotonic() >= self._next:
            self.write()

    def dropped(self) -> None:
        """After a transaction that was not committed, or whose outcome is unknown."""
        self._fresh.clear()
        self._fresh_records.clear()
        self._at_once = False
        self._audit = self._position = 0

    def compact(self) -> None:
        """Shorten the file."""
        self.write()
        self._file.compact()
        self.is_long = self._file.is_long

    def sync(self) -> int:
        """Sync the file; returns the newest append that this process recorded in it, or 0 if there
        is none or it failed.
        """
        self.write()
        return self._position if self._position and self._file.sync() else 0

    def close(self) -> None:
        """Write waiting records and close."""
        self.write()
        self._file.close()

    def problem_of(self, run: str, found: RecordedHead) -> StorageError | None:
        """Why nothing may be appended to a run with this state in the database."""
        if found.version >= self._compared.get(run, found.version + 1):
            return None
        recorded = find_run(self._place.heads, run).head_of(genesis(run), found.position)
        problem = _compare(run, recorded, found)
        if problem is not None:
            return as_error(problem)
        if len(self._compared) >= _MOST_COMPARED:
            self._compared.clear()
        self._compared[run] = found.version
        return None

    def write(self) -> None:
        """Write waiting records."""
        if not self.waits:
            return
        if self._syncs:
            self._sync_log()
        heads = (head_record(key, RecordedHead._make(head)) for key, head in self._held.items())
        self._file.append(b"".join((*self._held_records, *heads)))
        self._held.clear()
        self._held_records.clear()
        self._next = time.monotonic() + self.seconds
        self.is_long = self._file.is_long

    def _sync_log(self) -> None:
        with suppress(OSError):
            handle = os.open(self._place.wal, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _compare(run: str, recorded: RecordedHead | None, found: RecordedHead) -> HeadProblem | None:
    """The problems of the events of a run; a run that is ahead of its head is checked when it is
    read.
    """
    if recorded is None or found.version > recorded.version:
        return None
    return compare_run(recorded._replace(digest=UNKNOWN), StoredHead(run, found), _ask_nothing)


def _ask_nothing(*_: object) -> list[object]:
    return []


_T = TypeVar("_T")

_MOST_KNOWN = 50_000
_WRITES_BEFORE_STRETCH = 16
_STRETCH = 4 * 2**20  # SQLite starts over in the file after a thousand pages
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # between two attempts to get the write lock
_LOAD = """
    SELECT r.name, r.id, r.owner_token, r.revision, s.figures, s.last, s.chain, s.rowid
    FROM run r LEFT JOIN segment s
      ON s.run = r.id AND s.seq = (SELECT max(seq) FROM segment WHERE run = r.id)
    WHERE r.name IN (SELECT value FROM json_each(?))
"""


class DatabaseBusy(Exception):
    """Another process is writing, and the caller did not want to wait."""


class KnownRun:
    """The state that an append is checked against."""

    __slots__ = (
        *("chain", "digest", "figures", "is_new", "key", "position", "problem"),
        *("revision", "row", "token", "version"),
    )

    def __init__(self, run: str, row: int, token: str | None) -> None:
        self.row = row
        self.token = token
        self.key = genesis(run)
        self.version = 0
        self.chain = self.key
        self.position = 0
        self.revision = 0
        self.digest = UNKNOWN
        self.figures: str | None = None  # of the newest events; None: not computed
        self.is_new = False
        self.problem: StorageError | None = None  # why nothing may be appended


class WriteConnection:
    """One write connection to a database. Belongs to one thread at a time."""

    def __init__(self, place: DatabasePlace, heads: HeadRecorder | None = None) -> None:
        self.known: dict[str, KnownRun] = {}
        self.heads = heads
        # Three counters that other threads may read; only the writer changes them.
        self.begun = 0
        self.ended = 0
        self.foreign = 0  # how often a write of another process was seen
        self._place = place
        self.killpoint = place.killpoint
        self._db: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._data_version: int | None = None
        self._stretched = place.durability != "full"

    def open(self) -> None:
        """Connect, if necessary; from now on writes of others are noticed."""
        if self._db is None:
            try:
                self._db = self._place.open_writer()
                self._cursor = self._db.cursor()
                self._db.execute("PRAGMA busy_timeout=0")  # waiting is done by _lock
                if self._data_version is not None:
                    self.foreign += 1  # other writes were not watched while there was no connection
                self._data_version = _data_version(self._cursor)
            except BaseException as error:
                self.drop()
                raise as_storage_error(error, self._place.path) from error

    def transact(self, work: Callable[[sqlite3.Connection], _T], *, wait: bool = True) -> _T:
        """Do `work` in one transaction. A LoopwrightError from it rolls back and changes nothing;
        any other failure also closes the connection, since its state is unknown. Without `wait`, a
        write lock of another process raises Occupied at once.
        """
        self.begun += 1
        try:
            db = self._begin(wait=wait)
            answer = work(db)
            if self.killpoint is not ignore_killpoint:
                self.killpoint("commit.before")
            self.cursor.execute("COMMIT")
        except LoopwrightError:
            self._roll_back()
            raise
        except DatabaseBusy:
            raise
        except BaseException as error:
            self.drop()
            raise as_storage_error(error, self._place.path) from error
        finally:
            self.ended += 1
        if self.killpoint is not ignore_killpoint:
            self.killpoint("commit.after")
        if self.heads is not None:
            self.heads.committed()
            if self.killpoint is not ignore_killpoint:
                self.killpoint("heads.written")
        return answer

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has slow work to do."""
        if not self._stretched and self.ended >= _WRITES_BEFORE_STRETCH:
            return True
        return self.heads is not None and self.heads.is_long

    def settle(self) -> None:
        """Between two commits: make the write-ahead log as long as it will get.

        While that file grows, every sync has to record its new length too, which takes as long as
        the sync itself. A large transaction that is rolled back makes it grow at once, and leaves
        nothing in it. It is not worthwhile for a process that writes a few times and ends.
        """
        if not self.unsettled or self._db is None:
            return
        if self.heads is not None and self.heads.is_long:
            self.heads.compact()
        if self._stretched or self.ended < _WRITES_BEFORE_STRETCH:
            return
        self._stretched = True
        try:
            if self._place.wal.stat().st_size < _STRETCH:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute("PRAGMA cache_size=1")  # nothing stays behind in memory
                self._db.execute("INSERT INTO blob VALUES ('', zeroblob(?))", (_STRETCH,))
                self._db.execute("ROLLBACK")
                self._db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except (OSError, sqlite3.Error):
            self.drop()  # this was optional; the next write reports a real problem

    def load(self, db: sqlite3.Connection, runs: Iterable[str]) -> None:
        """Load the named runs that exist."""
        unknown = {run for run in runs if run not in self.known}
        if not unknown:
            return
        for name, row, token, *more in db.execute(_LOAD, (ids(unknown),)).fetchall():
            known = self.known[name] = KnownRun(name, row, token)
            revision, known.figures, *newest = more
            known.revision = revision
            known.version, known.position = newest[0] or 0, newest[2] or 0
            known.chain = newest[1] or known.chain
            if self.heads is not None:
                found = RecordedHead(known.version, known.chain, known.position, revision, UNKNOWN)
                known.problem = self.heads.problem_of(name, found)

    def look(self) -> None:
        """Check now whether another process has written."""
        try:
            self.open()
            assert self._db is not None  # open() raises otherwise
            self._notice(self._db, self.cursor)
        except (LoopwrightError, sqlite3.Error):
            self.drop()  # the next write reports the reason

    def drop(self) -> None:
        """Drop all cached data and close the connection; uncommitted changes are undone."""
        self.known.clear()
        if self.heads is not None:
            self.heads.dropped()
        db, self._db, self._cursor = self._db, None, None
        if db is not None:
            db.close()

    @property
    def cursor(self) -> sqlite3.Cursor:
        """The cursor for statements without rows that stay open: creating one for each statement
        takes as long as a short statement.
        """
        assert self._cursor is not None  # open() creates it
        return self._cursor

    def _begin(self, *, wait: bool) -> sqlite3.Connection:
        if self.killpoint is not ignore_killpoint:
            self.killpoint("begin.before")
        self.open()
        db = self._db
        assert db is not None  # open() raises otherwise
        if self.heads is not None:
            self.heads.begin()
        cursor = self.cursor
        self._lock(cursor, wait=wait)
        if self.killpoint is not ignore_killpoint:
            self.killpoint("begin.after")
        self._notice(db, cursor)
        return db

    def _lock(self, cursor: sqlite3.Cursor, *, wait: bool) -> None:
        """Take the write lock. This code waits instead of SQLite, so that the caller decides
        whether to wait.
        """
        tries, until = 0, 0.0
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if not wait:
                    raise DatabaseBusy from error
                now = time.monotonic()
                until = until or now + self._place.options.busy_seconds
                if now >= until:
                    raise
                time.sleep(min(_PAUSES[min(tries, len(_PAUSES) - 1)], until - now))
                tries += 1
            else:
                return

    def _notice(self, db: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
        seen = _data_version(cursor)
        if seen == self._data_version:
            if len(self.known) > _MOST_KNOWN:
                self.known.clear()
            return
        self.foreign += 1
        self.known.clear()
        schema = schema_of(db)
        if schema != self._place.schema:
            raise newer_schema_error(self._place.path, schema, self._place.schema)
        self._data_version = seen

    def _roll_back(self) -> None:
        self.known.clear()
        if self.heads is not None:
            self.heads.dropped()
        if self._db is not None and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                self.drop()


def _data_version(cursor: sqlite3.Cursor) -> int:
    [[version]] = cursor.execute("PRAGMA data_version").fetchall()
    return int(version)


def add_usage(db: sqlite3.Connection, run: int, rows: Sequence[UsageRow]) -> None:
    """Add to the stored usage of a run."""
    for row in rows:
        used = row.usage
        values = (
            *(run, row.agent, row.day, row.calls),
            *(used.input_tokens, used.output_tokens, used.usd, used.unpriced),
            *(used.cache_read_tokens, used.cache_write_tokens),
        )
        db.execute(_ADD_USAGE, values)


_ADD_USAGE = """
    INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, agent, day) DO UPDATE SET
        calls = calls + excluded.calls,
        input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        usd = round(usd + excluded.usd, 9),
        unpriced = unpriced + excluded.unpriced,
        cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens
"""
