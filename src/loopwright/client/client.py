"""`Client`: call operations and follow runs at one address, and the client for each address.

An address is this process, the server of the same data directory, or a remote server. The same
call has the same response and raises the same errors at each of them.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from loopwright.client.transport import Followed, FollowOptions, Transport
from loopwright.errors import Unreachable
from loopwright.operations.api_types import Request
from loopwright.operations.use_cases.operation import Operation, PageRequest
from loopwright.ports import Delta

if TYPE_CHECKING:
    from loopwright.client.servers import Account
    from loopwright.client.transport import RunFeed
    from loopwright.operations.settings import Settings
    from loopwright.views.run_responses import InboxGate

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


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

    async def open_feed(
        self, run: str, after: int | None = None, options: FollowOptions | None = None
    ) -> "RunFeed":
        """A run with its progress, to be followed after an event, or from now on. A run that this
        process drives is followed from then on, also before its feed is read.
        """
        return await self._transport.open_feed(run, after, options or FollowOptions())

    async def read_health(self) -> object:
        """What the server says about its health, unchecked; None for this process, and for a server
        of an older version.
        """
        return await self._transport.read_health()

    async def find_run(self, reference: str) -> str:
        """The id of a run: a whole id, the beginning or end of one, or `last`."""
        from loopwright.operations.use_cases.lists import ListRuns, list_runs  # noqa: PLC0415 - starts need less

        page = await self.call(list_runs, ListRuns(match=reference))
        return page.runs[0].run

    async def find_gate(self, reference: str) -> str:
        """The id of an open gate: its id, the beginning of one, or a run that waits at this gate
        only.
        """
        from loopwright.operations.use_cases.lists import ListGates, list_open  # noqa: PLC0415 - the same

        page = await self.call(list_open, ListGates(match=reference))
        return page.gates[0].id

    async def open_gates(self) -> "list[InboxGate]":
        """All open gates, oldest first."""
        from loopwright.operations.use_cases.lists import ListGates, list_open  # noqa: PLC0415 - the same

        found: list[InboxGate] = []
        cursor: str | None = None
        while True:
            page = await self.call(list_open, ListGates(cursor=cursor))
            found += page.gates
            cursor = page.next
            if cursor is None:
                return found


# -- addresses -------------------------------------------------------------------------------------


class PageOfEntries(Protocol):
    """A page of a list, with the cursor of the page after it."""

    next: str | None


E = TypeVar("E")
P = TypeVar("P", bound=PageOfEntries)


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """Operations run in this process, on the data directory of these settings. With `drives`, runs
    can be driven here or, unless it is `alone`, by the local server.
    """

    settings: "Settings"
    drives: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class LocalServer:
    """The server of the data directory of these settings, over its Unix socket. If it ends, the
    client continues in this process.
    """

    settings: "Settings"


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server by its URL; without a token the stored one is used. With an account, the client is
    signed in with it from the first call until it is closed.
    """

    url: str
    token: str | None = None
    account: "Account | None" = None


Address: TypeAlias = ThisProcess | LocalServer | RemoteServer


def has_local_server(settings: "Settings") -> bool:
    """Whether the data directory has a server that this process may use. A process that belongs to
    a run may not: the server refuses it.
    """
    from loopwright.operations.accounts.access import find_caller  # noqa: PLC0415 - when it is asked for
    from loopwright.operations.data_directory import lock_holder  # noqa: PLC0415 - the same

    held = lock_holder(settings.home)
    return held is not None and held.has_line and bool(held.pid) and find_caller() is None


def open_client(
    address: Address,
    *,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Client:
    """A client for an address; its connections are made and its files opened when needed. `say`
    gets messages about the connection, `warn` those about damaged data.
    """
    if isinstance(address, ThisProcess):
        from loopwright.client.in_process import InProcess  # noqa: PLC0415 - the others need less

        return Client(
            InProcess(
                address.settings, drives=address.drives, alone=address.alone, say=say, warn=warn
            )
        )
    from loopwright.client.http_connection import LocalSocket  # noqa: PLC0415 - for servers only
    from loopwright.client.http_transport import HttpTransport  # noqa: PLC0415 - the same

    if isinstance(address, LocalServer):
        server = HttpTransport(LocalSocket(address.settings.home), say=say)
        return Client(_LocalFirst(server, address.settings, say))
    from loopwright.client.servers import parse_address, token_for  # noqa: PLC0415 - the same

    found = parse_address(address.url)
    if address.account is not None:
        return Client(HttpTransport(found, account=address.account, say=say))
    token = token_for(found.url) if address.token is None else address.token
    return Client(HttpTransport(found, token=token, say=say))


class _LocalFirst:
    """Calls the local server. When it does not answer any more, this process continues: a command
    is repeated with its key, so that it is done once.
    """

    def __init__(self, server: Transport, settings: "Settings", say: Callable[[str], None]) -> None:
        self._server = server
        self._settings = settings
        self._say = say
        self._here: Transport | None = None

    async def call(self, operation: Operation[Q, A], request: Q, key: str = "") -> A:
        key = key or secrets.token_hex(16) if operation.kind == "command" else ""
        if self._here is None:
            try:
                return await self._server.call(operation, request, key)
            except Unreachable:
                self._continue_here()
        assert self._here is not None
        return await self._here.call(operation, request, key)

    async def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        last = options.after
        if self._here is None:
            try:
                async for one in self._server.follow(run, replace(options, retry=False)):
                    last = last if isinstance(one, Delta) else int(str(one.get("seq", last)))
                    yield one
            except Unreachable:
                self._continue_here()
            else:
                return
        assert self._here is not None
        async for one in self._here.follow(run, replace(options, after=last, tail=False)):
            yield one

    async def open_feed(self, run: str, after: int | None, options: FollowOptions) -> "RunFeed":
        if self._here is None:
            return await self._server.open_feed(run, after, options)
        return await self._here.open_feed(run, after, options)

    async def read_health(self) -> object:
        return await (self._here or self._server).read_health()

    def _continue_here(self) -> None:
        from loopwright.client.in_process import InProcess  # noqa: PLC0415 - only then

        self._say("the local server does not answer; continuing in this process")
        self._here = InProcess(self._settings, drives=True, say=self._say)

    async def close(self) -> None:
        await self._server.close()
        if self._here is not None:
            await self._here.close()


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

    def call_all(self, operation: Operation[Q, A], requests: Sequence[Q]) -> list[A]:
        """The responses to several requests, which are sent at once. The first error is raised when
        all of them have ended.
        """

        async def gather() -> list[A]:
            calls = (self._client.call(operation, one) for one in requests)
            found = await asyncio.gather(*calls, return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            return [one for one in found if not isinstance(one, BaseException)]

        return self._runner.run(gather())

    def find_run(self, reference: str) -> str:
        """The id of a run: a whole id, the beginning or end of one, or `last`."""
        return self._runner.run(self._client.find_run(reference))

    def open_gates(self) -> "list[InboxGate]":
        """All open gates, oldest first."""
        return self._runner.run(self._client.open_gates())

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
