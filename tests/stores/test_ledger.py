"""When the disk fails: who waits is told, nothing is half, and the log recovers by itself."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import Conflict, StorageError, VersionConflict
from loopwright.ports import Append, ClosedGate
from loopwright.stores.sqlite.connection import DatabaseOptions, connect
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import World, event, events, gate, headline, owner


class Disk:
    """Decides what happens to statements of write connections."""

    def __init__(self) -> None:
        self.fail_in: int | None = None
        self.after = False  # fail when the statement was done, instead of before
        self.pages = 2**30
        self.failed: list[str] = []

    def connect(self, uri: str, timeout: float) -> sqlite3.Connection:
        disk = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if disk.fail_in is None:
                    return super().execute(sql, parameters)
                disk.fail_in -= 1
                if disk.fail_in >= 0:
                    return super().execute(sql, parameters)
                disk.fail_in = None
                disk.failed.append(sql.split("(")[0].strip())
                if disk.after:
                    super().execute(sql, parameters)
                raise sqlite3.OperationalError("disk I/O error")

        class Connection(sqlite3.Connection):
            def cursor(self, *_: Any) -> sqlite3.Cursor:
                return Cursor(self)

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                return self.cursor().execute(sql, parameters)

        db = sqlite3.connect(
            uri,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
            factory=Connection,
        )
        db.execute(f"PRAGMA max_page_count={self.pages}")
        return db


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def failing(path: Path, disk: Disk) -> Iterator[World]:
    """A world whose log stands on that disk."""
    options = DatabaseOptions(connect=disk.connect, busy_seconds=0.05)
    world = World(
        lambda alive: open_sqlite_log(path, alive=alive, durability="normal", options=options)
    )
    yield world
    world.close()


def rich(at: int) -> list[Append]:
    """Appends that use every kind of statement."""
    return [
        Append(
            run="run_a",
            expected=at,
            events=events(1, at + 1),
            headline=headline("waiting", key="k"),
            blobs={f"h{at}": b"body"},
            gates_opened=[gate(f"g{at}")],
            gates_closed=[ClosedGate(f"g{at - 1}", "run_a", 0)],
        ),
        Append(run=f"run_{at}", expected=0, events=events(2), headline=headline()),
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_every_statement_may_fail(failing: World, disk: Disk, after: bool) -> None:
    """The first, second, … statement of a commit fails: the whole group is told, none of it or
    all of it is there, and the next attempt is clean. Until a commit passes untouched.
    """
    log = failing.open()
    failing.start(log)
    disk.after = after
    nth = 0
    while True:
        at = log.version("run_a")
        disk.fail_in = nth
        answers = failing.submit(log, rich(at))
        clean = disk.fail_in is not None
        disk.fail_in = None
        if clean:
            assert answers == [None, None]
            break
        assert [type(answer) for answer in answers] == [StorageError] * 2
        assert answers[0] is not answers[1]
        version = log.version("run_a")
        committed = version == at + 1
        assert committed or version == at
        assert (f"run_{at}" in [row.run for row in log.rows()]) == committed
        assert ([one.gate for one in log.gates()] == [f"g{at}"]) == committed
        again = failing.submit(log, rich(at))
        expected = VersionConflict if committed else type(None)
        assert [type(answer) for answer in again] == [expected] * 2
        assert log.verify("run_a") == []
        nth += 1
    assert "BEGIN IMMEDIATE" in disk.failed
    assert "COMMIT" in disk.failed
    assert any(sql.startswith("INSERT INTO segment") for sql in disk.failed)
    assert nth >= 9


@pytest.mark.parametrize("call", ["claim", "release"])
def test_a_failing_claim_is_reported_and_undone(failing: World, disk: Disk, call: str) -> None:
    """Whichever statement fails, the caller hears and the owner is the old one or the new one."""
    log = failing.open()
    failing.start(log)
    nth = 0
    while True:
        log.release(["run_a"], owner("me"))
        if call == "release":
            log.claim(["run_a"], owner("me"))
        before = log.row("run_a").owner
        disk.fail_in = nth
        try:
            getattr(log, call)(["run_a"], owner("me"))
        except StorageError:
            assert log.row("run_a").owner == before
            nth += 1
            continue
        finally:
            disk.fail_in = None
        break
    assert nth >= 3
    assert (log.row("run_a").owner is None) == (call == "release")


def test_a_full_disk_is_reported_and_space_makes_it_well(failing: World, disk: Disk) -> None:
    """Out of space: StorageError `full`, earlier events readable; with space the log goes on."""
    log = failing.open()
    failing.start(log)
    log.close()
    disk.pages = 40
    log = failing.open()
    refused = None
    at = 0
    while refused is None:
        at += 1
        append = Append(run="run_a", expected=at, events=[event("x" * 4000)])
        [refused] = failing.submit(log, [append])
    assert isinstance(refused, StorageError)
    assert refused.code == "full"
    assert "free some space" in str(refused)
    assert 5 < at < 99
    assert log.version("run_a") == at
    with pytest.raises(StorageError):
        failing.append(log, Append(run="run_a", expected=at, events=[event("x" * 4000)]))
    disk.pages = 2**30
    # The connection is replaced after every failure, so the first write already has the space.
    failing.append(log, Append(run="run_a", expected=at, events=[event("x" * 4000)]))
    assert log.version("run_a") == at + 1
    assert log.verify("run_a") == []


def test_a_lock_held_too_long_is_reported(failing: World, path: Path) -> None:
    """When another process keeps the write lock: `busy`; reads go on; later writes too."""
    log = failing.open()
    failing.start(log)
    other = connect(path.as_uri(), 0.0)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError) as refusal:
            failing.append(log, Append(run="run_a", expected=1, events=events(1)))
        assert refusal.value.code == "busy"
        assert "another process" in str(refusal.value)
        assert log.version("run_a") == 1
        other.execute("ROLLBACK")
    finally:
        other.close()
    failing.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert log.version("run_a") == 2


def test_what_others_wrote_during_a_failure_is_noticed(
    failing: World, disk: Disk, path: Path
) -> None:
    """A connection that was replaced has not watched: a change is reported to be safe."""
    log = failing.open()
    failing.start(log)
    disk.fail_in = 0
    with pytest.raises(StorageError):
        failing.append(log, Append(run="run_a", expected=1, events=events(1)))
    other = open_sqlite_log(path, alive=lambda _: True)
    other.claim(["run_a"], owner("other"))
    other.close()
    failing.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert log.changed()
    with pytest.raises(Conflict):
        failing.append(log, Append(run="run_a", expected=2, events=events(1), token="me"))


def test_a_killpoint_that_raises_fails_the_group_only(path: Path) -> None:
    """Whatever happens in the writer's thread, the thread lives on and callers are told."""
    armed: list[str] = []

    def killpoint(name: str) -> None:
        if name in armed:
            armed.clear()
            raise ZeroDivisionError(name)

    def opener(alive: Callable[[Any], bool]) -> SqliteLog:
        return open_sqlite_log(path, alive=alive, durability="normal", killpoint=killpoint)

    world = World(opener)
    try:
        log = world.open()
        world.start(log)
        for point in ("begin.after", "segments.written", "commit.before"):
            armed.append(point)
            with pytest.raises(StorageError, match="ZeroDivisionError"):
                world.append(log, Append(run="run_a", expected=1, events=events(1)))
        world.append(log, Append(run="run_a", expected=1, events=events(1)))
        armed.append("commit.after")
        with pytest.raises(StorageError):
            world.append(log, Append(run="run_a", expected=2, events=events(1)))
        assert log.version("run_a") == 3  # told as failed, committed: an unknown outcome
        with pytest.raises(VersionConflict):
            world.append(log, Append(run="run_a", expected=2, events=events(1)))
        assert log.verify("run_a") == []
    finally:
        world.close()


def test_many_runs_are_remembered_within_bounds(world: World) -> None:
    """The log of a long-lived process forgets runs again; nothing depends on remembering."""
    log = world.open()
    assert isinstance(log, SqliteLog)
    world.start(log)
    known = log._writer.ledger.known
    for number in range(50_001):
        known[f"run_{number}"] = known["run_a"]
    world.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert list(known) == ["run_a"]


def test_the_write_ahead_log_is_stretched_once(world: World, path: Path) -> None:
    """After some commits that file has its full length, and the stretch leaves nothing behind."""
    log = world.open()
    assert isinstance(log, SqliteLog)
    world.start(log)
    wal = path.with_name("log.db-wal")
    assert wal.stat().st_size < 1_000_000
    for at in range(1, 30):
        world.append(log, Append(run="run_a", expected=at, events=events(1, at + 1)))
    world.barrier(log)
    assert 4_000_000 < wal.stat().st_size < 5_000_000
    assert log.verify("run_a") == []
    assert log.check() == []
    log.close()
    assert path.stat().st_size < 200_000
