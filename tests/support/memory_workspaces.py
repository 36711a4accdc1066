"""Snapshots of workspaces in memory, without Git: the reference for the contract of workspaces."""

import difflib
import hashlib
import os
import shutil
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.event_parts import NO_DIFF, DiffStat, Snapshot
from loopwright.ports import ChangeStatus, FileChange, Progress

Tree: TypeAlias = dict[str, tuple[str, bytes]]
"""Kind (`file`, `program`, `link`) and content by path."""


class MemoryWorkspaces:
    """Stores whole trees. It has no ignore rules, no limits and no renames; `.git` is not part of a
    workspace.
    """

    def __init__(self) -> None:
        self._trees: dict[str, Tree] = {"": {}}
        self._runs: dict[str, set[str]] = {}

    async def snapshot(
        self,
        run: str,
        workspace: str,
        *,
        previous: str = "",
        first: str = "",
        progress: Progress | None = None,
    ) -> Snapshot:
        """Store the files of a folder."""
        name = self._keep(run, _read(Path(workspace)))
        first = first or previous
        changed = await self.changes(run, previous, name) if previous else ()
        total = await self.changes(run, first, name) if first else ()
        return Snapshot(
            tree=name,
            changed=_count(changed),
            total=_count(total),
            paths=tuple(one.path for one in changed[:100]),
        )

    async def changes(self, run: str, old: str, new: str) -> Sequence[FileChange]:
        """The files that differ."""
        before, after = self._tree(run, old), self._tree(run, new)
        paths = sorted({*before, *after})
        return [
            _change(path, before.get(path), after.get(path))
            for path in paths
            if before.get(path) != after.get(path)
        ]

    async def diff(
        self, run: str, old: str, new: str, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff of the texts."""
        before, after = self._tree(run, old), self._tree(run, new)
        lines: list[str] = []
        for change in await self.changes(run, old, new):
            if paths and not any(_is_below(change.path, one) for one in paths):
                continue
            a, b = (_lines(tree.get(change.path)) for tree in (before, after))
            lines.append(f"diff --git a/{change.path} b/{change.path}\n")
            lines += difflib.unified_diff(a, b, f"a/{change.path}", f"b/{change.path}")
        return "".join(lines)

    async def restore(
        self, run: str, tree: str, to: Path, *, expected: str = "", force: bool = False
    ) -> int:
        """Write the files that differ."""
        wanted, actual = self._tree(run, tree), _read(to)
        if expected and actual != self._tree(run, expected) and not force:
            raise Conflict("files changed after the last snapshot", code="unrecorded-changes")
        known = self._tree(run, expected) if expected else {}
        gone = [path for path in actual if path in known and path not in wanted]
        for path in gone:
            (to / path).unlink()
        changed = {path: one for path, one in wanted.items() if actual.get(path) != one}
        _write(to, changed)
        return len(gone) + len(changed)

    async def export(self, run: str, tree: str, to: Path) -> None:
        """Write all files."""
        if _is_occupied(to):
            raise LoopwrightError(f"{to} is not an empty folder", code="not-empty")
        _write(to, self._tree(run, tree))

    async def forget(self, run: str) -> None:
        """Delete the trees of a run."""
        self._runs.pop(run, None)

    def _keep(self, run: str, tree: Tree) -> str:
        name = hashlib.sha1(repr(sorted(tree.items())).encode()).hexdigest()
        self._trees[name] = tree
        self._runs.setdefault(run, set()).add(name)
        return name

    def _tree(self, run: str, name: str) -> Tree:
        if run not in self._runs:
            raise NotFound(f"run {run} has no snapshots", code="no-snapshots")
        if name not in self._trees:
            raise NotFound("the snapshot is not there any more", code="snapshot-missing")
        return self._trees[name]


def _read(folder: Path) -> Tree:
    if not folder.is_dir():
        raise LoopwrightError(f"the workspace {folder} does not exist", code="workspace-gone")
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if ".git" in name.split("/"):
            continue
        if path.is_symlink():
            tree[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_file():
            program = path.stat().st_mode & 0o100
            tree[name] = ("program" if program else "file", path.read_bytes())
    return tree


def _is_occupied(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _write(folder: Path, files: Tree) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, data) in files.items():
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(os.fsdecode(data))
        else:
            path.write_bytes(data)
            path.chmod(0o755 if kind == "program" else 0o644)


def _change(
    path: str, before: tuple[str, bytes] | None, after: tuple[str, bytes] | None
) -> FileChange:
    status: ChangeStatus = "modified"
    if before is None or after is None:
        status = "added" if before is None else "deleted"
    elif (before[0] == "link") != (after[0] == "link"):
        status = "type_changed"
    binary = any(b"\0" in one[1] for one in (before, after) if one)
    marks = [] if binary else [line[0] for line in difflib.ndiff(_lines(before), _lines(after))]
    return FileChange(
        path=path,
        status=status,
        insertions=marks.count("+"),
        deletions=marks.count("-"),
        binary=binary,
    )


def _lines(entry: tuple[str, bytes] | None) -> list[str]:
    return entry[1].decode("utf-8", "replace").splitlines(keepends=True) if entry else []


def _is_below(path: str, pattern: str) -> bool:
    return path.startswith(f"{pattern}/") or fnmatchcase(path, pattern)


def _count(changes: Sequence[FileChange]) -> DiffStat:
    if not changes:
        return NO_DIFF
    return DiffStat(
        files=len(changes),
        insertions=sum(one.insertions for one in changes),
        deletions=sum(one.deletions for one in changes),
    )
