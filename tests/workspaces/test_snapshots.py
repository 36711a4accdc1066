"""Snapshots under stress: two at once, kills, cancellation, damage, unreadable files."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError
from loopwright.ports import FilesOfInterest
from loopwright.workspaces import snapshots
from loopwright.workspaces.scan import Scanner, SnapshotLimits
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.agents.test_process import child_processes
from tests.workspaces.folders import fingerprint, git, put, repository, unprivileged

RUN = "run_a"


def names(workspaces: GitWorkspaces, tree: str, run: str = RUN) -> set[str]:
    """The files of a tree."""
    return {one.path for one in asyncio.run(workspaces.changes(run, "", tree))}


def code_of(coroutine: object) -> str:
    """The code of the error that a call ends with."""
    with pytest.raises(LoopwrightError) as caught:
        asyncio.run(coroutine)  # type: ignore[arg-type]
    return caught.value.code


@pytest.mark.item("rec-11")
def test_unreadable_files_and_folders_are_left_out_by_name() -> None:
    """What may not be read is named and, if it was recorded before, is gone from the tree."""
    with unprivileged() as folder:
        work = folder / "work"
        put(work, **{"a": "1", "dir/b": "2", "dir/c": "3", "new/d": "4"})
        workspaces = GitWorkspaces(folder / "data")
        (work / "new").chmod(0)
        first = asyncio.run(workspaces.snapshot(RUN, str(work)))
        assert names(workspaces, first.tree) == {"a", "dir/b", "dir/c"}
        assert first.omitted == ("new/",)
        (work / "a").chmod(0)
        (work / "dir").chmod(0)
        second = asyncio.run(
            workspaces.snapshot(RUN, str(work), previous=first.tree, first=first.tree)
        )
        assert names(workspaces, second.tree) == set()
        assert second.omitted == ("a", "dir/", "new/")
        assert second.changed.files == 3


@pytest.mark.item("rec-11", "rec-41")
@pytest.mark.parametrize("closed", ["tests/a", "tests"])
def test_files_of_interest_that_programs_cannot_read_are_left_out_for_root_too(
    tmp_path: Path, closed: str
) -> None:
    """Programs of root have no capabilities in a sandbox: a check may not read what root may."""
    work = tmp_path / "work"
    put(work, **{"tests/a": "1", "other": "2"})
    workspaces = GitWorkspaces(tmp_path / "data")
    first = asyncio.run(workspaces.snapshot(RUN, str(work)))
    (work / closed).chmod(0)
    interest = FilesOfInterest(include=("tests/**",))
    try:
        second = asyncio.run(
            workspaces.snapshot(RUN, str(work), previous=first.tree, files=interest)
        )
    finally:
        (work / closed).chmod(0o755)
    assert "tests/a" not in names(workspaces, second.tree)
    assert second.omitted[0] in ("tests/a", "tests/")
    third = asyncio.run(workspaces.snapshot(RUN, str(work), previous=second.tree, files=interest))
    assert names(workspaces, third.tree) == {"tests/a", "other"}


def test_workspace_around_the_data_directory_leaves_it_out(tmp_path: Path) -> None:
    """A data directory inside of the workspace is not part of it, whatever ignore rules say."""
    put(tmp_path, **{"a.txt": "a", "my data/[x]/old.db": "no", ".gitignore": "!my data\n"})
    workspaces = GitWorkspaces(tmp_path / "my data" / "[x]")
    first = asyncio.run(workspaces.snapshot(RUN, str(tmp_path)))
    assert names(workspaces, first.tree) == {"a.txt", ".gitignore"}
    again = asyncio.run(workspaces.snapshot(RUN, str(tmp_path), previous=first.tree))
    assert again.tree == first.tree
    assert code_of(workspaces.snapshot(RUN, str(tmp_path / "my data" / "[x]"))) == (
        "workspace-is-data-directory"
    )


def test_missing_git_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Git the error says so, with its own code."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_of(GitWorkspaces(tmp_path / "data").snapshot(RUN, str(tmp_path))) == "git-missing"


def test_repository_of_snapshots_is_private(tmp_path: Path) -> None:
    """Nobody else may read it."""
    put(tmp_path / "w", a="a")
    asyncio.run(GitWorkspaces(tmp_path / "data").snapshot(RUN, str(tmp_path / "w")))
    snapshots = tmp_path / "data" / "snapshots"
    assert [path.stat().st_mode & 0o777 for path in (snapshots, *snapshots.iterdir())] == [
        0o700
    ] * 2


def test_worktrees_of_a_repository_share_its_snapshots(tmp_path: Path) -> None:
    """Two worktrees store their objects in one place and do not disturb each other."""
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    put(tmp_path / "side", side__txt="s")
    workspaces = GitWorkspaces(tmp_path / "data")
    one = asyncio.run(workspaces.snapshot("run_a", str(main)))
    two = asyncio.run(workspaces.snapshot("run_b", str(tmp_path / "side")))
    assert len(list((tmp_path / "data" / "snapshots").glob("*.git"))) == 1
    changes = asyncio.run(workspaces.changes("run_b", one.tree, two.tree))
    assert [one.path for one in changes] == ["side.txt"]


def test_files_ignored_since_the_last_run_are_left_out(tmp_path: Path) -> None:
    """A new run follows the ignore rules of its time, although the index of the old one is used."""
    put(tmp_path / "w", a="a", b__log="b")
    workspaces = GitWorkspaces(tmp_path / "data")
    asyncio.run(workspaces.snapshot("run_a", str(tmp_path / "w")))
    put(tmp_path / "w", __gitignore="*.log\n")
    second = asyncio.run(workspaces.snapshot("run_b", str(tmp_path / "w")))
    assert names(workspaces, second.tree, "run_b") == {"a", ".gitignore"}


def test_progress_is_reported_for_many_files(tmp_path: Path) -> None:
    """The first snapshot of a large tree says how far it is."""
    work = tmp_path / "w"
    work.mkdir()
    for number in range(2_100):
        (work / str(number)).touch()
    lines: list[str] = []
    workspaces = GitWorkspaces(tmp_path / "data")
    asyncio.run(workspaces.snapshot(RUN, str(work), progress=lines.append))
    assert lines[0] == "Snapshot: 500 of 2,100 files"
    assert lines[-1] == "Snapshot: 2,100 of 2,100 files"


def test_file_that_changes_during_the_snapshot_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that becomes a folder after it was listed does not fail the snapshot."""
    work = tmp_path / "w"
    put(work, a="a", b="b")
    changes = Scanner.changes
    seen: list[int] = []

    async def scan_then_change(self: Scanner, *given: object) -> object:
        found = await changes(self, *given)  # type: ignore[arg-type]
        if not seen:
            (work / "a").unlink()
            put(work, a___inner="i")
        seen.append(1)
        return found

    monkeypatch.setattr(Scanner, "changes", scan_then_change)
    workspaces = GitWorkspaces(tmp_path / "data")
    tree = asyncio.run(workspaces.snapshot(RUN, str(work))).tree
    assert names(workspaces, tree) == {"a/inner", "b"}
    assert len(seen) == 2


