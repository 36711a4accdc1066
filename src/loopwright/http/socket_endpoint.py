"""The Socket.IO endpoint: connections, commands of clients, and what happens at disconnect.

Commands are a table of events, each with role and shape. An answer is `{"ok": true, …}`, or
`{"ok": false, "error", "type", "code"}`. Errors of loops are also sent as `agent:error`, as in
the system of assistants.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from loopwright.errors import InputError, LoopwrightError
from loopwright.http.clients import admit, identify
from loopwright.http.context import Context
from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Mount, RouteFamily, check_texts
from loopwright.http.responses import RequestRefusal, assistant_refusal, problem_of, without_paths
from loopwright.http.socket_subscribers import (
    MOST_SOCKETS,
    MOST_TAILS,
    ConnectedClient,
    ConnectedClients,
    Herald,
    Tails,
    catch_up,
    tell,
)
from loopwright.http.socket_transport import PATH, ConnectionRefused, SocketServer
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import (
    DENIED,
    Principal,
    Rates,
    Role,
    TooManyRequests,
    acting_as,
)
from loopwright.operations.loops.loop_disconnects import GRACE_MS
from loopwright.operations.problems import ProblemReport, request_problem
from loopwright.operations.use_cases import assistants, run_changes, runs
from loopwright.operations.use_cases import notifications as stored
from loopwright.operations.use_cases.notifications import StoredNotification
from loopwright.operations.use_cases.operation import Caller, Operation, RunReference, WhileDraining
from loopwright.operations.use_cases.run_views import follow
from loopwright.workers import notifications
from loopwright.workers.notifications import NotificationWatcher

Answer = dict[str, JsonValue]
TYPES = {"already-running": "RESOURCE_ERROR", "too-many-requests": "RESOURCE_ERROR"}
POLICY = "POLICY_ERROR"
OTHER = "PROCESS_ERROR"
BAD_EVENT = "bad-event"
MOST_ID = 200

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_ID)]


class SocketMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What an event carries; a field that it does not have is refused."""


class StartLoop(SocketMessage):
    """`loop:start`."""

    agentId: Id
    message: Annotated[str, msgspec.Meta(min_length=1)]
    onDisconnect: Literal["keep", "teardown"] | None = None
    allowUnknownCost: bool = False  # limits in USD need not cover agents of unknown cost


class StopLoop(SocketMessage):
    """`loop:stop`."""

    agentId: Id


class ApproveLoop(SocketMessage):
    """`loop:approve`."""

    agentId: Id
    loopId: Id
    approved: bool
    text: str = ""


class ReadNotifications(SocketMessage):
    """`notifications:read`."""

    ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=200)]


class Subscribe(SocketMessage):
    """`subscribe`: after this number; without one, from a snapshot on."""

    run: Id
    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None


class Unsubscribe(SocketMessage):
    """`unsubscribe`."""

    run: Id


