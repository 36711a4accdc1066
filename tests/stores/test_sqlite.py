"""The log in a file under real processes: many writers, readers beside them, sudden deaths."""

import signal
import subprocess
from pathlib import Path

import pytest

from loopwright.ports import Append, Owner
from loopwright.stores.sqlite.connection import KILLPOINTS
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import World, events, headline, owner
from tests.stores.conftest import Spawn

COMMIT_POINTS = [
    point
    for point in KILLPOINTS
    if not point.startswith(("migrate.", "create.", "claim.", "release.", "forget."))
]


def finished(process: subprocess.Popen[str]) -> list[str]:
    """The lines of a process that must end well."""
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()


def opened(world: World) -> SqliteLog:
    log = world.open()
    assert isinstance(log, SqliteLog)
    return log


@pytest.mark.item("inv-1")
def test_six_processes_write_and_nothing_is_lost(world: World, spawn: Spawn) -> None:
    """Six writers with runs of their own and one in common: no append lost, doubled or locked."""
    log = opened(world)
    world.start(log, "run_shared")
    writers = [spawn("write", name, "100", "20") for name in "abcdef"]
    for writer in writers:
        assert finished(writer) == [str(number) for number in range(1, 101)]
    for name in "abcdef":
        assert [one.seq for one in log.read(f"run_{name}")] == list(range(1, 101))
        assert log.row(f"run_{name}").headline.status == "completed"
    shared = [getattr(one.event, "by", "") for one in log.read("run_shared", after=1)]
    assert sorted(shared) == sorted(f"{name}:{n}" for name in "abcdef" for n in range(20))
    for name in "abcdef":
        assert [s for s in shared if s[0] == name] == [f"{name}:{n}" for n in range(20)]
    assert [log.verify(row.run) for row in log.rows()] == [[]] * 7
    assert log.check() == []


def test_many_processes_may_create_the_log(world: World, spawn: Spawn, path: Path) -> None:
    """Of processes that start on an empty directory one creates the file; all of them use it."""
    writers = [spawn("write", name, "3", "0") for name in "abcd"]
    for writer in writers:
        assert finished(writer) == ["1", "2", "3"]
    assert {row.run for row in opened(world).rows()} == {f"run_{name}" for name in "abcd"}
    files = {"log.db", "log.db-wal", "log.db-shm", "log.db-heads"}
    assert {one.name for one in path.parent.iterdir()} <= files


