"""What transports of a client have in common: how runs are followed, and what comes then."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.use_cases.operation import Operation
from loopwright.ports import Delta, NumberedEvent

if TYPE_CHECKING:
    from loopwright.operations.loops.dialect_events import View
    from loopwright.views.progress import Progress, ProgressLine
    from loopwright.views.run_responses import RunSummary

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")

Followed: TypeAlias = dict[str, JsonValue] | Delta
"""An event in the form of its view, or text that an agent has just written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Which events of a run are returned, and until when."""

    after: int = 0  # only events with a greater number
    view: "View" = "events"
    until_end: bool = True  # wait until the run ends or needs a person; False: those now
    text: bool = False  # also text as agents write it
    tail: bool = False  # with `text`: also the end of what the current call has written before
    retry: bool = True  # continue after the last event when a connection was lost


class SeenEvent(NamedTuple):
    """An event of a run and its line. The event is None if this version does not know its kind;
    `record` is the event as a server has sent it.
    """

    numbered: NumberedEvent | None
    line: "ProgressLine | None"
    record: dict[str, JsonValue] | None = None


Fed: TypeAlias = SeenEvent | Delta | str
"""An event, text that an agent has written, or a message about driving the run."""

Keeper: TypeAlias = Literal["server", "next-server", "none"]
"""Who drives a run after the command has ended: the server that drives it, a server of its data
directory in a moment, or no process.
"""


class RunFeed(Protocol):
    """One run that is followed."""

    run: str
    progress: "Progress"  # with the events that were there when the feed was opened

    @property
    def other_driver(self) -> int | None:
        """The process that drives the run, if the feed is not of a run that is driven here."""

    @property
    def keeper(self) -> Keeper:
        """Who drives the run after the command has ended."""

    def follow(self) -> AsyncGenerator[Fed, None]:
        """What comes next, until the run has ended or only a person can advance it. After their
        answer it is called again.
        """

    async def read_summary(self) -> "RunSummary":
        """The run as one object, as it is now."""


class Transport(Protocol):
    """How a client reaches operations."""

    async def call(self, operation: Operation[Q, A], request: Q, key: str = "") -> A:
        """Call an operation. A command that was done under this key before is not repeated."""

    def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        """Events of a run in order."""

    async def open_feed(self, run: str, after: int | None, options: FollowOptions) -> "RunFeed":
        """A run that is followed after an event, or from now on."""

    async def read_health(self) -> object:
        """What a server says about its health, unchecked; None if there is nothing that says it."""

    async def close(self) -> None:
        """End connections and close files."""
