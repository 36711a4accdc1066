"""The log in one SQLite file: the port `EventLog`, composed of a reader and a writer.

`open_sqlite_log` creates a log, migrates it, or reports why it cannot be used.

Reads use their own connection and never wait for writes. Writes go through one writer that shares
commits. What is reported as durable survives the death of the process, and with durability `full`
also a power failure. If a commit fails, its outcome may be unknown: the same append again is either
accepted or refused with VersionConflict, never doubled.
"""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from loopwright.errors import LoopwrightError, StorageError
from loopwright.kernel.events import Usage
from loopwright.ports import (
    Append,
    AuditRow,
    ClosedGate,
    Liveness,
    NumberedEvent,
    OpenGate,
    Owner,
    RunListing,
    RunRow,
    RunStatus,
    StoredRecord,
    UsageRow,
)
from loopwright.stores import appends
from loopwright.stores.appends import (
    Digest,
    Done,
    Subscribers,
    Watcher,
    submit_appends,
    validate_append,
)
from loopwright.stores.sqlite import tables
from loopwright.stores.sqlite.connection import (
    APPLICATION,
    DatabaseOptions,
    DatabasePlace,
    Durability,
    Killpoint,
    as_storage_error,
    damaged_error,
    ignore_killpoint,
    is_read_only,
    migrate,
    newer_schema_error,
)
from loopwright.stores.sqlite.head_checks import (
    bind,
    catch_up,
    prepare_new,
    rebuild,
    store_identity,
)
from loopwright.stores.sqlite.head_file import HeadFile
from loopwright.stores.sqlite.reader import Reader
from loopwright.stores.sqlite.write_connection import HeadRecorder
from loopwright.stores.sqlite.writer import ChangeCheck, Waiting, Writer, WriterJob, WriterTask

_T = TypeVar("_T")

_GROUP = 32  # appends after which the writer begins, before the turn of the event loop ends


