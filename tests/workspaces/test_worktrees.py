"""Worktrees: made on a branch, merged back three-way or not at all, removed without a trace."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Worktree
from loopwright.workspaces.worktrees import GitWorktrees, _Merge
from tests.workspaces.folders import commit, fingerprint, git, put, repository

RUN = "run_a"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The checkout of a user: a.txt with ten lines, src/b.py."""
    folder = repository(tmp_path / "user")
    put(folder, a__txt="".join(f"{n}\n" for n in range(10)))
    commit(folder, "ten lines")
    return folder


@pytest.fixture
def worktrees(tmp_path: Path) -> GitWorktrees:
    return GitWorktrees(tmp_path / "data" / "worktrees")


def made(worktrees: GitWorktrees, user: Path) -> tuple[Path, Worktree]:
    return asyncio.run(worktrees.create(RUN, user))


def refused(coroutine: object) -> LoopwrightError:
    with pytest.raises(LoopwrightError) as caught:
        asyncio.run(coroutine)  # type: ignore[arg-type]
    return caught.value


def everything(user: Path) -> dict[str, str]:
    """All files of a checkout and its refs; objects may be added."""
    return {name: text for name, text in fingerprint(user).items() if "/.git/objects" not in name}


@pytest.mark.item("rec-18")
def test_worktree_has_its_own_branch_and_leaves_the_checkout_alone(
    user: Path, worktrees: GitWorktrees
) -> None:
    """HEAD, index and files of the user stay; uncommitted changes are counted, not taken along."""
    put(user, a__txt="not committed\n", new__txt="new\n")
    before = {k: v for k, v in everything(user).items() if "/.git" not in k}
    folder, found = made(worktrees, user)
    assert git(folder, "symbolic-ref", "--short", "HEAD").strip() == "loopwright/run_a"
    assert (folder / "a.txt").read_text().startswith("0\n")
    assert not (folder / "new.txt").exists()
    assert (found.uncommitted, found.branch) == (2, "loopwright/run_a")
    assert {k: v for k, v in everything(user).items() if "/.git" not in k} == before
    assert git(user, "symbolic-ref", "--short", "HEAD").strip() == "main"


def test_worktree_of_a_subfolder_works_in_that_subfolder(
    user: Path, worktrees: GitWorktrees
) -> None:
    """A run that is started in a folder of the repository works in the same folder there."""
    folder, found = asyncio.run(worktrees.create(RUN, user / "src"))
    assert folder == Path(found.folder) / "src"
    assert (folder / "b.py").exists()


@pytest.mark.parametrize("kind", ["no-repository", "no-commits"])
def test_worktree_without_a_commit_is_refused(
    kind: str, tmp_path: Path, worktrees: GitWorktrees
) -> None:
    """Without a repository, or without a commit in it, the reason is said."""
    folder = tmp_path / "plain"
    folder.mkdir()
    if kind == "no-commits":
        git(folder, "init", "-q")
    error = refused(worktrees.create(RUN, folder))
    assert error.code == {"no-repository": "not-a-repository"}.get(kind, kind)
    assert error.hint


