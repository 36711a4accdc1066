"""Ports of storage: small records with an audit log, workspace snapshots, Git worktrees, and the
rows that stores write in the transaction of the events, from which lists and the inbox are shown.

Records are people, tokens and stored definitions. A snapshot stores a folder as a tree, and two
trees can be compared. A worktree is a separate checkout for one run, which can be applied to
the user's checkout. `headline.py` computes the rows from the state of a run.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from loopwright.kernel.event_parts import Snapshot, Worktree
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.model.record import Text

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


RunStatus: TypeAlias = Literal[
    "running", "paused", "waiting", "completed", "exhausted", "failed", "cancelled"
]

OPEN_STATUSES: tuple[RunStatus, ...] = ("running", "paused", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that drives a run: enough to tell a living owner from a dead one's reused pid."""

    pid: int
    start: int
    boot: str
    token: str


class AskedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The tool call that a gate asks about."""

    id: str
    tool: str
    arguments: Text
    held: str = ""


class GateSubject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an open gate is about, besides its message."""

    call: AskedCall | None = None
    snapshot: Snapshot | None = None  # of the workspace as it is decided about


NO_SUBJECT = GateSubject()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGate:
    """A row of the inbox. The subject is None in rows of older versions."""

    gate: str
    run: str
    path: str
    digest: str
    message: str
    opened_at: int
    subject: GateSubject | None = NO_SUBJECT


@dataclass(frozen=True, slots=True)
class ClosedGate:
    """A gate that is no longer open, and the decision if it was answered."""

    gate: str
    run: str
    at: int
    decision: str = ""
    by: str = ""


CHAT_SURFACE: Final = "chat"
"""The surface of a chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The part of a line of a list that seldom changes; written with an append when it has."""

    name: str
    status: RunStatus
    reason: str = ""
    dialect: str = "native"
    workspace: str = ""
    started_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    wake_at: int | None = None
    key: str | None = None  # at most one open run has this key (one loop per assistant)
    session: str = ""  # whose trackers it shares; none: its own
    labels: tuple[str, ...] = ()
    surface: str = ""  # `chat` for a chat


DAY_MS = 24 * 60 * 60 * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What the calls of one agent of a run used on one day (of UTC, counted from the epoch)."""

    run: str
    agent: str
    day: int
    calls: int = 0
    usage: Usage = NO_USAGE


class ListedFigures(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a line of a list that changes with every iteration; written with the events
    that change it.
    """

    iterations: int = 0
    max: int | None = None
    is_called: bool = False  # whether anything was called, so that something can have been spent
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0
    waits_for: str | None = None
    changed: tuple[str, int, int, int] | None = None  # newest tree; files, insertions, deletions


_FIGURES = msgspec.json.Decoder(ListedFigures)


def encode_figures(figures: ListedFigures) -> str:
    """Figures as stores hold them."""
    return msgspec.json.encode(figures).decode()


def decode_figures(text: object) -> ListedFigures | None:
    """The figures of a row; None if it has none that can be read: they are computed again."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return _FIGURES.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


class RunDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What lists show of a run that never changes; written when the run is created."""

    worktree: Worktree | None = None
    titles: dict[str, str] = {}  # of agents whose names only say what kind of agent they are


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """Everything that lists show of a run, and who drives it. Rows of older versions have no
    figures and no details until `EventLog.replace_listing` has stored them.
    """

    run: str
    version: int
    headline: Headline
    owner: Owner | None = None
    figures: ListedFigures | None = None
    details: RunDetails | None = None
    gates: int = 0  # open ones


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListing:
    """Everything that lists show of a run, computed from all its events."""

    version: int  # of the run; a listing of another version is not stored
    headline: Headline
    figures: ListedFigures
    details: RunDetails
    usage: Sequence[UsageRow]
    open_gates: Sequence[OpenGate]
    closed_gates: Sequence[ClosedGate]
