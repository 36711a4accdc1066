"""The laws of messages: each is sent once and has one end.

The coordinator has at most one call at a time.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import (
    AnyEvent,
    CoordinatorFinalized,
    EffectDone,
    EffectFailed,
    EffectRequested,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunReopened,
)
from loopwright.kernel.state import COORDINATOR


def letters(facts: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """What is wrong with the messages of a run."""
    yield from _fates(facts, ended=ended)
    yield from _coordinator(facts)


def _fates(facts: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    sent: dict[str, MessageSent] = {}
    over: Counter[str] = Counter()
    for fact in facts:
        if isinstance(fact, MessageSent):
            if fact.message in sent:
                yield f"message {fact.message} is sent twice"
            sent[fact.message] = fact
        elif isinstance(fact, MessageDelivered | MessageDropped):
            named = (fact.message,) if isinstance(fact, MessageDropped) else fact.messages
            over.update(named)
            yield from (f"message {one} ends and was not sent" for one in named if one not in sent)
    yield from (f"message {one} ends {n} times" for one, n in over.items() if n > 1)
    for name, fact in sent.items() if ended else ():
        to_a_person = fact.intent == "reply" and fact.to != COORDINATOR
        if not over[name] and not to_a_person:
            yield f"message {name} is neither delivered nor dropped"


def _coordinator(facts: Sequence[AnyEvent]) -> Iterator[str]:
    call, closed = "", False
    for fact in facts:
        if isinstance(fact, EffectRequested) and _is_coordinator(fact):
            if call:
                yield f"{fact.effect} begins while {call} is under way"
            if closed:
                yield f"{fact.effect} begins after the last word"
            call = fact.effect
        elif isinstance(fact, EffectDone | EffectFailed) and fact.effect == call:
            call = ""
        elif isinstance(fact, RunReopened):
            closed = False
        elif isinstance(fact, CoordinatorFinalized):
            if closed:
                yield "the last word is said twice"
            closed = True


def _is_coordinator(fact: EffectRequested) -> bool:
    return isinstance(fact.call, AgentCall) and fact.call.role == "coordinator"
