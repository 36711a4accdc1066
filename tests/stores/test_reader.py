"""The read side: what was changed by hand is found, and no right to write is needed."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.ports import Append
from loopwright.stores.appends import link
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import World, events, headline
from tests.stores.conftest import PROGRAM


def by_hand(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.fixture
def log(world: World) -> SqliteLog:
    """Two runs of five appends with two events each."""
    log = world.open()
    assert isinstance(log, SqliteLog)
    for run in ("run_a", "run_b"):
        world.start(log, run, count=2)
        for at in range(2, 10, 2):
            world.append(log, Append(run=run, expected=at, events=events(2, at + 1)))
    return log


def test_an_untouched_run_has_no_problems(log: SqliteLog) -> None:
    """Neither the runs nor the file."""
    assert (log.verify("run_a"), log.verify("run_b"), log.check()) == ([], [], [])


@pytest.mark.item("inv-1", "inv-2")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            "UPDATE segment SET body = replace(body, '\"5\"', '\"6\"') WHERE run = 1 AND seq = 5",
            ["the hash chain breaks at event 5"],
            id="a fact edited",
        ),
        pytest.param(
            "DELETE FROM segment WHERE run = 1 AND seq = 5",
            ["event 7 found where event 5 was expected", "the hash chain breaks at event 7"],
            id="a segment removed",
        ),
        pytest.param(
            "DELETE FROM segment WHERE run = 1 AND seq = 1",
            ["event 3 found where event 1 was expected", "the hash chain breaks at event 3"],
            id="the first removed",
        ),
        pytest.param(
            "UPDATE segment SET body = (SELECT body FROM segment WHERE run = 1 AND seq = 7) "
            "WHERE run = 1 AND seq = 5",
            ["the hash chain breaks at event 5"],
            id="a segment repeated",
        ),
        pytest.param(
            'UPDATE segment SET body = \'[{"kind":"run.unknown","at":1}]\' '
            "WHERE run = 1 AND seq = 9",
            ["the hash chain breaks at event 9", "events of run_a from number 9 on cannot be read"],
            id="an unknown kind",
        ),
        pytest.param(
            "UPDATE segment SET last = 11 WHERE run = 1 AND seq = 9",
            ["2 events found instead of events 9 to 11"],
            id="a wrong count",
        ),
        pytest.param(
            "DELETE FROM segment WHERE run = 1", ["run_a: has no events"], id="all removed"
        ),
        pytest.param(
            "UPDATE segment SET run = 3 - run",
            ["the hash chain breaks at event 1"],
            id="runs exchanged",
        ),
    ],
)
def test_a_log_changed_by_hand_is_found_out(
    log: SqliteLog, path: Path, change: str, expected: list[str]
) -> None:
    """Each kind of change is named with the number of the event."""
    if "3 - run" in change:
        by_hand(path, "UPDATE segment SET run = -run", "UPDATE segment SET run = 3 + run")
    else:
        by_hand(path, change)
    problems = log.verify("run_a")
    assert len(problems) == len(expected)
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem


def test_events_of_a_later_version_are_reported_as_such(log: SqliteLog, path: Path) -> None:
    """An event that this version cannot read is an error with a hint, also for readers."""
    db, body = sqlite3.connect(path), b'[{"kind":"new"}]'
    [(before,)] = db.execute("SELECT chain FROM segment WHERE run = 1 AND seq = 9").fetchall()
    addition = "INSERT INTO segment (run, seq, last, body, chain) VALUES (1, 11, 11, ?, ?)"
    db.execute(addition, (body, link(before, body)))
    db.commit()
    db.close()
    assert len(log.read("run_a", limit=10)) == 10
    with pytest.raises(Exception, match="newer version") as refusal:
        log.read("run_a")
    assert getattr(refusal.value, "code", "") == "damaged"


@pytest.mark.item("J5", "inv-2")
@pytest.mark.parametrize("after", [0, 2, 4, 5, 6, 9])
def test_what_was_changed_is_not_read_as_if_it_were_whole(
    log: SqliteLog, path: Path, after: int
) -> None:
    """A segment that does not follow the one before it is refused from wherever it is read; what
    follows it is whole, and so is the other run.
    """
    by_hand(
        path, "UPDATE segment SET body = replace(body, '\"5\"', '\"6\"') WHERE seq = 5 AND run = 1"
    )
    if after < 6:
        with pytest.raises(StorageError, match="from number 5 on are not as they were") as refusal:
            log.read("run_a", after=after)
        assert refusal.value.code == "damaged"
    else:
        assert [one.seq for one in log.read("run_a", after=after)] == list(range(after + 1, 11))
    assert len(log.read("run_a", after=after, limit=2 if after < 3 else 1, as_is=True)) >= 1
    assert len(log.read("run_a", as_is=True)) == 10
    assert len(log.read("run_b", after=after)) == 10 - after


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def read_as_nobody(path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "read_as_nobody", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("writer_is_there", [False, True], ids=["quiet", "while in use"])
def test_reading_needs_no_right_to_write(public: Path, writer_is_there: bool) -> None:
    """A user who may only read sees everything; writing is refused clearly and changes nothing."""
    path = public / "log.db"
    world = World(lambda alive: open_sqlite_log(path, alive=alive))
    log = world.open()
    log.close()
    path.chmod(0o644)
    path.with_name("log.db-heads").chmod(0o644)
    log = world.open()
    world.append(log, Append(run="run_a", expected=0, events=events(1), headline=headline()))
    try:
        if not writer_is_there:
            log.close()
            path.chmod(0o444)
            public.chmod(0o555)
        seen, refusal = read_as_nobody(path)
    finally:
        world.close()
    assert seen == "run_a 1 False"
    assert refusal.startswith("StorageError")
    assert refusal.split()[1] in {"read-only", "unusable"}
    assert str(path) in refusal
    assert "permission" in refusal or "written" in refusal


def test_a_log_that_cannot_even_be_read_is_named(public: Path) -> None:
    """Without the right to read: StorageError with the path, no traceback."""
    path = public / "log.db"
    open_sqlite_log(path, alive=lambda _: True).close()
    if os.geteuid() != 0:
        path.chmod(0o000)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "read_as_nobody", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "StorageError" in done.stderr.splitlines()[-1]
    assert str(path) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda log: log.read("run_a", 4, 2), id="read"),
        pytest.param(lambda log: log.rows(limit=1), id="rows"),
        pytest.param(lambda log: log.gates(), id="gates"),
    ],
)
def test_a_read_leaves_nothing_open(
    log: SqliteLog, path: Path, ask: Callable[[SqliteLog], object]
) -> None:
    """After a read the whole write-ahead log can be taken back: nobody holds an old snapshot."""
    ask(log)
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    assert busy == 0
