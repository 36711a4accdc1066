"""What clients may say: a table of events, each with its role and its shape, each with an answer.

An answer is `{"ok": true, …}`, or `{"ok": false, "error", "type", "code"}`. What goes wrong with a
loop is sent as `agent:error` too, as the assistants' own system does.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from loopwright.app.access import DENIED, Role
from loopwright.app.controlling import resume_run
from loopwright.app.messaging import tell as tell_agents
from loopwright.app.preparing import choices
from loopwright.app.problems import Problem
from loopwright.app.reopening import Changes
from loopwright.app.run_admission import acting_as
from loopwright.app.run_variables import RunEnv, env_choices
from loopwright.app.worktree_runs import start_warnings
from loopwright.errors import LoopwrightError
from loopwright.model.actions import MAX_PASSES
from loopwright.model.record import JsonValue
from loopwright.server import words
from loopwright.server.context import Context
from loopwright.server.looping import Looping
from loopwright.server.noticing import Noticing
from loopwright.server.refusals import Refusal, assistant_refusal, problem_of, without_paths
from loopwright.server.roles import admit
from loopwright.server.sockets.clients import Client, Clients, tell
from loopwright.server.sockets.line import Line
from loopwright.server.sockets.tails import MOST_TAILS, Tails
from loopwright.server.texts import check_texts

Answer = dict[str, JsonValue]
TYPES = {"already-running": "RESOURCE_ERROR", "too-many-requests": "RESOURCE_ERROR"}
POLICY = "POLICY_ERROR"
OTHER = "PROCESS_ERROR"
BAD_EVENT = "bad-event"
MOST_ID = 200

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_ID)]


class Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What an event carries; a field that it does not have is refused."""


class StartLoop(Said):
    """`loop:start`."""

    agentId: Id
    message: Annotated[str, msgspec.Meta(min_length=1)]
    onDisconnect: Literal["keep", "teardown"] | None = None
    allowUnknownCost: bool = False  # limits in USD need not cover agents of unknown cost


class StopLoop(Said):
    """`loop:stop`."""

    agentId: Id


class ResumeRun(Said):
    """`run:resume`: the options of the command `resume`."""

    run: Id
    agent: str | None = None
    agents: dict[str, str] = {}
    budget: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSES)] | None = None
    time: str | None = None
    restart: bool = False
    allow_unknown_cost: bool = False
    accept_changes: bool = False
    env: RunEnv = {}


class ApproveLoop(Said):
    """`loop:approve`."""

    agentId: Id
    loopId: Id
    approved: bool
    text: str = ""


class ReadNotifications(Said):
    """`notifications:read`."""

    ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=200)]


class Subscribe(Said):
    """`subscribe`: after this number; without one, from a snapshot on."""

    run: Id
    after: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] | None = None


class TellRun(Said):
    """`run:tell`: a message to the agents of a run, or to the agent of one step."""

    run: Id
    text: str
    to: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Unsubscribe(Said):
    """`unsubscribe`."""

    run: Id


_S = TypeVar("_S", bound=Said)


@dataclass(frozen=True, slots=True)
class Command(Generic[_S]):
    """One row of the table."""

    said: type[_S]
    need: Role
    do: Callable[["Commands", Client, _S], Awaitable[Answer]]


