"""Schema versions: an older log is brought up to date, whole or not at all."""

import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.ports import Append
from loopwright.stores.sqlite.connection import MIGRATIONS, schema_of
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import World, events
from tests.stores.conftest import Spawn
from tests.stores.other_process import NEXT, NEXT_STEP

OLD, NEW = MIGRATIONS[-1].version, NEXT_STEP.version


def state(path: Path) -> tuple[int, bool, bool]:
    """The version, and whether the two things that the next step adds are there."""
    db = sqlite3.connect(path)
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        columns = {row[1] for row in db.execute("PRAGMA table_info(run)")}
        return schema_of(db), "note" in tables, "color" in columns
    finally:
        db.close()


def reopened(path: Path) -> SqliteLog:
    return open_sqlite_log(path, alive=lambda _: True, options=NEXT)


@pytest.fixture
def old(world: World, path: Path) -> Path:
    """A log of this version with some data, closed."""
    log = world.open()
    world.start(log, count=3)
    world.start(log, "run_b")
    log.close()
    return path


def test_versions_count_up() -> None:
    """Steps are numbered 1, 2, 3 …: a step is added, never changed or left out."""
    assert [step.version for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_an_older_log_is_migrated_with_its_data(old: Path) -> None:
    """Opening it with a later version brings the tables up to date and keeps every event."""
    assert state(old) == (OLD, False, False)
    log = reopened(old)
    assert log.version("run_a") == 3
    assert log.verify("run_a") == []
    log.close()
    assert state(old) == (NEW, True, True)
    reopened(old).close()


@pytest.mark.item("J3")
def test_after_that_the_older_version_refuses(old: Path) -> None:
    """The way back is refused, with both versions in the message."""
    reopened(old).close()
    with pytest.raises(StorageError, match=f"schema {NEW}, this version knows {OLD}") as refusal:
        open_sqlite_log(old, alive=lambda _: True)
    assert refusal.value.code == "newer-schema"


@pytest.mark.item("J12")
@pytest.mark.parametrize(
    ("point", "hit", "version"),
    [
        ("migrate.begin", 1, OLD),
        ("migrate.begin", 2, OLD),
        ("migrate.statement", 1, OLD),
        ("migrate.statement", 2, OLD),
        ("migrate.statement", 3, OLD),
        ("migrate.written", 1, OLD),
        ("migrate.done", 1, NEW),
    ],
)
def test_a_kill_during_a_migration(
    old: Path, spawn: Spawn, point: str, hit: int, version: int
) -> None:
    """Killed anywhere in it: the old version or the new one, and the next start completes it."""
    process = spawn("migrate", point, str(hit))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    added = version == NEW
    assert state(old) == (version, added, added)
    log = reopened(old)
    assert log.version("run_a") == 3
    assert log.check() == []
    log.close()
    assert state(old) == (NEW, True, True)


def test_two_processes_migrate_at_once(old: Path, spawn: Spawn) -> None:
    """Both end well, the step is done once."""
    both: list[subprocess.Popen[str]] = [spawn("migrate", "never", "1") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (out, err) == ("migrated\n", "")
    assert state(old) == (NEW, True, True)


def test_a_step_that_fails_is_undone(old: Path) -> None:
    """An error in a step leaves the version before it, and its events readable."""
    broken = NEXT.steps[-1]._replace(statements=(*NEXT_STEP.statements, "INSERT INTO nowhere"))
    with pytest.raises(StorageError):
        open_sqlite_log(old, alive=lambda _: True, options=type(NEXT)(steps=(*MIGRATIONS, broken)))
    assert state(old) == (OLD, False, False)
    log = open_sqlite_log(old, alive=lambda _: True)
    assert log.version("run_a") == 3
    log.close()


def test_a_log_in_use_notices_that_it_became_old(world: World, old: Path) -> None:
    """A process of the older version stops writing once another has migrated the file."""
    log = world.open()
    world.append(log, Append(run="run_a", expected=3, events=events(1)))
    reopened(old).close()
    for _ in range(2):
        with pytest.raises(StorageError) as refusal:
            world.append(log, Append(run="run_a", expected=4, events=events(1)))
        assert refusal.value.code == "newer-schema"
    assert log.version("run_a") == 4
