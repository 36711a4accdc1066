"""The history of a conversation: its size, how it is shortened, and how iterations continue it.

Nothing is lost when a history is shortened: the log has every turn and every result. The task
is not an entry, so it cannot be cut, and a turn is never separated from the results of its
calls.

An agent with a thread continues from iteration to iteration. A coding agent keeps its session
itself, and the loop keeps the session's name. A chat model keeps nothing, so the loop keeps the
conversation: the next one in the same step begins with its entries, followed by the new task.
"""

from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.frames import (
    HistoryEntry,
    RepeatBody,
    ToolAnswer,
)
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import Blob, Text

CHARS_PER_TOKEN = 4
ENTRY_CHARS = 32  # what a wire adds around an entry
TRIMMED_CHARS = 400
TRIM_ABOVE = 2_000
KEPT_TURNS = 2
LEAST_SHARE = 4  # a count below a quarter of the estimate is not believed
MOST_TIMES = 8  # nor one above eight times the estimate, with space for tools and formatting
UNSEEN_TOKENS = 32_000

Strategy: TypeAlias = Literal["trim", "rolling-window", "periodic-summary"]


class HistoryCut(msgspec.Struct, frozen=True):
    """How a conversation is made shorter: so many entries at its beginning go, and the results in
    these of the remaining ones are cut to their heads.
    """

    dropped: int
    trimmed: tuple[int, ...]


def size_of(text: Text) -> int:
    """Characters of a text, or its bytes where only these are known."""
    return text.size if isinstance(text, Blob) else len(text)


def tokens_of(repeat: RepeatBody, task_chars: int = 0) -> int:
    """How much of the window is used: what the provider counted last with what came since, or an
    estimate where it counted nothing or a number that cannot be right. Some local servers report
    only the tokens that their cache did not have, others those of all calls together.
    """
    counted, entries = repeat.talk.counted, repeat.talk.counted_entries
    since = _tokens(sum(map(_chars, repeat.talk.history[entries:])))
    estimate = _tokens(sum(map(_chars, repeat.talk.history[:entries])) + task_chars)
    is_plausible = estimate // LEAST_SHARE <= counted <= estimate * MOST_TIMES + UNSEEN_TOKENS
    return since + (counted if counted and is_plausible else estimate)


def is_too_long(repeat: RepeatBody, memory: ConversationHistory, task_chars: int = 0) -> bool:
    """Whether the conversation fills as much of the window as it may."""
    most = int(memory.at * memory.window)
    return bool(repeat.talk.history) and tokens_of(repeat, task_chars) >= most


def cut(
    repeat: RepeatBody, memory: ConversationHistory, *, keep_middle: bool, task_chars: int = 0
) -> HistoryCut:
    """The least that makes the conversation fit: first long results, if they may be trimmed before
    turns go, then old turns, then both, then all.
    Where the middle is not to be kept, a provider has found it too long: then it becomes less than
    half, whatever the estimate says.
    """
    history, most = repeat.talk.history, int(memory.at * memory.window) * CHARS_PER_TOKEN
    if not keep_middle:
        most = min(most, _left(repeat, HistoryCut(0, ()), task_chars) // 2)
    old = tuple(n for n in _trimmable(history) if n < len(history) - 1)
    if keep_middle and memory.trim and _left(repeat, HistoryCut(0, old), task_chars) < most and old:
        return HistoryCut(0, old)
    middle = _middle(history)
    for trimmed in ((), old, tuple(_trimmable(history))):
        one = _after(HistoryCut(middle, trimmed))
        if _left(repeat, one, task_chars) < most:
            return one
    return _after(HistoryCut(max(middle, _last_turn(history)), tuple(_trimmable(history))))


def shortened(
    history: list[HistoryEntry], dropped: int, trimmed: tuple[int, ...]
) -> list[HistoryEntry]:
    """The conversation after a cut; `trimmed` counts in what is left."""
    left = history[dropped:]
    for number in trimmed:
        left[number] = _trim(left[number])
    return left


def middle_of(history: list[HistoryEntry]) -> list[HistoryEntry]:
    """The entries that a summary would replace."""
    return history[: _middle(history)]


def _after(one: HistoryCut) -> HistoryCut:
    kept = tuple(n - one.dropped for n in one.trimmed if n >= one.dropped)
    return HistoryCut(one.dropped, kept)


def _left(repeat: RepeatBody, one: HistoryCut, task_chars: int) -> int:
    left = shortened(list(repeat.talk.history), one.dropped, one.trimmed)
    return sum(map(_chars, left)) + task_chars


def _middle(history: list[HistoryEntry]) -> int:
    """How many entries precede the last turns, which are always kept."""
    turns = [number for number, entry in enumerate(history) if entry.kind == "model"]
    return turns[-KEPT_TURNS] if len(turns) >= KEPT_TURNS else 0


def _last_turn(history: list[HistoryEntry]) -> int:
    turns = [number for number, entry in enumerate(history) if entry.kind == "model"]
    return turns[-1] if turns else 0


def _trimmable(history: list[HistoryEntry]) -> list[int]:
    return [
        number
        for number, entry in enumerate(history)
        if any(size_of(one.text) > TRIM_ABOVE for one in entry.answers)
    ]


def _trim(entry: HistoryEntry) -> HistoryEntry:
    answers = tuple(_trim_one(one) for one in entry.answers)
    return msgspec.structs.replace(entry, answers=answers)


def _trim_one(one: ToolAnswer) -> ToolAnswer:
    size = size_of(one.text)
    if size <= TRIM_ABOVE:
        return one
    head = one.text.head if isinstance(one.text, Blob) else one.text
    handle = f", kept as {one.text.blob}" if isinstance(one.text, Blob) else ""
    note = f"[{size} characters, of which these are the first{handle}]"
    return msgspec.structs.replace(one, text=f"{head[:TRIMMED_CHARS]}\n{note}")


def _chars(entry: HistoryEntry) -> int:
    return ENTRY_CHARS + size_of(entry.text) + sum(size_of(one.text) + 16 for one in entry.answers)


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def keep_conversation(repeat: RepeatBody) -> None:
    """Keep a conversation as far as it has come, for the next iteration."""
    if repeat.talk.thread is not None:
        loop, name = repeat.talk.thread
        loop.memory.talks[name] = repeat.talk.history


def is_first_turn(repeat: RepeatBody) -> bool:
    """Whether the model has not answered yet since it received this task."""
    return not any(entry.kind == "model" for entry in repeat.talk.history[repeat.talk.carried :])