def test_a_reader_beside_a_writer_sees_only_whole_appends(world: World, spawn: Spawn) -> None:
    """While another process writes, every read works, has no gap and never goes back."""
    log = opened(world)
    writer = spawn("write", "w", "300", "0", "150")
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert [writer.stdout.readline() for _ in range(150)][-1] == "150\n"
    seen, reads = 0, 0
    while seen < 300:
        numbers = [one.seq for one in log.read("run_w")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= seen
        assert log.row("run_w").version >= len(numbers)
        seen, reads = len(numbers), reads + 1
        if reads == 1:  # the writer waits in the middle until the reader has begun
            assert seen == 150
            writer.stdin.write("go on\n")
            writer.stdin.flush()
    assert log.changed()
    assert reads > 1
    writer.communicate(timeout=60)


@pytest.mark.item("inv-7")
def test_runs_of_a_killed_process_are_taken_over(
    world: World, spawn: Spawn, dead: set[str]
) -> None:
    """A living owner in another process is named; after its kill -9 the run is ours."""
    log = opened(world)
    world.start(log)
    process = spawn("own", "run_a")
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    me = owner("me")
    theirs = Owner(pid=process.pid, start=7, boot="boot", token="theirs")
    assert log.claim(["run_a"], me) == {"run_a": theirs}
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    dead.add("theirs")
    assert log.claim(["run_a"], me) == {"run_a": None}
    assert log.version("run_a") == 2
    world.append(log, Append(run="run_a", expected=2, events=events(1), token="me"))
    assert log.verify("run_a") == []


@pytest.mark.item("inv-1", "inv-2", "inv-6")
@pytest.mark.parametrize("hit", [1, 4])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_kill_leaves_the_old_or_the_new_state(
    world: World, spawn: Spawn, point: str, hit: int
) -> None:
    """Killed at a named point: what was told is there, at most one append more, nothing half."""
    world.start(opened(world))  # so that the file exists and others use it
    process = spawn("die", point, str(hit))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    told = [line for line in out.splitlines() if line.isdigit()]
    log = opened(world)
    if "run_dying" not in [row.run for row in log.rows()]:
        assert told == []
        return
    stored = [one.seq for one in log.read("run_dying")]
    assert stored == list(range(1, len(stored) + 1))
    assert len(told) <= len(stored) <= len(told) + 1
    assert log.verify("run_dying") == []
    finished_it = len(stored) == 6
    assert (log.row("run_dying").headline.status == "completed") == finished_it
    assert (log.gates() == []) == finished_it
    for number in stored[1:]:
        assert log.blob(f"run_dying-{number}")
    assert log.check() == []


@pytest.mark.parametrize("point", ["claim.written", "release.written"])
def test_a_kill_while_claiming_leaves_the_old_owner(
    world: World, spawn: Spawn, dead: set[str], point: str
) -> None:
    """A claim or release that was not committed did not happen."""
    world.start(opened(world))
    process = spawn("die", point, "1")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    log = opened(world)
    before = log.row("run_dying").owner
    if point == "claim.written":
        assert before is None
    else:
        assert "claimed" in out
        assert before is not None
        assert before.token == "dying"
    dead.add("dying")
    assert log.claim(["run_dying"], owner("me")) == {"run_dying": None}


@pytest.mark.parametrize("point", [p for p in KILLPOINTS if p.startswith("create.")])
def test_a_kill_while_creating_leaves_none_or_a_whole_log(
    world: World, spawn: Spawn, path: Path, point: str
) -> None:
    """The file appears complete or not at all, and the next start works."""
    process = spawn("die", point, "1")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert path.exists() == (point == "create.linked")
    log = opened(world)
    world.start(log)
    assert log.check() == []


def test_a_backup_is_a_whole_log(world: World, tmp_path: Path) -> None:
    """A copy made while others write opens as a log of its own; an existing file is kept."""
    log = opened(world)
    world.start(log, count=3)
    (tmp_path / "copies").mkdir()
    copy = tmp_path / "copies" / "copy.db"

    async def copy_between() -> None:
        for at in range(3, 60):
            log.submit(Append(run="run_a", expected=at, events=events(1)), lambda _: None)
        log.backup(copy)

    world.loop.run_until_complete(copy_between())
    world.barrier(log)
    again = World(lambda alive: open_sqlite_log(copy, alive=alive))
    try:
        other = again.open()
        assert other.verify("run_a") == []
        version = other.version("run_a")
        assert 3 <= version <= 60
        again.append(other, Append(run="run_a", expected=version, events=events(1)))
    finally:
        again.close()
    with pytest.raises(Exception, match="exists") as refusal:
        log.backup(copy)
    assert getattr(refusal.value, "code", "") == "exists"
    with pytest.raises(Exception, match="No such file"):
        log.backup(tmp_path / "missing" / "copy.db")


def test_waiting_in_two_loops_one_after_the_other(world: World) -> None:
    """Who was told to wait in a loop that is gone harms nobody; the append stays."""
    log = opened(world)

    async def submit_and_leave() -> None:
        append = Append(run="run_a", expected=0, events=events(1), headline=headline())
        log.submit(append, lambda _: None)

    gone = World(lambda _: log)
    gone.loop.run_until_complete(submit_and_leave())
    gone.loop.close()
    world.barrier(log)
    world.append(log, Append(run="run_a", expected=1, events=events(1)))
    assert log.version("run_a") == 2


@pytest.mark.item("inv-27")
@pytest.mark.parametrize("point", [p for p in KILLPOINTS if p.startswith("forget.")])
def test_a_kill_while_forgetting_forgets_nothing(world: World, spawn: Spawn, point: str) -> None:
    """Runs are forgotten whole or not at all."""
    world.start(opened(world))
    process = spawn("forget", point, "1")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    log = opened(world)
    assert [one.seq for one in log.read("run_dying")] == [1, 2, 3, 4, 5, 6]
    assert log.verify("run_dying") == []
    assert log.blob("run_dying-3")
    assert log.check() == []
    log.forget(["run_dying"])
    assert [row.run for row in log.rows()] == ["run_a"]
    assert log.verify("run_a") == []
    assert log.check() == []