@pytest.mark.parametrize("damage", ["index", "HEAD", "tree", "exclude"])
def test_damaged_index_is_built_again(tmp_path: Path, damage: str) -> None:
    """What is kept beside the objects is only a cache: without it all files are read again."""
    work = tmp_path / "w"
    put(work, a="a", b="b")
    workspaces = GitWorkspaces(tmp_path / "data")
    first = asyncio.run(workspaces.snapshot(RUN, str(work)))
    (cache,) = (tmp_path / "data" / "snapshots").glob("*.git/worktrees/*")
    if damage == "tree":
        (cache / damage).unlink()
    else:
        (cache / damage).write_bytes(b"\0rubbish" * 9)
    put(work, b="changed")
    second = asyncio.run(workspaces.snapshot(RUN, str(work), previous=first.tree))
    assert second.paths == ("b",)


def change_behind_git(data: Path, file: Path) -> None:
    """Write other bytes and set the time back, as if in the second of the last snapshot."""
    file.write_text("new")
    os.utime(file, ns=(10**18, 10**18))
    (cache,) = (data / "snapshots").glob("*.git/worktrees/*")
    with (cache.parent.parent / "config").open("a") as config:
        config.write("[core]\n\ttrustctime = false\n")


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A file of an old date in a workspace."""
    put(tmp_path / "w", **{"t/a": "old", "t/link": "x", "other": "o"})
    os.utime(tmp_path / "w/t/a", ns=(10**18, 10**18))
    return tmp_path / "w/t/a"


@pytest.mark.parametrize("watched", ["include", "verify"])
def test_content_of_files_of_interest_is_compared_every_time(
    tmp_path: Path, old_file: Path, monkeypatch: pytest.MonkeyPatch, watched: str
) -> None:
    """Whatever their times say."""
    monkeypatch.setattr(snapshots.time, "time_ns", lambda: 2**62)  # nothing changed just before
    workspaces = GitWorkspaces(tmp_path / "data")
    work = str(tmp_path / "w")
    first = asyncio.run(workspaces.snapshot(RUN, work))
    change_behind_git(tmp_path / "data", old_file)
    files = FilesOfInterest(**{watched: ("t/**",)})
    second = asyncio.run(workspaces.snapshot(RUN, work, previous=first.tree, files=files))
    assert second.paths == ("t/a",)
    third = asyncio.run(workspaces.snapshot(RUN, work, previous=second.tree))
    assert third.tree == second.tree


@pytest.mark.parametrize(
    "case", ["at once", "many", "another between", "same content between", "later run", "killed"]
)
def test_change_in_the_second_of_a_snapshot_is_seen(
    tmp_path: Path, old_file: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Git sees no difference when size, times in seconds and inode are the same."""
    monkeypatch.setattr(snapshots.time, "time_ns", lambda: 0)  # all files changed just before
    workspaces = GitWorkspaces(tmp_path / "data")
    work = tmp_path / "w"
    put(work, **{f"n{number}": "n" for number in range(300 if case == "many" else 0)})
    last = asyncio.run(workspaces.snapshot(RUN, str(work)))
    if case == "another between":
        put(work, other="changed")
    if case == "same content between":
        old_file.write_text("old")
    if case.endswith("between"):
        last = asyncio.run(workspaces.snapshot(RUN, str(work), previous=last.tree))
    if case == "later run":
        last = asyncio.run(workspaces.snapshot("run_later", str(work)))
    if case == "killed":
        (index,) = (tmp_path / "data" / "snapshots").glob("*.git/worktrees/*/index")
        os.utime(index)
    change_behind_git(tmp_path / "data", old_file)
    changed = asyncio.run(workspaces.snapshot(RUN, str(work), previous=last.tree))
    assert changed.paths == ("t/a",)


