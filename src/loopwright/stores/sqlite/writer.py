"""The writer: commits all waiting appends in one transaction, then reports the results.

It has a thread, so that an event loop is not blocked while the disk is busy and many appends share
one commit. A single waiting append, on a disk that has just been quick, is committed by its caller:
switching to the thread and back would take about as long as writing it.

In a group each append is checked alone, and the valid ones are written together. A refused append
leaves no trace and does not affect the others. Segments and blobs of the whole group are written by
few large statements: every call into SQLite releases the interpreter lock, and getting it back from
a busy event loop costs more than the row.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from loopwright.errors import LoopwrightError, StorageError
from loopwright.ports import OPEN_STATUSES, Append, Headline
from loopwright.stores import appends
from loopwright.stores.appends import Answer, PendingAppend, Subscribers, link
from loopwright.stores.sqlite import tables
from loopwright.stores.sqlite.connection import (
    STATUS_IS_OPEN,
    DatabasePlace,
    as_storage_error,
    ignore_killpoint,
)
from loopwright.stores.sqlite.head_checks import store_position
from loopwright.stores.sqlite.head_file import row_digest
from loopwright.stores.sqlite.write_connection import (
    DatabaseBusy,
    HeadRecorder,
    KnownRun,
    WriteConnection,
    add_usage,
)

_CHUNKS = (256, 64, 16, 4, 1)
_HOLDER = f"SELECT name FROM run WHERE key = ? AND {STATUS_IS_OPEN} AND key IS NOT NULL"
_CREATE = """
    INSERT INTO run (title, status, reason, dialect, workspace, session,
                     started_at, updated_at, finished_at, wake_at, key, labels, surface, name,
                     owner_pid, owner_start, owner_boot, owner_token, details, metered)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)
"""
_UPDATE = """
    UPDATE run SET title = ?, status = ?, reason = ?, dialect = ?, workspace = ?, session = ?,
                   started_at = ?, updated_at = ?, finished_at = ?, wake_at = ?, key = ?,
                   labels = ?, surface = ?, revision = ?
    WHERE id = ?
"""
_GATE_ELSEWHERE = """
    SELECT r.name FROM gate g JOIN run r ON r.id = g.run
    WHERE g.gate = ? AND g.closed_at IS NULL AND r.name <> ?
