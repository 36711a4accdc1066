"""The folders of a server that editors may choose workspaces in.

The folders are those of the setting `workspaces`, or without it the folder in which the server was
started, and those that admins have added. Links are resolved when a folder is approved: a link
that is put in its place later approves nothing else.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from loopwright.app.access import Access, digest
from loopwright.errors import Conflict, LoopwrightError, NotFound, VersionConflict
from loopwright.ports import Card

CARD = "workspace"
MOST_ROOTS = 1_000
MOST_PATH_CHARS = 4_096
NO_DEFAULT = "{folder} cannot be the folder for workspaces of editors: {why}"

Source: TypeAlias = Literal["settings", "server", "admin"]


class WorkspaceRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that editors may choose workspaces in; `path` has no links."""

    path: str
    source: Source = "admin"
    by: str = ""  # who approved it
    approved_at: int = 0


class WorkspaceRoots:
    """The approved folders of a data directory. `served` is the folder that a server was started
    in; `named` are those of its settings.
    """

    def __init__(
        self, access: Access, home: Path, *, named: Sequence[Path] = (), served: Path | None = None
    ) -> None:
        self._access = access
        self._cards = access.cards
        self.problem = ""  # why the folder of the server is not one of them
        self._fixed = [WorkspaceRoot(path=_real(one), source="settings") for one in named]
        if served is not None and not named:
            folder = _real(served)
            why = _why_not_implied(Path(folder), Path(_real(home)))
            if why:
                self.problem = NO_DEFAULT.format(folder=folder, why=why)
            else:
                self._fixed = [WorkspaceRoot(path=folder, source="server")]

    def all(self) -> list[WorkspaceRoot]:
        """Every approved folder by its path."""
        found = {one.path: one for one in self._added()}
        found |= {one.path: one for one in self._fixed}
        return [found[path] for path in sorted(found)]

    def contains(self, folder: Path) -> bool:
        """Whether a folder without links lies in an approved one, or is one."""
        return any(folder.is_relative_to(one.path) for one in self.all())

    def add(self, path: str, *, by: str) -> WorkspaceRoot:
        """Approve a folder."""
        named = Path(path[:MOST_PATH_CHARS]).expanduser()
        if not named.is_absolute():
            raise LoopwrightError(
                f"{path[:200]!a} is not a whole path",
                code="bad-workspace",
                hint="write the path of a folder of the server, beginning with /",
            )
        if not named.is_dir():
            raise NotFound(f"{named} is not a folder", code="no-workspace", hint="create it first")
        known = self.all()
        real = _real(named)
        if any(one.path == real for one in known):
            raise Conflict(f"{real} is approved already", code="name-taken")
        if len(known) >= MOST_ROOTS:
            raise Conflict(f"there are {MOST_ROOTS:,} folders already", code="too-many")
        made = WorkspaceRoot(path=real, by=by, approved_at=self._access.clock.now_ms())
        card = Card(kind=CARD, key=digest(real), body=msgspec.json.encode(made))
        row = self._access.row(by, "workspace.added", real, "")
        try:
            self._cards.change([(card, 0)], audit=[row])
        except VersionConflict as conflict:
            raise Conflict(f"{real} is approved already", code="name-taken") from conflict
        return made

    def remove(self, path: str, *, by: str) -> str:
        """Take a folder off the list; its path. Runs that work in it continue."""
        wanted = {path, _real(Path(path).expanduser())}
        found = next((one for one in self.all() if one.path in wanted), None)
        if found is None:
            raise NotFound(
                f"{path[:200]!a} is not an approved folder",
                hint="`loopwright workspace ls` shows the approved folders",
            )
        if found.source != "admin":
            where = "the setting `workspaces`" if found.source == "settings" else "the server"
            raise Conflict(
                f"{found.path} is approved by {where}, not by the list",
                code="not-on-list",
                hint="set `workspaces` in the settings of the server to other folders",
            )
        row = self._access.row(by, "workspace.removed", found.path, "")
        self._cards.change(drops=[(CARD, digest(found.path))], audit=[row])
        return found.path

    def _added(self) -> Iterator[WorkspaceRoot]:
        for card in self._cards.cards(CARD):
            yield msgspec.json.decode(card.body, type=WorkspaceRoot)


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _why_not_implied(folder: Path, home: Path) -> str:
    """Why a folder is approved only if somebody names it; empty if it is approved by itself. Links
    are resolved.
    """
    person = Path(_real(Path(os.path.expanduser("~"))))
    if folder == Path(os.sep):
        return "it is the root folder"
    if folder == person:
        return "it is the home directory of the server's user"
    if person.is_relative_to(folder):
        return "the home directory of the server's user is in it"
    if folder.is_relative_to(home):
        return "it is in the data directory"
    return ""