def edit(folder: Path) -> None:
    """What an agent does: change, add, delete, make executable, link; some of it committed."""
    lines = (folder / "a.txt").read_text().splitlines(keepends=True)
    put(folder, **{"a.txt": "".join(["zero\n", *lines[1:]]), "deep/new.txt": "new\n"})
    commit(folder, "by the agent")
    (folder / "src" / "b.py").unlink()
    (folder / "link").symlink_to("a.txt")
    put(folder, run__sh="#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)


@pytest.mark.item("rec-19")
def test_apply_merges_committed_and_uncommitted_work(user: Path, worktrees: GitWorktrees) -> None:
    """The result arrives beside changes that the user committed and others they did not."""
    folder, found = made(worktrees, user)
    edit(folder)
    put(user, a__txt=(user / "a.txt").read_text().replace("9\n", "nine\n"))
    commit(user, "meanwhile")
    put(user, mine__txt="not committed\n")
    head, index = git(user, "rev-parse", "HEAD"), (user / ".git" / "index").read_bytes()
    applied = asyncio.run(worktrees.apply(found, Path(found.folder)))
    assert applied.files == ("a.txt", "deep/new.txt", "link", "run.sh", "src/b.py")
    text = (user / "a.txt").read_text()
    assert text.startswith("zero\n1\n")
    assert text.endswith("8\nnine\n")
    assert not (user / "src").exists()
    assert (user / "link").is_symlink()
    assert (user / "run.sh").stat().st_mode & 0o100
    assert (user / "mine.txt").exists()
    assert git(user, "rev-parse", "HEAD") == head
    assert (user / ".git" / "index").read_bytes() == index
    assert asyncio.run(worktrees.apply(found, Path(found.folder))).files == ()


def conflicting(user: Path) -> None:
    put(user, a__txt=(user / "a.txt").read_text().replace("0\n", "null\n", 1))
    commit(user, "conflict")


def uncommitted(user: Path) -> None:
    put(user, a__txt="mine\n")


def staged(user: Path) -> None:
    uncommitted(user)
    git(user, "add", "a.txt")


def untracked(user: Path) -> None:
    put(user, **{"deep/new.txt": "mine\n"})


def ignored(user: Path) -> None:
    put(user, **{".gitignore": "run.sh\n", "run.sh": "mine\n"})


def in_the_way(user: Path) -> None:
    put(user, deep="mine: a file where a folder is needed\n")


def deleted(user: Path) -> None:
    put(user, **{"src/b.py": "mine: the agent deleted it\n"})


def assumed_unchanged(user: Path) -> None:
    uncommitted(user)
    git(user, "update-index", "--assume-unchanged", "a.txt")


def skipped(user: Path) -> None:
    uncommitted(user)
    git(user, "update-index", "--skip-worktree", "a.txt")


REFUSALS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "conflict": (conflicting, "merge-conflict", "a.txt"),
    "uncommitted": (uncommitted, "uncommitted-changes", "a.txt"),
    "assume-unchanged": (assumed_unchanged, "uncommitted-changes", "a.txt"),
    "skip-worktree": (skipped, "uncommitted-changes", "a.txt"),
    "staged": (staged, "uncommitted-changes", "a.txt"),
    "untracked": (untracked, "uncommitted-changes", "deep/new.txt"),
    "ignored": (ignored, "uncommitted-changes", "run.sh"),
    "file-in-the-way": (in_the_way, "uncommitted-changes", "deep"),
    "changed-and-deleted": (deleted, "uncommitted-changes", "src/b.py"),
}


@pytest.mark.item("rec-19")
@pytest.mark.parametrize("name", REFUSALS)
def test_apply_refuses_by_name_and_changes_nothing(
    name: str, user: Path, worktrees: GitWorktrees
) -> None:
    """A conflict or a file of the user in the way is named; every byte of the checkout stays."""
    folder, found = made(worktrees, user)
    edit(folder)
    prepare, code, path = REFUSALS[name]
    prepare(user)
    asyncio.run(worktrees.save(found))
    before = everything(user)
    error = refused(worktrees.apply(found, Path(found.folder)))
    assert error.code == code
    assert error.message.endswith(f": {path}")
    assert everything(user) == before


