"""The port of workspaces: snapshots of a folder as trees, and what differs between two of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from loopwright.kernel.fact_parts import Snapshot

ChangeStatus: TypeAlias = Literal["added", "modified", "deleted", "renamed", "type_changed"]
Progress: TypeAlias = Callable[[str], None]
"""Receives one short line while a snapshot takes long."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one file differs between two trees. Binary files count no lines."""

    path: str
    status: ChangeStatus
    insertions: int = 0
    deletions: int = 0
    binary: bool = False
    old_path: str = ""  # of a renamed file


class FilesOfInterest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Patterns (see `model.file_patterns`) of files that a snapshot takes special care of. Files
    that match `include` are stored although they are ignored, and come first among those that are
    left out. Files that match either are compared by content, whatever their times say.
    """

    include: tuple[str, ...] = ()
    verify: tuple[str, ...] = ()


NO_FILES = FilesOfInterest()


class Workspaces(Protocol):
    """Snapshots of workspaces, outside of the workspaces themselves. The user's repository is
    never written to. Errors are `LoopwrightError` with a code and a hint: `git-missing`,
    `workspace-gone`, `no-snapshots` (of a run), `snapshot-missing` (a tree that was deleted).
    """

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
        """Store the files of a workspace as a tree. `previous` and `first` are trees of earlier
        snapshots of the run; the counts of the answer are relative to them.
        """

    async def changes(self, run: str, old: str, new: str) -> Sequence[FileChange]:
        """The files that differ between two trees; an empty id stands for the empty tree."""

    async def diff(
        self, run: str, old: str, new: str, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff between two trees; an empty id stands for the empty tree. `paths` limit
        it and may have wildcards: `tests/**`.
        """

    async def restore(
        self, run: str, tree: str, to: Path, *, expected: str = "", force: bool = False
    ) -> int:
        """Write the files of a tree into a folder and remove files that are in `expected` (the
        last recorded tree of that folder) but not in `tree`; the number of files changed. With
        `expected`, refuses with the code `unrecorded-changes` when the folder differs from it;
        `force` overwrites them. Files that no snapshot has and that are not in the way are kept.
        """

    async def export(self, run: str, tree: str, to: Path) -> None:
        """Write the files of a tree into a folder that is empty or does not exist (otherwise the
        code is `not-empty`).
        """

    async def adopt(self, run: str, parent: str) -> None:
        """Let a run that was forked from another one have its snapshots; without any, nothing
        happens.
        """

    async def forget(self, run: str) -> None:
        """Remove the snapshots of a run; without any, nothing happens."""
