"""The snapshot effect as it is performed: which files are of interest, and what fails closed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from loopwright.agents.snapshots import (
    outside_files,
    take_snapshot,
    watched_words,
    with_link_targets,
)
from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Snapshot, SnapshotCall
from loopwright.kernel.snapshots import without_violation
from loopwright.ports import EffectFailure, EffectSuccess, FileChange
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.support.jobs import effect_job


class Trees:
    """Workspaces in memory: what differs from each older tree."""

    def __init__(self, changes: dict[str, list[FileChange]], **more: object) -> None:
        self.known = changes
        self.more = more
        self.included: Sequence[str] = ()
        self.compared: list[str] = []
        self.problem: Exception | None = None

    async def snapshot(self, run: str, workspace: str, **options: object) -> Snapshot:
        if self.problem is not None:
            raise self.problem
        self.included = options["files"].include  # type: ignore[attr-defined]
        return Snapshot(tree="new", **self.more)  # type: ignore[arg-type]

    async def changes(self, run: str, old: str, new: str) -> Sequence[FileChange]:
        self.compared.append(old)
        return self.known[old]


def taken(trees: Trees, folder: Path, call: SnapshotCall) -> EffectSuccess | EffectFailure:
    job = effect_job(
        run="r",
        effect="/snapshot#1",
        path="",
        iteration=1,
        attempt=1,
        call=call,
        workspace=str(folder),
        token="t",
    )
    return asyncio.run(take_snapshot(trees, job, call))  # type: ignore[arg-type]


def change(path: str, status: str = "modified", old_path: str = "") -> FileChange:
    return FileChange(path=path, status=status, old_path=old_path)  # type: ignore[arg-type]


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([change("src/a.py")], ()),
        ([change("tests/a.py")], ("tests/a.py",)),
        ([change("x.py", "renamed", "tests/a.py")], ("tests/a.py",)),
        ([change("tests/b.py", "added"), change("tests/a.py", "deleted")],
         ("tests/a.py", "tests/b.py")),
    ],
    ids=["other", "edited", "moved away", "added and deleted"],
)  # fmt: skip
def test_protected_files_are_compared_with_the_baseline(
    tmp_path: Path, changed: list[FileChange], expected: tuple[str, ...]
) -> None:
    """Whatever happened since the tree before does not matter."""
    trees = Trees({"base": changed})
    call = SnapshotCall(previous="prev", first="base", baseline="base", protect=("tests/**",))
    done = taken(trees, tmp_path, call)
    assert isinstance(done, EffectSuccess)
    assert done.snapshot is not None
    assert (done.snapshot.protected, done.snapshot.protected_count) == (expected, len(expected))
    assert trees.included == ("tests/**",)


def test_caches_of_python_are_named_but_not_counted_as_protected(tmp_path: Path) -> None:
    """Running the tests is not a change of the tests."""
    changed = [change("tests/__pycache__/a.pyc", "added"), change("tests/a.pyc", "added")]
    call = SnapshotCall(previous="base", baseline="base", protect=("tests/**",))
    done = taken(Trees({"base": changed}), tmp_path, call)
    assert isinstance(done, EffectSuccess)
    assert done.snapshot is not None
    assert done.snapshot.protected == ("tests/a.pyc",)
    assert done.note.endswith(": tests/__pycache__/a.pyc")


def test_files_of_checks_are_watched_but_not_what_the_run_has_added(tmp_path: Path) -> None:
    """A file that the run itself made is its work."""
    (tmp_path / "test.sh").write_text("")
    (tmp_path / "tests").mkdir()
    trees = Trees(
        {
            "prev": [change("test.sh"), change("out.txt"), change("tests/t.py")],
            "first": [change("test.sh"), change("out.txt", "added"), change("tests/t.py")],
        }
    )
    watch = ("./test.sh", "tests", "out.txt", "-q", "/etc/passwd", "..", "")
    done = taken(trees, tmp_path, SnapshotCall(previous="prev", first="first", watch=watch))
    assert isinstance(done, EffectSuccess)
    assert done.snapshot is not None
    assert done.snapshot.watched == ("test.sh", "tests/t.py")
    assert trees.included == ("test.sh",)


def test_the_first_snapshot_compares_nothing(tmp_path: Path) -> None:
    """There is nothing to compare it with."""
    trees = Trees({})
    done = taken(trees, tmp_path, SnapshotCall(protect=("tests/**",), watch=("a",)))
    assert isinstance(done, EffectSuccess)
    assert trees.compared == []


@pytest.mark.parametrize(
    ("omitted", "baseline", "outcome"),
    [
        (("tests/big.bin",), "", "failed"),
        (("tests/",), "", "failed"),
        (("other.bin",), "", "done"),
        (("tests/big.bin",), "base", "changed"),
    ],
    ids=["too large", "folder", "not protected", "later"],
)
def test_protected_files_that_are_left_out_are_never_overlooked(
    tmp_path: Path, omitted: tuple[str, ...], baseline: str, outcome: str
) -> None:
    """At first the snapshot fails; later they count as changed."""
    trees = Trees({"base": []}, omitted=omitted, omitted_count=1)
    call = SnapshotCall(previous=baseline, baseline=baseline, protect=("tests/**",))
    done = taken(trees, tmp_path, call)
    if outcome == "failed":
        assert isinstance(done, EffectFailure)
        assert "cannot record" in done.error.detail
    else:
        assert isinstance(done, EffectSuccess)
        assert done.snapshot is not None
        assert bool(done.snapshot.protected) == (outcome == "changed")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (LoopwrightError("no Git", code="git-missing", hint="install it"), "no Git; install it"),
        (OSError(28, "No space left on device", "index"), "index: No space left on device"),
    ],
    ids=["git", "disk"],
)
def test_a_problem_is_a_failed_snapshot(tmp_path: Path, problem: Exception, words: str) -> None:
    """It says what happened and what to do."""
    trees = Trees({})
    trees.problem = problem
    failed = taken(trees, tmp_path, SnapshotCall())
    assert isinstance(failed, EffectFailure)
    assert (failed.error.type, failed.error.detail) == ("snapshot", words)


def test_words_become_paths_inside_the_workspace(tmp_path: Path) -> None:
    """Absolute words count where they lead into it."""
    words = [str(tmp_path / "a" / "b"), "./c", "-x", "../d", "e\0f", "x" * 2_000, "."]
    assert watched_words(tmp_path, words) == ["a/b", "c"]


def test_modules_and_links_lead_to_files_of_the_workspace(tmp_path: Path) -> None:
    """`python -m tests.check` depends on a file, and so does a path through a link."""
    work = tmp_path / "work"
    (work / "tests").mkdir(parents=True)
    (work / "tests" / "check.py").touch()
    (tmp_path / "way").symlink_to(work)
    (work / "latest").symlink_to("tests/check.py")
    assert "tests/check.py" in watched_words(work, ["python3", "-m", "tests.check"])
    assert watched_words(work, [str(tmp_path / "way" / "tests" / "check.py")]) == ["tests/check.py"]
    assert watched_words(work, ["latest"]) == ["latest", "tests/check.py"]


def test_protected_links_protect_what_they_lead_to(tmp_path: Path) -> None:
    """A link out of the workspace is refused by name."""
    work = tmp_path / "work"
    (work / "real" / "deep").mkdir(parents=True)
    (work / "real" / "a.py").touch()
    (work / "tests").symlink_to("real")
    (work / "real" / "b.py").symlink_to("deep")
    assert with_link_targets(work, ["tests/**"]) == ("tests/**", "real/**", "real/deep")
    assert with_link_targets(work, ["real/a.py"]) == ("real/a.py",)
    (tmp_path / "shared").mkdir()
    (work / "outside").symlink_to("../shared")
    with pytest.raises(LoopwrightError, match=r"outside is a link to ../shared, outside the work"):
        with_link_targets(work, ["outside/**"])


def test_patterns_that_match_nothing_are_named(tmp_path: Path) -> None:
    """A mistyped pattern protects nothing."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").touch()
    call = SnapshotCall(protect=("tests/**", "test/**"))
    done = taken(Trees({}), tmp_path, call)
    assert isinstance(done, EffectSuccess)
    assert done.note == "no file matches test/**"