def test_files_of_interest_come_first_among_those_left_out(tmp_path: Path) -> None:
    """The event names 100 files; a protected one is never beyond them."""
    work = tmp_path / "w"
    put(
        work, **{"z/protected": "too large"}, **{f"a{number}": "too large" for number in range(110)}
    )
    workspaces = GitWorkspaces(tmp_path / "data", SnapshotLimits(file_bytes=2))
    files = FilesOfInterest(include=("z/**",))
    taken = asyncio.run(workspaces.snapshot(RUN, str(work), files=files))
    assert (taken.omitted[0], len(taken.omitted), taken.omitted_count) == ("z/protected", 100, 111)


@pytest.mark.parametrize("rule", ["tests/helper/", "evil.py"])
def test_ignored_files_of_a_nested_repository_are_included(tmp_path: Path, rule: str) -> None:
    """Git does not look into a repository inside of the workspace."""
    work = tmp_path / "w"
    put(work, **{"tests/a.py": "a", ".gitignore": f"{rule}\n"})
    workspaces = GitWorkspaces(tmp_path / "data")
    files = FilesOfInterest(include=("tests/**",))
    first = asyncio.run(workspaces.snapshot(RUN, str(work), files=files))
    put(work, **{"tests/helper/evil.py": "e"})
    git(work / "tests" / "helper", "init", "-q")
    second = asyncio.run(workspaces.snapshot(RUN, str(work), previous=first.tree, files=files))
    assert second.paths == ("tests/helper/evil.py",)


