"""The workspace is a tree that nothing leads out of, by whatever name."""

import ctypes
import os
import sys
import threading
from pathlib import Path

import pytest

from loopwright.tools.results import ToolRefusal
from loopwright.tools.workspace_tree import WorkspaceTree
from tests.tools.boxes import CANARY, furnish

LIMIT = 10_000
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@pytest.fixture
def tree(tmp_path: Path) -> WorkspaceTree:
    work = furnish(tmp_path)
    (work / "inner").symlink_to("src")
    (work / "out").symlink_to("../neighbour")
    (work / "absolute").symlink_to(tmp_path / "neighbour" / "secret.txt")
    (work / "absolute-inside").symlink_to(work / "README.md")
    (work / "chain").symlink_to("out/secret.txt")
    (work / "round").symlink_to("round")
    (work / "src" / "up").symlink_to("../..")
    (work / "proc").symlink_to("/proc/self")
    return WorkspaceTree(work)


def refused(tree: WorkspaceTree, name: str) -> str:
    """Why a name can be neither read nor written, the same both times."""
    with pytest.raises(ToolRefusal) as reading:
        tree.read(tree.locate(name), LIMIT)
    with pytest.raises(ToolRefusal) as writing:
        tree.write(tree.locate(name), b"written")
    assert CANARY not in str(reading.value) + str(writing.value)
    return writing.value.problem


OUTSIDE = [
    pytest.param("../neighbour/secret.txt", id="parent"),
    pytest.param("src/../../neighbour/secret.txt", id="parent-on-the-way"),
    pytest.param("src/../../work/../neighbour/secret.txt", id="out-and-in-and-out"),
    pytest.param("not-there/../../neighbour/secret.txt", id="over-nothing"),
    pytest.param("/etc/passwd", id="absolute"),
    pytest.param("//etc/passwd", id="two-slashes"),
    pytest.param("~/.ssh/id_rsa", id="home"),
    pytest.param("~root", id="home-of-another"),
    pytest.param("C:\\x", id="drive"),
    pytest.param("\\\\host\\share", id="share"),
    pytest.param("out/secret.txt", id="link-to-a-folder"),
    pytest.param("out/new.txt", id="link-to-a-folder-new-file"),
    pytest.param("absolute", id="absolute-link"),
    pytest.param("absolute-inside", id="absolute-link-even-to-the-inside"),
    pytest.param("chain", id="link-to-a-link"),
    pytest.param("round", id="link-to-itself"),
    pytest.param("src/up/neighbour/secret.txt", id="link-upwards"),
    pytest.param("proc/environ", id="magic-environment"),
    pytest.param("proc/root/etc/passwd", id="magic-root"),
    pytest.param("proc/cwd", id="magic-folder"),
    pytest.param("/proc/self/environ", id="magic-absolute"),
]


@pytest.mark.item("D1", "D2", "D6", "W25")
@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_leads_out(tree: WorkspaceTree, tmp_path: Path, name: str) -> None:
    """Whatever the way, a place outside is neither read nor written, and nothing appears there."""
    before = sorted(tmp_path.rglob("*"))
    assert refused(tree, name) == "outside-workspace"
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "neighbour" / "secret.txt").read_text() == CANARY


@pytest.mark.item("D1")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("a\0b", "bad-path", id="nul"),
        pytest.param("", "bad-path", id="empty"),
        pytest.param("\ud800", "bad-path", id="surrogate"),
        pytest.param("x" * 5_000, "bad-path", id="long-path"),
        pytest.param("x" * 300, "cannot-open", id="long-name"),
        pytest.param("README.md/x", "not-a-folder", id="below-a-file"),
        pytest.param("src", "not-a-file", id="folder"),
        pytest.param(".", "not-a-file", id="root"),
    ],
)
def test_what_is_no_path_is_refused(tree: WorkspaceTree, name: str, why: str) -> None:
    """Names that no file can have are told as what they are."""
    assert refused(tree, name) == why


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("README.md", "README.md"),
        ("./src//main.py", "src/main.py"),
        ("src/../README.md", "README.md"),
        ("inner/main.py", "src/main.py"),
        ("inner/../README.md", "README.md"),
        ("new/deep/file", "new/deep/file"),
        ("src/ＭＡＩＮ.py", "src/ＭＡＩＮ.py"),
        ("..x/...", "..x/..."),
    ],
)
def test_a_name_becomes_its_real_place(tree: WorkspaceTree, name: str, real: str) -> None:
    """Links inside are followed; what does not exist yet has a place too."""
    assert "/".join(tree.locate(name)) == real


