"""The log in one SQLite file: the port `EventLog`, put together from a reader and a writer.

Reads use a connection of their own and never wait for writes. Writes go through one writer that
shares commits. What is told as durable survives the death of the process, and with durability
`full` the loss of power too. When a commit fails, its outcome may be unknown: the same append
again is either taken or refused with VersionConflict, never doubled.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from loopwright.errors import LoopwrightError, StorageError
from loopwright.kernel.facts import Usage
from loopwright.ports import (
    Append,
    AuditRow,
    Card,
    Headline,
    Liveness,
    Numbered,
    OpenGate,
    Owner,
    RunRow,
    RunStatus,
    UsageRow,
)
from loopwright.stores import cards, forgetting, owners, refusals, usage
from loopwright.stores.chain import Digest
from loopwright.stores.edge import Done, Entry, admit
from loopwright.stores.head_recorder import HeadRecorder
from loopwright.stores.place import Place
from loopwright.stores.reader import Reader
from loopwright.stores.telling import Telling, Watcher, submitted
from loopwright.stores.writer import Errand, Job, Look, Waiting, Writer

_T = TypeVar("_T")


class SqliteLog:
    """Made by `open_sqlite_log`. To be used from the thread of one event loop."""

    def __init__(
        self, place: Place, reader: Reader, alive: Liveness, heads: HeadRecorder | None = None
    ) -> None:
        self._telling = Telling()
        self._writer = Writer(place, self._telling, heads)
        self.alive = alive
        self._open: Reader | None = reader
        self._seen = (reader.data_version(), 0, 0)
        self._held: Waiting | None = None
        self._holding = threading.Lock()  # others may ask from threads of their own
        with contextlib.suppress(StorageError):
            # Early, to notice what others write. If it fails reading goes on, and whoever writes
            # is told why that cannot be.
            self._writer.ledger.open()

    def submit(self, append: Append, done: Done) -> None:
        """Queue an append; `done` is called in the running event loop's thread."""
        self._reader()
        loop = asyncio.get_running_loop()
        try:
            entry = admit(append, done)
        except LoopwrightError as error:
            loop.call_soon(done, error)
            return
        self._take(loop, entry)

    async def append(self, append: Append) -> None:
        """`submit` and wait. Being cancelled ends the waiting, not the append."""
        await submitted(self.submit, append)

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with run and version after every append of this process, in the event
        loop's thread; the answer ends that.
        """
        return self._telling.subscribe(watcher)

    def heard(self, run: str, version: int) -> None:
        """Another process says that it has written: tell watchers as if it had been here."""
        self._telling.moved(run, version)

    def read(
        self, run: str, after: int = 0, limit: int | None = None, *, as_is: bool = False
    ) -> list[Numbered]:
        """Facts with numbers above `after`, in order, at most `limit`. `as_is`: also when their
        hash chain breaks.
        """
        return self._reader().read(run, after, limit, as_is=as_is)

    def version(self, run: str) -> int:
        """Number of the newest fact of a run."""
        return self._reader().version(run)

    def head(self, run: str) -> str:
        """The newest value of the hash chain over the facts of a run."""
        return self._reader().head(run)

    def blob(self, digest: str) -> bytes:
        """Content by its hash."""
        body = self._reader().find_blob(digest)
        if body is None:
            raise refusals.no_blob(digest)
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

    def transact(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """A transaction of its own, in its place among the appends; durable when it is answered."""
        return self._do(Job(work))

    async def transact_aside(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """The same for much at once: the event loop goes on meanwhile. Being cancelled ends the
        waiting, not the transaction.
        """
        self._reader()
        job = Job(work)
        self._put(job)
        return await asyncio.to_thread(job.wait)

    def query(self, statement: str, *values: str | int) -> list[Any]:
        """What is committed, by one statement."""
        return self._reader().query(statement, *values)

    def gates(self, run: str | None = None) -> list[OpenGate]:
        """Open gates, oldest first."""
        return self._reader().gates(run)

    def usage(self, since_day: int = 0) -> list[UsageRow]:
        """What was used since a day, by run, agent and day."""
        return [usage.row_of(row) for row in self._reader().query(usage.SINCE, since_day)]

    def usage_sum(self, since_day: int = 0, run: str = "", agent: str = "") -> Usage:
        """The sum of what was used since a day: by all runs, or by one agent of one run."""
        if run:
            [columns] = self._reader().query(usage.SUM_OF_CALLER, since_day, run, agent)
        else:
            [columns] = self._reader().query(usage.SUM, since_day)
        return usage.sum_of(columns)

    def unmetered(self) -> list[str]:
        """Runs whose usage was recorded before it was added up."""
        return [str(name) for (name,) in self._reader().query(usage.UNMETERED)]

    def replace_usage(self, run: str, headline: Headline, rows: Sequence[UsageRow]) -> None:
        """Store the usage of a run as its events say."""
        version = self.version(run)
        ledger = self._writer.ledger

        def put(db: sqlite3.Connection) -> None:
            usage.put(db, run, version, headline, rows)
            ledger.known.pop(run, None)
            if ledger.heads is not None:
                ledger.heads.add_run(db, run)

        self._do(Job(put))

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, Owner | None]:
        """Take runs for this owner. NotFound, and nothing taken, if one does not exist."""
        named = list(runs)
        ledger = self._writer.ledger
        return self._do(Job(lambda db: owners.claim(db, ledger, named, owner, self.alive)))

    def release(self, runs: Iterable[str], owner: Owner) -> None:
        """Give runs back; ones that are not ours are left alone."""
        named = list(runs)
        ledger = self._writer.ledger
        self._do(Job(lambda db: owners.release(db, ledger, named, owner)))

    def forget(self, runs: Iterable[str], audit: Sequence[AuditRow] = ()) -> int:
        """Remove runs that have ended, and the content that only they named."""
        named = list(runs)
        ledger = self._writer.ledger
        cards.check((), audit)
        return self._do(Job(lambda db: forgetting.forget(db, ledger, named, audit)))

    def nudges(self, after: int) -> tuple[list[str], int]:
        """Runs that were written to since the cursor `after`, and the new cursor."""
        return self._reader().nudges(after)

    def changed(self) -> bool:
        """Whether another process has written since this was last asked. While this process writes
        too, the answer may come with the next call.
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
        self._put(Look())
        return False

    def card(self, kind: str, key: str) -> Card | None:
        """A small record, or None."""
        return cards.find(self._reader(), kind, key)

    def cards(
        self,
        kind: str,
        *,
        owner: str | None = None,
        due_by: int | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[Card]:
        """Small records of a kind."""
        wanted = cards.Wanted(kind, owner=owner, due_by=due_by, after=after, limit=limit)
        return cards.select(self._reader(), wanted)

    def change(
        self,
        puts: Sequence[tuple[Card, int | None]] = (),
        drops: Sequence[tuple[str, str]] = (),
        audit: Sequence[AuditRow] = (),
    ) -> None:
        """Write small records, all or nothing."""
        cards.check(puts, audit)
        self._do(Job(lambda db: cards.write(db, puts, drops, audit)))

    def audited(
        self,
        *,
        before: int | None = None,
        subject: str = "",
        request: str = "",
        limit: int = 100,
    ) -> list[AuditRow]:
        """Audit rows, newest first."""
        return cards.audited(
            self._reader(), before=before, subject=subject, request=request, limit=limit
        )

    def verify(self, run: str, digest: Digest | None = None) -> list[str]:
        """What is wrong with a run: numbers, hash chain, facts that cannot be read, content that
        is missing or, where `digest` tells the name of content, is not what its name says.
        """
        return self._reader().verify(run, digest)

    def missing(self) -> list[str]:
        """Runs that were recorded and not deleted, and are not there."""
        return self._reader().missing()

    def head_problems(self, file: Path | None = None, *, deep: bool = False) -> list[str]:
        """What does not agree with the head file, or with an exported one."""
        return self._reader().head_problems(file, deep=deep)

    def export_heads(self, to: Path) -> int:
        """Copy the heads of all runs into a new file; answers how many there are."""
        return self._reader().export_heads(to)

    def check(self) -> list[str]:
        """What is wrong with the file itself. Reads all of it."""
        return self._reader().check()

    def backup(self, to: Path) -> None:
        """Copy the log into a new file while it is in use."""
        self._reader().backup(to)

    def close(self) -> None:
        """Write what waits and close; further calls fail."""
        reader, self._open = self._open, None
        if reader is not None:
            self._let_go()
            self._writer.close()
            reader.close()

    def _reader(self) -> Reader:
        if self._open is None:
            raise refusals.closed()
        return self._open

    def _take(self, loop: asyncio.AbstractEventLoop, entry: Entry) -> None:
        """Whether an append is alone is known when the event loop has been through what is ready:
        until then the first is held back. A second one means that there is something to share.
        """
        with self._holding:
            alone = self._held is None and self._writer.at_rest
            if alone:
                self._held = loop, entry
        if alone:
            loop.call_soon(self._write_held, entry)
        else:
            self._put((loop, entry))

    def _write_held(self, entry: Entry) -> None:
        with self._holding:
            held = self._held
            if held is None or held[1] is not entry:
                return
            self._held = None
        self._writer.write(held)

    def _let_go(self) -> None:
        with self._holding:
            held, self._held = self._held, None
        if held is not None:
            self._writer.put(held)

    def _put(self, item: Waiting | Errand) -> None:
        self._let_go()
        self._writer.put(item)

    def _do(self, job: Job[_T]) -> _T:
        self._reader()
        self._put(job)
        return job.wait()
