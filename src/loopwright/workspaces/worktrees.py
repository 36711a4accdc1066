"""Git worktrees for runs: created on their own branch, merged back, removed.

These commands write to the user's repository, because a person requested it, and use its own
settings (filters, line ends); hooks and prompts are off.
"""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.event_parts import Worktree
from loopwright.ports import APPLIED, AppliedChanges
from loopwright.workspaces.git import (
    Confine,
    Git,
    GitFailed,
    listed_paths,
    shown_path,
    start_unconfined,
)
from loopwright.workspaces.repositories import UserRepository, find_user_repository
from loopwright.workspaces.trees import remove_file

BRANCHES = "loopwright/"
Copied: TypeAlias = tuple[Path, Worktree]
_TRIES = 5
_NOTHING = "0" * 40  # as the old value of a ref that does not exist
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Loopwright"), ("EMAIL", "loopwright@localhost"))
}
_QUIET = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
}


class GitWorktrees:
    """Worktrees in one folder, each named after its run. An agent may have changed the settings and
    attributes of a repository, which name programs that Git starts, so `confine` puts Git into a
    sandbox.
    """

    def __init__(self, folder: Path, confine: Confine = start_unconfined) -> None:
        self._folder = folder.resolve()
        self._confine = confine

    async def create(self, run: str, folder: Path) -> tuple[Path, Worktree]:
        """Create a worktree of the repository that contains a folder."""
        folder = await asyncio.to_thread(folder.resolve)
        repository = await asyncio.to_thread(self._find, folder)
        if repository is None:
            raise LoopwrightError(
                f"{folder} is not in a Git repository, so it cannot have a worktree",
                code="not-a-repository",
                hint="run `git init` and commit there, or start with --no-worktree",
            )
        git = _git(repository, repository.root)
        base = await _head(git, repository)
        target = self._folder / run
        await asyncio.to_thread(_make_private, self._folder)
        branch = BRANCHES + run
        await _require_free_name(git)
        await git.run("worktree", "add", "--quiet", "--no-track", "-b", branch, target, base)
        status = await git.run("status", "--porcelain=v1", "-z", "-uall", "--no-renames")
        inside = target / folder.relative_to(repository.root)
        await asyncio.to_thread(inside.mkdir, parents=True, exist_ok=True)
        made = Worktree(
            repository=str(repository.root),
            folder=str(target),
            branch=branch,
            base=base,
            uncommitted=status.out.count(b"\0"),
        )
        return inside, made

    async def committed(self, folder: Path, paths: Sequence[str]) -> Collection[str] | None:
        """Those of the paths that the newest commit contains."""
        folder = await asyncio.to_thread(folder.resolve)
        repository = await asyncio.to_thread(self._find, folder)
        if repository is None:
            return None
        git, found = _git(repository, repository.root), set[str]()
        try:
            await _head(git, repository)
        except LoopwrightError:
            return None
        for path in paths:
            inside = _relative(folder / path, repository.root)
            if inside:
                done = await git.run("cat-file", "-e", f"HEAD:{inside}", accept=(0, 1, 128))
                found |= {path} if done.status == 0 else set()
        return found

    async def copy(self, run: str, worktree: Worktree, workspace: Path, *, fresh: bool) -> Copied:
        """Create a worktree for a fork of a run: with `fresh`, from the commit that the run started
        from, else from the current files of its worktree.
        """
        repository, source = await self._both(worktree)
        git = _git(repository, repository.root)
        if fresh:
            start = worktree.base
        elif source is not None:
            async with _scratch() as scratch:
                start = await _commit(source, worktree, scratch / "result")
        else:
            start = await _branch_tip(git, worktree)
        if not start:
            raise _discarded(worktree)
        target, branch = self._folder / run, BRANCHES + run
        await git.run("worktree", "add", "--quiet", "--no-track", "-b", branch, target, start)
        inside = target / _prefix(worktree, workspace)
        await asyncio.to_thread(inside.mkdir, parents=True, exist_ok=True)
        made = msgspec.structs.replace(worktree, folder=str(target), branch=branch, uncommitted=0)
        return inside, made

    async def save(self, worktree: Worktree) -> None:
        """Commit the uncommitted files of a worktree on its branch."""
        _, source = await self._both(worktree)
        if source is None:
            raise _discarded(worktree)
        async with _scratch() as scratch:
            await _save(source, worktree, scratch / "result")

    async def apply(self, worktree: Worktree, workspace: Path) -> AppliedChanges:
        """Merge the files of a worktree into its original checkout."""
        repository, source = await self._both(worktree)
        git = _git(repository, repository.root)
        if source is None:
            raise _discarded(worktree, branch=bool(await _branch_tip(git, worktree)))
        async with _scratch() as scratch:
            commit = await _save(source, worktree, scratch / "result")
            merge = _Merge(git, scratch, worktree.branch)
            prefix = os.fsencode(_prefix(worktree, workspace))
            inside, outside = await merge.limit(commit, worktree.base, prefix)
            applied = await merge.apply(repository, inside)
            tree = await _tree(git, commit)
        await asyncio.to_thread(_applied_file(worktree).write_text, tree)
        return msgspec.structs.replace(applied, outside=tuple(shown_path(one) for one in outside))

    async def unapplied(self, worktree: Worktree, workspace: Path) -> Sequence[str]:
        """The files of a worktree that its checkout does not have, and never received by
        `apply`.
        """
        try:
            repository, source = await self._both(worktree)
        except LoopwrightError:
            return ()  # the checkout does not exist any more
        git = _git(repository, repository.root)
        async with _scratch() as scratch:
            if source is not None:
                commit = await _commit(source, worktree, scratch / "result")
            else:
                commit = await _branch_tip(git, worktree)
            if not commit:
                return ()
            merge = _Merge(git, scratch, worktree.branch)
            changed = await merge.changed(commit, worktree.base)
            if await asyncio.to_thread(_read, _applied_file(worktree)) == await _tree(git, commit):
                prefix = os.fsencode(_prefix(worktree, workspace))
                changed = [path for path in changed if not _is_in(path, prefix)]
            missing = await merge.missing(commit, changed)
        return tuple(sorted(shown_path(path) for path in missing))

    async def discard(self, worktree: Worktree) -> None:
        """Remove a worktree and its branch."""
        folder = Path(worktree.folder)
        if folder.parent != self._folder or not worktree.branch.startswith(BRANCHES):
            raise LoopwrightError(
                f"{folder} was not made in this data directory", code="foreign-worktree"
            )
        repository = await asyncio.to_thread(self._find, Path(worktree.repository))
        git = None if repository is None else _git(repository, repository.root)
        branch = await _branch_tip(git, worktree) if git is not None else ""
        if not branch and not await asyncio.to_thread(folder.exists):
            raise LoopwrightError(
                f"the worktree {folder} and the branch {worktree.branch} were removed already",
                code="worktree-gone",
            )
        if git is not None:
            await _require_unused_branch(git, worktree)
            with suppress(GitFailed):  # a person removed it before
                await git.run("worktree", "remove", "--force", "--force", folder)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if git is not None:
            await git.run("worktree", "prune")
            if await _branch_tip(git, worktree):  # else a person deleted it before
                await git.run("branch", "--quiet", "-D", worktree.branch)

    def _find(self, folder: Path) -> UserRepository | None:
        found = find_user_repository(folder)
        return None if found is None else replace(found, confine=self._confine)

    async def _both(self, worktree: Worktree) -> tuple[UserRepository, UserRepository | None]:
        """The checkout of the user, and the worktree if it still exists."""
        root, source = Path(worktree.repository), Path(worktree.folder)
        repository = await asyncio.to_thread(self._find, root)
        if repository is None or repository.root != root:
            raise LoopwrightError(
                f"the checkout {root} is not a Git repository any more",
                code="worktree-gone",
                hint=f"the files of the run are in {source}",
            )
        own = await asyncio.to_thread(self._find, source)
        if own is None or own.root != source or own.common_dir != repository.common_dir:
            # An agent may have replaced `.git`, which names the folder with the data of Git. The
            # repository knows it too.
            own = await asyncio.to_thread(_own_repository, repository, source)
        return repository, own


