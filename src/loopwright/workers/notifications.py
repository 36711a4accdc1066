"""Notifications: what people should know of their runs, stored and sent to connected clients.

The texts depend on the run: loops of assistants and loops of roles use the events and fields of
their own systems; other runs report gates and their end. The five engine events and
`agent:status`, `agent:loop_iteration` and `agent:error` have the names and fields of the system
of assistants. All notifications have one shape.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import GateOpened, RunFinished, RunStarted
from loopwright.model.record import JsonValue
from loopwright.operations.dialects import OF_LOOPS
from loopwright.operations.loops.dialect_events import LoopStory, LoopStoryEvent, is_loop
from loopwright.operations.run_groups import TORN_DOWN
from loopwright.operations.run_tail import EventFeed
from loopwright.operations.runs import Service
from loopwright.operations.use_cases.notifications import (
    Level,
    Notices,
    StoredNotification,
    gate_of,
    notice_id,
)
from loopwright.operations.use_cases.operation import App
from loopwright.ports import EventLog, NumberedEvent
from loopwright.views.certificate import run_certificate
from loopwright.views.event_records import timestamp
from loopwright.views.iterations import change_words
from loopwright.views.role_loops import ENDS, StageMoves
from loopwright.views.summary import final_line_at
from loopwright.workers.background_tasks import BackgroundTask

STATUS = "agent:status"
ITERATION = "agent:loop_iteration"
ERROR = "agent:error"
NOTIFICATION = "notification"
LOOP_TITLE_CHARS = 80
NOTICE_CHARS = 200
OUTPUT_CHARS = 32_000

Event = tuple[str, dict[str, JsonValue]]


def status(agent_id: str, word: str) -> Event:
    return STATUS, {"agentId": agent_id, "status": word}


def error(agent_id: str, text: str, kind: str) -> Event:
    return ERROR, {"agentId": agent_id, "sessionId": "", "error": text, "type": kind}


def told(story: LoopStory, one: LoopStoryEvent) -> Iterator[Event]:
    """What the starter of a loop is sent about something that happened to it."""
    agent_id = story.agent_id
    payload = one.engine_payload()
    if payload is not None:
        yield one.name, {"agentId": agent_id, "run": story.run, **_cut_all(payload)}
    if one.name == "iteration":
        yield iteration(agent_id, one.payload["iteration"], one.payload["maxIterations"])
    elif one.name == "failed":
        yield error(agent_id, str(one.payload["error"]), "PROCESS_ERROR")
    data = notification(story, one)
    if data is not None:
        yield NOTIFICATION, data
    word = _STATUS.get(one.name)
    if word is not None:
        yield status(agent_id, word)


def now(story: LoopStory) -> Iterator[Event]:
    """The state of a loop, for a client that has just connected."""
    yield status(story.agent_id, "paused" if story.status == "paused" else "running")
    if story.learnings:
        yield iteration(story.agent_id, len(story.learnings), story.state()["maxIterations"])
    for gate in story.reviews:
        data = notification(story, story.asked[gate]) if gate in story.asked else None
        if data is not None:
            yield NOTIFICATION, data


def iteration(agent_id: str, number: JsonValue, most: JsonValue) -> Event:
    return ITERATION, {"agentId": agent_id, "iteration": number, "maxIterations": most}


def notification(story: LoopStory, one: LoopStoryEvent) -> dict[str, JsonValue] | None:
    """The notification about something that happened to a loop; the same whether it is sent while
    it happens or kept for people who are not connected.
    """
    torn_down = one.name == "stopped" and one.payload.get("reason") == TORN_DOWN
    if one.name not in _TITLES and not torn_down:
        return None
    kind = "loop.torn_down" if torn_down else f"loop.{one.name}"
    title = torn_down_title(story.plan.name) if torn_down else _TITLES[one.name](one.payload)
    name = notice_id(story.run, one.at, one.seq, one.part)
    is_review = one.name == "manual_approval_required"
    return {
        "id": name,
        "notification": name,
        "kind": kind,
        "level": "critical" if torn_down else _LOOP_LEVELS.get(one.name, "info"),
        "title": title[:NOTICE_CHARS],
        "agentId": story.agent_id,
        "run": story.run,
        "seq": one.seq,
        "at": timestamp(one.at),
        "actions": ["approve", "reject"] if is_review else [],
        **_cut_all(_about(story, one)),
    }


def torn_down_title(name: str) -> str:
    return f"The loop of {name} was stopped because its starter was away"


def _about(story: LoopStory, one: LoopStoryEvent) -> dict[str, JsonValue]:
    """What a notification is about: the payload of the event, the number of the iteration, and for
    progress the output, too.
    """
    number = one.payload.get("totalIterations", story.iteration)
    return {"iteration": number, **one.payload}


def _progress(payload: Mapping[str, JsonValue]) -> str:
    return f"Iteration {payload['iteration']}: {str(payload['learning'])[:LOOP_TITLE_CHARS]}"


def _review(payload: Mapping[str, JsonValue]) -> str:
    return f"Iteration {payload['iteration']} waits for your review"


def _completed(payload: Mapping[str, JsonValue]) -> str:
    count = payload["totalIterations"]
    return f"The loop completed after {count} {'iteration' if count == 1 else 'iterations'}"


_TITLES: Mapping[str, Callable[[Mapping[str, JsonValue]], str]] = {
    "progress": _progress,
    "manual_approval_required": _review,
    "completed": _completed,
    "failed": lambda payload: str(payload["error"]),
}
_LOOP_LEVELS = {"manual_approval_required": "action_required", "failed": "error"}
_STATUS = {
    "started": "running",
    "resumed": "running",
    "paused": "paused",
    "completed": "idle",
    "stopped": "idle",
    "failed": "error",
}


def _cut_all(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Texts as far as they are sent; the run has all of them."""
    cut: dict[str, JsonValue] = {}
    for name, value in data.items():
        if isinstance(value, str) and len(value) > OUTPUT_CHARS:
            cut |= {name: value[:OUTPUT_CHARS], "truncated": True}
        else:
            cut[name] = value
    return cut


