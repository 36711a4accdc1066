"""Messages: a conversation with a chat model, as our own records. No library's objects in facts.

A history is a sequence of messages. A call and its result know each other by an id that is unique
in the history; tools have their own names here, whatever a wire makes of them.
"""

from typing import TypeAlias

from loopwright.model.record import JsonValue, Record


class Part(Record, frozen=True, kw_only=True, tag_field="part"):
    """Base of the parts of a model's message. `extra` is the wire's own, to be given back with
    the part and read by nobody else (item ids, signatures of thoughts).
    """

    extra: dict[str, JsonValue] = {}


class TextPart(Part, frozen=True, kw_only=True, tag="text"):
    """Something the model said."""

    text: str


class ThoughtPart(Part, frozen=True, kw_only=True, tag="thought"):
    """Something the model thought aloud; never a part of its answer."""

    text: str = ""


class CallPart(Part, frozen=True, kw_only=True, tag="call"):
    """A tool that the model wants to be run. `args` is JSON as the model wrote it, which may be
    no JSON at all when the model erred or was cut off.
    """

    id: str
    tool: str
    args: str = "{}"


AnyPart: TypeAlias = TextPart | ThoughtPart | CallPart


class Message(Record, frozen=True, kw_only=True, tag_field="role"):
    """Base of all messages."""


class SystemMessage(Message, frozen=True, kw_only=True, tag="system"):
    """What the author says to the model in the middle of a history."""

    text: str


class FilePart(Record, frozen=True, kw_only=True):
    """A file that a model is shown: an image or a PDF. It is read when the model is asked, and is
    not part of any event.
    """

    name: str
    media_type: str
    data: bytes


class UserMessage(Message, frozen=True, kw_only=True, tag="user"):
    """What a person, or the engine in a person's place, says to the model."""

    text: str
    files: tuple[FilePart, ...] = ()


class AssistantMessage(Message, frozen=True, kw_only=True, tag="assistant"):
    """One turn of the model, its parts in their order."""

    parts: tuple[AnyPart, ...] = ()

    @property
    def text(self) -> str:
        """All that was said, without thoughts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The tools that were asked for, in order."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


class ToolResult(Record, frozen=True, kw_only=True):
    """What came of one call, as the model is to see it."""

    id: str
    tool: str
    text: str
    error: bool = False


class ToolMessage(Message, frozen=True, kw_only=True, tag="tool"):
    """The results of one turn's calls."""

    results: tuple[ToolResult, ...]


AnyMessage: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class ToolSpec(Record, frozen=True, kw_only=True):
    """A tool as it is offered to a model; `schema` is the JSON Schema of its arguments,
    an empty one that of a tool without any."""

    name: str
    description: str = ""
    schema: dict[str, JsonValue] = {}
