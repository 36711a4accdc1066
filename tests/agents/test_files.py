"""Files that somebody else has named: what is read, and what is refused without harm."""

import os
import socket
from pathlib import Path

import pytest

from loopwright.agents.files import FileProblem, read_beneath, read_regular

LIMIT = 1_000


def code(answer: bytes | FileProblem) -> str:
    assert isinstance(answer, FileProblem), answer
    return answer.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "workspace"
    (inside / "docs").mkdir(parents=True)
    (inside / "docs" / "note.md").write_bytes(b"hello")
    (tmp_path / "secret").write_bytes(b"secret")
    return inside


def test_a_regular_file_is_read_whole(folder: Path) -> None:
    """Content comes back byte for byte, up to the limit itself."""
    assert read_regular(folder / "docs" / "note.md", LIMIT) == b"hello"
    assert read_regular(folder / "docs" / "note.md", 5) == b"hello"
    assert read_beneath(folder, "docs/note.md", LIMIT) == b"hello"


@pytest.mark.item("D4")
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(folder: Path, kind: str) -> None:
    """A pipe nobody writes to must not be waited for; a device has no end."""
    place = folder / "thing"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(place))
        listening.close()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    expected = {"directory": "not-a-file", "socket": "cannot-read"}.get(kind, "not-a-regular-file")
    assert code(read_regular(place, LIMIT)) == expected


@pytest.mark.item("D14")
def test_a_huge_file_is_refused_by_its_size(folder: Path) -> None:
    """Ten gigabytes are named, not read."""
    with (folder / "huge").open("wb") as file:
        file.truncate(10 * 2**30)
    for answer in (read_regular(folder / "huge", LIMIT), read_beneath(folder, "huge", LIMIT)):
        assert code(answer) == "file-too-large"
        assert isinstance(answer, FileProblem)
        assert str(10 * 2**30) in answer.message


@pytest.mark.item("D1")
@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "docs/../../secret", "~root", "//x", "C:\\x", "a\0b", "", "\\x"],
)
def test_a_name_that_leads_out_is_refused(folder: Path, name: str) -> None:
    """Whatever the spelling, nothing outside the folder is opened."""
    assert code(read_beneath(folder, name, LIMIT)) == "outside-workspace"


@pytest.mark.item("D2")
@pytest.mark.parametrize("target", ["../secret", "/etc/passwd"])
def test_a_link_that_leads_out_is_refused(folder: Path, target: str) -> None:
    """A link is followed only as long as it stays inside, also as a folder on the way."""
    (folder / "link").symlink_to(target)
    (folder / "up").symlink_to("..")
    assert code(read_beneath(folder, "link", LIMIT)) == "outside-workspace"
    assert code(read_beneath(folder, "up/secret", LIMIT)) == "outside-workspace"


def test_a_link_inside_is_followed(folder: Path) -> None:
    """Links within the folder are fine."""
    (folder / "same").symlink_to("docs/note.md")
    assert read_beneath(folder, "same", LIMIT) == b"hello"


def test_what_is_missing_is_reported(folder: Path) -> None:
    """A missing file and a missing folder are named as such."""
    assert code(read_beneath(folder, "nothing", LIMIT)) == "cannot-read"
    assert code(read_beneath(folder / "gone", "x", LIMIT)) == "cannot-read"
    assert code(read_regular(folder / "nothing", LIMIT)) == "cannot-read"
