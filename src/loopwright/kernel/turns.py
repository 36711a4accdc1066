"""Folding a turn of a chat model: what was asked for, what came of it, what a person decided."""

import msgspec

from loopwright.kernel.calls import ToolCall
from loopwright.kernel.cycles import ACCEPTED, ONCE, SUBMIT, rejected, turned_away
from loopwright.kernel.facts import (
    EffectDone,
    EffectFailed,
    GateAnswered,
    HistoryCompressed,
    TurnTaken,
)
from loopwright.kernel.frames import CycleBody, Entry, PassOwner, RepeatBody, ToolSaid
from loopwright.kernel.histories import shortened
from loopwright.kernel.state import Pending, State
from loopwright.kernel.threads import keep_talk
from loopwright.kernel.trying import waited
from loopwright.model.actions import Cycle
from loopwright.model.record import Text

NOT_APPROVED = "a person did not approve it"
_CYCLE = ("model", "summary", "backoff")


def _is_tool(purpose: str) -> bool:
    return purpose.startswith("tool")


def concerns(pending: Pending) -> bool:
    """Whether a request is one of a turn itself, and not of a limit or a check around it."""
    return pending.purpose in _CYCLE or _is_tool(pending.purpose)


def requested(body: CycleBody, pending: Pending) -> None:
    """Note what is under way for a turn."""
    if _is_tool(pending.purpose):
        number = int(pending.purpose[4:])
        body.asked[number], body.runs[number] = pending.effect, pending.attempt
        return
    body.pending = pending.effect
    if pending.purpose == "model":
        body.attempt = pending.attempt
    elif pending.purpose == "summary":
        body.summaries = pending.attempt


def answered(body: CycleBody, pending: Pending, fact: EffectDone | EffectFailed) -> None:
    """Note what came of it."""
    if _is_tool(pending.purpose):
        number = int(pending.purpose[4:])
        body.said[number] = _said(pending, fact)
        if isinstance(fact, EffectFailed) and fact.error.type == "cancelled":
            body.withdrawn.add(number)
        return
    body.pending = None
    if pending.purpose == "backoff":
        waited(body, pending.attempt, fact.at)
    elif pending.purpose == "summary":
        body.summary = fact
    elif isinstance(fact, EffectFailed):
        body.failure = fact
    else:
        body.answer = fact
        _count(body, fact)


def _said(pending: Pending, fact: EffectDone | EffectFailed) -> ToolSaid:
    assert isinstance(pending.call, ToolCall)
    error = isinstance(fact, EffectFailed)
    text: Text = fact.output
    if isinstance(fact, EffectFailed) and not text:
        text = msgspec.json.encode({"error": fact.error.detail or fact.error.type}).decode()
    call, tool = pending.call.call, pending.call.tool
    return ToolSaid(id=call, tool=tool, text=text, error=error, code=fact.code)


def _count(body: CycleBody, fact: EffectDone) -> None:
    """What the provider counted for the conversation up to and with this turn."""
    owner = body.owner
    if isinstance(owner, PassOwner) and fact.usage is not None and fact.usage.input_tokens:
        owner.parent.counted = fact.usage.input_tokens + fact.usage.output_tokens
        owner.parent.counted_entries = len(owner.parent.history) + 1


def decided(state: State, body: CycleBody, number: int, fact: GateAnswered) -> None:
    """A person has decided about one call of a turn. An approval runs it, and nothing else does."""
    assert body.turn is not None
    note = body.turn.calls[number - 1]
    if fact.decision != "approve":
        body.said[number] = rejected(note, fact.text or NOT_APPROVED, fact.by)
        return
    body.approved[number] = note.arguments if fact.arguments is None else fact.arguments
    if fact.remember:
        state.remembered.add(note.tool)


def granted(repeat: RepeatBody, text: str) -> None:
    """A person lets a loop go on beyond its cap; what they say belongs to the conversation."""
    if text and isinstance(repeat.action.body, Cycle):
        repeat.history.append(Entry(kind="user", text=text))


def turn_taken(state: State, fact: TurnTaken) -> None:
    owner = state.owners[fact.path]
    body = owner.body
    assert isinstance(body, CycleBody)
    body.turn = fact
    for number, note in enumerate(fact.calls, start=1):
        if note.problem:
            body.said[number] = turned_away(note)
        elif note.tool == SUBMIT and body.submitted is None:
            body.submitted = note.arguments
            body.said[number] = ToolSaid(id=note.id, tool=note.tool, text=ACCEPTED)
        elif note.tool == SUBMIT:
            body.said[number] = ToolSaid(id=note.id, tool=note.tool, text=ONCE, error=True)
    state.touch(owner)


def history_compressed(state: State, fact: HistoryCompressed) -> None:
    owner = state.owners[fact.path]
    body = owner.body
    assert isinstance(body, CycleBody)
    assert isinstance(owner, PassOwner)
    repeat = owner.parent
    repeat.history = shortened(repeat.history, fact.dropped, fact.trimmed)
    repeat.carried = max(0, repeat.carried - fact.dropped)
    if fact.summary is not None:
        repeat.history.insert(0, Entry(kind="summary", text=fact.summary))
        repeat.carried += repeat.carried > 0
    repeat.summaries += body.summary is not None
    repeat.counted = 0  # the provider has not seen it like this
    body.shortened, body.summary = True, None
    if body.failure is not None and body.failure.error.type == "overflow":
        body.overflowed, body.failure = True, None
    state.touch(owner)


def remember_turn(repeat: RepeatBody, body: CycleBody, *, done: bool) -> None:
    """The turn and its results enter the conversation; a turn that asked for nothing and did not
    end the loop is answered, so that the model does not wait for somebody to speak.
    """
    if body.answer is None or body.turn is None:
        return
    repeat.turns = repeat.finished
    if body.answer.result is not None and (body.answer.output or body.turn.calls):
        repeat.history.append(Entry(kind="model", text=body.answer.result))
    # A result without an id was the text of the turn: the model waits for no result of a call.
    said = tuple(body.said[number] for number in sorted(body.said) if body.said[number].id)
    if said:
        repeat.history.append(Entry(kind="tools", said=said))
    elif not done and body.action.nudge:
        repeat.history.append(Entry(kind="user", text=body.action.nudge))
    if repeat.feedback:
        repeat.history.append(Entry(kind="user", text=repeat.feedback))
    keep_talk(repeat)