def test_outside_files_of_commands_when_they_are_named_or_linked(tmp_path: Path) -> None:
    """Files of the workspace, of the system and folders are no files outside; a link may lead to
    one.
    """
    work = tmp_path / "work"
    work.mkdir()
    for name in ("a.sh", "b.txt", "work/c.txt"):
        (tmp_path / name).write_text(name)
    (work / "link").symlink_to("../b.txt")
    (work / "inner").symlink_to("c.txt")
    words = ["../a.sh", "-x", "c.txt", "link", "inner", "..", "/bin/sh", "grep", "../gone", "a\0"]
    found = outside_files(str(work), words)
    paths = [str(tmp_path / name) for name in ("a.sh", "b.txt", "gone")]
    assert ([*found], found[paths[2]]) == (paths, "missing")
    (tmp_path / "a.sh").chmod(0o755)
    assert outside_files(str(work), words)[paths[0]] != found[paths[0]]


def test_outside_files_of_commands_when_a_snapshot_leaves_them_out(tmp_path: Path) -> None:
    """What is in `.git`, and what is too large or not readable."""
    (tmp_path / ".git").mkdir()
    for name in (".git/config", "large", "small"):
        (tmp_path / name).write_text(name)
    words = (".git/config", "large", "small")
    assert [*outside_files(str(tmp_path), words, ("large",))] == [".git/config", "large"]


