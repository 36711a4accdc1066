"""Turns of a chat model, in words: what it said, and which tools it wants with what."""

import msgspec

from loopwright.app.views.summary import ReadText
from loopwright.kernel.calls import CallNote
from loopwright.kernel.facts import HistoryCompressed, TurnTaken
from loopwright.kernel.frames import CycleBody, PassOwner, has_turns
from loopwright.kernel.state import State
from loopwright.model.record import JsonValue

SAID_CHARS = 200
ARGUMENT_CHARS = 60


def is_turn(state: State, path: str) -> bool:
    """Whether a place is a turn of an agent's conversation, and no pass that an author wrote."""
    owner = state.owners.get(path)
    return isinstance(owner, PassOwner) and has_turns(owner.parent)


def turn_words(state: State, fact: TurnTaken, read: ReadText) -> str:
    """One line for a turn: its words, cut, and its calls."""
    owner = state.owners.get(fact.path)
    body = owner.body if owner is not None else None
    answer = body.answer if isinstance(body, CycleBody) else None
    said = " ".join(read(answer.output).split()) if answer is not None else ""
    calls = ", ".join(call_words(note, read) for note in fact.calls if note.id)
    parts = [_cut(said, SAID_CHARS), f"[{calls}]" if calls else ""]
    return " ".join(part for part in parts if part)


def call_words(note: CallNote, read: ReadText) -> str:
    """A call: the tool, and the argument that tells most about it."""
    if note.problem:
        return f"{note.tool} (cannot be run: {_cut(note.problem, ARGUMENT_CHARS)})"
    held = " (held)" if note.held else ""
    return f"{note.tool}{_telling(read(note.arguments))}{held}"


def _telling(arguments: str) -> str:
    try:
        value: JsonValue = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return ""
    if not isinstance(value, dict):
        return ""
    first = next((value[name] for name in ("path", "argv", "pattern") if name in value), None)
    if isinstance(first, list):
        first = " ".join(str(one) for one in first)
    return f" {_cut(str(first), ARGUMENT_CHARS)}" if first else ""


def compressed_words(fact: HistoryCompressed) -> str:
    """What was done to a conversation that became too long."""
    parts = []
    if fact.dropped:
        how = "summed up" if fact.summary is not None else "dropped"
        parts.append(f"{fact.dropped} old entries {how}")
    if fact.trimmed:
        parts.append(f"long results of {len(fact.trimmed)} turns cut")
    note = f" ({fact.note})" if fact.note else ""
    return f"the conversation was made shorter: {', '.join(parts) or 'nothing to drop'}{note}"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
