"""The head file: what it survives, what it finds, and that a killed process is not tampering."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.ports import Append
from loopwright.stores import SqliteLog, head_recorder, heads, open_sqlite_log, rebuild_heads
from loopwright.stores.chain import genesis
from loopwright.stores.heads import SIZE, Gap, Head, HeadTable, head_record, read_table, scan
from tests.contracts.event_log_suite import World, facts, headline
from tests.stores.conftest import Spawn

KILLER = Path(__file__).with_name("kill_writers.py")


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
        world.append(log, Append(run=run, expected=at, facts=facts(1)))
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
    monkeypatch.setattr(heads, "COMPACT_AT", 40 * SIZE)
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
    monkeypatch.setattr(heads, "COMPACT_AT", 40 * SIZE)
    other = filled(world, 2, "run_b")
    inode = heads_of(path).stat().st_ino
    filled(world, 200)
    assert heads_of(path).stat().st_ino == inode
    world.append(other, Append(run="run_b", expected=2, facts=facts(1)))
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
    world.append(log, Append(run="run_a", expected=5, facts=facts(1)))
    data = file.read_bytes()
    assert [one.kind for one in scan(data) if isinstance(one, Gap)] == [kind]
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

    monkeypatch.setattr(heads.os, "write", short)
    for at in range(5, 9):
        world.append(log, Append(run="run_a", expected=at, facts=facts(1)))
    assert table_at(path).heads[genesis("run_a")].version == 9
    assert log.head_problems() == []


def test_records_may_come_in_any_order() -> None:
    """Of two processes, the one that recorded last is not always the one that committed last."""
    key = genesis("run_a")
    old = Head(3, b"a" * 16, 30, 1, b"1" * 8)
    new = Head(5, b"b" * 16, 50, 2, b"2" * 8)
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
        world.append(other, Append(run="run_a", expected=4, facts=facts(1)))
    world.append(other, Append(run="run_b", expected=1, facts=facts(1)))
    assert other.version("run_b") == 2


def test_heads_wait_for_a_sync_with_durability_normal(
    path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loss of power may take is not recorded before the write-ahead log is synced."""
    now = 100.0
    monkeypatch.setattr(head_recorder.time, "monotonic", lambda: now)
    log = open_sqlite_log(path, alive=lambda _: True, durability="normal")
    world.start(log)
    assert table_at(path).heads[genesis("run_a")].version == 1
    world.append(log, Append(run="run_a", expected=1, facts=facts(1)))
    assert table_at(path).heads[genesis("run_a")].version == 1
    now += 2
    world.append(log, Append(run="run_a", expected=2, facts=facts(1)))
    assert table_at(path).heads[genesis("run_a")].version == 3
    world.append(log, Append(run="run_a", expected=3, facts=facts(1), headline=headline()))
    log.close()
    assert table_at(path).heads[genesis("run_a")].version == 4


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