@pytest.mark.item("rec-11", "rec-41")
def test_ignored_files_of_interest_are_in_the_first_snapshot_of_a_later_run(
    tmp_path: Path,
) -> None:
    """The next run in a workspace begins with the index of the one before, which has them."""
    work = tmp_path / "w"
    put(work, **{"tools/check": "c", "keys/key": "k", "a": "a", ".gitignore": "tools\nkeys\n"})
    workspaces = GitWorkspaces(tmp_path / "data")
    check = FilesOfInterest(include=("tools/check",))
    all_of_them = {"a", ".gitignore", "tools/check"}
    for run in ("run_a", "run_b"):
        first = asyncio.run(workspaces.snapshot(run, str(work), files=check))
        again = asyncio.run(
            workspaces.snapshot(run, str(work), previous=first.tree, first=first.tree, files=check)
        )
        assert (names(workspaces, first.tree), again.paths) == (all_of_them, ())
    other = FilesOfInterest(include=("keys/**",))
    last = asyncio.run(workspaces.snapshot("run_c", str(work), files=other))
    assert names(workspaces, last.tree) == {"a", ".gitignore", "keys/key"}


_KILLED = """
import asyncio, sys
from pathlib import Path
from loopwright.workspaces import snapshots
from loopwright.workspaces.snapshots import GitWorkspaces

asyncio.run(GitWorkspaces(Path(sys.argv[1])).snapshot("run_a", sys.argv[2],
    progress=lambda line: print(line, flush=True)))
"""


def test_kill_in_the_middle_leaves_nothing_that_blocks(tmp_path: Path) -> None:
    """After kill -9 while files are read, the next snapshot has all of them."""
    work = tmp_path / "w"
    work.mkdir()
    for number in range(2_500):
        (work / str(number)).write_text(str(number))
    child = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path / "data"), str(work)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b"Snapshot: ")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (cache,) = (tmp_path / "data" / "snapshots").glob("*.git/worktrees/*")
    (cache / "index.lock").touch()
    workspaces = GitWorkspaces(tmp_path / "data")
    tree = asyncio.run(workspaces.snapshot(RUN, str(work))).tree
    assert len(names(workspaces, tree)) == 2_500


def test_cancelled_snapshot_ends_git_and_can_be_repeated(tmp_path: Path) -> None:
    """Cancelling ends the processes; nothing keeps the lock."""
    work = tmp_path / "w"
    work.mkdir()
    for number in range(2_500):
        (work / str(number)).write_text(str(number))
    workspaces = GitWorkspaces(tmp_path / "data")

    async def scenario() -> None:
        task: asyncio.Task[object]
        task = asyncio.ensure_future(
            workspaces.snapshot(RUN, str(work), progress=lambda _line: task.cancel())
        )
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    children = child_processes()
    asyncio.run(scenario())
    assert child_processes() == children
    assert len(names(workspaces, asyncio.run(workspaces.snapshot(RUN, str(work))).tree)) == 2_500