def test_the_whole_path_of_something_inside_is_taken(tree: WorkspaceTree) -> None:
    """Models like to write absolute paths; inside the workspace they mean what they say."""
    assert tree.locate(f"{tree.root}/src/main.py") == ("src", "main.py")
    assert tree.locate(tree.root) == ()
    with pytest.raises(ToolRefusal):
        tree.locate(f"{tree.root}-twin/x")


@pytest.mark.item("D4")
@pytest.mark.parametrize("kind", ["fifo", "device-link"])
def test_only_regular_files_are_opened(tree: WorkspaceTree, kind: str) -> None:
    """A pipe nobody writes to is not waited for, a device is not read."""
    place = Path(tree.root) / "thing"
    if kind == "fifo":
        os.mkfifo(place)
        assert refused(tree, "thing") == "not-a-regular-file"
    else:
        place.symlink_to("/dev/zero")
        assert refused(tree, "thing") == "outside-workspace"


@pytest.mark.item("D4")
def test_a_hard_link_is_replaced_and_not_written_into(tree: WorkspaceTree, tmp_path: Path) -> None:
    """The other name of the file keeps its content."""
    os.link(tmp_path / "neighbour" / "secret.txt", tmp_path / "work" / "twin")
    tree.write(("twin",), b"mine")
    assert (tmp_path / "neighbour" / "secret.txt").read_text() == CANARY
    assert tree.read(("twin",), LIMIT) == b"mine"


def test_a_write_is_whole_and_leaves_nothing_else(tree: WorkspaceTree, tmp_path: Path) -> None:
    """Folders are made, rights are kept, no temporary file stays."""
    script = tmp_path / "work" / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    assert tree.write(("run.sh",), b"new") is False
    assert tree.write(("a", "b", "c.txt"), b"x") is True
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("new", 0o750)
    assert [p.name for p in (tmp_path / "work").rglob("*.tmp")] == []


@pytest.mark.item("D12")
def test_a_workspace_that_is_gone_is_reported(tmp_path: Path) -> None:
    """Nothing hangs, nothing is made in its place."""
    tree = WorkspaceTree(tmp_path / "gone")
    with pytest.raises(ToolRefusal, match="workspace-gone"):
        tree.write(("x",), b"")
    assert not (tmp_path / "gone").exists()


@pytest.mark.item("D3")
@pytest.mark.skipif(sys.platform != "linux", reason="two names change places at once on Linux only")
def test_a_folder_swapped_for_a_link_leaks_nothing(tree: WorkspaceTree, tmp_path: Path) -> None:
    """While somebody exchanges a folder for a link to the neighbour, again and again, reads and
    writes hit the workspace or fail."""
    work = tmp_path / "work"
    (work / "box").mkdir()
    (work / "box" / "secret.txt").write_text("harmless")
    (work / "bait").symlink_to("../neighbour")
    stop = threading.Event()

    def swap() -> None:
        exchange = ctypes.CDLL(None).renameat2
        names = (bytes(work / "box"), bytes(work / "bait"))
        while not stop.is_set():
            assert exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[bytes] = set()
    refusals = 0
    try:
        for turn in range(3_000):
            try:
                if turn % 3 == 0:
                    tree.write(tree.locate(f"box/new-{turn}.txt"), b"mine")
                else:
                    seen.add(tree.read(tree.locate("box/secret.txt"), LIMIT))
            except ToolRefusal:
                refusals += 1
    finally:
        stop.set()
        swapping.join()
    assert seen == {b"harmless"}
    assert refusals > 0, "the swap was never met: this test shows nothing"
    assert [p.name for p in (tmp_path / "neighbour").iterdir()] == ["secret.txt"]
