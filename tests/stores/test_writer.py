"""Who commits: the caller when nobody shares and the disk is quick, else the thread."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.ports import Append, StoredRecord
from loopwright.stores.sqlite import writer as writer_module
from loopwright.stores.sqlite.connection import DatabaseOptions, connect
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import events, headline, owner


class Witness:
    """Notes which thread commits; may make every commit slow. Its clock runs with that alone: a
    busy machine does not decide what these tests show.
    """

    def __init__(self) -> None:
        self.commits: list[str] = []
        self.delay = 0.0
        self._now = 0.0

    def perf_counter(self) -> float:
        return self._now

    def connect(self, uri: str, timeout: float) -> sqlite3.Connection:
        witness = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if sql == "COMMIT":
                    witness.commits.append(threading.current_thread().name)
                    time.sleep(witness.delay)
                    witness._now += witness.delay
                return super().execute(sql, parameters)

        class Connection(sqlite3.Connection):
            def cursor(self, *_: Any) -> sqlite3.Cursor:
                return Cursor(self)

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                return self.cursor().execute(sql, parameters)

        return sqlite3.connect(
            uri,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
            factory=Connection,
        )


HERE, THREAD = threading.main_thread().name, "loopwright-log"


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    witness = Witness()
    its_time = SimpleNamespace(**{**vars(time), "perf_counter": witness.perf_counter})
    monkeypatch.setattr(writer_module, "time", its_time)
    return witness


def play(
    path: Path, witness: Witness, scene: Callable[[SqliteLog], Any], *, busy: float = 5.0
) -> None:
    """Act in an event loop with a log that has one run and has just been quick."""
    options = DatabaseOptions(connect=witness.connect, busy_seconds=busy)
    log = open_sqlite_log(path, alive=lambda _: True, durability="normal", options=options)

    async def all_of_it() -> None:
        await log.append(Append(run="run_a", expected=0, events=events(1), headline=headline()))
        witness.commits.clear()
        await scene(log)

    try:
        asyncio.run(all_of_it())
    finally:
        log.close()


def more(at: int, run: str = "run_a") -> Append:
    return Append(run=run, expected=at, events=events(1, at + 1))


def test_a_lone_append_is_committed_by_its_caller(path: Path, witness: Witness) -> None:
    """One after the other: no thread is asked."""

    async def scene(log: SqliteLog) -> None:
        for at in (1, 2, 3):
            await log.append(more(at))
        assert witness.commits == [HERE] * 3

    play(path, witness, scene)


def test_appends_of_one_turn_share_a_commit_of_the_thread(path: Path, witness: Witness) -> None:
    """What becomes ready together is written together, and not by the event loop."""

    async def scene(log: SqliteLog) -> None:
        new = [
            Append(run=f"run_{n}", expected=0, events=events(1), headline=headline()) for n in "bcd"
        ]
        await asyncio.gather(*(log.append(one) for one in new))
        assert THREAD in witness.commits
        assert len(witness.commits) < 3
        assert HERE not in witness.commits

    play(path, witness, scene)


def test_a_slow_disk_is_left_to_the_thread(path: Path, witness: Witness) -> None:
    """After one slow commit the event loop never waits for the disk again, until it is quick."""

    async def scene(log: SqliteLog) -> None:
        witness.delay = 0.25
        await log.append(more(1))
        assert witness.commits == [HERE]
        turns = 0
        told = asyncio.ensure_future(log.append(more(2)))
        while not told.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 3
        assert witness.commits == [HERE, THREAD]
        witness.delay = 0.0
        await log.append(more(3))
        await log.append(more(4))
        assert witness.commits == [HERE, THREAD, THREAD, HERE]

    play(path, witness, scene)


def test_a_lock_of_another_process_is_waited_for_by_the_thread(
    path: Path, witness: Witness
) -> None:
    """The event loop goes on while somebody else writes, and the append lands after that."""

    async def scene(log: SqliteLog) -> None:
        other = connect(path.as_uri(), 0.0)
        try:
            other.execute("BEGIN IMMEDIATE")
            told = asyncio.ensure_future(log.append(more(1)))
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert not told.done()
            assert witness.commits == []
            other.execute("ROLLBACK")
            await told
        finally:
            other.close()
        assert witness.commits == [THREAD]
        assert log.version("run_a") == 2

    play(path, witness, scene)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda log: log.claim(["run_a"], owner("me")), id="a claim"),
        pytest.param(lambda log: log.release(["run_a"], owner("me")), id="a release"),
        pytest.param(lambda log: log.close(), id="closing"),
    ],
)
def test_what_is_held_back_keeps_its_place(
    path: Path, witness: Witness, meanwhile: Callable[[SqliteLog], None]
) -> None:
    """An append that waits for the end of its turn is written before whatever is asked next."""

    async def scene(log: SqliteLog) -> None:
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        log.submit(more(1), told.set_result)
        meanwhile(log)
        assert witness.commits[0] == THREAD
        assert await told is None

    play(path, witness, scene)


def test_two_appends_of_one_run_keep_their_order(path: Path, witness: Witness) -> None:
    """The second expects what the first leaves, whoever commits them."""

    async def scene(log: SqliteLog) -> None:
        await asyncio.gather(*(log.append(more(at)) for at in (1, 2, 3)))
        assert log.version("run_a") == 4

    play(path, witness, scene)


def test_a_person_asks_from_another_thread(tmp_path: Path) -> None:
    """Whatever is asked elsewhere while the event loop commits by itself, the connection is used by
    one at a time, and nothing is written twice or lost.
    """
    log = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    over, asked = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            log.change([(StoredRecord(kind="k", key=str(len(asked)), body=b"x"), None)])
            asked.append(threading.current_thread().name)
            over.wait(0.0002)

    async def append() -> None:
        begun = Append(run="run_a", expected=0, events=events(1), headline=headline("running"))
        await log.append(begun)
        for version in range(1, 1_500):
            await log.append(Append(run="run_a", expected=version, events=events(1)))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        asyncio.run(append())
    finally:
        over.set()
        thread.join()
    assert log.version("run_a") == 1_500
    assert len(log.records("k")) == len(asked) > 0
    log.close()
