"""The small parts of events: calls, messages, usage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from loopwright.model.record import JsonValue

Fact: TypeAlias = Mapping[str, Any]

SUBMIT = "submit_result"
"""The tool by which a model hands in a structured result; the engine itself answers it."""

ACCEPTED = "The result was taken."
TAKEN_BEFORE: JsonValue = {"error": "a result was already handed in; the first one counts"}


@dataclass(slots=True)
class Call:
    """A tool call of the turn that is under way."""

    id: str
    tool: str
    args: JsonValue
    is_error: bool | None = None  # None while it has no result


def value_of(text: str) -> JsonValue:
    """A text as the value that it is the JSON of, else as itself."""
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value


def parts_of(text: str, calls: list[Call]) -> list[JsonValue]:
    """The content of a model's message: what it said, then what it asked for."""
    parts: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    parts += [
        {"type": "tool_call", "callId": call.id, "tool": call.tool, "args": call.args}
        for call in calls
    ]
    return parts


def counts_of(usage: Fact) -> dict[str, JsonValue]:
    """What a call has used, in the words of this dialect."""
    return {
        "tokensIn": usage.get("input_tokens", 0),
        "tokensOut": usage.get("output_tokens", 0),
        "usd": usage.get("usd", 0.0),
    }


def usage_of(usage: Fact, model: str, at: int) -> dict[str, JsonValue]:
    """The same with the model, which is `PROVIDER/NAME`."""
    provider, _, name = model.rpartition("/")
    return {"provider": provider, "model": name, **counts_of(usage), "at": at}