_S = TypeVar("_S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class SocketCommand(Generic[_S]):
    """One row of the table."""

    said: type[_S]
    need: Role
    do: Callable[["SocketCommands", ConnectedClient, _S], Awaitable[Answer]]
    draining: WhileDraining = "serve"  # what happens at a server that is about to stop


class SocketCommands:
    """Takes what clients say."""

    def __init__(
        self, context: Context, clients: ConnectedClients, line: SocketServer, tails: Tails
    ) -> None:
        self._context, self._clients, self._line, self._tails = context, clients, line, tails
        self._app = context.part(app_of)

    async def take(
        self, client: ConnectedClient, event: object, args: tuple[object, ...]
    ) -> Answer:
        """Do what an event asks for; whatever is wrong is in the answer."""
        command = TABLE.get(event) if isinstance(event, str) else None
        try:
            if command is None or len(args) != 1:
                raise _bad("this event is not known here, or has other arguments")
            return {"ok": True, **await self._do(client, str(event), command, args[0])}
        except LoopwrightError as error:
            problem = without_paths(problem_of(error), self._context.private_paths)
            loop = command in LOOPS and not isinstance(error, InputError)
            return await self._refused(client, args, problem, loop=loop)

    async def _do(
        self, client: ConnectedClient, event: str, command: SocketCommand[Any], given: object
    ) -> Answer:
        admit(self._context, client.who, command.need, event)
        try:
            payload = msgspec.convert(given, command.said)
        except msgspec.ValidationError as error:
            if not isinstance(given, dict):
                raise _bad("this event takes an object") from error
            raise request_problem(command.said, given, str(error)) from error
        check_texts(given)
        if command.draining == "refuse":
            self._app.refuse_while_draining()
        with acting_as(client.who.role):
            return await command.do(self, client, payload)

    async def _refused(
        self,
        client: ConnectedClient,
        args: tuple[object, ...],
        problem: ProblemReport,
        *,
        loop: bool,
    ) -> Answer:
        text = assistant_refusal(problem)
        kind = POLICY if problem.detail == DENIED else TYPES.get(problem.code, OTHER)
        if loop and problem.code != BAD_EVENT:
            first = args[0]
            agent_id = str(first.get("agentId", ""))[:MOST_ID] if isinstance(first, dict) else ""
            await tell(self._line, client, *notifications.error(agent_id, text, kind))
        return {"ok": False, "error": text, "type": kind, "code": problem.code}

    # -- loops ---------------------------------------------------------------------------------

    async def start(self, client: ConnectedClient, payload: StartLoop) -> Answer:
        wanted = assistants.StartAssistant(
            agent=payload.agentId,
            message=payload.message,
            on_disconnect=payload.onDisconnect,
            otherwise="teardown",  # the default of this protocol
            allow_unknown_cost=payload.allowUnknownCost,
        )
        started = await assistants.start(self._app, _caller(client), wanted)
        about: Answer = {"agentId": payload.agentId, "status": "started", "run": started.run}
        return {**about, "warnings": [*started.warnings]}

    async def stop(self, client: ConnectedClient, payload: StopLoop) -> Answer:
        reference = assistants.AssistantReference(agent=payload.agentId)
        stopped = await assistants.stop(self._app, _caller(client), reference)
        run = stopped.run
        if self._app.part(assistants.looping_of).story_of(run).owner != client.who.name:
            for one in self._clients.of(client.who.name):
                await tell(self._line, one, *notifications.status(payload.agentId, "idle"))
        return {"agentId": payload.agentId, "status": stopped.stop, "run": run}

    async def approve(self, client: ConnectedClient, payload: ApproveLoop) -> Answer:
        wanted = assistants.ReviewAssistant(
            agent=payload.agentId, loop=payload.loopId, approved=payload.approved, text=payload.text
        )
        shown = await assistants.review(self._app, _caller(client), wanted)
        return {"resolved": True, "run": shown.run}

    async def read(self, client: ConnectedClient, payload: ReadNotifications) -> Answer:
        read = stored.MarkNotificationsRead(ids=payload.ids)
        return {"read": (await stored.read_many(self._app, _caller(client), read)).read}

    # -- runs ----------------------------------------------------------------------------------

    async def resume(self, client: ConnectedClient, payload: runs.ResumeRun) -> Answer:
        run = self._context.service.find(payload.run)  # may be the beginning of an id here
        request = msgspec.structs.replace(payload, run=run)
        resumed = await runs.resume(self._app, _caller(client), request)
        return {"run": resumed.run, "status": "resumed", "message": resumed.message}

    async def subscribe(self, client: ConnectedClient, payload: Subscribe) -> Answer:
        if len(client.tails) >= MOST_TAILS and payload.run not in client.tails:
            raise RequestRefusal(
                429, "too-many-runs", f"one connection follows {MOST_TAILS} runs at most"
            )
        followed = await follow(self._app, _caller(client), RunReference(run=payload.run))
        return await self._tails.subscribe(client, followed, payload.after)

    async def message(self, client: ConnectedClient, payload: run_changes.MessageRun) -> Answer:
        sent = await run_changes.send_message(self._app, _caller(client), payload)
        return {"run": sent.run, "message": sent.message, "to": sent.to, "when": sent.when}

    async def unsubscribe(self, client: ConnectedClient, payload: Unsubscribe) -> Answer:
        return {"run": payload.run, "was": self._tails.unsubscribe(client, payload.run)}


def _caller(client: ConnectedClient) -> Caller:
    return caller_of(client.who, "socket")


def _bad(why: str) -> RequestRefusal:
    return RequestRefusal(400, BAD_EVENT, why[:300])


def _of(
    operation: Operation[Any, Any],
    do: Callable[..., Awaitable[Answer]],
    said: type[msgspec.Struct] | None = None,
) -> SocketCommand[Any]:
    """An event that calls an operation, with its role and behaviour while draining; `said` is the
    type that the event carries where that is not the request of the operation.
    """
    role = operation.role
    if role == "open" or role == "signed":
        raise AssertionError("every connection of a socket has a person")
    return SocketCommand(said or operation.request, role, do, operation.draining)


TABLE: Mapping[str, SocketCommand[Any]] = {
    "loop:start": _of(assistants.start, SocketCommands.start, StartLoop),
    "loop:stop": _of(assistants.stop, SocketCommands.stop, StopLoop),
    "loop:approve": _of(assistants.review, SocketCommands.approve, ApproveLoop),
    "notifications:read": _of(stored.read_many, SocketCommands.read, ReadNotifications),
    "run:resume": _of(runs.resume, SocketCommands.resume),
    "subscribe": SocketCommand(Subscribe, "viewer", SocketCommands.subscribe),
    "run:tell": _of(run_changes.send_message, SocketCommands.message),
    "unsubscribe": SocketCommand(Unsubscribe, "viewer", SocketCommands.unsubscribe),
}
"""All client events, with the least role that may send them."""

LOOPS = [command for event, command in TABLE.items() if event.startswith("loop:")]


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
        self._looping = context.part(app_of).part(assistants.looping_of)
        self.clients = ConnectedClients()
        self.line = SocketServer(self._come, self._go, self._hear)
        self._tails = Tails(context, self.line)
        self._herald = Herald(context, self.clients, self.line)
        self._commands = SocketCommands(context, self.clients, self.line, self._tails)
        self._noticing = context.part(app_of).part(NotificationWatcher)
        self._noticing.present_since = self.clients.since
        self._noticing.send = self._notify
        self._rates = Rates(context.clock, context.serving.limits.requests_per_second)
        self._tasks: set[asyncio.Future[None]] = set()

    # -- coming and going ----------------------------------------------------------------------

    async def _come(self, sid: str, request: HTTPConnection, auth: object) -> None:
        if self._context.closing.is_set():
            raise ConnectionRefused("the server is about to stop", "draining")
        try:
            who = self._identified(request, auth)
        except LoopwrightError as error:
            raise ConnectionRefused(error.message, error.code) from error
        if self.clients.behind(who.root) >= MOST_SOCKETS:  # whichever of their tokens they use
            raise ConnectionRefused(
                f"one person has at most {MOST_SOCKETS} sockets", "too-many-sockets"
            )
        client = ConnectedClient(sid=sid, who=who, since=self._context.clock.now_ms())
        self.clients.add(client)
        asyncio.get_running_loop().call_soon(self._soon, self._send_welcome(client))

    def _identified(self, request: HTTPConnection, auth: object) -> Principal:
        """By the token of the handshake; else by what the request itself carries."""
        token = auth.get("token") if isinstance(auth, dict) else None
        if isinstance(token, str) and token:
            return self._context.access.by_token(token)
        return identify(self._context, request)

    def _soon(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_welcome(self, client: ConnectedClient) -> None:
        """Notify a client about its loops that ended while it was disconnected."""
        with contextlib.suppress(LoopwrightError):
            disconnect_timers, name = self._looping.disconnect_timers, client.who.name
            for one in disconnect_timers.came_back(name):
                with contextlib.suppress(LoopwrightError):  # deleted meanwhile
                    ended = self._noticing.end_of(one.run)
                    if ended is not None:
                        await self._notify_one(client, ended)
            await self._herald.greet(client, disconnect_timers.held(name))
            await self._noticing.at_return(name, lambda one: self._notify_one(client, one))

    async def _notify(self, notice: StoredNotification) -> bool:
        """Send a notice to every connection of its person."""
        sent = [await self._notify_one(one, notice) for one in self.clients.of(notice.to)]
        return any(sent)

    async def _notify_one(self, client: ConnectedClient, notice: StoredNotification) -> bool:
        return await tell(self.line, client, notifications.NOTIFICATION, notice.data)

    async def _go(self, sid: str) -> None:
        client = self.clients.remove(sid)
        if client is None:
            return
        self._tails.let_go(client)
        name = client.who.name
        if self.clients.present(name):
            return
        self._herald.forget(name)
        closing = self._context.closing.is_set()  # they did not leave, we did: give them time
        with contextlib.suppress(LoopwrightError):
            due = self._looping.disconnect_timers.left(name, at_least_ms=GRACE_MS if closing else 0)
            if due and self._looping.disconnect_timers.rules.grace_ms == 0 and not closing:
                await self._looping.disconnect_timers.tear_down(self.clients.present)

    async def _hear(
        self, sid: str, event: object, args: tuple[object, ...]
    ) -> Mapping[str, JsonValue]:
        client = self.clients.get(sid)
        if client is None or not self._context.people.still(client.who):
            self._soon(self._end_after(sid))
            return GOODBYE
        try:
            self._rates.count(sid)
        except TooManyRequests as refusal:
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
        """The background tasks."""
        limits = self._context.serving.limits
        jobs = [
            asyncio.ensure_future(job)
            for job in (
                self._herald.work(),
                _again(self._tear_down, TEAR_DOWN_S),
                _again(self._shut_out, limits.recheck_seconds),
                _again(self.line.sweep, SWEEP_S),
                self._send_goodbye(),
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
        await self._looping.disconnect_timers.tear_down(self.clients.present)

    async def _shut_out(self) -> None:
        """Close the connections of people who may not come in any more."""
        for client in self.clients.all():
            client.refused = 0
            await catch_up(self.line, client)
            if not self._context.people.still(client.who):
                await self.line.end(client.sid)

    async def _send_goodbye(self) -> None:
        """When the server is about to stop, no client delays it."""
        await self._context.closing.wait()
        for client in self.clients.all():
            await self.line.end(client.sid)


async def _again(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        with contextlib.suppress(LoopwrightError):  # the disk may come back
            await work()


def _make(context: Context) -> ASGIApp:
    return context.part(Sockets).line.app()


def _living(context: Context) -> AbstractAsyncContextManager[None]:
    return context.part(Sockets).living()


FAMILY = RouteFamily(
    name="sockets",
    prefix=PATH,
    mounts=(Mount(path=PATH, make=_make),),
    living=_living,
)