@dataclass(frozen=True)
class _Merge:
    """The result of a worktree during its merge into a checkout."""

    git: Git
    scratch: Path
    branch: str = ""

    async def limit(self, commit: str, base: str, prefix: bytes) -> tuple[str, Sequence[bytes]]:
        """A commit with the changes of the workspace alone, and the files that were changed
        outside of it: snapshots and `diff` do not show those, so they are not applied.
        """
        if prefix in (b"", b"."):
            return commit, ()
        outside = [path for path in await self.changed(commit, base) if not _is_in(path, prefix)]
        if not outside:
            return commit, ()
        git = self._with_index("inside").with_variables(**_IDENTITY)
        await git.run("read-tree", await self._merge_base(commit, base))
        known = await git.run("--literal-pathspecs", "ls-files", "-z", "--", prefix)
        if known.out:
            await git.run("update-index", "-z", "--force-remove", "--stdin", feed=known.out)
        inside = commit.encode() + b":" + prefix
        if (await git.run("rev-parse", "--verify", "-q", inside, accept=(0, 1, 128))).status == 0:
            await git.run("read-tree", b"--prefix=" + prefix + b"/", inside)
        tree = (await git.run("write-tree")).out.decode().strip()
        done = await git.run("commit-tree", tree, "-p", commit, "-m", "The workspace alone")
        return done.out.decode().strip(), outside

    async def changed(self, commit: str, base: str) -> list[bytes]:
        """The paths that differ between a result and its base."""
        return list(await self._differing(await self._merge_base(commit, base), commit))

    async def missing(self, commit: str, paths: Sequence[bytes]) -> list[bytes]:
        """Those of the paths whose checkout differs from a commit."""
        return await self._not_there_yet(commit, paths)

    async def _merge_base(self, commit: str, base: str) -> str:
        done = await self.git.run("merge-base", "HEAD", commit, accept=(0, 1, 128))
        return done.out.decode().strip() or base

    async def apply(self, repository: UserRepository, result: str) -> AppliedChanges:
        head = await _head(self.git, repository)
        merged = await self._merged(head, result)
        touched = await self._differing(head, merged)
        waiting = await self._not_there_yet(merged, list(touched))
        if not waiting:
            return AppliedChanges()
        await self._check_clean(waiting, {path for path in waiting if touched[path] == b"A"})
        gone = [path for path in waiting if touched[path] == b"D"]
        written = [path for path in waiting if touched[path] != b"D"]
        try:
            await self._write(merged, written, gone)
        except BaseException:
            await asyncio.shield(self._put_back(head, waiting, touched))
            raise
        return AppliedChanges(files=tuple(sorted(shown_path(path) for path in waiting)))

    async def _merged(self, head: str, result: str) -> str:
        """The merged tree of both sides."""
        options = ("--write-tree", "-z", "--name-only", "--no-messages")
        done = await self.git.run("merge-tree", *options, head, result, accept=(0, 1, 128, 129))
        if done.status > 1:
            raise LoopwrightError(
                "this version of Git cannot merge without a checkout",
                code="git-too-old",
                hint=f"`apply` needs Git 2.38 or newer; else merge it: `git merge {self.branch}`",
            )
        tree, *conflicts = (one for one in done.out.split(b"\0") if one)
        if done.status:
            raise Conflict(
                f"the result and your branch change the same lines: {listed_paths(conflicts)}",
                code="merge-conflict",
                hint=f"nothing was changed; resolve them with Git: `git merge {self.branch}`",
            )
        return tree.decode().strip()

    async def _differing(self, head: str, merged: str) -> dict[bytes, bytes]:
        """The paths that the merge changes, each with A, D, M or T."""
        options = ("-r", "-z", "--no-renames", "--name-status")
        done = await self.git.run("diff-tree", *options, head, merged)
        fields = done.out.split(b"\0")
        return dict(zip(fields[1::2], fields[::2], strict=False))

    async def _not_there_yet(self, merged: str, touched: Sequence[bytes]) -> list[bytes]:
        """Those of the paths whose files do not have the expected content yet."""
        git = self._with_index("merged")
        await git.run("read-tree", merged)
        await git.run("update-index", "-q", "--refresh", accept=(0, 1))
        done = await git.run("diff-files", "--name-only", "-z", "--no-renames")
        differs = set(done.out.split(b"\0"))
        known = set((await git.run("ls-files", "-z")).out.split(b"\0"))
        there = await asyncio.to_thread(_existing, self.git.folder, touched)
        return [path for path in touched if path in (differs if path in known else there)]

    async def _check_clean(self, paths: Sequence[bytes], added: set[bytes]) -> None:
        found = await asyncio.to_thread(_existing, self.git.folder, added)
        found |= await asyncio.to_thread(_in_the_way, self.git.folder, paths)
        command = ("status", "--porcelain=v1", "-z", "-uall", "--no-renames")
        done = await self.git.run(*command)
        changed = {record[3:] for record in done.out.split(b"\0") if record}
        found |= {path for path in paths if path in changed}
        found |= await self._edited(paths)
        if found:
            raise Conflict(
                "files that would be written have uncommitted changes: "
                f"{listed_paths(sorted(found))}",
                code="uncommitted-changes",
                hint="nothing was changed; commit or stash them and apply again",
            )

    async def _edited(self, paths: Sequence[bytes]) -> set[bytes]:
        """Those of the files that differ from HEAD, also where the user's index has them marked
        `assume-unchanged` or `skip-worktree`, which hides changes from `git status`.
        """
        git = self._with_index("head")
        await git.run("read-tree", "HEAD")
        await git.run("update-index", "-q", "--refresh", accept=(0, 1))
        done = await git.run("diff-files", "--name-only", "-z", "--no-renames")
        differs = set(done.out.split(b"\0"))
        wanted = [path for path in paths if path in differs]
        return await asyncio.to_thread(_existing, self.git.folder, wanted)

    async def _write(self, tree: str, written: Sequence[bytes], gone: Sequence[bytes]) -> None:
        for path in gone:
            await asyncio.to_thread(remove_file, self.git.folder, path)
        if written:
            git = self._with_index("written")
            await git.run("read-tree", tree)
            feed = b"".join(path + b"\0" for path in written)
            await git.run("checkout-index", "-z", "-f", "-q", "--stdin", feed=feed)

    async def _put_back(
        self, head: str, paths: Sequence[bytes], touched: dict[bytes, bytes]
    ) -> None:
        """After a failure in the middle: the files were as in HEAD, which has been checked."""
        added = [path for path in paths if touched[path] == b"A"]
        await self._write(head, [path for path in paths if touched[path] != b"A"], added)

    def _with_index(self, name: str) -> Git:
        return self.git.with_variables(GIT_INDEX_FILE=str(self.scratch / name))