AT_ONCE = 2_000
MOST_KEPT = 256
TEXT_CHARS = 2_000
TITLE_CHARS = 200
_LEVELS: dict[str, Level] = {"failed": "error"}
_ENDS = {
    "completed": "is completed",
    "exhausted": "met its limit",
    "failed": "has failed",
    "cancelled": "was ended",
}

Words = tuple[str, Level, str, dict[str, JsonValue]]
"""Kind, level, title and what else there is to say."""


class NoticeSource(Protocol):
    """Says what an event of one run means."""

    def __call__(self, numbered: NumberedEvent) -> Iterator[Words]: ...


class NotificationFeed:
    """Follows runs, and says what is new. Kept for those that moved last."""

    def __init__(self, service: Service, present_since: Callable[[str], int | None]) -> None:
        self._service = service
        self._present_since = present_since
        self._kept: OrderedDict[str, _Following] = OrderedDict()

    def __call__(self, run: str, after: int) -> list[StoredNotification]:
        following = self._kept.pop(run, None) or _Following(self._service, run)
        found = [one for one in following.carry_on() if one.seq > after]
        self._kept[run] = following
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        since = self._present_since(following.to)
        if not following.by_herald or since is None:
            return found
        # Connected clients have already received it.
        return [msgspec.structs.replace(one, told=one.at >= since) for one in found]

    def end_of(self, run: str) -> StoredNotification | None:
        """The notice about the end of a run; None while it has not ended."""
        found = list(_Following(self._service, run).carry_on())
        return found[-1] if found and "certificate" in found[-1].data else None


