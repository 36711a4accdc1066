"""Which address a command uses, and the client for it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from loopwright.client.client import Client, Followed, FollowOptions
from loopwright.operations.run_request import Request
from loopwright.operations.use_cases.operation import Operation, PageRequest

if TYPE_CHECKING:
    from loopwright.operations.settings import Settings


class PageOfEntries(Protocol):
    """A page of a list, with the cursor of the page after it."""

    next: str | None


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
E = TypeVar("E")
P = TypeVar("P", bound=PageOfEntries)


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """Operations run in this process, on the data directory of these settings."""

    settings: "Settings"


@dataclass(frozen=True, slots=True)
class LocalServer:
    """The server of the data directory of these settings, over its Unix socket."""

    settings: "Settings"


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server by its URL; without a token the stored one is used."""

    url: str
    token: str | None = None


Address: TypeAlias = ThisProcess | LocalServer | RemoteServer


def has_local_server(settings: "Settings") -> bool:
    """Whether the data directory has a server that this process may use. A process that belongs to
    a run may not: the server refuses it.
    """
    from loopwright.operations.child_runs import find_caller  # noqa: PLC0415 - when it is asked for
    from loopwright.operations.data_directory import lock_holder  # noqa: PLC0415 - the same

    held = lock_holder(settings.home)
    return held is not None and held.has_line and bool(held.pid) and find_caller() is None


def open_client(address: Address, say: Callable[[str], None] = lambda _: None) -> Client:
    """A client for an address; its connections are made and its files opened when needed."""
    if isinstance(address, ThisProcess):
        from loopwright.client.in_process import InProcess  # noqa: PLC0415 - the others need less

        return Client(InProcess(address.settings))
    from loopwright.client.http_connection import LocalSocket  # noqa: PLC0415 - for servers only
    from loopwright.client.http_transport import HttpTransport  # noqa: PLC0415 - the same

    if isinstance(address, LocalServer):
        return Client(HttpTransport(LocalSocket(address.settings.home), say=say))
    from loopwright.client.servers import parse_address, token_for  # noqa: PLC0415 - the same

    found = parse_address(address.url)
    token = token_for(found.url) if address.token is None else address.token
    return Client(HttpTransport(found, token=token, say=say))


class CommandClient:
    """A client for code that is not asynchronous: each call waits for its response."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __enter__(self) -> "CommandClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self._client.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def call(self, operation: Operation[Q, A], request: Q) -> A:
        """The response of an operation."""
        return self._runner.run(self._client.call(operation, request))

    def call_pages(
        self, operation: Operation[PageRequest, P], entries: Callable[[P], Sequence[E]]
    ) -> list[E]:
        """The entries of all pages of a list."""
        found: list[E] = []
        cursor: str | None = None
        while True:
            page = self.call(operation, PageRequest(cursor=cursor))
            found += entries(page)
            cursor = page.next
            if cursor is None:
                return found

    def find_run(self, reference: str) -> str:
        """The id of a run: a whole id, the beginning or end of one, or `last`."""
        return self._runner.run(self._client.find_run(reference))

    def find_gate(self, reference: str) -> str:
        """The id of an open gate, by its id, the beginning of one, or its run."""
        return self._runner.run(self._client.find_gate(reference))

    def follow(self, run: str, options: FollowOptions | None = None) -> Iterator[Followed]:
        """Events of a run in order."""
        events = aiter(self._client.follow(run, options))

        async def upcoming() -> Followed | None:
            return await anext(events, None)

        while (one := self._runner.run(upcoming())) is not None:
            yield one
