"""Ports of storage: small records with an audit log, workspace snapshots, and Git worktrees.

Records are people, tokens and stored definitions. A snapshot stores a folder as a tree, and two
trees can be compared. A worktree is a separate checkout for one run, which can be applied to
the user's checkout.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from loopwright.kernel.event_parts import Snapshot, Worktree

PICTURE = "picture"
"""The kind of records that show a run by its id; they are forgotten with it."""

OF_A_RUN = (PICTURE, "notice-seen", "webhook-seen")
"""Every kind of records whose key is a run and which are forgotten with it."""

NOTICE, NOTICE_HEAD = "notice", 29
"""The kind of notification records of a run, which are deleted with it; the key has this many
characters before the id of the run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """Who did what, on which interface; written in the same transaction as the action, or not at
    all.
    """

    at: int
    who: str
    action: str
    subject: str = ""
    via: str = ""
    detail: str = ""
    request: str = ""  # the key under which the request may be repeated
    id: int = 0  # given by the store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A small record beside the runs: a person, a token, a stored definition. `version` counts its
    changes from 1; `owner` is the record that it belongs to, `due` a time for ordered lists.
    """

    kind: str
    key: str
    body: bytes
    version: int = 0
    owner: str = ""
    due: int | None = None


class RecordStore(Protocol):
    """Small records with optimistic versions. A change is one transaction, with its audit rows."""

    def record(self, kind: str, key: str) -> StoredRecord | None:
        """A record, or None."""

    def records(
        self,
        kind: str,
        *,
        owner: str | None = None,
        due_by: int | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[StoredRecord]:
        """Records of a kind in the order of their keys; with `due_by` those that are due, oldest
        first.
        """

    def change(
        self,
        puts: Sequence[tuple[StoredRecord, int | None]] = (),
        drops: Sequence[tuple[str, str]] = (),
        audit: Sequence[AuditRow] = (),
    ) -> None:
        """Write and remove records, all or nothing. With each put goes the version that the record
        must have now (0: it must not exist, None: any); else VersionConflict.
        """

    def audited(
        self,
        *,
        before: int | None = None,
        subject: str = "",
        request: str = "",
        limit: int = 100,
    ) -> list[AuditRow]:
        """Audit rows, newest first; those about a subject, or of one request."""


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
        """The files that differ between two trees; an empty id is the empty tree."""

    async def diff(
        self, run: str, old: str, new: str, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff between two trees; an empty id is the empty tree. `paths` limit it and may
        have wildcards: `tests/**`.
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


APPLIED: Final = ".applied"
"""The end of the name of a file beside a worktree, which is written when it is applied."""


class AppliedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that `apply` has written into the user's checkout."""

    files: tuple[str, ...] = ()  # that were changed; none: everything was there already
    outside: tuple[str, ...] = ()  # that the run changed outside of its workspace; not applied


class Worktrees(Protocol):
    """Worktrees of the user's repositories. Errors are `LoopwrightError` with a code and a hint:
    `not-a-repository`, `no-commits`, `merge-conflict`, `uncommitted-changes`, `worktree-gone`.
    """

    async def create(self, run: str, folder: Path) -> tuple[Path, Worktree]:
        """Create a worktree of the repository that contains a folder, on a new branch; returns the
        corresponding folder in it.
        """

    async def committed(self, folder: Path, paths: Sequence[str]) -> Collection[str] | None:
        """Those of some paths, relative to a folder, that a worktree made from its repository now
        would have; None if the folder is not in a repository or nothing is committed.
        """

    async def copy(
        self, run: str, worktree: Worktree, workspace: Path, *, fresh: bool
    ) -> tuple[Path, Worktree]:
        """Make a worktree for a fork of a run that works in a `workspace` of one: `fresh` from the
        commit that the run started from, else with the files as they are now.
        """

    async def save(self, worktree: Worktree) -> None:
        """Commit the files of a worktree on its branch, so that Git can merge it."""

    async def unapplied(self, worktree: Worktree, workspace: Path) -> Sequence[str]:
        """The files that would be lost with a worktree."""

    async def apply(self, worktree: Worktree, workspace: Path) -> AppliedChanges:
        """Merge the files of a workspace in a worktree into the checkout it came from, three-way,
        after they were committed on its branch. Refuses and changes nothing when there is a
        conflict or when files that it would write have uncommitted changes.
        """

    async def discard(self, worktree: Worktree) -> None:
        """Remove a worktree and its branch, with everything that was not applied."""