class _Following:
    """One run up to the event with the number `seen`."""

    def __init__(self, service: Service, run: str) -> None:
        self._log, self.run, self.seen = service.log, run, 0
        self._service = service
        head = service.log.row(run).headline
        first = service.log.read(run, limit=1)[0].event
        assert isinstance(first, RunStarted)
        self.to, self._session = first.by, head.session
        self.by_herald = is_loop(head.dialect, head.key)
        self._say: NoticeSource
        if self.by_herald:
            self._say = _Assistant(LoopStory(service, run))
        elif head.dialect == OF_LOOPS:
            self._say = _Roles(head.name, StageMoves(service.plan(first)))
        else:
            self._say = _Plain(head.name, service.log, run)

    def carry_on(self) -> Iterator[StoredNotification]:
        while events := self._log.read(self.run, after=self.seen, limit=AT_ONCE):
            for numbered in events:
                self.seen = numbered.seq
                for part, said in enumerate(self._say(numbered)):
                    yield self._notice(numbered, part, said)

    def _notice(self, numbered: NumberedEvent, part: int, said: Words) -> StoredNotification:
        (kind, level, title, more), at = said, numbered.event.at
        name = notice_id(self.run, at, numbered.seq, part)
        if isinstance(numbered.event, RunFinished):
            more = {**more, "certificate": certificate_of(self._service, self.run)}
        actions, base = more.get("actions"), dict[str, JsonValue](id=name, notification=name)
        base |= {"kind": kind, "level": level, "title": title[:TITLE_CHARS], "run": self.run}
        base |= {"seq": numbered.seq, "at": timestamp(at), "actions": []}
        return StoredNotification(
            id=name,
            kind=kind,
            level=level,
            title=title[:TITLE_CHARS],
            run=self.run,
            seq=numbered.seq,
            at=at,
            to=self.to,
            session=self._session,
            actions=[str(one) for one in actions] if isinstance(actions, list) else [],
            data=base | more,
        )


def certificate_of(service: Service, run: str) -> dict[str, JsonValue]:
    """What decided a run, without what programs printed."""
    made = run_certificate(service, run)
    short = tuple(msgspec.structs.replace(one, evidence="") for one in made.checks)
    shown: dict[str, JsonValue] = msgspec.json.decode(
        msgspec.json.encode(msgspec.structs.replace(made, checks=short))
    )
    return shown


class _Assistant:
    """The loop of an assistant: exactly what is sent over sockets while it happens."""

    def __init__(self, story: LoopStory) -> None:
        self._story = story

    def __call__(self, numbered: NumberedEvent) -> Iterator[Words]:
        for one in self._story.take(numbered):
            data = notification(self._story, one)
            if data is not None:
                level = msgspec.convert(data["level"], Level)
                yield str(data["kind"]), level, str(data["title"]), _cut(data)


class _Roles:
    """A loop of roles: its stages, what blocks it, its end."""

    def __init__(self, name: str, moves: StageMoves) -> None:
        self._name, self._moves = name, moves

    def __call__(self, numbered: NumberedEvent) -> Iterator[Words]:
        event, move = numbered.event, self._moves.take(numbered)
        if move is not None and move.status in ENDS and not move.kept:
            about: dict[str, JsonValue] = {
                "iteration": move.iteration,
                "stage_index": move.index,
                "role": move.role,
            }
            where = f"Stage {move.index + 1} ({move.role}) of iteration {move.iteration}"
            if move.status == "failed":
                yield "loop.stage_failed", "error", f"{where} has failed: {move.why}", about
            else:
                yield "loop.stage_completed", "info", f"{where} is completed", about
        elif isinstance(event, GateOpened):
            yield _asked("loop.blocked", f"{self._name} is blocked: {event.message}", event)
        elif isinstance(event, RunFinished) and event.reason == TORN_DOWN:
            kind, _, _, about = _ended("loop.torn_down", self._name, event)
            yield kind, "critical", torn_down_title(self._name), about
        elif isinstance(event, RunFinished):
            kind = "completed" if event.outcome == "exhausted" else event.outcome
            yield _ended(f"loop.{kind}", f"The loop {self._name}", event)


class _Plain:
    """Any other run: what waits for a person, and its end."""

    def __init__(self, name: str, log: EventLog, run: str) -> None:
        self._name, self._log, self._run = name, log, run

    def __call__(self, numbered: NumberedEvent) -> Iterator[Words]:
        event = numbered.event
        if isinstance(event, GateOpened):
            yield _asked("gate.opened", f"{self._name} waits for you: {event.message}", event)
        elif isinstance(event, RunFinished) and event.reason == TORN_DOWN:
            kind, _, _, about = _ended("run.torn_down", self._name, event)
            yield kind, "critical", torn_down_title(self._name), about
        elif isinstance(event, RunFinished):
            kind, level, _, about = _ended(f"run.{event.outcome}", self._name, event)
            line = final_line_at(self._log, self._run, numbered.seq, details=True)
            yield kind, level, f"{self._name}: {line}", {**about, "summary": line}


