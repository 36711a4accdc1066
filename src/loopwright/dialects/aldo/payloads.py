"""The small parts of events: calls, messages, usage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from loopwright.model.record import JsonValue

Fact: TypeAlias = Mapping[str, Any]

SUBMIT = "submit_result"
"""The tool by which a model hands in a structured result; the engine itself answers it."""

ACCEPTED = "The result was taken."
MIXED = ("aldo:composite", "multi")
"""Provider and model of usage that several models share."""
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


def split_model(model: str) -> tuple[str, str]:
    """Provider and name of a model; older events have the name alone."""
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else ("", model)


def usage_of(usage: Fact, model: str, at: int) -> dict[str, JsonValue]:
    """The same with the model, which is `PROVIDER/NAME`."""
    provider, name = split_model(model)
    return {"provider": provider, "model": name, **counts_of(usage), "at": at}


@dataclass(slots=True)
class UsageTotal:
    """What a loop or a run has used, and which models it asked."""

    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    models: set[str] = field(default_factory=set)

    def add(self, usage: Fact | None, model: str) -> None:
        """Count one call of a model, which is `PROVIDER/NAME`."""
        if model:
            self.models.add(model)
        if usage:
            self.tokens_in += usage.get("input_tokens", 0)
            self.tokens_out += usage.get("output_tokens", 0)
            self.usd = round(self.usd + usage.get("usd", 0.0), 6)

    def payload(self) -> dict[str, JsonValue]:
        """The same in the words of this dialect; several models have a name together."""
        provider, name = MIXED
        if len(self.models) < 2:
            provider, name = split_model(next(iter(self.models), ""))
        return {
            "provider": provider,
            "model": name,
            "tokensIn": self.tokens_in,
            "tokensOut": self.tokens_out,
            "usd": self.usd,
        }
