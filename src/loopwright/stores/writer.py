"""The writer: takes everything that waits, commits it once, tells all who wait at once.

It has a thread, so that an event loop goes on while the disk is busy and many appends share one
commit. An append that nobody else shares, on a disk that has just been quick, is committed by its
caller: handing it to the thread and back would take about as long as writing it.
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
from loopwright.stores import refusals
from loopwright.stores.edge import Entry
from loopwright.stores.faults import as_storage_error
from loopwright.stores.group import Group
from loopwright.stores.head_binding import store_position
from loopwright.stores.head_recorder import HeadRecorder
from loopwright.stores.ledger import Ledger, Occupied
from loopwright.stores.place import Place
from loopwright.stores.telling import Answer, Telling

_T = TypeVar("_T")
_MOST_AT_ONCE = 1024
_QUICK_SECONDS = 0.002  # an event loop may stand still for so long

Waiting = tuple[asyncio.AbstractEventLoop, Entry]


class Errand(Protocol):
    """Something else the thread is asked to do, among the appends and in their order."""

    def run(self, ledger: Ledger) -> None: ...


class Look:
    """See whether another process has written."""

    def run(self, ledger: Ledger) -> None:
        """The ledger keeps what it sees."""
        ledger.look()


class Job(Generic[_T]):
    """A transaction of its own that somebody waits for."""

    def __init__(self, work: Callable[[sqlite3.Connection], _T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._answers: list[_T] = []
        self._error: BaseException | None = None

    def run(self, ledger: Ledger) -> None:
        """Do it and keep the answer, whatever it is."""
        try:
            self._answers.append(ledger.transact(lambda db: self._do(db, ledger)))
        except BaseException as error:
            self._error = error
        self._done.set()

    def _do(self, db: sqlite3.Connection, ledger: Ledger) -> _T:
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

    def __init__(self, place: Place, telling: Telling, heads: HeadRecorder | None) -> None:
        self.ledger = Ledger(place, heads)
        self._path = place.path
        self._kill = place.killpoint
        self._telling = telling
        self._waiting: queue.SimpleQueue[Waiting | Errand | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._quick = False
        # Two counters, each changed by one side only: when they are equal, the thread has nothing
        # to do and will not touch the ledger until it is given something.
        self._put = 0
        self._finished = 0
        # Whoever asks from another thread than that of the event loop gives the writer's thread
        # something to do at any moment: two in one connection would end the process.
        self._putting = threading.Lock()
        self._in_ledger = threading.Lock()
        self._flushing = False  # whether the event loop will write the heads that wait

    @property
    def at_rest(self) -> bool:
        """Whether the thread has nothing to do."""
        return self._put == self._finished

    def put(self, item: Waiting | Errand) -> None:
        """Queue something; the thread starts with the first."""
        with self._putting:
            if self._thread is None:
                self._start()
            self._put += 1
            self._waiting.put(item)

    def write(self, item: Waiting) -> None:
        """Commit an append here and now if that is quick; else queue it."""
        if not self._quick or not self.at_rest or self.ledger.unsettled or self._closed:
            self.put(item)
            return
        if not self._in_ledger.acquire(blocking=False):
            self.put(item)
            return
        try:
            answers = self._commit([item[1]], wait=False)
        except Occupied:
            answers = None
        finally:
            self._in_ledger.release()
        if answers is None:
            self.put(item)
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
            self._flush_later(loop)  # the thread commits just now
            return
        try:
            heads.write()
        finally:
            self._in_ledger.release()

    def close(self) -> None:
        """Write what waits, end the thread, close the connection."""
        self._closed = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        with suppress(LoopwrightError, Occupied):
            self._seal_heads()
        self.ledger.drop()
        if self.ledger.heads is not None:
            self.ledger.heads.close()

    def _seal_heads(self) -> None:
        """Keep in the database how far the head file goes: it does not get shorter again."""
        heads = self.ledger.heads
        position = heads.sync() if heads is not None else 0
        if position:
            self.ledger.transact(lambda db: store_position(db, position), wait=False)

    def _start(self) -> None:
        if self._closed:
            raise refusals.closed()
        # A daemon: a process that ends without closing is not kept alive by its log.
        self._thread = threading.Thread(target=self._work, name="loopwright-log", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        going = True
        while going:
            appends: list[Waiting] = []
            for item in self._drain():
                if item is None:
                    going = False
                elif not isinstance(item, tuple):
                    self._write(appends)
                    appends = []
                    with self._in_ledger:
                        item.run(self.ledger)
                    self._finished += 1
                else:
                    appends.append(item)
            self._write(appends)

    def _drain(self) -> Iterator[Waiting | Errand | None]:
        waiting, heads = self._waiting, self.ledger.heads
        if heads is not None and heads.waits:
            try:
                yield waiting.get(timeout=heads.seconds)
            except queue.Empty:
                with self._in_ledger:
                    heads.write()
                yield waiting.get()
        else:
            yield waiting.get()
        for _ in range(_MOST_AT_ONCE - 1):
            if waiting.empty():
                return
            yield waiting.get()

    def _write(self, appends: Sequence[Waiting]) -> None:
        if not appends:
            return
        with self._in_ledger:
            answers = self._commit([entry for _, entry in appends], wait=True)
            self.ledger.settle()
        self._finished += len(appends)  # before anybody is told: the next append may be theirs
        self._tell(appends, answers)

    def _commit(self, entries: Sequence[Entry], *, wait: bool) -> Sequence[LoopwrightError | None]:
        ledger, began = self.ledger, time.perf_counter()
        answers: Sequence[LoopwrightError | None]
        try:
            answers = ledger.transact(lambda db: Group(db, ledger).write(entries), wait=wait)
            self._kill("deliver.before")
        except Occupied:
            self._quick = False
            raise
        except BaseException as error:
            # One error for each: whoever raises it adds a traceback of his own.
            answers = [self._failure(error) for _ in entries]
        self._quick = time.perf_counter() - began < _QUICK_SECONDS
        return answers

    def _failure(self, error: BaseException) -> StorageError:
        known = as_storage_error(error, self._path)
        return StorageError(known.message, code=known.code, hint=known.hint)

    def _tell(self, appends: Sequence[Waiting], answers: Sequence[LoopwrightError | None]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
        for (loop, entry), answer in zip(appends, answers, strict=True):
            by_loop.setdefault(loop, []).append((entry, answer))
        for loop, told in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._telling.tell, told)
            except RuntimeError:
                # That loop is closed: nobody is left to be told. What was committed stays.
                continue
