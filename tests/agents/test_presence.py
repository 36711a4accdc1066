"""Owners of runs that live elsewhere: where process numbers mean something else."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.agents.processes import process_marks as room
from loopwright.agents.processes.process_marks import Presence, numbers, owner_mark
from loopwright.agents.sandbox import bubblewrap
from loopwright.ports import Owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
TOKEN = "0123456789abcdef"

HOLDER = """
import sys
from pathlib import Path
from loopwright.agents.processes.process_marks import Presence, owner_mark
owner = owner_mark(sys.argv[2])
with Presence(Path(sys.argv[1])).held(owner.token):
    print(owner.pid, owner.start, owner.boot, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def presence(tmp_path: Path) -> Presence:
    return Presence(tmp_path / "owners")


@contextmanager
def holder(folder: Path, *before: str) -> Iterator[tuple[Owner, "subprocess.Popen[str]"]]:
    """Another process that is an owner, started by these words."""
    command = [*before, sys.executable, "-c", HOLDER, str(folder / "owners"), TOKEN]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        pid, start, boot = process.stdout.readline().split()
        yield Owner(pid=int(pid), start=int(start), boot=boot, token=TOKEN), process


def elsewhere(owner: Owner) -> Owner:
    """The same owner, as if its number meant something else here."""
    boot, _, _ = owner.boot.partition("/")
    return replace(owner, boot=f"{boot}/1", pid=2**22 + 1)


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "owners").iterdir())


def test_here_the_process_table_tells(presence: Presence, tmp_path: Path) -> None:
    """No file is needed for what can be seen; earlier versions gave no name to their numbers."""
    owner = owner_mark(TOKEN)
    boot, _, space = owner.boot.partition("/")
    assert space == numbers() != ""
    assert presence.alive(owner)
    assert presence.alive(replace(owner, boot=boot))
    assert not presence.alive(replace(owner, start=owner.start + 1))
    assert not presence.alive(replace(owner, boot=f"another/{space}"))
    assert not (tmp_path / "owners").exists()


def test_elsewhere_the_lock_tells(presence: Presence, tmp_path: Path) -> None:
    """For as long as it is held, and not a moment longer."""
    with holder(tmp_path) as (owner, process):
        assert presence.alive(elsewhere(owner))
        assert not presence.alive(replace(elsewhere(owner), token="f" * 16))
        assert not presence.alive(replace(elsewhere(owner), token="../owners"))
        process.kill()
        process.wait()
        assert files(tmp_path) == [TOKEN]
        assert not presence.alive(elsewhere(owner))
    with presence.held("another"):
        assert files(tmp_path) == ["another"]  # what was left is taken away
    assert files(tmp_path) == []


