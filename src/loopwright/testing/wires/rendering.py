"""What the three wires have in common: pieces of a stream, numbers, counted usage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from loopwright.model.record import JsonValue
from loopwright.testing.wires.request import WireRequest
from loopwright.testing.wires.script import Call, Fault, Turn, Usage

CREATED = 1_700_000_000  # seconds; a fixed time keeps recorded answers equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One event of a stream. A piece that is a `delta` is counted by faults and pauses."""

    data: dict[str, JsonValue] | str
    name: str | None = None
    delta: bool = False

    def encoded(self) -> bytes:
        """The event as server-sent events are written."""
        text = self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()
        return (
            f"event: {self.name}\n" if self.name else ""
        ).encode() + f"data: {text}\n\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn, the request that it answers, and the numbers its ids are made of."""

    turn: Turn
    request: WireRequest
    number: int  # of this answer
    first_call: int  # number of its first tool call

    def calls(self, prefix: str) -> list[tuple[str, Call]]:
        """Calls with their ids; an id that the script names stays."""
        return [
            (call.id or f"{prefix}_{self.first_call + index:04d}", call)
            for index, call in enumerate(self.turn.calls)
        ]

    @property
    def usage(self) -> Usage:
        """What the script says, else what the sizes say: four bytes a token, as a rule of thumb."""
        said = len(self.turn.text) + len(self.turn.thinking)
        said += sum(len(call.name) + len(call.text or call.arguments) for call in self.turn.calls)
        return self.turn.usage or Usage(input=prompt_tokens(self.request), output=said // 4 + 1)


class Wire(Protocol):
    """What each wire can render; its module is one."""

    def whole(self, answer: Answer) -> dict[str, JsonValue]: ...

    def stream(self, answer: Answer) -> Iterator[Piece]: ...

    def error(self, fault: Fault) -> dict[str, JsonValue]: ...

    def broken(self, fault: Fault) -> Piece: ...

    def too_long(self, request: WireRequest, window: int) -> Fault: ...


def prompt_tokens(request: WireRequest) -> int:
    """A rough size of the prompt."""
    return len(request.raw) // 4 + 1


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in parts of so many characters; an empty text has none."""
    return (text[start : start + size] for start in range(0, len(text), max(size, 1)))


def last_call(ids: Sequence[str]) -> int:
    """The highest number among call ids that this server has made, 0 without one."""
    numbers = [one.rpartition("_")[2] for one in ids]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def message_of(fault: Fault, usual: str) -> str:
    """The text of an error."""
    return fault.message or usual