def _asked(kind: str, title: str, event: GateOpened) -> Words:
    answers: list[JsonValue] = list(event.answers)
    about: dict[str, JsonValue] = {"actions": answers, "gate": event.gate}
    if event.snapshot is not None:
        about["changed"] = change_words(event.snapshot)
    return kind, "action_required", title, about


def _ended(kind: str, who: str, event: RunFinished) -> Words:
    level = _LEVELS.get(event.outcome, "info")
    why = event.error.detail if event.error and event.error.detail else event.reason
    about: dict[str, JsonValue] = {"outcome": event.outcome, "reason": event.reason}
    return kind, level, f"{who} {_ENDS[event.outcome]} ({why})", about


def _cut(data: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """What is kept of a notification: long texts are in the run."""
    kept = dict(data)
    for key, one in data.items():
        if isinstance(one, str) and len(one) > TEXT_CHARS:
            kept |= {key: one[:TEXT_CHARS], "truncated": True}
    return kept


OTHERS_S = 1.0  # how often events of other processes are read
TOGETHER_S = 0.2  # events that arrive in this time are handled together
MOST_AT_RETURN = 100
BY_OTHERS = ("loop.torn_down", "run.torn_down", "loop.manual_approval_required")
"""What everybody who connects is sent anyway."""

Send = Callable[[StoredNotification], Awaitable[bool]]
"""Sends a notice to all connections of its person; whether there was any."""


class NotificationWatcher:
    """One for a server."""

    def __init__(self, app: App) -> None:
        service = app.service
        self.notices = Notices(service.log, app.records, service.clock)
        self.present_since: Callable[[str], int | None] = lambda _: None
        self.send: Send | None = None
        self._teller = NotificationFeed(service, lambda who: self.present_since(who))

    async def work(self, feed: EventFeed) -> None:
        """Look and send, for as long as the server lives."""
        work = BackgroundTask("noticing what happened")
        async for _ in feed.changes(TOGETHER_S, OTHERS_S):
            with work.round():
                await self.look()

    async def look(self) -> list[StoredNotification]:
        """What is new since the last time: written down first, then sent."""
        runs = self.notices.moved()
        made = self.notices.notice(runs, self._teller) if runs else []
        await self._sent([one for one in made if not one.told])
        return made

    async def at_return(self, who: str, send: Send) -> None:
        """A client is back: send the notifications that it missed, if they are still current."""
        waiting = self.notices.untold(who, MOST_AT_RETURN)
        with contextlib.suppress(LoopwrightError):
            told = [one for one in waiting if not self._is_new(one) or await send(one)]
            self.notices.mark_sent(told)

    def end_of(self, run: str) -> StoredNotification | None:
        """The notice about the end of a run."""
        return self._teller.end_of(run)

    def _is_new(self, notice: StoredNotification) -> bool:
        """Not what was decided meanwhile, and not what sockets tell by themselves."""
        if notice.kind in BY_OTHERS:
            return False
        return gate_of(notice) is None or self.notices.waits(notice)

    async def _sent(self, notices: list[StoredNotification]) -> None:
        if self.send is not None and notices:
            self.notices.mark_sent([one for one in notices if await self.send(one)])


FORGET_SECONDS = 600.0


@asynccontextmanager
async def living(watcher: NotificationWatcher, feed: EventFeed) -> AsyncIterator[None]:
    """Look at events and delete what is old, as long as the server lives."""
    jobs = [asyncio.ensure_future(watcher.work(feed)), asyncio.ensure_future(_forgetting(watcher))]
    try:
        yield
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _forgetting(watcher: NotificationWatcher) -> None:
    while True:
        with contextlib.suppress(LoopwrightError):
            watcher.notices.forget_old()
        await asyncio.sleep(FORGET_SECONDS)
