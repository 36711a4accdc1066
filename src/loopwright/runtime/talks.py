"""Talks: what agents under way ask of their run, made facts while their calls go on.

What an agent asks shares the next append of its run, and it is answered when that is durable. A
call that a crash has cut short is made again under the same id and says what it said before: that
is recognised, and not recorded a second time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from loopwright.kernel.facts import (
    AnyFact,
    CoordinatorFinalized,
    CoordinatorNarrated,
    MessageDelivered,
    MessageDropped,
    MessageSent,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.mail import ANY_AGENT, Message, Said
from loopwright.kernel.state import Pending, State
from loopwright.kernel.tools import Refused, caller_of, use
from loopwright.model.ids import logical_path
from loopwright.model.record import JsonValue
from loopwright.ports import Clock, Letter, Told
from loopwright.runtime.senses import Texts

MOST_USES = 1_000  # of one call
LONGEST_WAIT_S = 600
OVER = Told(text="the call is over", ok=False)


class Run(Protocol):
    """What a talk needs from the actor of its run."""

    state: State
    texts: Texts

    def step(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Use:
    """One use of a tool, until it is answered."""

    effect: str
    tool: str
    arguments: JsonValue
    answer: "asyncio.Future[Told]"
    facts: list[AnyFact] = field(default_factory=list)
    told: Told | None = None
    repeated: bool = False
    wait_s: float = 0.0
    letters: tuple[Letter, ...] = ()
    end_wait: Callable[[], None] | None = None


class Talks:
    """The talks of one run."""

    def __init__(self, run: Run, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self.asked: list[_Use] = []
        self._unsaved: list[_Use] = []
        self._waiting: list[_Use] = []
        self._before: dict[str, Counter[Said]] = {}
        self._uses: Counter[str] = Counter()

    def open(self, pending: Pending) -> "Talk":
        """The talk of a call that begins now."""
        said = self._run.state.mail.said.get(pending.effect)
        if said:
            self._before[pending.effect] = Counter(said)
        return Talk(self, pending.effect)

    def ask(self, effect: str, tool: str, arguments: JsonValue) -> Awaitable[Told]:
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._uses[effect] += 1
        if self._uses[effect] > MOST_USES:
            answer.set_result(Told(text=f"a call may ask {MOST_USES} times", ok=False))
            return answer
        self.asked.append(_Use(effect, tool, arguments, answer, wait_s=_wait(tool, arguments)))
        self._run.step()
        return answer

    def end_waiting(self, effect: str) -> None:
        """Answer the readers of a call to whom nothing is being delivered."""
        for one in [*self.asked, *self._waiting]:
            if one.effect == effect and one.tool == "read_inbox":
                self._answer(one, Told(text="no message"))
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

    def take(self, batch: list[AnyFact]) -> None:
        """Fold what was asked, before anything else of this append."""
        self._unsaved, self.asked = self.asked, []
        state = self._run.state
        state.now = max(state.now, self._clock.now_ms())
        for one in self._unsaved:
            one.facts, one.told, one.letters = [], None, ()
            self._take(one)
            batch += one.facts

    def _take(self, one: _Use) -> None:
        state = self._run.state
        pending = state.pending.get(one.effect)
        if pending is None or state.cancel is not None or one.answer.done():
            one.told = OVER
            return
        caller = caller_of(state, pending)
        if isinstance(caller, Refused):
            one.told = Told(text=caller.why, ok=False)
            return
        found = use(state, caller, one.tool, one.arguments, self._run.texts)
        if isinstance(found, Refused):
            one.told = Told(text=found.why, ok=False)
            return
        for fact in found:
            if one.repeated or self._is_repeated(one.effect, fact):
                one.repeated = True
                one.told = Told(text="queued: it was sent before the run was interrupted")
                continue
            one.letters += _letters(state, fact, self._run.texts)
            apply(state, fact)
            one.facts.append(fact)

    def _is_repeated(self, effect: str, fact: AnyFact) -> bool:
        before, said = self._before.get(effect), _said(fact)
        if not before or said is None or not before[said]:
            return False
        before[said] -= 1
        return True

    def saved(self, batch: list[AnyFact]) -> None:
        """What was asked is durable: answer it."""
        if not self._unsaved and not self._waiting:
            return
        answered, self._unsaved = self._unsaved, []
        drops = {fact.message: fact for fact in batch if isinstance(fact, MessageDropped)}
        for one in answered:
            told = one.told or _outcome(one, drops)
            if one.tool == "read_inbox" and told.ok and not told.messages and one.wait_s:
                self._wait_for_mail(one)
            else:
                self._answer(one, told)
        self._look_at_waiting()

    def lost(self) -> None:
        """The append did not work: all of it is asked again."""
        self.asked, self._unsaved = [*self._unsaved, *self.asked], []

    def refuse(self, why: str) -> bool:
        """What was asked can never be stored; answers whether anything was."""
        refused, self.asked = self.asked, []
        for one in refused:
            self._answer(one, Told(text=f"it cannot be kept ({why})", ok=False))
        return bool(refused)

    def close(self) -> None:
        """The run is no longer driven here."""
        for one in [*self.asked, *self._unsaved, *self._waiting]:
            self._answer(one, OVER)
        self.asked, self._unsaved, self._waiting = [], [], []

    # -- waiting for mail --------------------------------------------------------------------------

    def _wait_for_mail(self, one: _Use) -> None:
        milliseconds = int(one.wait_s * 1_000)
        one.end_wait = self._clock.call_after(milliseconds, lambda: self._waited(one))
        self._waiting.append(one)

    def _waited(self, one: _Use) -> None:
        if one in self._waiting:
            self._waiting.remove(one)
            self._answer(one, Told(text="no message"))

    def _look_at_waiting(self) -> None:
        state = self._run.state
        for one in list(self._waiting):
            pending = state.pending.get(one.effect)
            if pending is None or one.answer.done():
                self._waiting.remove(one)
                self._answer(one, OVER)
            elif {logical_path(pending.owner.path), ANY_AGENT} & state.mail.inboxes.keys():
                self._waiting.remove(one)
                self.asked.append(one)

    def _answer(self, one: _Use, told: Told) -> None:
        if one.end_wait is not None:
            one.end_wait()
            one.end_wait = None
        if not one.answer.done():
            one.answer.set_result(told)


class Talk:
    """What one call may ask of its run."""

    __slots__ = ("_effect", "_talks")

    def __init__(self, talks: Talks, effect: str) -> None:
        self._talks = talks
        self._effect = effect

    def use(self, tool: str, arguments: JsonValue) -> Awaitable[Told]:
        return self._talks.ask(self._effect, tool, arguments)

    def end_waiting(self) -> None:
        self._talks.end_waiting(self._effect)


def _wait(tool: str, arguments: JsonValue) -> float:
    """How long an agent is willing to wait for a message, in seconds."""
    given = arguments.get("wait") if tool == "read_inbox" and isinstance(arguments, dict) else None
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 0.0
    return min(max(given, 0.0), LONGEST_WAIT_S)


def _said(fact: AnyFact) -> Said | None:
    """A fact as the state remembers it of its call."""
    match fact:
        case MessageSent():
            return "message", f"{fact.intent} {fact.to}", fact.text
        case CoordinatorNarrated():
            return "narrate", "", fact.text
        case CoordinatorFinalized():
            return "finalize", "", fact.summary
        case _:
            return None


def _letters(state: State, fact: AnyFact, texts: Texts) -> tuple[Letter, ...]:
    """The messages that a delivery hands over, before it is folded."""
    if not isinstance(fact, MessageDelivered):
        return ()
    named = set(fact.messages)
    waiting: list[Message] = state.mail.inboxes.get(fact.to, [])
    return tuple(
        Letter(sender=one.sender, text=texts.read(one.text), kind=one.intent)
        for one in waiting
        if one.id in named
    )


def _outcome(one: _Use, drops: dict[str, MessageDropped]) -> Told:
    """What an agent is told about a use that is recorded."""
    if one.tool == "read_inbox":
        words = f"{len(one.letters)} messages" if one.letters else "no message"
        return Told(text=words, messages=one.letters)
    for fact in one.facts:
        if not isinstance(fact, MessageSent):
            continue
        dropped = drops.get(fact.message)
        if dropped is None:
            return Told(text=f"queued: {fact.message} for {fact.to}")
        known = f"; there are: {', '.join(dropped.known)}" if dropped.known else ""
        return Told(text=f"dropped: {dropped.reason}: {dropped.detail}{known}", ok=False)
    return Told(text="ok")