def test_apply_that_fails_in_the_middle_is_undone(
    user: Path, worktrees: GitWorktrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When writing fails, the files are as they were."""
    folder, found = made(worktrees, user)
    edit(folder)
    before = {k: v for k, v in everything(user).items() if "/.git" not in k}
    write = _Merge._write
    calls: list[str] = []

    async def fail_after_writing(self: _Merge, tree: str, *paths: object) -> None:
        await write(self, tree, *paths)  # type: ignore[arg-type]
        calls.append(tree)
        if len(calls) == 1:
            raise OSError("the disk is full")

    monkeypatch.setattr(_Merge, "_write", fail_after_writing)
    with pytest.raises(OSError, match="disk is full"):
        asyncio.run(worktrees.apply(found, Path(found.folder)))
    after = {k: v for k, v in everything(user).items() if "/.git" not in k}
    assert after == before


@pytest.mark.item("rec-20")
def test_discard_removes_worktree_and_branch(user: Path, worktrees: GitWorktrees) -> None:
    """Nothing is left in the repository or in the data directory; a second time says so."""
    branches, files = git(user, "branch", "--list"), sorted(p.name for p in user.iterdir())
    folder, found = made(worktrees, user)
    edit(folder)
    asyncio.run(worktrees.discard(found))
    assert not folder.exists()
    assert git(user, "branch", "--list") == branches
    assert git(user, "worktree", "list").count("\n") == 1
    assert sorted(p.name for p in user.iterdir()) == files
    assert refused(worktrees.discard(found)).code == "worktree-gone"


def test_only_worktrees_of_this_data_directory_are_discarded(
    user: Path, worktrees: GitWorktrees, tmp_path: Path
) -> None:
    """A record that names another folder or branch does not lead to its removal."""
    wrong = Worktree(repository=str(user), folder=str(user), branch="main", base="")
    assert refused(worktrees.discard(wrong)).code == "foreign-worktree"
    assert (user / "a.txt").exists()


def test_apply_of_a_worktree_that_is_gone_says_so(user: Path, worktrees: GitWorktrees) -> None:
    """A worktree that was removed by hand has nothing to apply."""
    _, found = made(worktrees, user)
    git(user, "worktree", "remove", "--force", found.folder)
    assert refused(worktrees.apply(found, Path(found.folder))).code == "worktree-gone"


def test_save_commits_on_the_branch_without_hooks(user: Path, worktrees: GitWorktrees) -> None:
    """Git can merge the branch; the author is Loopwright; a second time adds no commit."""
    folder, found = made(worktrees, user)
    edit(folder)
    for hook in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        file = user / ".git" / "hooks" / hook
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\ntouch {user}/ran-{hook}\nexit 1\n")
        file.chmod(0o755)
    asyncio.run(worktrees.save(found))
    tip = git(user, "rev-parse", found.branch)
    assert git(user, "log", "-1", "--format=%an", found.branch).strip() == "Loopwright"
    asyncio.run(worktrees.save(found))
    assert git(user, "rev-parse", found.branch) == tip
    assert list(user.glob("ran-*")) == []
    assert git(folder, "status", "--porcelain") == ""
    git(user, "-c", "core.hooksPath=/dev/null", "merge", "-q", found.branch)
    assert (user / "link").is_symlink()
    assert not (user / "src" / "b.py").exists()


def test_save_keeps_work_on_another_branch(user: Path, worktrees: GitWorktrees) -> None:
    """An agent that switched branches: the branch of the run has both, the other one stays."""
    folder, found = made(worktrees, user)
    put(folder, one__txt="1\n")
    commit(folder, "on the branch of the run")
    git(folder, "checkout", "-q", "-b", "own", "main")
    put(folder, two__txt="2\n")
    own = git(user, "rev-parse", "own")
    asyncio.run(worktrees.save(found))
    assert git(user, "rev-parse", "own") == own
    assert "two.txt" in git(user, "ls-tree", "--name-only", found.branch)
    assert git(user, "log", "--format=%s", found.branch).count("on the branch of the run") == 1


@pytest.mark.parametrize("is_committed", [False, True], ids=["files", "commits"])
def test_apply_leaves_out_what_is_outside_of_the_workspace(
    user: Path, worktrees: GitWorktrees, *, is_committed: bool
) -> None:
    """The run worked in `src`: a.txt is named, not changed; commits of the user stay."""
    folder, found = asyncio.run(worktrees.create(RUN, user / "src"))
    put(Path(found.folder), **{"a.txt": "top\n", "src/b.py": "new\n", "src/c.py": "c\n"})
    if is_committed:
        commit(Path(found.folder), "by the agent")
    put(user, other__txt="other\n")
    commit(user, "meanwhile")
    before = (user / "a.txt").read_text()
    done = asyncio.run(worktrees.apply(found, folder))
    assert (done.files, done.outside) == (("src/b.py", "src/c.py"), ("a.txt",))
    assert (user / "a.txt").read_text() == before
    assert (user / "other.txt").exists()
    assert asyncio.run(worktrees.unapplied(found, folder)) == ("a.txt",)


def test_unapplied_names_what_would_be_lost(user: Path, worktrees: GitWorktrees) -> None:
    """Everything before `apply`; nothing after it, also when the files are edited later; what the
    run changes afterwards is named again."""
    folder, found = made(worktrees, user)
    assert asyncio.run(worktrees.unapplied(found, folder)) == ()
    edit(folder)
    names = ("a.txt", "deep/new.txt", "link", "run.sh", "src/b.py")
    assert asyncio.run(worktrees.unapplied(found, folder)) == names
    asyncio.run(worktrees.apply(found, folder))
    put(user, run__sh="edited\n")
    assert asyncio.run(worktrees.unapplied(found, folder)) == ()
    put(folder, late__txt="late\n")
    assert "late.txt" in asyncio.run(worktrees.unapplied(found, folder))


def test_unapplied_of_a_merged_branch_is_empty(user: Path, worktrees: GitWorktrees) -> None:
    """What `git merge` brought is not lost."""
    folder, found = made(worktrees, user)
    edit(folder)
    asyncio.run(worktrees.save(found))
    git(user, "merge", "-q", found.branch)
    assert asyncio.run(worktrees.unapplied(found, folder)) == ()


@pytest.mark.parametrize("kind", ["as-it-is", "fresh", "parent-discarded"])
def test_copy_makes_a_worktree_of_its_own(user: Path, worktrees: GitWorktrees, kind: str) -> None:
    """A fork has the files of its parent, or those of the start; it outlives its parent."""
    folder, found = asyncio.run(worktrees.create(RUN, user / "src"))
    put(folder, b__py="by the parent\n")
    if kind == "parent-discarded":
        asyncio.run(worktrees.discard(found))
        assert refused(worktrees.copy("run_b", found, folder, fresh=False)).code == "worktree-gone"
    is_fresh = kind != "as-it-is"
    inside, copied = asyncio.run(worktrees.copy("run_b", found, folder, fresh=is_fresh))
    assert (copied.branch, inside.name) == ("loopwright/run_b", "src")
    if kind == "as-it-is":
        asyncio.run(worktrees.discard(found))
    text = (inside / "b.py").read_text()
    assert (text == "by the parent\n") is not is_fresh
    put(inside, b__py="by the fork\n")
    assert asyncio.run(worktrees.apply(copied, inside)).files == ("src/b.py",)
    assert (user / "src" / "b.py").read_text() == "by the fork\n"


def test_branch_that_leaves_no_room_for_others_is_named(
    user: Path, worktrees: GitWorktrees
) -> None:
    """The error says which branch it is and how to rename it."""
    git(user, "branch", "loopwright")
    error = refused(worktrees.create(RUN, user))
    assert error.code == "branch-in-the-way"
    assert "has a branch 'loopwright'" in error.message
    assert error.hint.startswith("rename it (`git branch -m loopwright NAME`)")


# -- worktrees that an agent has tampered with -----------------------------------------------------


def point_elsewhere(folder: Path, user: Path) -> None:
    """`.git` of the worktree names another repository."""
    other = repository(user.parent / "other")
    (folder / ".git").write_text(f"gitdir: {other / '.git'}\n")


def own_repository(folder: Path, user: Path) -> None:
    (folder / ".git").unlink()
    git(folder, "init", "-q")


def no_repository(folder: Path, user: Path) -> None:
    (folder / ".git").unlink()


@pytest.mark.parametrize("tamper", [point_elsewhere, own_repository, no_repository])
@pytest.mark.parametrize("level", ["save", "apply", "unapplied"])
def test_a_replaced_git_file_loses_no_result(
    user: Path,
    worktrees: GitWorktrees,
    tamper: Callable[[Path, Path], None],
    level: str,
) -> None:
    """The result is committed and applied, and `discard` says what would be lost."""
    folder, found = made(worktrees, user)
    put(folder, new__txt="result\n")
    tamper(folder, user)
    if level == "save":
        asyncio.run(worktrees.save(found))
        assert git(user, "show", "loopwright/run_a:new.txt") == "result\n"
    elif level == "apply":
        assert asyncio.run(worktrees.apply(found, folder)).files == ("new.txt",)
        assert (user / "new.txt").read_text() == "result\n"
    else:
        assert asyncio.run(worktrees.unapplied(found, folder)) == ("new.txt",)
        asyncio.run(worktrees.discard(found))
        assert not folder.exists()
        assert "loopwright/" not in git(user, "branch", "--list")


def test_a_branch_that_is_checked_out_elsewhere_is_not_discarded(
    tmp_path: Path, user: Path, worktrees: GitWorktrees
) -> None:
    """Nothing is removed, and the message names the folder."""
    folder, found = made(worktrees, user)
    git(folder, "checkout", "-q", "-b", "mine")
    git(user, "worktree", "add", "-q", str(tmp_path / "elsewhere"), "loopwright/run_a")
    error = refused(worktrees.discard(found))
    assert error.code == "branch-in-use"
    assert str(tmp_path / "elsewhere") in error.message
    assert folder.exists()
    git(tmp_path / "elsewhere", "checkout", "-q", "--detach")
    asyncio.run(worktrees.discard(found))
    assert not folder.exists()
    assert "loopwright/" not in git(user, "branch", "--list")


def test_a_worktree_that_git_does_not_know_any_more_is_named(
    user: Path, worktrees: GitWorktrees
) -> None:
    """The message says where the files are, and not that they were discarded."""
    folder, found = made(worktrees, user)
    git(user, "worktree", "remove", "--force", str(folder))
    put(folder, new__txt="result\n")
    for action in (worktrees.save(found), worktrees.apply(found, folder)):
        error = refused(action)
        assert (error.code, str(folder) in error.message) == ("worktree-gone", True)
        assert "the files of the run are in it" in str(error.hint)
