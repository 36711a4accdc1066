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


def letters(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """What is wrong with the messages of a run."""
    yield from _fates(events, ended=ended)
    yield from _coordinator(events)


def _fates(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    sent: dict[str, MessageSent] = {}
    over: Counter[str] = Counter()
    for event in events:
        if isinstance(event, MessageSent):
            if event.message in sent:
                yield f"message {event.message} is sent twice"
            sent[event.message] = event
        elif isinstance(event, MessageDelivered | MessageDropped):
            named = (event.message,) if isinstance(event, MessageDropped) else event.messages
            over.update(named)
            yield from (f"message {one} ends and was not sent" for one in named if one not in sent)
    yield from (f"message {one} ends {n} times" for one, n in over.items() if n > 1)
    for name, event in sent.items() if ended else ():
        to_a_person = event.intent == "reply" and event.to != COORDINATOR
        if not over[name] and not to_a_person:
            yield f"message {name} is neither delivered nor dropped"


def _coordinator(events: Sequence[AnyEvent]) -> Iterator[str]:
    call, closed = "", False
    for event in events:
        if isinstance(event, EffectRequested) and _is_coordinator(event):
            if call:
                yield f"{event.effect} begins while {call} is under way"
            if closed:
                yield f"{event.effect} begins after the last word"
            call = event.effect
        elif isinstance(event, EffectDone | EffectFailed) and event.effect == call:
            call = ""
        elif isinstance(event, RunReopened):
            closed = False
        elif isinstance(event, CoordinatorFinalized):
            if closed:
                yield "the last word is said twice"
            closed = True


def _is_coordinator(event: EffectRequested) -> bool:
    return isinstance(event.call, AgentCall) and event.call.role == "coordinator"