"""


def _inserts(head: str, width: int, tail: str = "") -> tuple[tuple[int, str], ...]:
    row = "({})".format(", ".join("?" * width))
    return tuple((n * width, f"{head} VALUES {', '.join([row] * n)}{tail}") for n in _CHUNKS)


_SEGMENTS = _inserts("INSERT INTO segment (run, seq, last, body, chain, figures)", 6)
# Existing content is not changed, unless the disk has damaged it: then it is restored.
_BLOBS = _inserts(
    "INSERT INTO blob (hash, body)",
    2,
    " ON CONFLICT (hash) DO UPDATE SET body = excluded.body WHERE body IS NOT excluded.body",
)


class GroupCommit:
    """The appends of one transaction."""

    def __init__(self, db: sqlite3.Connection, ledger: WriteConnection) -> None:
        self._db = db
        self._ledger = ledger
        self._known = ledger.known
        self._segments: list[int | bytearray | str | None] = []
        self._appended: list[KnownRun] = []  # one for each segment
        self._moved: dict[str, KnownRun] = {}  # runs whose head changes
        self._listed = False  # whether lists show something new about one of them
        self._blobs: dict[str, bytes] = {}
        self._audited = False

    def write(self, entries: Sequence[PendingAppend]) -> list[LoopwrightError | None]:
        """Write valid entries; returns, for each entry, None or the reason."""
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
        if self._ledger.killpoint is not ignore_killpoint:
            self._ledger.killpoint("rows.written")
        if self._blobs:
            blobs = ((name, bytearray(body)) for name, body in self._blobs.items())
            self._insert(_BLOBS, [value for pair in blobs for value in pair])
            if self._ledger.killpoint is not ignore_killpoint:
                self._ledger.killpoint("blobs.written")
        newest = self._insert(_SEGMENTS, self._segments)
        if self._ledger.killpoint is not ignore_killpoint:
            self._ledger.killpoint("segments.written")
        if self._ledger.heads is not None:
            self._record_heads(self._ledger.heads, newest)
        return answers

    def _insert(
        self, chunks: tuple[tuple[int, str], ...], values: Sequence[str | int | bytearray | None]
    ) -> int:
        """Insert all of them; returns the number of the last row.

        Bytes are passed as a bytearray: the sqlite3 module looks for an adapter of each value whose
        type it does not know, and it knows bytearray and not bytes.
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
        """Rows of segments are numbered one by one, so the last number determines all of them."""
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

    def _stage(self, entry: PendingAppend) -> LoopwrightError | None:
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
            tables.open_gates(self._db, known.row, append.gates_opened)
            tables.close_gates(self._db, known.row, append.gates_closed)
        if append.usage:
            add_usage(self._db, known.row, append.usage)
        if append.blobs:
            self._blobs.update(append.blobs)
        if append.audit:
            tables.insert_audit(self._db, append.audit)
            self._audited = True
        if append.records:
            tables.put_record(self._db, [(record, None) for record in append.records])
        if entry.count:
            last = known.version + entry.count
            chain = link(known.chain, entry.body)
            figures = append.figures or known.figures
            body = bytearray(entry.body)
            self._segments += (known.row, known.version + 1, last, body, bytearray(chain), figures)
            known.figures = figures
            known.version = last
            known.chain = chain
            self._appended.append(known)
            self._moved[append.run] = known
        return None

    def _update(self, headline: Headline, known: KnownRun) -> None:
        columns = _columns(headline)
        known.revision += 1
        known.digest = row_digest(columns)
        self._listed = True
        self._db.execute(_UPDATE, (*columns, known.revision, known.row))

    def _refusal(self, append: Append, known: KnownRun | None) -> LoopwrightError | None:
        if known is not None and known.problem is not None:
            return known.problem
        if append.token is not None and (known is None or known.token != append.token):
            return appends.fenced_error(append.run)
        version = 0 if known is None else known.version
        if append.expected != version:
            return appends.stale_error(append, version)
        headline = append.headline
        if headline is not None and headline.key and headline.status in OPEN_STATUSES:
            for (holder,) in self._db.execute(_HOLDER, (headline.key,)).fetchall():
                if holder != append.run:
                    return appends.key_in_use_error(headline.key, holder)
        for gate in append.gates_opened:
            for (other,) in self._db.execute(_GATE_ELSEWHERE, (gate.gate, append.run)).fetchall():
                return appends.gate_answered_error(gate.gate, other)
        return None

    def _create(self, append: Append) -> KnownRun:
        assert append.headline is not None  # ensured by validation
        owner = append.owner
        mark = (owner.pid, owner.start, owner.boot, owner.token) if owner else (None,) * 4
        columns = _columns(append.headline)
        values = (*columns, append.run, *mark, tables.details_text(append.details))
        row = self._db.execute(_CREATE, values).lastrowid
        assert row is not None
        token = owner.token if owner else None
        known = KnownRun(append.run, row, token)
        self._listed = True
        known.digest, known.is_new = row_digest(columns), True
        self._known[append.run] = known
        return known


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
        tables.labels_text(headline.labels) if headline.labels else "[]",
        headline.surface,
    )


_T = TypeVar("_T")
_MOST_AT_ONCE = 1024
_QUICK_SECONDS = 0.002  # the maximum time that an event loop may be blocked

Waiting = tuple[asyncio.AbstractEventLoop, PendingAppend]


class WriterTask(Protocol):
    """Another task for the thread, in order with the appends."""

    def run(self, ledger: WriteConnection) -> None: ...


class ChangeCheck:
    """Check whether another process has written."""

    def run(self, ledger: WriteConnection) -> None:
        """The ledger stores the result."""
        ledger.look()


