"""The contract of `Workspaces`, over every implementation."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import DiffStat
from loopwright.ports import Workspaces
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.support.memory_workspaces import MemoryWorkspaces

IMPLEMENTATIONS: dict[str, Callable[[Path], Workspaces]] = {
    "memory": lambda _folder: MemoryWorkspaces(),
    "git": GitWorkspaces,
}

RUN = "run_a"


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def workspaces(request: pytest.FixtureRequest, tmp_path: Path) -> Workspaces:
    """An implementation with an empty data directory."""
    return IMPLEMENTATIONS[request.param](tmp_path / "data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a text, a program, a link and a binary file."""
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\ntwo\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("src/a.py")
    (folder / "data.bin").write_bytes(b"\0\1")
    return folder


def code_of(coroutine: object) -> str:
    """The code of the error that a call ends with."""
    with pytest.raises(LoopwrightError) as caught:
        asyncio.run(coroutine)  # type: ignore[arg-type]
    return caught.value.code


@pytest.mark.item("rec-10")
def test_snapshot_counts_what_changed_since_the_previous_and_the_first(
    workspaces: Workspaces, folder: Path
) -> None:
    """Counts and paths are relative to the trees that the caller names."""

    async def scenario() -> None:
        first = await workspaces.snapshot(RUN, str(folder))
        assert (first.changed, first.total, first.paths) == (DiffStat(), DiffStat(), ())
        (folder / "src" / "a.py").write_text("one\n2\nthree\n")
        second = await workspaces.snapshot(RUN, str(folder), previous=first.tree, first=first.tree)
        assert second.changed == DiffStat(files=1, insertions=2, deletions=1) == second.total
        (folder / "data.bin").write_bytes(b"\0\2")
        (folder / "run.sh").unlink()
        third = await workspaces.snapshot(RUN, str(folder), previous=second.tree, first=first.tree)
        assert third.changed == DiffStat(files=2, insertions=0, deletions=1)
        assert third.total == DiffStat(files=3, insertions=2, deletions=2)
        assert third.paths == ("data.bin", "run.sh")
        again = await workspaces.snapshot(RUN, str(folder), previous=third.tree, first=first.tree)
        assert (again.tree, again.changed, again.total) == (third.tree, DiffStat(), third.total)

    asyncio.run(scenario())


def test_changes_and_diff_name_each_file_once(workspaces: Workspaces, folder: Path) -> None:
    """Added, deleted, modified, replaced by a link: each has its status; a diff can be limited."""

    async def scenario() -> None:
        old = (await workspaces.snapshot(RUN, str(folder))).tree
        (folder / "new.txt").write_text("n\n")
        (folder / "data.bin").unlink()
        (folder / "src" / "a.py").write_text("one\n")
        (folder / "run.sh").unlink()
        (folder / "run.sh").symlink_to("src/a.py")
        new = (await workspaces.snapshot(RUN, str(folder), previous=old, first=old)).tree
        found = await workspaces.changes(RUN, old, new)
        assert {(one.path, one.status, one.binary) for one in found} == {
            ("new.txt", "added", False),
            ("data.bin", "deleted", True),
            ("src/a.py", "modified", False),
            ("run.sh", "type_changed", False),
        }
        whole = await workspaces.diff(RUN, old, new)
        assert "-two\n" in whole
        assert "+n\n" in whole
        part = await workspaces.diff(RUN, old, new, paths=["src/**"])
        assert "-two\n" in part
        assert "new.txt" not in part
        assert len(await workspaces.changes(RUN, "", old)) == 4

    asyncio.run(scenario())


def test_restore_and_export_write_what_was_recorded(
    workspaces: Workspaces, folder: Path, tmp_path: Path
) -> None:
    """Files, links and modes come back; files that came later are removed."""

    async def scenario() -> None:
        old = (await workspaces.snapshot(RUN, str(folder))).tree
        (folder / "later.txt").write_text("later")
        (folder / "link").unlink()
        (folder / "link").write_text("no link")
        (folder / "src" / "a.py").unlink()
        new = (await workspaces.snapshot(RUN, str(folder), previous=old, first=old)).tree
        assert await workspaces.restore(RUN, old, folder, expected=new) == 3
        assert not (folder / "later.txt").exists()
        assert (folder / "link").readlink() == Path("src/a.py")
        back = await workspaces.snapshot(RUN, str(folder), previous=new, first=old)
        assert (back.tree, back.total) == (old, DiffStat())
        await workspaces.export(RUN, new, tmp_path / "copy")
        assert (tmp_path / "copy" / "link").read_text() == "no link"
        assert (tmp_path / "copy" / "run.sh").stat().st_mode & 0o100

    asyncio.run(scenario())


@pytest.mark.item("rec-13")
def test_restore_refuses_unrecorded_changes_unless_forced(
    workspaces: Workspaces, folder: Path
) -> None:
    """A change after the last snapshot is not overwritten; with force it is."""

    async def scenario() -> tuple[str, str]:
        old = (await workspaces.snapshot(RUN, str(folder))).tree
        (folder / "src" / "a.py").write_text("recorded\n")
        new = (await workspaces.snapshot(RUN, str(folder), previous=old, first=old)).tree
        return old, new

    old, new = asyncio.run(scenario())
    (folder / "src" / "a.py").write_text("mine\n")
    (folder / "mine.txt").write_text("mine\n")
    assert code_of(workspaces.restore(RUN, old, folder, expected=new)) == "unrecorded-changes"
    assert (folder / "src" / "a.py").read_text() == "mine\n"
    assert asyncio.run(workspaces.restore(RUN, old, folder, expected=new, force=True)) == 1
    assert (folder / "src" / "a.py").read_text() == "one\ntwo\n"
    assert (folder / "mine.txt").exists()


def test_errors_have_codes(workspaces: Workspaces, folder: Path, tmp_path: Path) -> None:
    """A missing folder, run or tree, and a folder that is not empty, each have their code."""
    gone = str(tmp_path / "gone")
    assert code_of(workspaces.snapshot(RUN, gone)) == "workspace-gone"
    assert code_of(workspaces.changes("run_none", "", "")) == "no-snapshots"
    tree = asyncio.run(workspaces.snapshot(RUN, str(folder))).tree
    assert code_of(workspaces.changes(RUN, tree, "0" * 39 + "1")) == "snapshot-missing"
    assert code_of(workspaces.export(RUN, tree, folder)) == "not-empty"
    asyncio.run(workspaces.forget(RUN))
    assert code_of(workspaces.diff(RUN, tree, tree)) == "no-snapshots"
    asyncio.run(workspaces.forget(RUN))


def test_runs_in_the_same_workspace_do_not_disturb_each_other(
    workspaces: Workspaces, folder: Path
) -> None:
    """Snapshots of two runs at once have the same tree, and one can be forgotten alone."""

    async def scenario() -> None:
        both = await asyncio.gather(
            *(workspaces.snapshot(run, str(folder)) for run in ("run_a", "run_b", "run_c"))
        )
        assert len({one.tree for one in both}) == 1
        await workspaces.forget("run_a")
        assert await workspaces.changes("run_b", both[0].tree, both[1].tree) in ((), [])
        (folder / "more").write_text("1")
        later = await workspaces.snapshot("run_b", str(folder), previous=both[1].tree)
        assert later.paths == ("more",)

    asyncio.run(scenario())
