"""The port of worktrees: a checkout of its own for a run, and its way back to the user."""

from pathlib import Path
from typing import Protocol

import msgspec

from loopwright.kernel.fact_parts import Worktree


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What `apply` has written into the user's checkout."""

    files: tuple[str, ...] = ()  # that were changed; none: everything was there already


class Worktrees(Protocol):
    """Worktrees of the user's repositories. Errors are `LoopwrightError` with a code and a hint:
    `not-a-repository`, `no-commits`, `merge-conflict`, `uncommitted-changes`, `worktree-gone`.
    """

    async def create(self, run: str, folder: Path) -> tuple[Path, Worktree]:
        """Make a worktree of the repository that a folder lies in, on a new branch; the folder
        that stands for the given one in it.
        """

    async def apply(self, worktree: Worktree) -> Applied:
        """Merge the files of a worktree into the checkout it came from, three-way. Refuses and
        changes nothing when there is a conflict or when files that it would write have
        uncommitted changes.
        """

    async def discard(self, worktree: Worktree) -> None:
        """Remove a worktree and its branch, with everything that was not applied."""