class SqliteLog:
    """Created by `open_sqlite_log`. Use it from the thread of one event loop."""

    def __init__(
        self,
        place: DatabasePlace,
        reader: Reader,
        alive: Liveness,
        heads: HeadRecorder | None = None,
    ) -> None:
        self._telling = Subscribers()
        self._writer = Writer(place, self._telling, heads)
        self.alive = alive
        self._open: Reader | None = reader
        self._seen = (reader.data_version(), 0, 0)
        self._held: list[Waiting] = []  # submitted in this turn of the event loop
        self._holding = threading.Lock()  # other threads may call it
        with contextlib.suppress(StorageError):
            # Early, to notice other writers. If it fails, reading continues, and the next write
            # reports the reason.
            self._writer.ledger.open()

    def submit(self, append: Append, done: Done) -> None:
        """Queue an append; `done` is called in the running event loop's thread."""
        if self._open is None:
            raise appends.closed_error()
        loop = asyncio.get_running_loop()
        try:
            entry = validate_append(append, done)
        except LoopwrightError as error:
            loop.call_soon(done, error)
            return
        with self._holding:
            held = self._held
            held.append((loop, entry))
            count = len(held)
        if count == 1:
            loop.call_soon(self._write_held)
        elif count == _GROUP:
            self._let_go()

    async def append(self, append: Append) -> None:
        """`submit` and wait. Being cancelled ends the waiting, not the append."""
        await submit_appends(self.submit, append)

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with run and version after every append of this process, in the event
        loop's thread; the returned function ends that.
        """
        return self._telling.subscribe(watcher)

    def heard(self, run: str, version: int) -> None:
        """Another process reports that it has written: notify watchers as if this process had."""
        self._telling.moved(run, version)

    def read(
        self, run: str, after: int = 0, limit: int | None = None, *, as_is: bool = False
    ) -> list[NumberedEvent]:
        """Events with numbers above `after`, in order, at most `limit`. `as_is`: even if their hash
        chain is broken.
        """
        return self._reader().read(run, after, limit, as_is=as_is)

    def version(self, run: str) -> int:
        """Number of the newest event of a run."""
        return self._reader().version(run)

    def head(self, run: str) -> str:
        """The newest value of the hash chain over the events of a run."""
        return self._reader().head(run)

    def blob(self, digest: str) -> bytes:
        """Content by its hash."""
        body = self._reader().find_blob(digest)
        if body is None:
            raise appends.no_blob_error(digest)
        return body

    def row(self, run: str) -> RunRow:
        """The row of one run."""
        return self._reader().row(run)

    def rows(
        self,
        *,
        statuses: Sequence[RunStatus] = (),
        prefix: str = "",
        limit: int | None = None,
        before: str | None = None,
        session: str | None = None,
        key: str | None = None,
    ) -> list[RunRow]:
        """Rows, newest first; `prefix` is the beginning of a run's id."""
        return self._reader().rows(
            statuses=statuses, prefix=prefix, limit=limit, before=before, session=session, key=key
        )

    def check_end(self, run: str) -> None:
        """Refuse a run whose newest events, or whose row, were changed."""
        self._reader().check_end(run)

    def transact(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """A separate transaction, in order with the appends; durable when it returns."""
        return self._do(WriterJob(work))

    async def transact_aside(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """The same for large amounts: the event loop continues in the meantime. Being cancelled
        ends the waiting, not the transaction.
        """
        self._reader()
        job = WriterJob(work)
        self._put(job)
        return await asyncio.to_thread(job.wait)

    def query(self, statement: str, *values: str | int) -> list[Any]:
        """Committed data, by one statement."""
        return self._reader().query(statement, *values)

    def gates(self, run: str | None = None) -> list[OpenGate]:
        """Open gates, oldest first."""
        return self._reader().gates(run)

    def find_gates(self, beginning: str, limit: int) -> list[OpenGate | ClosedGate]:
        """Gates whose ids begin so, open ones first."""
        return self._reader().find_gates(beginning, limit)

    def usage(self, since_day: int = 0) -> list[UsageRow]:
        """Usage since a day, by run, agent and day."""
        return [
            tables.usage_row_of(row) for row in self._reader().query(tables.USAGE_SINCE, since_day)
        ]

    def usage_sum(self, since_day: int = 0, run: str = "", agent: str = "") -> Usage:
        """The sum of usage since a day: of all runs, or of one agent of one run."""
        if run:
            [columns] = self._reader().query(tables.CALLER_USAGE_SUM, since_day, run, agent)
        else:
            [columns] = self._reader().query(tables.USAGE_SUM, since_day)
        return tables.usage_sum_of(columns)

    def unlisted(self) -> list[str]:
        """Runs of older versions, without some of what lists show."""
        return [str(name) for (name,) in self._reader().query(tables.UNLISTED_RUNS)]

    def replace_listing(self, run: str, listing: RunListing) -> None:
        """Store what lists show of a run as its events say."""
        ledger = self._writer.ledger

        def put(db: sqlite3.Connection) -> None:
            tables.put_listing(db, run, listing)
            ledger.known.pop(run, None)
            if ledger.heads is not None:
                ledger.heads.add_run(db, run)

        self._do(WriterJob(put))

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, Owner | None]:
        """Claim runs for this owner. NotFound, and nothing claimed, if one does not exist."""
        named = list(runs)
        ledger = self._writer.ledger
        return self._do(
            WriterJob(lambda db: tables.claim_runs(db, ledger, named, owner, self.alive))
        )

    def release(self, runs: Iterable[str], owner: Owner) -> None:
        """Release runs; runs of other owners are not changed."""
        named = list(runs)
        ledger = self._writer.ledger
        self._do(WriterJob(lambda db: tables.release_runs(db, ledger, named, owner)))

    def forget(self, runs: Iterable[str], audit: Sequence[AuditRow] = ()) -> int:
        """Delete runs that have ended, and the content that only they named."""
        named = list(runs)
        ledger = self._writer.ledger
        tables.check_write((), audit)
        return self._do(WriterJob(lambda db: tables.delete_runs(db, ledger, named, audit)))

    def nudges(self, after: int) -> tuple[list[str], int]:
        """Runs that were changed since the cursor `after`, and the new cursor."""
        return self._reader().nudges(after)

    def changed(self) -> bool:
        """Whether another process has written since the last call. While this process writes too,
        the answer may be delayed until the next call.
        """
        version = self._reader().data_version()
        ledger = self._writer.ledger
        begun, foreign = ledger.begun, ledger.foreign
        seen_version, seen_begun, seen_foreign = self._seen
        self._seen = (version, begun, foreign)
        if foreign != seen_foreign:
            return True
        if version == seen_version:
            return False
        if begun == seen_begun and ledger.ended == begun:
            return True
        # Some write was seen, and one was ours: only the write connection can tell them apart.
        self._put(ChangeCheck())
        return False

    def record(self, kind: str, key: str) -> StoredRecord | None:
        """A small record, or None."""
        return tables.find_record(self._reader(), kind, key)

    def records(
        self,
        kind: str,
        *,
        owner: str | None = None,
        due_by: int | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[StoredRecord]:
        """Small records of a kind."""
        wanted = tables.RecordQuery(kind, owner=owner, due_by=due_by, after=after, limit=limit)
        return tables.select_records(self._reader(), wanted)

    def change(
        self,
        puts: Sequence[tuple[StoredRecord, int | None]] = (),
        drops: Sequence[tuple[str, str]] = (),
        audit: Sequence[AuditRow] = (),
    ) -> None:
        """Write small records, all or nothing."""
        tables.check_write(puts, audit)
        self._do(WriterJob(lambda db: tables.write_record(db, puts, drops, audit)))

    def audited(
        self,
        *,
        before: int | None = None,
        subject: str = "",
        request: str = "",
        limit: int = 100,
    ) -> list[AuditRow]:
        """Audit rows, newest first."""
        return tables.select_audit(
            self._reader(), before=before, subject=subject, request=request, limit=limit
        )

    def verify(self, run: str, digest: Digest | None = None) -> list[str]:
        """The problems of a run: numbers, hash chain, unreadable events, missing content or, if
        `digest` computes the name of content, content that does not match its name.
        """
        return self._reader().verify(run, digest)

    def missing(self) -> list[str]:
        """Runs that were recorded and not deleted, and do not exist."""
        return self._reader().missing()

    def head_problems(self, file: Path | None = None, *, deep: bool = False) -> list[str]:
        """Differences from the head file, or from an exported one."""
        return self._reader().head_problems(file, deep=deep)

    def export_heads(self, to: Path) -> int:
        """Copy the heads of all runs into a new file; returns their number."""
        return self._reader().export_heads(to)

    def check(self) -> list[str]:
        """The problems of the file itself. Reads all of it."""
        return self._reader().check()

    def backup(self, to: Path) -> None:
        """Copy the log into a new file while it is in use."""
        self._reader().backup(to)

    def close(self) -> None:
        """Write waiting data and close; further calls fail."""
        reader, self._open = self._open, None
        if reader is not None:
            self._let_go()
            self._writer.close()
            reader.close()

    def _reader(self) -> Reader:
        if self._open is None:
            raise appends.closed_error()
        return self._open

    def _write_held(self) -> None:
        """Write what was submitted in this turn of the event loop: one append alone at once, if
        that is quick; several share a commit.
        """
        if len(self._held) == 1 and self._writer.at_rest:
            with self._holding:
                held, self._held = self._held, []
            if held:
                self._writer.write(held[0])
        else:
            self._let_go()

    def _let_go(self) -> None:
        with self._holding:
            held, self._held = self._held, []
            if held:
                self._writer.put(held)

    def _put(self, item: WriterTask) -> None:
        self._let_go()
        self._writer.put(item)

    def _do(self, job: WriterJob[_T]) -> _T:
        self._reader()
        self._put(job)
        return job.wait()


def open_sqlite_log(
    path: Path | str,
    *,
    alive: Liveness,
    durability: Durability = "full",
    create: bool = True,
    killpoint: Killpoint = ignore_killpoint,
    options: DatabaseOptions | None = None,
) -> SqliteLog:
    """Open the log in that file; its directory must exist. `alive` is called from the writer's
    thread. In a read-only directory the log can only be read.
    """
    place = DatabasePlace(
        path=Path(path),
        durability=durability,
        killpoint=killpoint,
        options=options or DatabaseOptions(),
    )
    try:
        if not place.path.exists():
            _refuse_remains(place)
            if not create:
                raise StorageError(
                    f"{place.path} does not exist",
                    code="no-log",
                    hint="start a run first, or name another data directory",
                )
            _create(place)
        _refuse_foreign_file(place.path)
        reader = Reader(place)
    except (OSError, sqlite3.Error) as error:
        raise as_storage_error(error, place.path) from error
    try:
        _bring_up_to_date(place, reader)
        return SqliteLog(place, reader, alive, _heads(place, reader))
    except BaseException as error:
        reader.close()
        if isinstance(error, OSError | sqlite3.Error):
            raise as_storage_error(error, place.path) from error
        raise


def rebuild_heads(path: Path) -> int:
    """Record the current state of a database, whatever was recorded before; returns the number of
    runs.
    """
    place = DatabasePlace(path=path)
    try:
        _refuse_foreign_file(path)
        reader = Reader(place)
        try:
            _bring_up_to_date(place, reader)
        finally:
            reader.close()
        return rebuild(place)
    except (OSError, sqlite3.Error) as error:
        raise as_storage_error(error, path) from error


def _refuse_remains(place: DatabasePlace) -> None:
    if not place.path.parent.is_dir():
        raise StorageError(
            f"{place.path.parent} is not a directory",
            code="unusable",
            hint="create it, or name another data directory",
        )
    for suffix in ("-wal", "-journal"):
        remains = place.path.with_name(place.path.name + suffix)
        if remains.exists() and remains.stat().st_size:
            raise damaged_error(remains, "the database that this belongs to is missing")


def _heads(place: DatabasePlace, reader: Reader) -> HeadRecorder | None:
    """The head file of a database, and its unrecorded events."""
    if not place.options.heads or not bind(place, reader.ask):
        return None
    reader.use_heads()
    heads = HeadFile(place.heads)
    with suppress(StorageError):  # errors are reported to readers
        catch_up(place, reader.ask, heads)
    heads.close()
    return HeadRecorder(place)


def _create(place: DatabasePlace) -> None:
    """Build a complete database beside the target, then move it there unless one exists: a crash
    leaves none or a whole one, and of several processes that start at once, one wins.
    """
    folder = place.path.parent
    place.killpoint("create.before")
    handle, name = tempfile.mkstemp(prefix=f".{place.path.name}.", suffix=".new", dir=folder)
    os.close(handle)
    new = Path(name)
    try:
        db = sqlite3.connect(new, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=OFF")  # synced once, below, before it is visible
            db.execute(f"PRAGMA application_id={APPLICATION}")
            migrate(db, place.options.steps, place.killpoint)
            store_identity(db, prepare_new(place))
            db.execute("PRAGMA journal_mode=WAL")
        finally:
            db.close()
        _sync(new)
        place.killpoint("create.filled")
        os.link(new, place.path)
    except FileExistsError:
        return
    finally:
        new.unlink(missing_ok=True)
    place.killpoint("create.linked")
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse_foreign_file(path: Path) -> None:
    """Refuse a folder and an empty file; SQLite refuses what is not a database. The file is not
    opened here: closing it would end the locks that this process holds on it for an open log.
    """
    if path.is_dir():
        raise damaged_error(path, "is a directory")
    if not path.stat().st_size:
        raise damaged_error(path, "the file is empty")


def _bring_up_to_date(place: DatabasePlace, reader: Reader) -> None:
    """Refuse files that are not ours or newer, migrate older ones."""
    application, schema = reader.identity()
    if application != APPLICATION or not schema:
        raise damaged_error(place.path, "this database is not a log of loopwright")
    if schema > place.schema:
        raise newer_schema_error(place.path, schema, place.schema)
    if schema < place.schema:
        try:
            _migrate_file(place)
        except sqlite3.Error as error:
            if not is_read_only(error):
                raise
            reader.use_migrated_copy()


def _migrate_file(place: DatabasePlace) -> None:
    writer = place.open_writer()
    try:
        migrate(writer, place.options.steps, place.killpoint)
    finally:
        writer.close()