def _own_repository(repository: UserRepository, folder: Path) -> UserRepository | None:
    """A worktree by the data of its repository; None if one of the two does not exist. Nothing in
    the folder itself is used, as an agent can write there.
    """
    if folder.is_symlink() or not folder.is_dir():
        return None
    for data in (repository.common_dir / "worktrees").glob("*"):
        common = data / _read(data / "commondir").strip()
        if _read(data / "gitdir").strip() == str(folder / ".git"):
            is_own = common.resolve() == repository.common_dir.resolve()
            return replace(repository, root=folder, git_dir=data) if is_own else None
    return None


async def _require_unused_branch(git: Git, worktree: Worktree) -> None:
    """Git does not delete a branch that is checked out in another folder."""
    done = await git.run("worktree", "list", "--porcelain")
    for record in done.out.decode(errors="replace").split("\n\n"):
        folder, *rest = record.split("\n")
        path = folder.removeprefix("worktree ")
        if f"branch refs/heads/{worktree.branch}" in rest and path != worktree.folder:
            raise Conflict(
                f"the branch {worktree.branch} is checked out in {path}",
                code="branch-in-use",
                hint=f"nothing was removed; leave it there: `git -C {path} checkout --detach`",
            )


async def _commit(own: UserRepository, worktree: Worktree, index: Path) -> str:
    """A commit of the current worktree, on top of its commits; its tip if that contains
    everything.
    """
    git = _git(own, own.root).with_variables(GIT_INDEX_FILE=str(index), **_IDENTITY)
    tip = await _head(git, own)
    await git.run("read-tree", tip)
    await git.run("add", "--all", "--", ".")
    tree = (await git.run("write-tree")).out.decode().strip()
    branch = await _branch_tip(git, worktree)
    parents = [tip]
    if branch and not await _contains(git, tip, branch):  # the agent works on another branch
        parents.append(branch)
    if len(parents) == 1 and tree == await _tree(git, tip):
        return tip
    message = f"Result of {worktree.branch.removeprefix(BRANCHES)}"
    words = [word for parent in parents for word in ("-p", parent)]
    done = await git.run("commit-tree", tree, *words, "-m", message)
    return done.out.decode().strip()