def test_in_a_sandbox(presence: Presence, tmp_path: Path) -> None:
    """A process that has its numbers for itself is alive until it ends, for those outside."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    wall = (
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--unshare-pid",
        "--proc",
        "/proc",
        "--die-with-parent",
    )
    with holder(tmp_path, *wall) as (owner, process):
        assert owner.pid < 10
        assert owner.boot != owner_mark(TOKEN).boot
        assert presence.alive(owner)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.read()  # type: ignore[union-attr] # until the last one behind the wall has gone
        assert not presence.alive(owner)


def test_in_a_sandbox_with_the_table_of_the_outside(presence: Presence, tmp_path: Path) -> None:
    """Its numbers mean nothing in /proc there: a process has a mark all the same, and the lock
    tells whether it lives, within and without.
    """
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    wall = ("bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--die-with-parent")

    with holder(tmp_path, *wall) as (owner, process):
        assert owner.start == 0
        assert presence.alive(owner)
        with pytest.MonkeyPatch.context() as patch:  # as its neighbours see it
            patch.setattr(room, "numbers", lambda: owner.boot.partition("/")[2])
            assert presence.alive(owner)
        process.kill()
        process.wait()
        process.stdout.read()  # type: ignore[union-attr] # until the last one behind the wall has gone
        assert not presence.alive(owner)


def test_transferred(presence: Presence, tmp_path: Path) -> None:
    """Whoever leaves first leaves the lock to the other."""
    owner = elsewhere(owner_mark(TOKEN))
    with holder(tmp_path) as (_, process):
        with presence.held(TOKEN):
            assert presence.alive(owner)
        assert presence.alive(owner)
        process.communicate("")
        assert files(tmp_path) == []
        assert not presence.alive(owner)


def test_a_file_that_is_taken_away_meanwhile(presence: Presence, tmp_path: Path) -> None:
    """Somebody cleans up between making a file and locking it: then it is made again."""
    taken = []
    real = room.fcntl.flock

    def cleaned(handle: int, how: int) -> None:
        if how == room.fcntl.LOCK_SH and len(taken) < 3:
            (tmp_path / "owners" / TOKEN).unlink()
            taken.append(handle)
        real(handle, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.fcntl, "flock", cleaned)
        with presence.held(TOKEN):
            assert len(taken) == 3
            assert presence.alive(elsewhere(owner_mark(TOKEN)))
    assert files(tmp_path) == []


def test_a_file_that_is_made_again_while_a_person_cleans_up(
    presence: Presence, tmp_path: Path
) -> None:
    """Two clean up at once: the slower one does not take away what was made since."""
    folder = tmp_path / "owners"
    folder.mkdir()
    (folder / TOKEN).touch()
    real = room.fcntl.flock
    living = contextlib.ExitStack()

    def overtaken(handle: int, how: int) -> None:
        patch.undo()
        (folder / TOKEN).unlink()  # by the quicker one
        living.enter_context(presence.held(TOKEN))
        real(handle, how)

    with living, pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.fcntl, "flock", overtaken)
        with presence.held("another"):
            assert files(tmp_path) == [TOKEN, "another"]
            assert presence.alive(elsewhere(owner_mark(TOKEN)))


def test_several_who_look_at_once(presence: Presence, tmp_path: Path) -> None:
    """Somebody else who looks for a dead owner is not taken for it, however both of them meet."""
    owner = elsewhere(owner_mark(TOKEN))
    (tmp_path / "owners").mkdir()
    (tmp_path / "owners" / TOKEN).touch()
    with (tmp_path / "owners" / TOKEN).open("rb") as other:
        room.fcntl.flock(other, room.fcntl.LOCK_EX)
        assert not presence.alive(owner)
        real, met = room.fcntl.flock, []

        def leaving(handle: int, how: int) -> None:
            try:
                real(handle, how)
            except BlockingIOError:
                met.append(how)
                real(other, room.fcntl.LOCK_UN)  # it has seen enough just then
                raise

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room.fcntl, "flock", leaving)
            assert not presence.alive(owner)
        assert met


def test_what_is_no_file(presence: Presence, tmp_path: Path) -> None:
    """Whatever else lies there keeps nobody waiting."""
    (tmp_path / "owners" / "folder").mkdir(parents=True)
    os.mkfifo(tmp_path / "owners" / "pipe")
    with presence.held(TOKEN):
        assert files(tmp_path) == [TOKEN, "folder"]
        assert presence.alive(elsewhere(owner_mark(TOKEN)))


def test_a_disk_that_takes_no_files(tmp_path: Path) -> None:
    """Then an owner is seen by its number alone."""
    (tmp_path / "owners").write_text("not a folder", encoding="utf-8")
    presence = Presence(tmp_path / "owners")
    with presence.held(TOKEN):
        assert presence.alive(owner_mark(TOKEN))
        assert not presence.alive(elsewhere(owner_mark(TOKEN)))


def test_many_at_once(presence: Presence, tmp_path: Path) -> None:
    """Nobody takes away what another holds."""
    wrong: list[str] = []

    def live(number: int) -> None:
        for turn in range(30):
            token = f"{number:04}{turn:04}"
            with presence.held(token):
                if not presence.alive(replace(elsewhere(owner_mark(token)))):
                    wrong.append(token)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert files(tmp_path) == []