class WriterJob(Generic[_T]):
    """A separate transaction with a waiting caller."""

    def __init__(self, work: Callable[[sqlite3.Connection], _T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._answers: list[_T] = []
        self._error: BaseException | None = None

    def run(self, ledger: WriteConnection) -> None:
        """Run it and store its result or error."""
        try:
            self._answers.append(ledger.transact(lambda db: self._do(db, ledger)))
        except BaseException as error:
            self._error = error
        self._done.set()

    def _do(self, db: sqlite3.Connection, ledger: WriteConnection) -> _T:
        answer = self._work(db)
        if ledger.heads is not None:
            ledger.heads.add_audit(db)
        return answer

    def wait(self) -> _T:
        """The answer, once it is there."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._answers[0]


class Writer:
    """Owns the thread, its queue and the write connection."""

    def __init__(
        self, place: DatabasePlace, telling: Subscribers, heads: HeadRecorder | None
    ) -> None:
        self.ledger = WriteConnection(place, heads)
        self._path = place.path
        self._telling = telling
        self._waiting: queue.SimpleQueue[list[Waiting] | WriterTask | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._quick = False
        # Two counters, each changed by one side only: when they are equal, the thread is idle and
        # will not use the ledger until it receives a task.
        self._put = 0
        self._finished = 0
        # A call from a thread other than the event loop's may give the writer's thread a task at
        # any moment: two threads in one connection would crash the process.
        self._putting = threading.Lock()
        self._in_ledger = threading.Lock()
        self._flushing = False  # whether the event loop will write the waiting heads

    @property
    def at_rest(self) -> bool:
        """Whether the thread is idle."""
        return self._put == self._finished

    def put(self, item: list[Waiting] | WriterTask) -> None:
        """Queue appends or a task; the first one starts the thread."""
        with self._putting:
            if self._thread is None:
                self._start()
            self._put += len(item) if isinstance(item, list) else 1
            self._waiting.put(item)

    def write(self, item: Waiting) -> None:
        """Commit an append at once if that is quick; else queue it."""
        if not self._quick or not self.at_rest or self.ledger.unsettled or self._closed:
            self.put([item])
            return
        if not self._in_ledger.acquire(blocking=False):
            self.put([item])
            return
        try:
            answers = self._commit([item[1]], wait=False)
        except DatabaseBusy:
            answers = None
        finally:
            self._in_ledger.release()
        if answers is None:
            self.put([item])
            return
        if not self._flushing:
            self._flush_later(item[0])
        self._telling.tell([(item[1], answers[0])])

    def _flush_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the event loop write heads that no further commit writes."""
        heads = self.ledger.heads
        if heads is not None and heads.waits:
            self._flushing = True
            loop.call_later(heads.seconds, self._flush_heads, loop, heads)

    def _flush_heads(self, loop: asyncio.AbstractEventLoop, heads: HeadRecorder) -> None:
        self._flushing = False
        if self._closed:
            return
        if not self._in_ledger.acquire(blocking=False):
            self._flush_later(loop)  # the thread is committing
            return
        try:
            heads.write()
        finally:
            self._in_ledger.release()

    def close(self) -> None:
        """Write waiting data, end the thread, close the connection."""
        self._closed = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        with suppress(LoopwrightError, DatabaseBusy):
            self._seal_heads()
        self.ledger.drop()
        if self.ledger.heads is not None:
            self.ledger.heads.close()

    def _seal_heads(self) -> None:
        """Store the length of the head file in the database: it never shrinks."""
        heads = self.ledger.heads
        position = heads.sync() if heads is not None else 0
        if position:
            self.ledger.transact(lambda db: store_position(db, position), wait=False)

    def _start(self) -> None:
        if self._closed:
            raise appends.closed_error()
        # A daemon: a log does not keep a process alive that ends without closing it.
        self._thread = threading.Thread(target=self._work, name="loopwright-log", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        going = True
        while going:
            appends: list[Waiting] = []
            for item in self._drain():
                if item is None:
                    going = False
                elif not isinstance(item, list):
                    self._write(appends)
                    appends = []
                    with self._in_ledger:
                        item.run(self.ledger)
                    self._finished += 1
                else:
                    appends += item
            self._write(appends)

    def _drain(self) -> Iterator[list[Waiting] | WriterTask | None]:
        waiting, heads = self._waiting, self.ledger.heads
        if heads is not None and heads.waits:
            try:
                item = waiting.get(timeout=heads.seconds)
            except queue.Empty:
                with self._in_ledger:
                    heads.write()
                item = waiting.get()
        else:
            item = waiting.get()
        yield item
        count = len(item) if isinstance(item, list) else 1
        while count < _MOST_AT_ONCE and not waiting.empty():
            item = waiting.get()
            count += len(item) if isinstance(item, list) else 1
            yield item

    def _write(self, appends: Sequence[Waiting]) -> None:
        if not appends:
            return
        with self._in_ledger:
            answers = self._commit([entry for _, entry in appends], wait=True)
            self.ledger.settle()
        self._finished += len(appends)  # before reporting: the next append may be the caller's
        self._resolve(appends, answers)

    def _commit(
        self, entries: Sequence[PendingAppend], *, wait: bool
    ) -> Sequence[LoopwrightError | None]:
        ledger, began = self.ledger, time.perf_counter()
        answers: Sequence[LoopwrightError | None]
        try:
            answers = ledger.transact(lambda db: GroupCommit(db, ledger).write(entries), wait=wait)
            if ledger.killpoint is not ignore_killpoint:
                ledger.killpoint("deliver.before")
        except DatabaseBusy:
            self._quick = False
            raise
        except BaseException as error:
            # A separate error for each: raising it adds a traceback.
            answers = [self._failure(error) for _ in entries]
        self._quick = time.perf_counter() - began < _QUICK_SECONDS
        return answers

    def _failure(self, error: BaseException) -> StorageError:
        known = as_storage_error(error, self._path)
        return StorageError(known.message, code=known.code, hint=known.hint)

    def _resolve(
        self, appends: Sequence[Waiting], answers: Sequence[LoopwrightError | None]
    ) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
        for (loop, entry), answer in zip(appends, answers, strict=True):
            by_loop.setdefault(loop, []).append((entry, answer))
        for loop, appended in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._telling.tell, appended)
            except RuntimeError:
                # That loop is closed: the result is not needed. The committed data remains.
                continue