def test_restore_never_writes_through_a_link(tmp_path: Path) -> None:
    """A folder that became a link to the outside is replaced; the outside is untouched."""
    work, outside = tmp_path / "w", tmp_path / "outside"
    put(work, **{"src/a": "a", "src/deep/b": "b"})
    put(outside, **{"a": "private", "deep/b": "private"})
    workspaces = GitWorkspaces(tmp_path / "data")
    first = asyncio.run(workspaces.snapshot(RUN, str(work)))
    for name in ("deep/b", "a"):
        (work / "src" / name).unlink()
    (work / "src" / "deep").rmdir()
    (work / "src").rmdir()
    (work / "src").symlink_to(outside)
    before = fingerprint(outside)
    second = asyncio.run(workspaces.snapshot(RUN, str(work), previous=first.tree))
    asyncio.run(workspaces.restore(RUN, first.tree, work, expected=second.tree))
    assert (work / "src" / "deep" / "b").read_text() == "b"
    assert not (work / "src").is_symlink()
    assert fingerprint(outside) == before
    asyncio.run(workspaces.restore(RUN, second.tree, work, expected=first.tree))
    assert (work / "src").readlink() == outside
    assert fingerprint(outside) == before
    (tmp_path / "way").symlink_to(outside)
    assert code_of(workspaces.export(RUN, first.tree, tmp_path / "way")) == "not-empty"


def test_restore_keeps_ignored_files_in_the_way(tmp_path: Path) -> None:
    """A folder with ignored files is not deleted to make room for a file."""
    work = tmp_path / "w"
    put(work, **{"x": "file", ".gitignore": "*.log\n"})
    workspaces = GitWorkspaces(tmp_path / "data")
    first = asyncio.run(workspaces.snapshot(RUN, str(work)))
    (work / "x").unlink()
    put(work, **{"x/y": "y", "x/keep.log": "mine"})
    second = asyncio.run(workspaces.snapshot(RUN, str(work), previous=first.tree))
    restored = workspaces.restore(RUN, first.tree, work, expected=second.tree)
    assert code_of(restored) == "unrecorded-changes"
    assert (work / "x" / "keep.log").read_text() == "mine"
    assert (work / "x" / "y").exists()


@pytest.mark.parametrize(
    ("content", "how", "code"),
    [
        ("mine", "ignored", "unrecorded-changes"),
        ("mine, and too large", "large", "unrecorded-changes"),
        ("old", "ignored", ""),
    ],
    ids=["ignored", "too large", "the same content"],
)
def test_restore_does_not_overwrite_files_that_no_snapshot_has(
    tmp_path: Path, content: str, how: str, code: str
) -> None:
    """They could not be brought back."""
    work = tmp_path / "w"
    put(repository(work), **{"x": "old", "y": "y"})
    workspaces = GitWorkspaces(tmp_path / "data", SnapshotLimits(file_bytes=10))
    first = asyncio.run(workspaces.snapshot(RUN, str(work)))
    (work / "x").unlink()
    second = asyncio.run(workspaces.snapshot(RUN, str(work), previous=first.tree))
    if how == "ignored":
        (work / ".git" / "info").mkdir(exist_ok=True)
        (work / ".git" / "info" / "exclude").write_text("x\n")
    put(work, x=content)
    restored = workspaces.restore(RUN, first.tree, work, expected=second.tree)
    if code:
        assert code_of(restored) == code
    else:
        assert asyncio.run(restored) == 1
    assert (work / "x").read_text() == content
    asyncio.run(workspaces.restore(RUN, first.tree, work, expected=second.tree, force=True))
    assert (work / "x").read_text() == "old"


def test_forgotten_runs_leave_the_others_whole(tmp_path: Path) -> None:
    """Objects of a forgotten run are deleted, those of others stay; the last one takes it all."""
    work = tmp_path / "w"
    put(work, a="only in a")
    workspaces = GitWorkspaces(tmp_path / "data")
    one = asyncio.run(workspaces.snapshot("run_a", str(work)))
    put(work, a="in b")
    two = asyncio.run(workspaces.snapshot("run_b", str(work)))
    asyncio.run(workspaces.forget("run_a"))
    assert code_of(workspaces.changes("run_b", one.tree, two.tree)) == "snapshot-missing"
    asyncio.run(workspaces.export("run_b", two.tree, tmp_path / "copy"))
    assert (tmp_path / "copy" / "a").read_text() == "in b"
    put(work, a="more")
    three = asyncio.run(workspaces.snapshot("run_b", str(work), previous=two.tree))
    assert three.paths == ("a",)
    asyncio.run(workspaces.forget("run_b"))
    assert list((tmp_path / "data" / "snapshots").iterdir()) == []
