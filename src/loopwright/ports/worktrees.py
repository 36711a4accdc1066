"""The port of worktrees: a checkout of its own for a run, and its way back to the user."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from loopwright.kernel.fact_parts import Worktree

APPLIED: Final = ".applied"
"""The end of the name of a file beside a worktree, which is written when it is applied."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` has written into the user's checkout."""

    files: tuple[str, ...] = ()  # that were changed; none: everything was there already
    outside: tuple[str, ...] = ()  # that the run changed outside of its workspace; not applied


class Worktrees(Protocol):
    """Worktrees of the user's repositories. Errors are `LoopwrightError` with a code and a hint:
    `not-a-repository`, `no-commits`, `merge-conflict`, `uncommitted-changes`, `worktree-gone`.
    """

    async def create(self, run: str, folder: Path) -> tuple[Path, Worktree]:
        """Make a worktree of the repository that a folder lies in, on a new branch; the folder
        that stands for the given one in it.
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

    async def apply(self, worktree: Worktree, workspace: Path) -> Applied:
        """Merge the files of a workspace in a worktree into the checkout it came from, three-way,
        after they were committed on its branch. Refuses and changes nothing when there is a
        conflict or when files that it would write have uncommitted changes.
        """

    async def discard(self, worktree: Worktree) -> None:
        """Remove a worktree and its branch, with everything that was not applied."""
