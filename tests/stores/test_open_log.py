"""Open a log: what is created, what is refused, and that a refusal changes nothing."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.ports import Append
from loopwright.stores.sqlite.connection import MIGRATIONS, DatabaseOptions, Migration
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import World, event, headline


def opened(path: Path, **settings: object) -> SqliteLog:
    return open_sqlite_log(path, alive=lambda _: True, **settings)  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, without what SQLite makes for the moment."""
    files = (one for one in folder.rglob("*") if one.is_file() and one.suffix != ".db-shm")
    return {one.name: one.read_bytes() for one in files if one.stat().st_size}


@pytest.fixture
def filled(path: Path) -> Path:
    """A log with a few hundred events, closed."""
    world = World(lambda alive: open_sqlite_log(path, alive=alive, durability="normal"))
    log = world.open()
    world.start(log)
    for at in range(1, 40):
        world.append(log, Append(run="run_a", expected=at, events=[event("x" * 3000)]))
    world.close()
    return path


def test_a_new_log_is_private_and_empty(path: Path) -> None:
    """The file belongs to its user alone, nothing else is left, and it opens again."""
    log = opened(path)
    assert log.rows() == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log.close()
    assert {one.name for one in path.parent.iterdir()} == {"log.db", "log.db-heads"}
    again = opened(path, create=False)
    assert again.rows() == []
    again.close()


@pytest.mark.parametrize(("durability", "expected"), [("full", 2), ("normal", 1)])
def test_durability_is_what_sqlite_is_reported(path: Path, durability: str, expected: int) -> None:
    """`full` syncs every commit, `normal` leaves that to checkpoints; both write ahead."""
    seen: list[sqlite3.Connection] = []

    def connect(uri: str, timeout: float) -> sqlite3.Connection:
        db = sqlite3.connect(
            uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True
        )
        seen.append(db)
        return db

    log = opened(path, durability=durability, options=DatabaseOptions(connect=connect))
    writer = seen[-1]
    assert writer.execute("PRAGMA synchronous").fetchone() == (expected,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    log.close()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("dear diary\n" * 400)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def stump(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def first_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + os.urandom(3996) + path.read_bytes()[4096:])


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def other_database(path: Path) -> None:
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE meta (key, value)")
    db.execute("INSERT INTO meta VALUES ('schema', 1)")
    db.commit()
    db.close()


def no_tables(path: Path) -> None:
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("PRAGMA application_id=0x4C6F6F70")
    db.execute("PRAGMA user_version=1")
    db.close()


def only_the_wal(path: Path) -> None:
    path.rename(path.with_name(path.name + "-wal"))


@pytest.mark.item("J4")
@pytest.mark.parametrize(
    "damage",
    [
        empty,
        text,
        half,
        stump,
        zeros,
        first_page,
        folder,
        other_database,
        no_tables,
        only_the_wal,
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_or_wrong_file_is_refused(filled: Path, damage: Callable[[Path], None]) -> None:
    """The error names file and way out; nothing is repaired, replaced or created by itself."""
    damage(filled)
    before = content(filled.parent)
    with pytest.raises(StorageError) as refusal:
        opened(filled)
    assert refusal.value.code == "damaged"
    assert str(filled) in str(refusal.value)
    assert "doctor" in str(refusal.value)
    assert "backup" in str(refusal.value)
    assert content(filled.parent) == before
    assert filled.exists() == (damage is not only_the_wal)


@pytest.mark.item("J4")
def test_a_damaged_page_is_reported_by_everyone_who_reads_it(filled: Path) -> None:
    """Rubbish in the middle of the file is an error of its own kind, and the check finds it."""
    db = sqlite3.connect(filled)
    [[root]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'segment'")
    db.close()
    body = bytearray(filled.read_bytes())
    for page in (root - 1,):
        body[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
    filled.write_bytes(body)
    log = opened(filled)
    try:
        with pytest.raises(StorageError) as refusal:
            log.read("run_a")
        assert refusal.value.code == "damaged"
        assert any("damaged" in problem for problem in log.verify("run_a"))
        assert log.check() != []
    finally:
        log.close()


@pytest.mark.item("J3")
def test_a_newer_log_is_refused_with_both_versions(filled: Path) -> None:
    """A file of a later version is left alone and both versions are named."""
    db = sqlite3.connect(filled)
    db.execute("UPDATE meta SET value = 7 WHERE key = 'schema'")
    db.commit()
    db.close()
    before = content(filled.parent)
    with pytest.raises(StorageError) as refusal:
        opened(filled)
    assert refusal.value.code == "newer-schema"
    assert "schema 7" in str(refusal.value)
    assert f"knows {MIGRATIONS[-1].version}" in str(refusal.value)
    assert content(filled.parent) == before


def test_without_leave_nothing_is_created(path: Path) -> None:
    """`create=False` answers with an error and leaves the directory as it was."""
    with pytest.raises(StorageError) as refusal:
        opened(path, create=False)
    assert refusal.value.code == "no-log"
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("below", ["missing/log.db", "file/log.db"])
def test_a_directory_that_is_none_is_named(tmp_path: Path, below: str) -> None:
    """A missing parent, or a file in its place, is refused by name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as refusal:
        opened(tmp_path / below)
    assert refusal.value.code == "unusable"
    assert str((tmp_path / below).parent) in str(refusal.value)
    assert "data directory" in str(refusal.value)


def test_a_step_that_fails_leaves_no_file(path: Path) -> None:
    """When a new log cannot be completed there is none."""
    broken = DatabaseOptions(
        steps=(*MIGRATIONS, Migration(MIGRATIONS[-1].version + 1, ("CREATE TABLE run (a)",)))
    )
    with pytest.raises(StorageError, match="already exists"):
        opened(path, options=broken)
    assert list(path.parent.iterdir()) == []


def test_odd_names_of_directories_are_fine(tmp_path: Path) -> None:
    """Blanks, signs of a URI and letters of any script may be in the path."""
    folder = tmp_path / "a b?mode=ro&c#d%41 ä"
    folder.mkdir()
    world = World(lambda alive: open_sqlite_log(folder / "log ?.db", alive=alive))
    log = world.open()
    world.append(log, Append(run="run_a", expected=0, events=[event()], headline=headline()))
    world.close()
    assert {one.name for one in folder.iterdir()} == {"log ?.db", "log ?.db-heads"}


_OPEN_AND_CLOSE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("SELECT count(*) FROM run").fetchall()
db.close()
"""


def test_log_when_another_is_opened_in_its_process_keeps_its_locks(filled: Path) -> None:
    """Another process that closes the file must not take it for the last one, and remove the log
    that this process still reads.
    """
    log = opened(filled)
    assert len(log.rows()) == 1
    opened(filled).close()
    journal = filled.with_name(f"{filled.name}-wal")
    inode = journal.stat().st_ino
    subprocess.run([sys.executable, "-c", _OPEN_AND_CLOSE, str(filled)], check=True)
    assert journal.stat().st_ino == inode
    assert len(log.rows()) == 1
    log.close()