async def _save(own: UserRepository, worktree: Worktree, index: Path) -> str:
    """The same, and the branch of the run points to it."""
    git = _git(own, own.root)
    for _ in range(_TRIES):
        commit, old = await _commit(own, worktree, index), await _branch_tip(git, worktree)
        if commit == old:
            return commit
        try:
            ref = f"refs/heads/{worktree.branch}"
            await git.run("update-ref", "-m", "result of the run", ref, commit, old or _NOTHING)
        except GitFailed:  # another process was faster
            continue
        on = await git.run("symbolic-ref", "-q", "HEAD", accept=(0, 1))
        if on.out.decode().strip() == ref:
            with suppress(GitFailed):  # the index is in use; the files are committed anyway
                await git.run("read-tree", commit)
        return commit
    raise Conflict(f"{worktree.branch} changes too fast; try again", code="busy")


async def _branch_tip(git: Git, worktree: Worktree) -> str:
    """The commit of the branch of a run; empty if it was deleted."""
    ref = f"refs/heads/{worktree.branch}^{{commit}}"
    done = await git.run("rev-parse", "--verify", "--quiet", ref, accept=(0, 1, 128))
    return done.out.decode().strip()


async def _contains(git: Git, tip: str, commit: str) -> bool:
    done = await git.run("merge-base", "--is-ancestor", commit, tip, accept=(0, 1))
    return done.status == 0


