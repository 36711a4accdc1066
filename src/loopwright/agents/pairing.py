"""Histories that every wire accepts: each tool call has exactly one result, right after its turn.

A history that is right is given back as it is. One that is not (a crash between two results, a
server that uses an id twice, a cut made elsewhere) is repaired, never sent in hope.
"""

from collections.abc import Iterable, Iterator, Sequence

from loopwright.model.messages import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    SystemMessage,
    ToolMessage,
    ToolResult,
    UserMessage,
)

NO_RESULT = "This call was interrupted and has no result. It may or may not have had an effect."


def paired(messages: Sequence[AnyMessage]) -> tuple[AnyMessage, ...]:
    """The history with one result for each call, ids that are unique, and nothing empty."""
    return tuple(messages) if is_paired(messages) else tuple(_repaired(messages))


def is_paired(messages: Sequence[AnyMessage]) -> bool:
    """Whether a history may be sent as it is."""
    seen: set[str] = set()
    due: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not due or sorted([result.id for result in message.results]) != sorted(due):
                return False
            due = []
        elif due:
            return False
        elif isinstance(message, AssistantMessage):
            due = [part.id for part in message.parts if isinstance(part, CallPart)]
            expected = len(seen) + len(due)
            seen.update(due)
            if len(seen) != expected or "" in seen or not (due or message.text):
                return False
        elif not message.text:
            return False
    return not due


def unique_ids(message: AssistantMessage, taken: Iterable[str]) -> AssistantMessage:
    """The message with call ids that neither it nor the history has used before."""
    used = set(taken)
    fresh = [_fresh(call.id, used) for call in message.calls]
    if fresh == [call.id for call in message.calls]:
        return message
    return _renamed(message, fresh)


def call_ids(messages: Iterable[AnyMessage]) -> Iterator[str]:
    """The ids of all calls of a history."""
    for message in messages:
        if isinstance(message, AssistantMessage):
            yield from (call.id for call in message.calls)


def _empty(message: AssistantMessage | SystemMessage | UserMessage) -> bool:
    return not message.text and not (isinstance(message, AssistantMessage) and message.calls)


def _repaired(messages: Sequence[AnyMessage]) -> Iterator[AnyMessage]:
    used: set[str] = set()
    for position, message in enumerate(messages):
        if isinstance(message, ToolMessage) or _empty(message):
            continue
        if not isinstance(message, AssistantMessage) or not message.calls:
            yield message
            continue
        fresh = [_fresh(call.id, used) for call in message.calls]
        yield _renamed(message, fresh)
        yield ToolMessage(
            results=tuple(_answers(message.calls, fresh, _following(messages, position)))
        )


def _following(messages: Sequence[AnyMessage], position: int) -> list[ToolResult]:
    """The results between a turn of the model and its next one, in whichever messages."""
    found: list[ToolResult] = []
    for message in messages[position + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            found += message.results
    return found


def _answers(
    calls: tuple[CallPart, ...], fresh: list[str], results: list[ToolResult]
) -> Iterator[ToolResult]:
    """One result for each call; a second one for the same id is left out."""
    left = list(results)
    for call, name in zip(calls, fresh, strict=True):
        match = next((result for result in left if result.id == call.id), None)
        if match is None:
            yield ToolResult(id=name, tool=call.tool, text=NO_RESULT, error=True)
        else:
            left.remove(match)
            yield ToolResult(id=name, tool=match.tool, text=match.text, error=match.error)


def _fresh(wanted: str, used: set[str]) -> str:
    """An id that is not used yet, as near to the wanted one as can be; it is used from now on."""
    name, number = wanted or "call", 1
    while name in used:
        number += 1
        name = f"{wanted or 'call'}-{number}"
    used.add(name)
    return name


def _renamed(message: AssistantMessage, fresh: list[str]) -> AssistantMessage:
    names = iter(fresh)
    return AssistantMessage(
        parts=tuple(
            CallPart(id=next(names), tool=part.tool, args=part.args, extra=part.extra)
            if isinstance(part, CallPart)
            else part
            for part in message.parts
        )
    )
