"""The Git adapter of `Workspaces`: take snapshots, compare them, write them back."""

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import NO_DIFF, Snapshot
from loopwright.model.sandbox import may_match
from loopwright.ports import NO_FILES, FileChange, FilesOfInterest, Progress
from loopwright.workspaces.git import Git, GitFailed, shown_path, workspace_gone
from loopwright.workspaces.repositories import (
    Store,
    Stores,
    UserRepository,
    WorkspaceIndex,
    anchored_rule,
    find_user_repository,
    ignore_rules,
    lock,
    write_file,
)
from loopwright.workspaces.scan import IndexChanges, Scanner, SnapshotLimits
from loopwright.workspaces.trees import (
    Restorer,
    changes_between,
    checked_tree,
    checkout_all,
    compare_trees,
    count_changes,
    read_trees,
    require_empty,
)

_ATTEMPTS = 4  # files may change or disappear while they are read
_NAMED = 100  # paths of a snapshot that its event names
_LONGEST_NAME = 500  # signs of a path in an event
_CHUNK = 500  # paths passed to Git at a time
_PROGRESS_FROM = 2_000  # files
_MANY = 500  # files that are written as one pack instead of one file each
_BATCH = 8_000  # files in one pack; Git compares each new one with all others of the pack
_SECOND_NS = 1_000_000_000
_CLOCK_STEP_NS = 50_000_000  # a file system may be this much behind the clock
_FAILED_PATH = b"Unable to process path "


