"""What the client library does for the gateway, as the gateway sees it: one attempt at a time."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from loopwright.gateway.specs import Endpoint
from loopwright.model.exchange import (
    CallDelta,
    Finish,
    ModelFailure,
    ModelRequest,
    ModelUsage,
    TextDelta,
    ThoughtDelta,
)
from loopwright.model.messages import AssistantMessage

LONGEST_DETAIL = 600
# The shapes of the usual keys, for those that a service quotes and we do not hold.
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key)[-_][\w*-]{6,}|\bAIza[\w-]{10,}|\bBearer\s+\S+", re.I
)

Delta: TypeAlias = TextDelta | ThoughtDelta | CallDelta
Said: TypeAlias = Callable[[Delta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A turn that came to its end. The usage has no price yet."""

    message: AssistantMessage
    finish: Finish
    model: str
    usage: ModelUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallen:
    """A turn that did not, with what it has used so far."""

    failure: ModelFailure
    usage: ModelUsage


class Speaker(Protocol):
    """Sends one request and tells what comes. Cancelling it closes the connection."""

    async def speak(self, to: Endpoint, request: ModelRequest, said: Said) -> Spoken | Fallen: ...

    async def load(self, to: Endpoint) -> None:
        """Get ready for an endpoint, so that its first request does not have to."""

    async def close(self) -> None:
        """Give back every connection."""


def without_keys(text: str, keys: Iterable[str]) -> str:
    """A text for logs and facts: keys blotted out, and not longer than needed."""
    for key in keys:
        if len(key) > 3:
            text = text.replace(key, "***")
    return _KEYS.sub("***", text)[:LONGEST_DETAIL]
