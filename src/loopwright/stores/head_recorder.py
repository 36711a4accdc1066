"""Record the heads of what a process commits.

Commits of a run under way come quickly one after the other, and only the newest head of a run says
something. So heads are collected and written when 20 ms have passed since they were written last,
also when no further commit comes (the writer sees to that). A commit that changes what lists show
of a run, its beginning, its end or a question to a person, is recorded at once, with all that was
collected.

With durability `full` a commit is on the disk before its head is written. With `normal` it may be
lost with the power, and its head must not survive it: heads are then written at most once a second,
after the write-ahead log has been synced.
"""

import os
import sqlite3
import time
from contextlib import suppress

from loopwright.errors import StorageError
from loopwright.stores.chain import genesis
from loopwright.stores.head_checks import (
    ONE_ROW,
    Problem,
    StoredHead,
    as_error,
    compare_run,
    stored_head,
)
from loopwright.stores.heads import (
    UNKNOWN,
    Head,
    HeadFile,
    audit_record,
    find_run,
    forgotten_record,
    head_record,
    name_record,
)
from loopwright.stores.place import Place

_NEWEST_AUDIT = "SELECT id, chain FROM audit ORDER BY id DESC LIMIT 1"
_MOST_COMPARED = 50_000
_SECONDS = 0.02
_SYNC_SECONDS = 1.0

Fields = tuple[int, bytes, int, int, bytes]  # of a head


class HeadRecorder:
    """What is recorded of the transactions of one process. Belongs to one thread at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = HeadFile(place.heads)
        self.begin = self._file.open  # before a transaction
        # Of the transaction that is open: heads, and other records, which are written at once.
        self._fresh: dict[bytes, Fields] = {}
        self._fresh_records: list[bytes] = []
        self._at_once = False
        # Of what was committed and is not written yet.
        self._held: dict[bytes, Fields] = {}
        self._held_records: list[bytes] = []
        self._syncs = place.durability != "full"
        self.seconds = _SYNC_SECONDS if self._syncs else _SECONDS  # that a head waits at most
        self._next = 0.0
        self.is_long = False  # whether the file has become much longer than it has to be
        self._audit = 0
        self._position = 0
        self._compared: dict[str, int] = {}  # runs that agreed with the file, and at which version

    @property
    def waits(self) -> bool:
        """Whether something is committed and not written yet."""
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
        """Inside a transaction that deletes runs: say so before it is committed. If it is not
        committed after all, the runs are still there and nothing else follows from it.
        """
        self.write()
        self._file.append_durably(b"".join(forgotten_record(run, position) for run in runs))
        for run in runs:
            self._compared.pop(run, None)

    def committed(self) -> None:
        """After a commit: record what it changed, or keep it for a moment."""
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
        """After a transaction that was not committed, or whose outcome is not known."""
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
        """Make the file durable; answers the newest append that this process recorded in it, or 0
        where there is none or it could not be done.
        """
        self.write()
        return self._position if self._position and self._file.sync() else 0

    def close(self) -> None:
        """Write what waits and close."""
        self.write()
        self._file.close()

    def problem_of(self, run: str, found: Head) -> StorageError | None:
        """Why nothing may be appended to a run of which the database has that."""
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
        """Write what waits."""
        if not self.waits:
            return
        if self._syncs:
            self._sync_log()
        heads = (head_record(key, Head._make(head)) for key, head in self._held.items())
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


def _compare(run: str, recorded: Head | None, found: Head) -> Problem | None:
    """What is wrong with the events of a run; one that is ahead of its head is looked at when it
    is read.
    """
    if recorded is None or found.version > recorded.version:
        return None
    return compare_run(recorded._replace(digest=UNKNOWN), StoredHead(run, found), _ask_nothing)


def _ask_nothing(*_: object) -> list[object]:
    return []
