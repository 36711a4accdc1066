"""Tools of a run: requests of agents during their calls, recorded as events before the answer.

A request shares the next append of its run and is answered when that append is durable. A call that
was interrupted by a crash is repeated under the same id and repeats its requests: they are
recognised and not recorded a second time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from loopwright.engine.services import TextServices
from loopwright.kernel.coordination import RefusedToolUse, caller_of, use
from loopwright.kernel.events import (
    AnyEvent,
    CoordinatorFinalized,
    CoordinatorNarrated,
    MessageDelivered,
    MessageDropped,
    MessageSent,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import AgentMessage, QueuedMessage
from loopwright.kernel.state import ANY_AGENT, State
from loopwright.model.ids import logical_path
from loopwright.model.record import JsonValue
from loopwright.ports import Clock, InboxMessage, ToolReply

MOST_USES = 1_000  # of one call
LONGEST_WAIT_S = 600
OVER = ToolReply(text="the call is over", ok=False)


class ToolRun(Protocol):
    """What the tools need from the actor of its run."""

    state: State
    texts: TextServices

    def step(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Use:
    """One use of a tool, until it is answered."""

    effect: str
    tool: str
    arguments: JsonValue
    answer: "asyncio.Future[ToolReply]"
    events: list[AnyEvent] = field(default_factory=list)
    reply: ToolReply | None = None
    repeated: bool = False
    wait_s: float = 0.0
    messages: tuple[InboxMessage, ...] = ()
    end_wait: Callable[[], None] | None = None


class RunTools:
    """The requests of all calls of one run."""

    def __init__(self, run: ToolRun, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self.requested: list[_Use] = []
        self.is_used = False  # whether a call of this run has made a request
        self._unsaved: list[_Use] = []
        self._waiting: list[_Use] = []
        self._before: dict[str, Counter[AgentMessage]] = {}
        self._uses: Counter[str] = Counter()

    def remember(self, effect: str) -> None:
        """A call begins that made requests before the run was interrupted."""
        self.is_used = True
        self._before[effect] = Counter(self._run.state.mail.sent_by[effect])

    def request(self, effect: str, tool: str, arguments: JsonValue) -> Awaitable[ToolReply]:
        answer: asyncio.Future[ToolReply] = asyncio.get_running_loop().create_future()
        self.is_used = True
        self._uses[effect] += 1
        if self._uses[effect] > MOST_USES:
            answer.set_result(ToolReply(text=f"a call may ask {MOST_USES} times", ok=False))
            return answer
        self.requested.append(_Use(effect, tool, arguments, answer, wait_s=_wait(tool, arguments)))
        self._run.step()
        return answer

    def end_waiting(self, effect: str) -> None:
        """Answer the readers of a call for which there is no message."""
        for one in [*self.requested, *self._waiting]:
            if one.effect == effect and one.tool == "read_inbox":
                self._answer(one, ToolReply(text="no message"))
        for one in self._unsaved:
            if one.effect == effect:
                one.wait_s = 0.0

    def forget(self, effect: str) -> None:
        """A call has its answer."""
        if self._uses:
            del self._uses[effect]
        if self._before:
            self._before.pop(effect, None)

    # -- one append --------------------------------------------------------------------------------

    def record(self, batch: list[AnyEvent]) -> None:
        """Fold the requests, before anything else of this append."""
        self._unsaved, self.requested = self.requested, []
        state = self._run.state
        state.now = max(state.now, self._clock.now_ms())
        for one in self._unsaved:
            one.events, one.reply, one.messages = [], None, ()
            self._record(one)
            batch += one.events

    def _record(self, one: _Use) -> None:
        state = self._run.state
        pending = state.pending.get(one.effect)
        if pending is None or state.control.cancel is not None or one.answer.done():
            one.reply = OVER
            return
        caller = caller_of(state, pending)
        if isinstance(caller, RefusedToolUse):
            one.reply = ToolReply(text=caller.why, ok=False)
            return
        found = use(state, caller, one.tool, one.arguments, self._run.texts)
        if isinstance(found, RefusedToolUse):
            one.reply = ToolReply(text=found.why, ok=False)
            return
        for event in found:
            if one.repeated or self._is_repeated(one.effect, event):
                one.repeated = True
                one.reply = ToolReply(text="queued: it was sent before the run was interrupted")
                continue
            one.messages += _delivered_messages(state, event, self._run.texts)
            apply(state, event)
            one.events.append(event)

    def _is_repeated(self, effect: str, event: AnyEvent) -> bool:
        before, message = self._before.get(effect), _sent_message(event)
        if not before or message is None or not before[message]:
            return False
        before[message] -= 1
        return True

    def saved(self, batch: list[AnyEvent]) -> None:
        """The requests are durable: answer them."""
        answered, self._unsaved = self._unsaved, []
        drops = {event.message: event for event in batch if isinstance(event, MessageDropped)}
        for one in answered:
            reply = one.reply or _outcome(one, drops)
            if one.tool == "read_inbox" and reply.ok and not reply.messages and one.wait_s:
                self._wait_for_mail(one)
            else:
                self._answer(one, reply)
        self._look_at_waiting()

    def lost(self) -> None:
        """The append failed: the requests are made again."""
        self.requested, self._unsaved = [*self._unsaved, *self.requested], []

    def refuse(self, why: str) -> bool:
        """The requests can never be stored; returns whether there were any."""
        refused, self.requested = self.requested, []
        for one in refused:
            self._answer(one, ToolReply(text=f"it cannot be kept ({why})", ok=False))
        return bool(refused)

    def close(self) -> None:
        """This process no longer drives the run."""
        for one in [*self.requested, *self._unsaved, *self._waiting]:
            self._answer(one, OVER)
        self.requested, self._unsaved, self._waiting = [], [], []

    # -- waiting for mail --------------------------------------------------------------------------

    def _wait_for_mail(self, one: _Use) -> None:
        milliseconds = int(one.wait_s * 1_000)
        one.end_wait = self._clock.call_after(milliseconds, lambda: self._waited(one))
        self._waiting.append(one)

    def _waited(self, one: _Use) -> None:
        if one in self._waiting:
            self._waiting.remove(one)
            self._answer(one, ToolReply(text="no message"))

    def _look_at_waiting(self) -> None:
        state = self._run.state
        for one in list(self._waiting):
            pending = state.pending.get(one.effect)
            if pending is None or one.answer.done():
                self._waiting.remove(one)
                self._answer(one, OVER)
            elif {logical_path(pending.owner.path), ANY_AGENT} & state.mail.inboxes.keys():
                self._waiting.remove(one)
                self.requested.append(one)

    def _answer(self, one: _Use, reply: ToolReply) -> None:
        if one.end_wait is not None:
            one.end_wait()
            one.end_wait = None
        if not one.answer.done():
            one.answer.set_result(reply)


class CallTools(msgspec.Struct):
    """The requests that one call can make to its run."""

    tools: RunTools
    effect: str

    def use(self, tool: str, arguments: JsonValue) -> Awaitable[ToolReply]:
        return self.tools.request(self.effect, tool, arguments)

    def end_waiting(self) -> None:
        self.tools.end_waiting(self.effect)


def _wait(tool: str, arguments: JsonValue) -> float:
    """How long an agent waits for a message, in seconds."""
    given = arguments.get("wait") if tool == "read_inbox" and isinstance(arguments, dict) else None
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 0.0
    return min(max(given, 0.0), LONGEST_WAIT_S)


def _sent_message(event: AnyEvent) -> AgentMessage | None:
    """An event as the state remembers it for its call."""
    match event:
        case MessageSent():
            return "message", f"{event.intent} {event.to}", event.text
        case CoordinatorNarrated():
            return "narrate", "", event.text
        case CoordinatorFinalized():
            return "finalize", "", event.summary
        case _:
            return None


def _delivered_messages(
    state: State, event: AnyEvent, texts: TextServices
) -> tuple[InboxMessage, ...]:
    """The messages of a delivery, before it is folded."""
    if not isinstance(event, MessageDelivered):
        return ()
    named = set(event.messages)
    waiting: list[QueuedMessage] = state.mail.inboxes.get(event.to, [])
    return tuple(
        InboxMessage(sender=one.sender, text=texts.read(one.text), kind=one.intent)
        for one in waiting
        if one.id in named
    )


def _outcome(one: _Use, drops: dict[str, MessageDropped]) -> ToolReply:
    """The answer to an agent about a recorded request."""
    if one.tool == "read_inbox":
        words = f"{len(one.messages)} messages" if one.messages else "no message"
        return ToolReply(text=words, messages=one.messages)
    for event in one.events:
        if not isinstance(event, MessageSent):
            continue
        dropped = drops.get(event.message)
        if dropped is None:
            return ToolReply(text=f"queued: {event.message} for {event.to}")
        known = f"; there are: {', '.join(dropped.known)}" if dropped.known else ""
        return ToolReply(text=f"dropped: {dropped.reason}: {dropped.detail}{known}", ok=False)
    return ToolReply(text="ok")
