"""The head file: what it survives, what it finds, and that a killed process is not tampering."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.ports import Append
from loopwright.stores.appends import genesis
from loopwright.stores.sqlite import head_file, write_connection, writer
from loopwright.stores.sqlite.head_file import (
    SIZE,
    HeadGap,
    HeadTable,
    RecordedHead,
    head_record,
    read_table,
    scan,
)
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log, rebuild_heads
from tests.contracts.event_log_suite import World, events, headline
from tests.stores.conftest import Spawn

KILLER = Path(__file__).with_name("kill_writers.py")


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these tests are about what is in the file, not about when it is written."""
    monkeypatch.setattr(write_connection, "_SECONDS", 0.0)


def opened(path: Path) -> SqliteLog:
    return open_sqlite_log(path, alive=lambda _: True)


def heads_of(path: Path) -> Path:
    return path.with_name("log.db-heads")


def table_at(path: Path) -> HeadTable:
    table = read_table(heads_of(path))
    assert table is not None
    return table


def filled(world: World, count: int = 5, run: str = "run_a") -> SqliteLog:
    log = world.open()
    assert isinstance(log, SqliteLog)
    world.start(log, run)
    for at in range(1, count):
        world.append(log, Append(run=run, expected=at, events=events(1)))
    return log


def kill(path: Path, kills: int, seed: int, durability: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(KILLER), str(path), str(kills), str(seed), durability],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.item("bnd-tamper-8")
@pytest.mark.parametrize(("durability", "kills"), [("full", 70), ("normal", 40)])
def test_a_killed_process_is_not_tampering(path: Path, durability: str, kills: int) -> None:
    """However processes that write are killed, nothing is reported as missing or changed."""
    assert kill(path, kills, 1, durability) == [f"{kills} kills"]


@pytest.mark.deep
@pytest.mark.item("bnd-tamper-8")
@pytest.mark.parametrize("durability", ["full", "normal"])
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_killed_processes_are_not_tampering(path: Path, durability: str, seed: int) -> None:
    """The same, with 1,600 kills in all."""
    assert kill(path, 200, seed, durability) == ["200 kills"]


@pytest.mark.item("bnd-tamper-8")
@pytest.mark.parametrize("point", ["commit.before", "commit.after", "heads.written"])
def test_the_next_process_records_what_a_killed_one_did_not(
    path: Path, spawn: Spawn, point: str
) -> None:
    """A kill between a commit and its record leaves a gap that is closed when the log is opened."""
    process = spawn("die", point, "4")
    process.wait(timeout=60)
    log = opened(path)
    found = table_at(path).heads[genesis("run_dying")]
    assert (found.version, found.chain.hex()) == (log.version("run_dying"), log.head("run_dying"))
    assert log.head_problems(deep=True) == []
    log.close()


def test_the_file_is_shortened_and_says_the_same(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When most records are superseded, the file is replaced by one that has the newest only."""
    monkeypatch.setattr(head_file, "COMPACT_AT", 40 * SIZE)
    log = filled(world, 200)
    assert heads_of(path).stat().st_size < 100 * SIZE
    assert table_at(path).heads[genesis("run_a")].version == 200
    assert log.head_problems() == []
    log.close()
    assert opened(path).version("run_a") == 200


def test_a_file_that_others_use_is_not_replaced(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody appends to a file that is no longer there."""
    monkeypatch.setattr(head_file, "COMPACT_AT", 40 * SIZE)
    other = filled(world, 2, "run_b")
    inode = heads_of(path).stat().st_ino
    filled(world, 200)
    assert heads_of(path).stat().st_ino == inode
    world.append(other, Append(run="run_b", expected=2, events=events(1)))
    assert table_at(path).heads[genesis("run_b")].version == 3


GAPS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a write that was not finished": (lambda data: data + data[-SIZE:-20], "torn"),
    "zeros after a loss of power": (lambda data: data + bytes(3 * SIZE), "lost"),
    "zeros in the middle": (lambda data: data[:-SIZE] + bytes(SIZE) + data[-SIZE:], "lost"),
    "a changed byte": (lambda data: data[:-30] + b"\xff" + data[-29:], "changed"),
    "something else": (lambda data: data + b"x" * 100, "changed"),
}


