"""A copy of a home whose server goes on: it is whole, with the files that were given."""

import errno
import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import StorageError
from loopwright.operations import backup
from loopwright.operations.backup import copy_data_directory
from loopwright.operations.data_directory import open_log
from loopwright.operations.settings import Settings
from tests.http.served import Reply, Served, served
from tests.http.test_serving import COMMAND, serving


def give(ask: Served, run: str, name: str, data: bytes) -> str:
    path = f"/api/v1/runs/{run}/artifacts?name={name}"
    reply = ask("POST", path, raw=data, headers={"Content-Type": "application/octet-stream"})
    assert reply.status == 201, reply.body
    return str(reply.json["artifacts"][0]["id"])


def content(ask: Served, run: str, name: str, version: int) -> Reply:
    return ask("GET", f"/api/v1/runs/{run}/artifacts/{name}/content?version={version}")


def test_a_copy_of_a_data_directory_in_use(tmp_path: Path) -> None:
    """While a server runs, everything goes into a new file and a new folder beside it; put in place
    as a home they are what was there: runs, gates, tokens, every version of every file that was
    given, and nothing of what was taken away.
    """
    with serving(tmp_path) as one:
        ask = one.ask
        run, gate = ask.gated()
        kept = give(ask, run, "a.bin", b"\x00first")
        assert give(ask, run, "a.bin", b"\x00second") == kept
        gone = give(ask, run, "b.bin", b"\x00other")
        assert ask("DELETE", f"/api/v1/runs/{run}/artifacts/{gone}").status == 204
        made = subprocess.run(
            [*COMMAND, "backup", "copy.db", "--data-dir", "home", "--json"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=60,
        )
        late = give(ask, run, "c.bin", b"\x00late")
    told = json.loads(made.stdout)
    assert (told["runs"], told["uploads"], told["files"]) == (1, "copy.db.uploads", 2)
    assert told["missing"] == 0
    for place in (tmp_path / "copy.db.uploads").rglob("*"):
        assert place.stat().st_mode & 0o077 == 0
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "copy.db").rename(other / "loopwright.db")
    (tmp_path / "copy.db.uploads").rename(other / "uploads")
    with served(tmp_path, home="other") as again:
        again.token = ask.token
        assert content(again, run, kept, 1).body == b"\x00first"
        assert content(again, run, kept, 2).body == b"\x00second"
        assert content(again, run, gone, 1).status == 404
        assert content(again, run, late, 1).status == 404
        assert again("POST", f"/api/v1/gates/{gate}/approve", {}).status == 200
        again.until(run, "completed")


@pytest.fixture
def home(tmp_path: Path) -> tuple[Settings, str, str]:
    """A home with a run that was given a file."""
    with served(tmp_path) as own:
        run, _ = own.gated()
        name = give(own, run, "a.bin", b"\x00first")
    return Settings(home=tmp_path / "home", durability="normal"), run, name


def bytes_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))


def test_a_copy_writes_over_nothing(home: tuple[Settings, str, str], tmp_path: Path) -> None:
    """A file or a folder that is there stays as it is, and nothing is left of the try."""
    settings, file = home[0], tmp_path / "copy.db"
    with closing(open_log(settings)) as log:
        file.write_text("mine")
        with pytest.raises(StorageError, match="exists"):
            copy_data_directory(settings, log, file)
        assert file.read_text() == "mine"
        assert not (tmp_path / "copy.db.uploads").exists()
        file.unlink()
        (tmp_path / "copy.db.uploads").mkdir()
        with pytest.raises(StorageError, match="exists"):
            copy_data_directory(settings, log, file)
        assert not file.exists()


def test_a_file_that_comes_or_goes_meanwhile(
    home: tuple[Settings, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in before the log is copied is fetched afterwards; what is taken away meanwhile is
    not in the copy; what is named and nowhere to be found is told.
    """
    settings = home[0]
    with closing(open_log(settings)) as log:
        real, calls = backup.digests, [0]

        def blind(trackers: Any) -> set[str]:
            calls[0] += 1
            return set() if calls[0] == 1 else real(trackers)

        monkeypatch.setattr(backup, "digests", blind)
        monkeypatch.setattr(backup, "TRIES", 1)
        came = copy_data_directory(settings, log, tmp_path / "came.db")
        assert (came.files, came.missing) == (1, 0)

        def forgetful(trackers: Any) -> set[str]:
            calls[0] += 1
            return real(trackers) if calls[0] == 1 else set()

        calls[0] = 0
        monkeypatch.setattr(backup, "digests", forgetful)
        went = copy_data_directory(settings, log, tmp_path / "went.db")
        assert (went.folder, went.files) == (None, 0)
        assert not (tmp_path / "went.db.uploads").exists()
        monkeypatch.setattr(backup, "digests", real)
        (place,) = bytes_in(settings.home / "uploads")
        place.unlink()
        lost = copy_data_directory(settings, log, tmp_path / "lost.db")
        assert (lost.folder, lost.files, lost.missing) == (None, 0, 1)


def test_a_copy_that_fails_leaves_nothing(
    home: tuple[Settings, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a copy would be taken for one."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real, calls = backup.digests, [0]

    def blind(trackers: Any) -> set[str]:
        calls[0] += 1
        return set() if calls[0] == 1 else real(trackers)

    monkeypatch.setattr(backup, "digests", blind)
    monkeypatch.setattr(backup.shutil, "copyfileobj", full)
    with closing(open_log(home[0])) as log, pytest.raises(StorageError) as error:
        copy_data_directory(home[0], log, tmp_path / "copy.db")
    assert error.value.code == "full"
    assert [one.name for one in tmp_path.glob("copy.db*")] == []
