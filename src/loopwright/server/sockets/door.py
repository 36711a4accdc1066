"""The door for sockets: who is let in, and what happens when they leave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.requests import HTTPConnection

from loopwright.app.access import Who
from loopwright.app.leaving import GRACE_MS
from loopwright.errors import LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.server import words
from loopwright.server.context import Context
from loopwright.server.identity import identify
from loopwright.server.looping import Looping
from loopwright.server.notices import Notice
from loopwright.server.noticing import Noticing
from loopwright.server.rates import Rates
from loopwright.server.refusals import Refusal
from loopwright.server.sockets.clients import MOST_SOCKETS, Client, Clients, catch_up, tell
from loopwright.server.sockets.commands import Commands
from loopwright.server.sockets.herald import Herald
from loopwright.server.sockets.line import Line, Refused
from loopwright.server.sockets.tails import Tails

TEAR_DOWN_S = 1.0
SWEEP_S = 5.0
LAST_WORDS_S = 0.05
MOST_REFUSED = 200  # events beyond the rate, before a connection is closed
GOODBYE: Mapping[str, JsonValue] = {
    "ok": False,
    "error": "you are not connected",
    "type": "POLICY_ERROR",
    "code": "gone",
}


class Sockets:
    """One for a server."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._looping = context.part(Looping)
        self.clients = Clients()
        self.line = Line(self._come, self._go, self._hear)
        self._tails = Tails(context, self.line)
        self._herald = Herald(context, self.clients, self.line)
        self._commands = Commands(context, self.clients, self.line, self._tails)
        self._noticing = context.part(Noticing)
        self._noticing.present_since = self.clients.since
        self._noticing.send = self._notify
        self._rates = Rates(context.clock, context.serving.limits.requests_per_second)
        self._deaf: Callable[[], None] | None = None
        self._tasks: set[asyncio.Future[None]] = set()

    # -- coming and going ----------------------------------------------------------------------

    async def _come(self, sid: str, request: HTTPConnection, auth: object) -> None:
        if self._context.closing.is_set():
            raise Refused("the server is about to stop", "draining")
        try:
            who = self._identified(request, auth)
        except LoopwrightError as error:
            raise Refused(error.message, error.code) from error
        if self.clients.behind(who.root) >= MOST_SOCKETS:  # whichever of their tokens they use
            raise Refused(f"one person has at most {MOST_SOCKETS} sockets", "too-many-sockets")
        client = Client(sid=sid, who=who, since=self._context.clock.now_ms())
        self.clients.add(client)
        if self._deaf is None:
            self._deaf = self._context.feed.hear(self._herald.moved)
        asyncio.get_running_loop().call_soon(self._soon, self._greet(client))

    def _identified(self, request: HTTPConnection, auth: object) -> Who:
        """By the token of the handshake; else by what the request itself carries."""
        token = auth.get("token") if isinstance(auth, dict) else None
        if isinstance(token, str) and token:
            return self._context.access.by_token(token)
        return identify(self._context, request)

    def _soon(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, client: Client) -> None:
        """Tell somebody what became of their loops while they were away."""
        with contextlib.suppress(LoopwrightError):
            leaving, name = self._looping.leaving, client.who.name
            for one in leaving.came_back(name):
                with contextlib.suppress(LoopwrightError):  # deleted meanwhile
                    ended = self._noticing.end_of(one.run)
                    if ended is not None:
                        await self._notify_one(client, ended)
            await self._herald.greet(client, leaving.held(name))
            await self._noticing.at_return(name, lambda one: self._notify_one(client, one))

    async def _notify(self, notice: Notice) -> bool:
        """Send a notice to every connection of its person."""
        told = [await self._notify_one(one, notice) for one in self.clients.of(notice.to)]
        return any(told)

    async def _notify_one(self, client: Client, notice: Notice) -> bool:
        return await tell(self.line, client, words.NOTIFICATION, notice.data)

    async def _go(self, sid: str) -> None:
        client = self.clients.remove(sid)
        if client is None:
            return
        self._tails.let_go(client)
        name = client.who.name
        if self.clients.present(name):
            return
        self._herald.forget(name)
        if not self.clients.all() and self._deaf is not None:
            self._deaf()
            self._deaf = None
        closing = self._context.closing.is_set()  # they did not leave, we did: give them time
        with contextlib.suppress(LoopwrightError):
            due = self._looping.leaving.left(name, at_least_ms=GRACE_MS if closing else 0)
            if due and self._looping.leaving.rules.grace_ms == 0 and not closing:
                await self._looping.leaving.tear_down(self.clients.present)

    async def _hear(
        self, sid: str, event: object, args: tuple[object, ...]
    ) -> Mapping[str, JsonValue]:
        client = self.clients.get(sid)
        if client is None or not self._context.people.still(client.who):
            self._soon(self._end_after(sid))
            return GOODBYE
        try:
            self._rates.count(sid)
        except Refusal as refusal:
            client.refused += 1
            if client.refused >= MOST_REFUSED:
                self._soon(self._end_after(sid))
            return {
                "ok": False,
                "error": refusal.message,
                "type": "RESOURCE_ERROR",
                "code": refusal.code,
            }
        return await self._commands.take(client, event, args)

    async def _end_after(self, sid: str) -> None:
        """End a connection when its last answer has gone out."""
        await asyncio.sleep(LAST_WORDS_S)
        await self.line.end(sid)

    # -- meanwhile -----------------------------------------------------------------------------

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Everything that goes on beside the requests."""
        limits = self._context.serving.limits
        jobs = [
            asyncio.ensure_future(job)
            for job in (
                self._herald.work(),
                _again(self._tear_down, TEAR_DOWN_S),
                _again(self._shut_out, limits.recheck_seconds),
                _again(self.line.sweep, SWEEP_S),
                self._say_goodbye(),
            )
        ]
        try:
            yield
        finally:
            for job in [*jobs, *self._tasks]:
                job.cancel()
            await asyncio.gather(*jobs, *self._tasks, return_exceptions=True)
            await self.line.close()

    async def _tear_down(self) -> None:
        await self._looping.leaving.tear_down(self.clients.present)

    async def _shut_out(self) -> None:
        """Close the connections of people who may not come in any more."""
        for client in self.clients.all():
            client.refused = 0
            await catch_up(self.line, client)
            if not self._context.people.still(client.who):
                await self.line.end(client.sid)

    async def _say_goodbye(self) -> None:
        """When the server is about to stop nobody keeps it waiting."""
        await self._context.closing.wait()
        for client in self.clients.all():
            await self.line.end(client.sid)


async def _again(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        with contextlib.suppress(LoopwrightError):  # the disk may come back
            await work()