@pytest.mark.item("bnd-tamper-2")
@pytest.mark.parametrize(("change", "kind"), GAPS.values(), ids=GAPS.keys())
def test_what_is_not_a_record(
    path: Path, world: World, change: Callable[[bytes], bytes], kind: str
) -> None:
    """An unfinished write and a loss of power are passed over; a change is a problem."""
    log = filled(world)
    file = heads_of(path)
    file.write_bytes(change(file.read_bytes()))
    world.append(log, Append(run="run_a", expected=5, events=events(1)))
    data = file.read_bytes()
    assert [one.kind for one in scan(data) if isinstance(one, HeadGap)] == [kind]
    assert table_at(path).heads[genesis("run_a")].version == 6
    assert bool(log.head_problems()) == (kind == "changed")


def test_a_full_disk_is_made_up_for(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that could not be written, or only in part, are written with the next ones."""
    log = filled(world)
    write, refused = os.write, iter([0, 30, -1])

    def short(handle: int, data: bytes) -> int:
        most = next(refused, None)
        if most is None:
            return write(handle, data)
        if most < 0:
            raise OSError(28, "No space left on device")
        return write(handle, data[:most])

    monkeypatch.setattr(head_file.os, "write", short)
    for at in range(5, 9):
        world.append(log, Append(run="run_a", expected=at, events=events(1)))
    assert table_at(path).heads[genesis("run_a")].version == 9
    assert log.head_problems() == []


def test_records_may_come_in_any_order() -> None:
    """Of two processes, the one that recorded last is not always the one that committed last."""
    key = genesis("run_a")
    old = RecordedHead(3, b"a" * 16, 30, 1, b"1" * 8)
    new = RecordedHead(5, b"b" * 16, 50, 2, b"2" * 8)
    for order in ((old, new), (new, old)):
        table = HeadTable()
        for head in order:
            table.add(head_record(key, head))
        assert table.heads[key] == new
        assert not table.conflicts


def test_one_number_with_two_hashes_is_a_problem(path: Path, world: World) -> None:
    """Two histories of one run are told, whichever is in the database."""
    log = filled(world)
    known = table_at(path).heads[genesis("run_a")]
    with heads_of(path).open("ab") as file:
        file.write(head_record(genesis("run_a"), known._replace(chain=b"x" * 16)))
    assert any("two different histories" in text for text in log.head_problems())


@pytest.mark.item("bnd-tamper-3")
def test_nothing_is_appended_to_a_run_that_lost_events(path: Path, world: World) -> None:
    """A run with a missing tail is not continued, and others are, in the same commit."""
    log = filled(world)
    world.start(log, "run_b")
    log.transact(lambda db: db.execute("DELETE FROM segment WHERE run = 1 AND seq = 5"))
    other = world.open()
    with pytest.raises(StorageError, match="events 5 to 5 of run_a are missing"):
        world.append(other, Append(run="run_a", expected=4, events=events(1)))
    world.append(other, Append(run="run_b", expected=1, events=events(1)))
    assert other.version("run_b") == 2


def test_heads_wait_for_a_sync_with_durability_normal(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loss of power may take is not recorded before the write-ahead log is synced."""
    now = 100.0
    monkeypatch.setattr(write_connection.time, "monotonic", lambda: now)
    log = open_sqlite_log(path, alive=lambda _: True, durability="normal")
    world.start(log)
    assert table_at(path).heads[genesis("run_a")].version == 1
    world.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert table_at(path).heads[genesis("run_a")].version == 1
    now += 2
    world.append(log, Append(run="run_a", expected=2, events=events(1)))
    # The head that waited is written when its time has come, before or with the next commit.
    assert table_at(path).heads[genesis("run_a")].version in (2, 3)
    now += 2
    world.append(log, Append(run="run_a", expected=3, events=events(1), headline=headline()))
    now += 2
    log.close()
    assert table_at(path).heads[genesis("run_a")].version == 4


@pytest.mark.item("bnd-tamper-8")
@pytest.mark.parametrize("thread", [False, True], ids=["in the event loop", "in the thread"])
def test_heads_of_quick_commits_are_collected(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch, thread: bool
) -> None:
    """Commits that follow each other at once share a record. It is written soon, also when no
    further commit comes; a commit that lists show is recorded before it is answered.
    """
    monkeypatch.setattr(write_connection, "_SECONDS", 0.2)
    monkeypatch.setattr(writer, "_QUICK_SECONDS", 0.0 if thread else 60.0)
    log = filled(world, 1)
    written = heads_of(path).stat().st_size
    for at in range(1, 30):
        world.append(log, Append(run="run_a", expected=at, events=events(1)))
    assert heads_of(path).stat().st_size <= written + 10 * SIZE

    until = time.monotonic() + 30
    while table_at(path).heads[genesis("run_a")].version < 30 and time.monotonic() < until:
        world.loop.run_until_complete(asyncio.sleep(0.02))
    assert table_at(path).heads[genesis("run_a")].version == 30
    world.append(log, Append(run="run_a", expected=30, events=events(1)))
    shown = Append(run="run_a", expected=31, events=events(1), headline=headline("waiting"))
    world.append(log, shown)
    assert table_at(path).heads[genesis("run_a")].version == 32
    assert log.head_problems(deep=True) == []


def test_heads_that_wait_are_written_when_the_log_is_closed(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No head of a process that ends in order is missing."""
    monkeypatch.setattr(write_connection, "_SECONDS", 60.0)
    log = filled(world)
    assert table_at(path).heads[genesis("run_a")].version == 1
    log.close()
    assert table_at(path).heads[genesis("run_a")].version == 5


def test_a_head_that_was_not_committed_is_never_written(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is what was committed, also when a later transaction of the same run fails."""
    monkeypatch.setattr(write_connection, "_SECONDS", 60.0)
    log = filled(world)
    monkeypatch.setattr(log._writer.ledger, "killpoint", raise_at("commit.before"))
    with pytest.raises(StorageError):
        world.append(log, Append(run="run_a", expected=5, events=events(1)))
    log.close()
    assert table_at(path).heads[genesis("run_a")].version == 5
    assert opened(path).head_problems(deep=True) == []


def raise_at(wanted: str) -> Callable[[str], None]:
    def killpoint(point: str) -> None:
        if point == wanted:
            raise OSError(5, "the disk is gone")

    return killpoint


def test_heads_are_not_rebuilt_under_a_process_that_writes(path: Path, world: World) -> None:
    """It would go on with a file that is no longer there."""
    log = filled(world)
    with pytest.raises(StorageError) as refusal:
        rebuild_heads(path)
    assert refusal.value.code == "busy"
    log.close()
    assert rebuild_heads(path) == 1
    assert opened(path).version("run_a") == 5


def test_a_database_of_an_older_version_gets_a_head_file(path: Path, world: World) -> None:
    """Without an identity the database is recorded as it is, also after a crash in the middle."""
    filled(world).close()
    for leaves_file in (False, True):
        log = opened(path)
        log.transact(lambda db: db.execute("DELETE FROM meta WHERE key LIKE 'heads%'"))
        log.close()
        again = opened(path)
        again.transact(lambda db: db.execute("DELETE FROM meta WHERE key LIKE 'heads%'"))
        again.close()
        if not leaves_file:
            heads_of(path).unlink()
        last = opened(path)
        assert last.head_problems(deep=True) == []
        assert table_at(path).heads[genesis("run_a")].version == 5
        last.close()


def _all_events(path: Path) -> dict[str, list[str]]:
    """What a new process reads of every run, or the errors in its place."""
    log = opened(path)
    try:
        return {row.run: [repr(one) for one in log.read(row.run)] for row in log.rows()}
    finally:
        log.close()


def _is_noticed(path: Path) -> bool:
    """Whether the deep look finds something."""
    try:
        log = opened(path)
    except StorageError:
        return True
    try:
        return bool(log.head_problems(deep=True) or log.check())
    except StorageError:
        return True
    finally:
        log.close()


@pytest.mark.item("bnd-tamper-10")
def test_damaged_bytes_of_the_write_ahead_log_are_noticed(
    path: Path, world: World, tmp_path: Path
) -> None:
    """Wherever a byte is flipped or the file is cut, every read gives the recorded events, an
    error, or events that the deep look reports as incomplete. A tail that nobody was told about
    may be dropped.
    """
    log = filled(world, 12)
    for number in range(3):
        world.start(log, f"run_{number}")
    files = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    wal = files[f"{path.name}-wal"]
    assert len(wal) > 20_000
    copy = tmp_path / "copy"
    copy.mkdir()

    def damaged(data: bytes) -> Path:
        for one in copy.iterdir():
            one.unlink()
        for name, content in files.items():
            if not name.endswith("-shm"):
                (copy / name).write_bytes(data if name.endswith("-wal") else content)
        return copy / path.name

    whole = _all_events(damaged(wal))
    assert len(whole) == 4
    offsets = [*range(0, 64, 4), *range(64, len(wal), len(wal) // 50)]
    lost = 0
    for at in offsets:
        flipped = bytearray(wal)
        flipped[at] ^= 0x55
        for data in (bytes(flipped), wal[:at]):
            place = damaged(data)
            try:
                seen = _all_events(place)
            except StorageError:
                lost += 1
                continue
            if seen != whole:
                assert _is_noticed(damaged(data)), at
                lost += 1
    assert lost > len(offsets)
