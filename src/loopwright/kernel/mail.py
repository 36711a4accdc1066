"""Mail: what a run remembers of its messages while somebody may still read them.

An inbox belongs to a step whatever its pass, so what comes too late for one pass is read in the
next. Nothing here points at a frame: places are named by their paths.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.facts import EffectDone, Failure
from loopwright.kernel.reasons import DropReason, Intent
from loopwright.model.record import Text

COORDINATOR = "coordinator"
"""The address of the coordinator, and how it signs."""
PERSON = "person"
ANY_AGENT = "*"
"""The address of whichever agent of the run reads next."""


class Message(msgspec.Struct, frozen=True):
    """A message on its way."""

    id: str
    sender: str
    to: str
    text: Text
    intent: Intent = "info"


class Undeliverable(msgspec.Struct, frozen=True):
    """A message that nobody will read."""

    message: Message
    reason: DropReason
    detail: str = ""
    known: tuple[str, ...] = ()


class Notice(msgspec.Struct, frozen=True):
    """Something that the coordinator is told about."""

    kind: str
    step: str = ""
    words: str = ""
    text: Text | None = None
    message: Message | None = None


Reader: TypeAlias = Literal["agent", "container", "other"]


@dataclass(slots=True)
class Directory:
    """All steps of a plan. An item's number is left open: `each[].deploy`."""

    kinds: dict[str, Reader] = field(default_factory=dict)
    by_last: dict[str, list[str]] = field(default_factory=dict)


Said: TypeAlias = tuple[str, str, Text]
"""What an agent under way has said to its run: the tool, to whom, the text."""


@dataclass(slots=True)
class Mail:
    """Inboxes, what was handed out, and how it stands with the coordinator."""

    active: bool = False  # whether anybody writes or listens in this run
    sent: int = 0
    inboxes: dict[str, list[Message]] = field(default_factory=dict)
    boxes: dict[str, str] = field(default_factory=dict)  # the inbox of a message that waits
    heard: dict[str, list[Message]] = field(default_factory=dict)  # by place, while it is open
    said: dict[str, list[Said]] = field(default_factory=dict)  # by effect, while it is pending
    stopped: dict[str, Message] = field(default_factory=dict)  # places that a message ends
    undeliverable: dict[str, Undeliverable] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)

    # steps that have ended and are called again to answer
    asleep: dict[str, None] = field(default_factory=dict)  # those with something to read
    waking: dict[str, str] = field(default_factory=dict)
    wakes: dict[str, int] = field(default_factory=dict)
    replies: dict[str, EffectDone] = field(default_factory=dict)

    # the coordinator
    notices: list[Notice] = field(default_factory=list)
    shown: list[Notice] = field(default_factory=list)  # in the call that is under way
    woken: bool = False
    call: str | None = None
    calls: int = 0
    failures: int = 0
    answer: EffectDone | None = None
    session: str | None = None
    spoke: bool = False  # whether the call used a tool while it was under way
    trouble: Failure | None = None  # of the last call, before it is made again
    backoff: str | None = None
    closed: bool = False
    summary: Text | None = None
    hold: str | None = None
    held: bool = False
