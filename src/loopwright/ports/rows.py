"""Rows that stores write in the transaction of the events: what lists and the inbox show of runs.

`headline.py` computes them from the state of a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from loopwright.kernel.event_parts import Snapshot, Worktree
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.model.record import Text

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
