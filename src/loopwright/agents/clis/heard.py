"""What an agent said in one call, collected event by event, whichever program it is."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue

Kind: TypeAlias = Literal["text", "tool", "note"]
Ended: TypeAlias = Literal["well", "badly"]
# Why a turn ended badly, as far as an event says so in its own terms.
Trouble: TypeAlias = Literal["api", "turns", "budget", "session", "aborted", "other"]

TEXT_CHARS = 10 * 1024 * 1024
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Said:
    """Something for the live view."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Heard:
    """Everything that counts of a stream of events."""

    parts: list[str] = field(default_factory=list)  # what the agent said, part by part
    final: str | None = None  # the answer, where an event names it
    data: JsonValue = None
    usage: Usage | None = None
    total: Usage | None = None  # of the whole session so far, where that is all that is told
    session: str | None = None
    model: str = ""  # that answered, where an event names it
    ended: Ended | None = None  # by the event that ends a turn
    trouble: Trouble = "other"
    status: int | None = None  # of the provider's last refusal
    problem: str = ""  # in words
    denied: list[str] = field(default_factory=list)
    resets_at: int | None = None  # seconds since the epoch: when a used-up allowance is renewed
    retry_after: float | None = None  # in seconds
    blocked: bool = False  # an allowance is used up, as the program itself says
    tools: int = 0
    garbage: int = 0
    cut: int = 0
    streaming: bool = False  # parts of a text were shown before the whole text came
    _kept: int = 0

    def say(self, text: str, *, new_part: bool = True) -> None:
        """Keep a text of the agent, up to a size that no answer needs."""
        if self._kept >= TEXT_CHARS:
            return
        text = text[: TEXT_CHARS - self._kept]
        self._kept += len(text)
        if new_part or not self.parts:
            self.parts.append(text)
        else:
            self.parts[-1] += text

    def end(self, how: Ended, problem: str = "", trouble: Trouble = "other") -> None:
        """The event that ends the turn has come."""
        self.ended, self.problem, self.trouble = how, problem, trouble

    @property
    def output(self) -> str:
        """The answer: what is named as such, else all that was said."""
        return self.final if self.final is not None else "\n\n".join(self.parts)


def tool_line(name: str, about: str = "") -> Said:
    """A tool that the agent uses, in one short line."""
    line = " ".join(f"{name} {about}".split())
    return Said("tool", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")


def note(text: str) -> Said:
    """Something about the call that is no answer, in one short line."""
    line = " ".join(text.split())
    return Said("note", line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…")