async def _tree(git: Git, commit: str) -> str:
    return (await git.run("rev-parse", f"{commit}^{{tree}}")).out.decode().strip()


def _prefix(worktree: Worktree, workspace: Path) -> Path:
    """The position of the workspace in its worktree."""
    root = Path(worktree.folder)
    return workspace.relative_to(root) if workspace.is_relative_to(root) else Path()


def _relative(path: Path, root: Path) -> str:
    """A path below a repository as Git names it; empty for a path outside."""
    inside = os.path.relpath(os.path.normpath(path), root)
    return "" if inside.startswith("..") else inside


def _is_in(path: bytes, prefix: bytes) -> bool:
    return prefix in (b"", b".") or path == prefix or path.startswith(prefix + b"/")


def _applied_file(worktree: Worktree) -> Path:
    """The ref that records which tree was applied."""
    return Path(worktree.folder + APPLIED)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


async def _require_free_name(git: Git) -> None:
    """A branch `loopwright` makes branches `loopwright/…` impossible."""
    name = BRANCHES.rstrip("/")
    done = await git.run("rev-parse", "--verify", "--quiet", f"refs/heads/{name}", accept=(0, 1))
    if done.out:
        raise Conflict(
            f"the repository has a branch '{name}', so it cannot have branches '{BRANCHES}RUN'",
            code="branch-in-the-way",
            hint=f"rename it (`git branch -m {name} NAME`), or run without a worktree",
        )


async def _head(git: Git, repository: UserRepository) -> str:
    try:
        done = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitFailed as error:
        raise LoopwrightError(
            f"the repository {repository.root} has no commit yet",
            code="no-commits",
            hint="commit something first: a worktree starts from a commit",
        ) from error
    return done.out.decode().strip()


def _git(repository: UserRepository, folder: Path) -> Git:
    """Git with the settings of the user, without hooks and prompts."""
    return Git(
        folder=folder,
        variables={
            "GIT_DIR": str(repository.git_dir),
            "GIT_WORK_TREE": str(repository.root),
            "GIT_OPTIONAL_LOCKS": "0",
        },
        settings=_QUIET,
        as_user=True,
        confine=repository.confine,
    )


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="loopwright-apply-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _existing(root: Path, paths: Iterable[bytes]) -> set[bytes]:
    """Those of the paths that exist."""
    return {path for path in paths if os.path.lexists(os.path.join(os.fsencode(root), path))}


def _in_the_way(root: Path, paths: Sequence[bytes]) -> set[bytes]:
    """Files and links where one of the paths needs a folder; those that are removed anyway do not
    count.
    """
    parents = {parent for path in paths for parent in _parents(path)} - set(paths)
    return {
        parent
        for parent in _existing(root, parents)
        if not stat.S_ISDIR(os.lstat(os.path.join(os.fsencode(root), parent)).st_mode)
    }


def _parents(path: bytes) -> Iterator[bytes]:
    while path := os.path.dirname(path):
        yield path


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _discarded(worktree: Worktree, *, branch: bool = False) -> LoopwrightError:
    run = worktree.branch.removeprefix(BRANCHES)
    if os.path.isdir(worktree.folder):  # but its record in Git was removed
        return LoopwrightError(
            f"{worktree.folder} is not a worktree of {worktree.repository} any more",
            code="worktree-gone",
            hint="the files of the run are in it: copy what you need",
        )
    if branch:
        hint = f"its branch has its last result: `git merge {worktree.branch}`"
    else:
        hint = f"write its files into a new folder: `loopwright restore {run} ITERATION --to DIR`"
    return LoopwrightError(f"the worktree of {run} was discarded", code="worktree-gone", hint=hint)
