"""How a conversation begins: with a task, or with the messages that a chat has already.

A run's message is the task, whatever it says, unless it is a JSON object with a list of
`messages` (`{"messages": [{"role", "content"}], "systemPrompt"?}`): that is a chat, taken over as
it stands. Content is a text or a list of parts; roles and parts that nobody knows are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from loopwright.model.messages import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.model.record import JsonValue


@dataclass(frozen=True, slots=True)
class Seed:
    """The system prompt and the first messages of a conversation."""

    system: str
    messages: tuple[AnyMessage, ...]


def seeded(message: str, system: str) -> Seed:
    """What a run's message makes of an agent's system prompt."""
    try:
        value: JsonValue = msgspec.json.decode(message)
    except (msgspec.DecodeError, RecursionError):
        value = None
    chat = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(chat, list):
        return Seed(system, (UserMessage(text=message),))
    own = value.get("systemPrompt")
    messages = tuple(found for one in chat for found in _message(one))
    return Seed(own if isinstance(own, str) else system, messages)


def _message(value: JsonValue) -> Iterator[AnyMessage]:
    if not isinstance(value, dict):
        return
    content = value.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    listed = content if isinstance(content, list) else []
    parts = [one for one in listed if isinstance(one, dict)]
    text = "".join(str(one.get("text", "")) for one in parts if one.get("type") == "text")
    match value.get("role"):
        case "system":
            yield SystemMessage(text=text)
        case "user":
            yield UserMessage(text=text)
        case "assistant":
            said = (TextPart(text=text),) if text else ()
            yield AssistantMessage(parts=(*said, *_calls(parts)))
        case "tool":
            yield ToolMessage(results=tuple(_results(parts)))
        case _:
            return


def _calls(parts: list[dict[str, JsonValue]]) -> Iterator[CallPart]:
    for one in parts:
        if one.get("type") == "tool_call":
            args = msgspec.json.encode(one.get("args", {})).decode()
            yield CallPart(id=str(one.get("callId", "")), tool=str(one.get("tool", "")), args=args)


def _results(parts: list[dict[str, JsonValue]]) -> Iterator[ToolResult]:
    for one in parts:
        if one.get("type") == "tool_result":
            value = one.get("result")
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield ToolResult(
                id=str(one.get("callId", "")),
                tool=str(one.get("tool", "")),
                text=text,
                error=one.get("isError") is True,
            )
