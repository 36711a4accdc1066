"""The view of a sandbox at the next start: kept while nothing changed, and made again otherwise."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from loopwright.agents.sandbox import host_files, mounts
from loopwright.agents.sandbox.host_files import HostFiles, RememberedArguments
from loopwright.agents.sandbox.mounts import SandboxView, file_arguments

Change = Callable[[Path], None]


def view(folder: Path) -> SandboxView:
    return SandboxView(
        level="guard",
        file="/bin/sh",
        argv=("sh",),
        cwd=str(folder / "work"),
        env={"HOME": str(folder / "user"), "TMUX_TMPDIR": str(folder)},
        hidden=(str(folder / "data"),),
        own=(str(folder / "data"),),
        protected=(str(folder / "roles"),),
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of a user, with sockets of this test alone."""
    for name in ("work", "user", "data", "elsewhere"):
        (tmp_path / name).mkdir()
    listening = host_files.listening_sockets
    monkeypatch.setattr(
        host_files,
        "listening_sockets",
        lambda: tuple(one for one in listening() if one.startswith(str(tmp_path))),
    )
    monkeypatch.setattr(host_files, "_SETTLED_S", -60.0)
    monkeypatch.setattr(mounts, "_USER_SERVICES", (str(tmp_path / "agent-*"),))
    return tmp_path


def test_remembered_arguments_when_nothing_changed_are_not_made_again(place: Path) -> None:
    made: list[HostFiles] = []

    def make(files: HostFiles) -> list[str]:
        made.append(files)
        return list(file_arguments(view(place), files))

    remembered = RememberedArguments()
    first = remembered.get("x", view(place), make)
    assert remembered.get("x", view(place), make) == first
    assert len(made) == 1
    assert remembered.get("x", "another view", make) == first
    assert len(made) == 2


def listen(place: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(place / "elsewhere/new.sock"))
    server.listen()
    KEPT.append(server)


KEPT: list[socket.socket] = []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        pytest.param(listen, "elsewhere/new.sock", id="a socket that listens"),
        pytest.param(lambda at: (at / "agent-1").touch(), "agent-1", id="a service of the user"),
        pytest.param(
            lambda at: (at / f"tmux-{os.getuid()}").mkdir(), f"tmux-{os.getuid()}", id="a terminal"
        ),
        pytest.param(
            lambda at: (at / "user/.docker/run").mkdir(parents=True),
            "user/.docker/run",
            id="a service in the home directory",
        ),
        pytest.param(lambda at: (at / "roles").mkdir(), "roles", id="a protected folder"),
        pytest.param(
            lambda at: (at / "work/loopwright.toml").touch(),
            "work/loopwright.toml",
            id="settings of the project",
        ),
        pytest.param(
            lambda at: (
                (at / "data").rename(at / "moved") and (at / "data").symlink_to(at / "moved")
            ),
            "moved",
            id="a data directory that is a link now",
        ),
    ],
)
def test_file_that_appeared_after_a_start_when_started_again_is_hidden_or_protected(
    place: Path, change: Change, path: str
) -> None:
    remembered, subject = RememberedArguments(), view(place)
    before = remembered.get("x", subject, partial(file_arguments, subject))
    change(place)
    after = remembered.get("x", subject, partial(file_arguments, subject))
    for server in KEPT:
        server.close()
    KEPT.clear()
    assert str(place / path) not in before
    assert str(place / path) in after
    assert after == tuple(file_arguments(subject)) or path.endswith("new.sock")


def test_find_when_patterns_share_a_folder_matches_as_glob_does(tmp_path: Path) -> None:
    for name in ("a-1", "a-2", ".a-3", ".b-1", "c", "d.sock"):
        (tmp_path / name).touch()
    patterns = [str(tmp_path / one) for one in ("a-*", ".b-*", "c", "none", "*.sock", "x*/y")]
    found = [os.path.basename(one) for one in HostFiles().find(patterns)]
    assert sorted(found) == [".b-1", "a-1", "a-2", "c", "d.sock"]