class Commands:
    """Takes what clients say."""

    def __init__(self, context: Context, clients: Clients, line: Line, tails: Tails) -> None:
        self._context, self._clients, self._line, self._tails = context, clients, line, tails
        self._looping = context.part(Looping)

    async def take(self, client: Client, event: object, args: tuple[object, ...]) -> Answer:
        """Do what an event asks for; whatever is wrong is in the answer."""
        command = TABLE.get(event) if isinstance(event, str) else None
        try:
            if command is None or len(args) != 1:
                raise _bad("this event is not known here, or has other arguments")
            return {"ok": True, **await self._do(client, str(event), command, args[0])}
        except LoopwrightError as error:
            problem = without_paths(problem_of(error), self._context.private_paths)
            return await self._refused(client, args, problem, loop=command in LOOPS)

    async def _do(self, client: Client, event: str, command: Command[Any], given: object) -> Answer:
        admit(self._context, client.who, command.need, event)
        try:
            said = msgspec.convert(given, command.said)
        except msgspec.ValidationError as error:
            raise _bad(str(error)) from error
        check_texts(given)
        with acting_as(client.who.role):
            return await command.do(self, client, said)

    async def _refused(
        self, client: Client, args: tuple[object, ...], problem: Problem, *, loop: bool
    ) -> Answer:
        text = assistant_refusal(problem)
        kind = POLICY if problem.detail == DENIED else TYPES.get(problem.code, OTHER)
        if loop and problem.code != BAD_EVENT:
            first = args[0]
            agent_id = str(first.get("agentId", ""))[:MOST_ID] if isinstance(first, dict) else ""
            await tell(self._line, client, *words.error(agent_id, text, kind))
        return {"ok": False, "error": text, "type": kind, "code": problem.code}

    # -- loops ---------------------------------------------------------------------------------

    async def start(self, client: Client, said: StartLoop) -> Answer:
        if self._context.closing.is_set():
            raise Refusal(503, "draining", "the server is about to stop")
        run = await self._looping.start(
            said.agentId,
            said.message,
            by=client.who.name,
            parting=said.onDisconnect,
            otherwise="teardown",  # the default of this protocol
            allow_unknown_cost=said.allowUnknownCost,
        )
        warnings: list[JsonValue] = [
            *self._looping.warnings(said.agentId),
            *start_warnings(self._context.service, run),
        ]
        return {"agentId": said.agentId, "status": "started", "run": run, "warnings": warnings}

    async def stop(self, client: Client, said: StopLoop) -> Answer:
        self._looping.known(said.agentId)
        run, word = await self._looping.stop(said.agentId, by=client.who.name)
        if self._looping.story_of(run).owner != client.who.name:
            for one in self._clients.of(client.who.name):
                await tell(self._line, one, *words.status(said.agentId, "idle"))
        return {"agentId": said.agentId, "status": word, "run": run}

    async def approve(self, client: Client, said: ApproveLoop) -> Answer:
        self._looping.known(said.agentId)
        run = await self._looping.assistants.review(
            said.agentId,
            said.loopId,
            approved=said.approved,
            by=client.who.name,
            text=said.text,
        )
        return {"resolved": True, "run": run}

    async def read(self, client: Client, said: ReadNotifications) -> Answer:
        notices = self._context.part(Noticing).notices
        return {"read": notices.read(said.ids, client.who.name)}

    # -- runs ----------------------------------------------------------------------------------

    async def resume(self, client: Client, said: ResumeRun) -> Answer:
        if self._context.closing.is_set():
            raise Refusal(503, "draining", "the server is about to stop")
        changes = Changes(
            agents=choices(said.agent, said.agents),
            budget=said.budget,
            passes=said.max,
            time=said.time,
            restart=said.restart,
            allow_unknown_cost=said.allow_unknown_cost,
            accept_changes=said.accept_changes,
            env=env_choices(said.env),
        )
        one = await resume_run(self._context.here, said.run, changes, by=client.who.name)
        return {"run": one.run, "status": "resumed", "message": one.words}

    async def subscribe(self, client: Client, said: Subscribe) -> Answer:
        if len(client.tails) >= MOST_TAILS and said.run not in client.tails:
            raise Refusal(429, "too-many-runs", f"one connection follows {MOST_TAILS} runs at most")
        return await self._tails.subscribe(client, said.run, said.after)

    async def tell_run(self, client: Client, said: TellRun) -> Answer:
        run = self._context.here.log.row(said.run).run
        sent = await tell_agents(
            self._context.service, run, said.text, to=said.to, by=client.who.name
        )
        return {**sent._asdict()}

    async def unsubscribe(self, client: Client, said: Unsubscribe) -> Answer:
        return {"run": said.run, "was": self._tails.unsubscribe(client, said.run)}


def _bad(why: str) -> Refusal:
    return Refusal(400, BAD_EVENT, why[:300])


TABLE: Mapping[str, Command[Any]] = {
    "loop:start": Command(StartLoop, "editor", Commands.start),
    "loop:stop": Command(StopLoop, "editor", Commands.stop),
    "loop:approve": Command(ApproveLoop, "editor", Commands.approve),
    "notifications:read": Command(ReadNotifications, "viewer", Commands.read),
    "run:resume": Command(ResumeRun, "editor", Commands.resume),
    "subscribe": Command(Subscribe, "viewer", Commands.subscribe),
    "run:tell": Command(TellRun, "editor", Commands.tell_run),
    "unsubscribe": Command(Unsubscribe, "viewer", Commands.unsubscribe),
}
"""Everything that may be said, with the least role that may say it."""

LOOPS = [command for event, command in TABLE.items() if event.startswith("loop:")]