def test_outside_files_of_commands_when_one_is_large(tmp_path: Path) -> None:
    """Its content is not read; a change is seen although its size and its time are as before."""
    work, large = tmp_path / "work", tmp_path / "large"
    work.mkdir()
    large.write_bytes(b"a" * 1_000_001)
    before, times = outside_files(str(work), ["../large"]), large.stat()
    large.write_bytes(b"b" * 1_000_001)
    os.utime(large, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert outside_files(str(work), ["../large"]) != before


# -- protected files that no snapshot has ----------------------------------------------------------


def add_git_folder(tests: Path) -> None:
    (tests / ".git").mkdir()
    (tests / ".git" / "skip").write_text("")


def add_git_folder_below(tests: Path) -> None:
    (tests / "a" / ".git" / "b").mkdir(parents=True)
    (tests / "a" / ".git" / "b" / "skip").write_text("")


def add_git_file(tests: Path) -> None:
    (tests / ".git").write_text("skip")


def change_known_git_folder(tests: Path) -> None:
    (tests / "known" / ".git" / "config").write_text("changed")


def remove_known_git_folder(tests: Path) -> None:
    shutil.rmtree(tests / "known" / ".git")


def add_link_in_git_folder(tests: Path) -> None:
    (tests / "known" / ".git" / "skip").symlink_to("/nowhere")


def add_pipe(tests: Path) -> None:
    os.mkfifo(tests / "skip")


def add_ignored_pipe(tests: Path) -> None:
    (tests.parent / ".gitignore").write_text("skip\n")
    os.mkfifo(tests / "skip")


def add_socket(tests: Path) -> None:
    here = os.getcwd()
    os.chdir(tests)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("skip")
    finally:
        os.chdir(here)


def add_long_path(tests: Path) -> None:
    """Longer than the system opens at once, so it is made folder by folder."""
    here = os.open(tests, os.O_RDONLY)
    for _ in range(22):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("skip", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with protected tests, one of which has a repository of its own."""
    work = tmp_path / "work"
    (work / "tests" / "known" / ".git").mkdir(parents=True)
    (work / "tests" / "known" / ".git" / "config").write_text("x")
    (work / "tests" / "known" / ".git" / "index").write_text("x")
    (work / "tests" / "test_a.py").write_text("")
    return work


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(
    "plant",
    [
        *(add_git_folder, add_git_folder_below, add_git_file, change_known_git_folder),
        *(remove_known_git_folder, add_link_in_git_folder, add_pipe, add_ignored_pipe),
        *(add_socket, add_long_path),
    ],
)
@pytest.mark.parametrize("pattern", ["tests/**", "test*"])
def test_protected_files_that_no_snapshot_has_are_compared(
    tmp_path: Path, project: Path, plant: Callable[[Path], None], pattern: str
) -> None:
    """Git passes over them, and a check may depend on them all the same."""
    trees = GitWorkspaces(tmp_path / "data")
    first = taken(trees, project, SnapshotCall(protect=(pattern,)))  # type: ignore[arg-type]
    assert isinstance(first, EffectSuccess)
    assert first.snapshot is not None

    def again(before: Snapshot) -> Snapshot:
        call = SnapshotCall(
            previous=before.tree,
            first=first.snapshot.tree,  # type: ignore[union-attr]
            baseline=first.snapshot.tree,  # type: ignore[union-attr]
            protect=(pattern,),
            outside=before.outside,
        )
        done = taken(trees, project, call)  # type: ignore[arg-type]
        assert isinstance(done, EffectSuccess), done
        assert done.snapshot is not None
        return done.snapshot

    (project / "tests" / "known" / ".git" / "index").write_text("written by git status")
    second = again(first.snapshot)
    assert (second.protected, second.watched) == ((), ())
    plant(project / "tests")
    third = again(second)
    assert [one[:6] for one in third.protected] == ["tests/"]
    fourth = again(third)
    assert fourth.protected == third.protected
    accepted = again(without_violation(fourth))  # by a person
    assert accepted.protected == again(accepted).protected == ()


def test_a_path_that_is_too_long_cannot_be_protected(tmp_path: Path, project: Path) -> None:
    """The run does not start."""
    add_long_path(project / "tests")
    trees = GitWorkspaces(tmp_path / "data")
    done = taken(trees, project, SnapshotCall(protect=("tests/**",)))  # type: ignore[arg-type]
    assert isinstance(done, EffectFailure)
    assert "cannot record tests/ddd" in done.error.detail
