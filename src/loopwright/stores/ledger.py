"""The write connection: transactions, and what is known of runs between them.

What is known of a run (its row, version, chain and fence) saves a query for every append. It holds
as long as no other process has written, which SQLite tells by `data_version` at the start of every
transaction. After any failure the connection is not trusted: it is closed, and the next
transaction begins with a new one.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from loopwright.errors import LoopwrightError, StorageError
from loopwright.stores.chain import genesis
from loopwright.stores.edge import ids
from loopwright.stores.faults import as_storage_error, is_busy, newer
from loopwright.stores.head_recorder import HeadRecorder
from loopwright.stores.heads import UNKNOWN, Head
from loopwright.stores.place import CACHE_KIB, Place
from loopwright.stores.schema import schema_of

_T = TypeVar("_T")

_MOST_KNOWN = 50_000
_WRITES_BEFORE_STRETCH = 16
_STRETCH = 4 * 2**20  # SQLite starts over in the file after a thousand pages
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # between two tries to get the write lock
_LOAD = """
    SELECT r.name, r.id, r.owner_token, r.revision, s.last, s.chain, s.rowid
    FROM run r LEFT JOIN segment s
      ON s.run = r.id AND s.seq = (SELECT max(seq) FROM segment WHERE run = r.id)
    WHERE r.name IN (SELECT value FROM json_each(?))
"""


class Occupied(Exception):
    """Another process is writing just now, and the caller did not want to wait for it."""


class Known:
    """What an append has to be checked against."""

    __slots__ = (
        *("chain", "digest", "is_new", "key", "position", "problem"),
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
        self.is_new = False
        self.problem: StorageError | None = None  # why nothing may be appended


class Ledger:
    """One write connection to a place. Belongs to one thread at a time."""

    def __init__(self, place: Place, heads: HeadRecorder | None = None) -> None:
        self.known: dict[str, Known] = {}
        self.heads = heads
        # Three counters that other threads may look at; only the writer changes them.
        self.begun = 0
        self.ended = 0
        self.foreign = 0  # how often another process was seen to have written
        self._place = place
        self.killpoint = place.killpoint
        self._db: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._data_version: int | None = None
        self._stretched = place.durability != "full"

    def open(self) -> None:
        """Connect, if not yet connected; from now on writes of others are noticed."""
        if self._db is None:
            try:
                self._db = self._place.open_writer()
                self._cursor = self._db.cursor()
                self._db.execute("PRAGMA busy_timeout=0")  # waiting is done by _lock
                if self._data_version is not None:
                    self.foreign += 1  # nobody watched while there was no connection
                self._data_version = _data_version(self._cursor)
            except BaseException as error:
                self.drop()
                raise as_storage_error(error, self._place.path) from error

    def transact(self, work: Callable[[sqlite3.Connection], _T], *, wait: bool = True) -> _T:
        """Do `work` in one transaction. A LoopwrightError from it rolls back and changes nothing;
        any other failure also costs the connection, since its state is no longer known. Without
        `wait`, a write lock that another process holds is answered by Occupied at once.
        """
        self.begun += 1
        try:
            db = self._begin(wait=wait)
            answer = work(db)
            self.killpoint("commit.before")
            self.cursor.execute("COMMIT")
        except LoopwrightError:
            self._roll_back()
            raise
        except Occupied:
            raise
        except BaseException as error:
            self.drop()
            raise as_storage_error(error, self._place.path) from error
        finally:
            self.ended += 1
        self.killpoint("commit.after")
        if self.heads is not None:
            self.heads.committed()
            self.killpoint("heads.written")
        return answer

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has something to do that takes its time."""
        if not self._stretched and self.ended >= _WRITES_BEFORE_STRETCH:
            return True
        return self.heads is not None and self.heads.is_long

    def settle(self) -> None:
        """Between two commits: make the write-ahead log as long as it will get.

        While that file grows, every sync has to record its new length too, which takes as long as
        the sync itself. A large transaction that is rolled back has it grow at once, and leaves
        nothing in it. Not worth it for a process that writes a few times and ends.
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
            self.drop()  # it was a favour; whether there is a real problem, the next write tells

    def load(self, db: sqlite3.Connection, runs: Iterable[str]) -> None:
        """Get to know the named runs, as far as they exist."""
        unknown = {run for run in runs if run not in self.known}
        if not unknown:
            return
        for name, row, token, revision, *newest in db.execute(_LOAD, (ids(unknown),)).fetchall():
            known = self.known[name] = Known(name, row, token)
            known.revision = revision
            known.version, known.position = newest[0] or 0, newest[2] or 0
            known.chain = newest[1] or known.chain
            if self.heads is not None:
                found = Head(known.version, known.chain, known.position, revision, UNKNOWN)
                known.problem = self.heads.problem_of(name, found)

    def look(self) -> None:
        """See now whether another process has written."""
        try:
            self.open()
            assert self._db is not None  # open() raises otherwise
            self._notice(self._db, self.cursor)
        except (LoopwrightError, sqlite3.Error):
            self.drop()  # whoever writes next is told why

    def drop(self) -> None:
        """Forget everything and close the connection; what was not committed is undone."""
        self.known.clear()
        if self.heads is not None:
            self.heads.dropped()
        db, self._db, self._cursor = self._db, None, None
        if db is not None:
            db.close()

    @property
    def cursor(self) -> sqlite3.Cursor:
        """The cursor for statements without rows that stay open: making one for each statement
        takes as long as a short statement.
        """
        assert self._cursor is not None  # open() makes it
        return self._cursor

    def _begin(self, *, wait: bool) -> sqlite3.Connection:
        self.killpoint("begin.before")
        self.open()
        db = self._db
        assert db is not None  # open() raises otherwise
        if self.heads is not None:
            self.heads.begin()
        cursor = self.cursor
        self._lock(cursor, wait=wait)
        self.killpoint("begin.after")
        self._notice(db, cursor)
        return db

    def _lock(self, cursor: sqlite3.Cursor, *, wait: bool) -> None:
        """Take the write lock. The waiting is done here and not by SQLite, so that it is up to the
        caller whether there is any.
        """
        tries, until = 0, 0.0
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if not wait:
                    raise Occupied from error
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
            raise newer(self._place.path, schema, self._place.schema)
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