class GitWorkspaces:
    """Snapshots as trees of a Git repository in the data directory, one for each project."""

    def __init__(self, data_dir: Path, limits: SnapshotLimits | None = None) -> None:
        self._data_dir = data_dir.resolve()
        self._stores = Stores(self._data_dir / "snapshots")
        self._limits = limits or SnapshotLimits()

    async def snapshot(
        self,
        run: str,
        workspace: str,
        *,
        previous: str = "",
        first: str = "",
        files: FilesOfInterest = NO_FILES,
        progress: Progress | None = None,
    ) -> Snapshot:
        """Store the files of a workspace as a tree."""
        recording = self._recording(run, workspace, is_first=not previous, progress=progress)
        recording.include = files.include
        recording.verify = (*files.include, *files.verify)
        store = recording.index.store
        async with recording.index.locked() as fds:
            tree, omitted = await recording.record(fds)
            commit = store.add_commit(tree, store.tip(run))
            write_file(store.ref(run), commit.encode() + b"\n")
            recording.index.record_tree(tree, commit)
        changed, total = await self._compare(store, tree, previous, first or previous)
        left_out = sorted(
            (not may_match(files.include, shown_path(one)), shown_path(one)) for one in omitted
        )
        names = [_shortened(one) for _, one in left_out]
        return Snapshot(
            tree=tree,
            changed=count_changes(changed),
            total=count_changes(total) if first or previous else NO_DIFF,
            paths=tuple(_shortened(one.path) for one in changed[:_NAMED]),
            omitted=tuple(names[:_NAMED]),
            omitted_count=len(names),
        )

    async def changes(self, run: str, old: str, new: str) -> Sequence[FileChange]:
        """The files that differ between two trees; an empty id is the empty tree."""
        return await changes_between(self._stores.of_run(run).git(), old, new)

    async def diff(
        self, run: str, old: str, new: str, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff. `paths` may have wildcards, as in `tests/**`."""
        git = self._stores.of_run(run).git()
        options = ("-r", "-M", "-p", "--no-ext-diff", "--no-textconv", "--full-index")
        trees = (checked_tree(old), checked_tree(new))
        shown = f"--color={'always' if color else 'never'}"
        out = await read_trees(
            git, "--glob-pathspecs", "diff-tree", *options, shown, *trees, "--", *paths
        )
        return out.decode("utf-8", "replace")

    async def restore(
        self, run: str, tree: str, to: Path, *, expected: str = "", force: bool = False
    ) -> int:
        """Make a folder match a tree; the number of files changed."""
        recording = self._recording(run, str(to), is_first=False, progress=None)
        async with recording.index.locked() as fds:
            actual, _ = await recording.record(fds)
            restorer = Restorer(recording.index, fds)
            return await restorer.restore(checked_tree(tree), actual, expected, force=force)

    async def export(self, run: str, tree: str, to: Path) -> None:
        """Write the files of a tree into a folder that is empty or does not exist."""
        store = self._stores.of_run(run)
        target = await asyncio.to_thread(require_empty, to)
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=store.path, prefix="export-"))
        try:
            await checkout_all(store, checked_tree(tree), target, folder / "index")
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def adopt(self, run: str, parent: str) -> None:
        """Keep the snapshots of another run for one that was forked from it."""
        try:
            store = self._stores.of_run(parent)
        except LoopwrightError:
            return
        async with lock(store.path / "lock", fcntl.LOCK_SH):
            if not store.tip(run) and store.tip(parent):
                write_file(store.ref(run), store.tip(parent).encode() + b"\n")

    async def forget(self, run: str) -> None:
        """Remove the snapshots of a run, and the repository with the last run of a project."""
        try:
            store = self._stores.of_run(run)
        except LoopwrightError:
            return
        async with lock(store.path / "lock", fcntl.LOCK_EX) as held:
            store.ref(run).unlink(missing_ok=True)
            if not store.runs():
                await asyncio.to_thread(shutil.rmtree, store.path, ignore_errors=True)
                return
            for index in (store.path / "worktrees").iterdir():
                for name in ("index", "index.lock", "tree"):
                    (index / name).unlink(missing_ok=True)
                write_file(index / "HEAD", b"ref: refs/heads/none\n")
            await store.git(fds=(held,)).run("gc", "--quiet", "--prune=now")

    def _recording(
        self, run: str, workspace: str, *, is_first: bool, progress: Progress | None
    ) -> "_Recording":
        path = Path(workspace)
        if not path.is_dir():
            raise workspace_gone(path)
        path = path.resolve()
        if path == self._data_dir or path.is_relative_to(self._stores.folder):
            raise LoopwrightError(
                f"the workspace {path} is the data directory of Loopwright",
                code="workspace-is-data-directory",
                hint="run in another folder, or name another data directory with --data-dir",
            )
        repository = find_user_repository(path)
        project = repository.common_dir if repository else None
        return _Recording(
            index=WorkspaceIndex(self._stores.of_workspace(run, path, project), path),
            repository=repository,
            limits=self._limits,
            data_dir=self._data_dir,
            is_first=is_first,
            progress=progress or (lambda _: None),
        )

    async def _compare(
        self, store: Store, tree: str, previous: str, first: str
    ) -> tuple[Sequence[FileChange], Sequence[FileChange]]:
        pairs = [(old, tree) for old in dict.fromkeys((previous, first)) if old]
        found = dict(zip(pairs, await compare_trees(store.git(), pairs), strict=True))
        return found.get((previous, tree), ()), found.get((first, tree), ())


@dataclass
class _Recording:
    """One workspace being recorded into its index."""

    index: WorkspaceIndex
    repository: UserRepository | None
    limits: SnapshotLimits
    data_dir: Path
    is_first: bool
    progress: Callable[[str], None]
    omitted: set[bytes] = field(default_factory=set)
    include: tuple[str, ...] = ()  # patterns of files that are stored although they are ignored
    verify: tuple[str, ...] = ()  # patterns of files whose content is compared every time

    async def record(self, fds: tuple[int, ...]) -> tuple[str, set[bytes]]:
        """The tree of the workspace, and what is not in it."""
        self._write_rules()
        git = self.index.git(fds=fds)
        skip: set[bytes] = set()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._attempt(git, frozenset(skip))
            except GitFailed as error:
                if attempt == _ATTEMPTS:
                    raise
                failed = _failed_path(error.errors)
                if attempt > 1 and failed:
                    skip.add(failed)  # it could not be read twice: it is left out and named
                if not failed:
                    self._start_over()
        raise AssertionError("unreachable")

    async def _attempt(self, git: Git, skip: frozenset[bytes]) -> tuple[str, set[bytes]]:
        scanner = Scanner(git, self.limits, self._hidden(), self.include)
        started = time.time_ns()
        last = self.index.last_scan()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(scanner.status(refresh=self.is_first))
                comparing = tasks.create_task(scanner.unnoticed(last, self.verify))
                matching = tasks.create_task(scanner.ignored_matching())
                extra = await self._tracked_but_ignored(git.fds)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        changes = await scanner.changes(reading.result(), [*extra, *matching.result()], skip)
        if self.is_first and (self.index.path / "index").exists():
            keep = {one for one in extra or await self._read_tracked(git.fds)}
            changes.remove += [one for one in await scanner.ignored_in_index() if one not in keep]
        scanner.enter(comparing.result(), changes, skip)
        folders = {b""} if self.is_first else {os.path.dirname(one) for one in changes.update}
        changes.omitted |= await scanner.specials(folders, deep=self.is_first)
        tree = self.index.recorded_tree()
        if changes.update or changes.remove or not tree:
            self.index.forget_tree()
            await self._write_index(git, changes)
            tree = (await git.run("write-tree")).out.decode().strip()
        self._remember_user_index()
        suspects: Iterable[bytes] = {*(last.recent or ()), *changes.update}
        if last.recent is None or self.is_first:  # the index may have a new time for any file
            suspects = await scanner.indexed()
        second = (started - _CLOCK_STEP_NS) // _SECOND_NS * _SECOND_NS
        recent = await asyncio.to_thread(scanner.changed_since, suspects, second)
        self.index.record_scan(second, recent)
        return tree, changes.omitted

    async def _write_index(self, git: Git, changes: IndexChanges) -> None:
        if changes.remove:
            feed = b"".join(one + b"\0" for one in changes.remove)
            await git.run("update-index", "-z", "--force-remove", "--stdin", feed=feed)
        options = ("-c", "core.bigFileThreshold=1") if len(changes.update) > _MANY else ()
        for start in range(0, len(changes.update), _BATCH):
            await git.run(
                *options,
                *("update-index", "-z", "--add", "--remove", "--replace", "--stdin"),
                feed=self._paths(changes.update, start),
            )

    async def _paths(self, paths: list[bytes], start: int) -> AsyncIterator[bytes]:
        for low in range(start, min(start + _BATCH, len(paths)), _CHUNK):
            high = min(low + _CHUNK, start + _BATCH, len(paths))
            yield b"".join(one + b"\0" for one in paths[low:high])
            if len(paths) >= _PROGRESS_FROM:
                self.progress(f"Snapshot: {high:,} of {len(paths):,} files")

    # The rules of the user's repository

    def _write_rules(self) -> None:
        rules = ignore_rules(self.index.workspace, self.repository)
        rules += [anchored_rule(tuple(os.fsdecode(one).split("/"))) for one in self._hidden()]
        text = "".join(f"{rule}\n" for rule in rules).encode("utf-8", "surrogateescape")
        path = self.index.path / "exclude"
        if not path.exists() or path.read_bytes() != text:
            write_file(path, text)

    def _hidden(self) -> tuple[bytes, ...]:
        """The data directory, if it is inside the workspace."""
        if not self.data_dir.is_relative_to(self.index.workspace):
            return ()
        return (os.fsencode(self.data_dir.relative_to(self.index.workspace)),)

    async def _tracked_but_ignored(self, fds: tuple[int, ...]) -> list[bytes]:
        """Read only if the user's index has changed since the last time."""
        if self.repository is None or self._known_user_index() == self._user_index():
            return []
        return await self._read_tracked(fds)

    async def _read_tracked(self, fds: tuple[int, ...]) -> list[bytes]:
        if self.repository is None:
            return []
        return await self.repository.tracked_but_ignored(self.index.workspace, fds=fds)

    def _user_index(self) -> str:
        return self.repository.index_signature() if self.repository else ""

    def _known_user_index(self) -> str | None:
        path = self.index.path / "user-index"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def _remember_user_index(self) -> None:
        if self.repository is not None and self._known_user_index() != self._user_index():
            write_file(self.index.path / "user-index", self._user_index().encode())

    def _start_over(self) -> None:
        """Drop an index that Git cannot use; the next attempt reads all files again."""
        self.index.forget_tree()
        for name in ("index", "index.lock", "user-index", "scanned"):
            (self.index.path / name).unlink(missing_ok=True)
        write_file(self.index.path / "HEAD", b"ref: refs/heads/none\n")


def _shortened(path: str) -> str:
    return path if len(path) <= _LONGEST_NAME else path[:_LONGEST_NAME] + "…"


def _failed_path(errors: bytes) -> bytes:
    """The path that Git could not read, as its message names it."""
    _, found, rest = errors.rpartition(_FAILED_PATH)
    return rest.rstrip(b"\n") if found else b""
