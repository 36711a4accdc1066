"""`Client`: call operations and follow runs at one address.

An address is this process, the server of the same data directory, or a remote server. The same
call has the same response and raises the same errors at each of them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.use_cases.lists import ListGates, ListRuns, list_open, list_runs
from loopwright.operations.use_cases.operation import Operation
from loopwright.ports import Delta

if TYPE_CHECKING:
    from loopwright.operations.loops.dialect_events import View
    from loopwright.views.run_responses import InboxGate

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


class Transport(Protocol):
    """How a client reaches operations."""

    async def call(self, operation: Operation[Q, A], request: Q, key: str = "") -> A:
        """Call an operation. A command that was done under this key before is not repeated."""

    def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        """Events of a run in order."""

    async def read_health(self) -> object:
        """What a server says about its health, unchecked; None if there is nothing that says it."""

    async def close(self) -> None:
        """End connections and close files."""


class Client:
    """Calls operations and follows runs through a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def call(self, operation: Operation[Q, A], request: Q) -> A:
        """The response of an operation. Raises the errors of the operation; over HTTP also
        `Unreachable` and `ServerFailed`.
        """
        return await self._transport.call(operation, request)

    def follow(self, run: str, options: FollowOptions | None = None) -> AsyncIterator[Followed]:
        """Events of a run in order, by its whole id."""
        return self._transport.follow(run, options or FollowOptions())

    async def read_health(self) -> object:
        """What the server says about its health, unchecked; None for this process, and for a server
        of an older version.
        """
        return await self._transport.read_health()

    async def find_run(self, reference: str) -> str:
        """The id of a run: a whole id, the beginning or end of one, or `last`."""
        page = await self.call(list_runs, ListRuns(match=reference))
        return page.runs[0].run

    async def find_gate(self, reference: str) -> str:
        """The id of an open gate: its id, the beginning of one, or a run that waits at this gate
        only.
        """
        page = await self.call(list_open, ListGates(match=reference))
        return page.gates[0].id

    async def open_gates(self) -> "list[InboxGate]":
        """All open gates, oldest first."""
        found: list[InboxGate] = []
        cursor: str | None = None
        while True:
            page = await self.call(list_open, ListGates(cursor=cursor))
            found += page.gates
            cursor = page.next
            if cursor is None:
                return found
