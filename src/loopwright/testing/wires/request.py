"""A request as the fake wires have seen it, and what a strict service would say against it."""

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopwright.model.record import JsonValue

WireName: TypeAlias = Literal["anthropic", "chat", "responses", "gemini"]
WireEnd: TypeAlias = Literal["", "answered", "cut", "client left"]

TOOL_NAME = {
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "chat": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "responses": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
}
GEMINI_PATH = re.compile(r"/v1(?:beta)?/models/([^:/]+):(generateContent|streamGenerateContent)")


@dataclass(slots=True, kw_only=True, eq=False)
class WireRequest:
    """One request: what came over the wire, and the parts that scripts and assertions ask for."""

    number: int  # counts 1, 2, 3 … over all requests of the server
    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in lower case
    raw: bytes = b""
    body: dict[str, JsonValue] = field(default_factory=dict)
    wire: WireName | None = None  # None: not a request for an answer of a model
    status: int = 0  # of the answer
    end: WireEnd = ""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def model(self) -> str:
        """The model that is asked."""
        asked = GEMINI_PATH.fullmatch(self.path)
        return asked.group(1) if asked is not None else str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        """Whether the answer is to come in pieces."""
        return self.body.get("stream") is True or self.path.endswith(":streamGenerateContent")

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the offered functions; `group/name` where the wire groups them."""
        return tuple(_tool_names(self.body.get("tools")))

    @property
    def system_text(self) -> str:
        """All system and developer texts."""
        texts = [_text(self.body.get("system")), _text(self.body.get("instructions"))]
        standing = self.body.get("systemInstruction")
        texts.append(_text(standing.get("parts")) if isinstance(standing, dict) else "")
        texts += [_text(m.get("content")) for m in self._messages() if m.get("role") in SYSTEM]
        return "\n".join(text for text in texts if text)

    @property
    def user_text(self) -> str:
        """The newest text of a person."""
        texts = [_human(message) for message in self._messages()]
        return next((text for text in reversed(texts) if text), "")

    @property
    def calls(self) -> list[str]:
        """Ids of the tool calls in the history, in order."""
        return [call for message in self._messages() for call in _calls(message)]

    @property
    def results_of(self) -> list[str]:
        """Ids of the tool results in the history, in order."""
        return [call for message in self._messages() for call in _results(message)]

    @property
    def results(self) -> int:
        """How many tool results came after the newest text of a person."""
        count = 0
        for message in self._messages():
            count = 0 if _human(message) else count + len(_results(message))
        return count

    @property
    def key(self) -> str:
        """The key that the client has shown."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        google = self.headers.get("x-goog-api-key", "")
        return self.headers.get("x-api-key", "") or google or bearer

    def complaints(self) -> list[str]:
        """What a hosted service would refuse; empty when it would accept."""
        return [*self._bad_names(), *self._unpaired()]

    def _bad_names(self) -> Iterator[str]:
        allowed = TOOL_NAME[self.wire or "chat"]
        for name in self.tools:
            if not allowed.fullmatch(name.rpartition("/")[2]):
                yield f"tools: the name {name!r} does not match {allowed.pattern}"
        for name, times in Counter(self.tools).items():
            if times > 1:
                yield f"tools: the name {name!r} is used {times} times"

    def _unpaired(self) -> Iterator[str]:
        calls, results = Counter(self.calls), Counter(self.results_of)
        for call, times in calls.items():
            if times > 1:
                yield f"the tool call id {call!r} is used {times} times"
            if results[call] != 1:
                yield f"the tool call {call!r} has {results[call]} results, it must have one"
        for call in results:
            if call not in calls:
                yield f"there is a result for {call!r}, but no such tool call"
        if self.wire != "responses":
            yield from self._parted()

    def _parted(self) -> Iterator[str]:
        """Results must follow at once on the message with their calls."""
        due: set[str] = set()
        for message in self._messages():
            due -= set(_results(message))
            if due and not _results(message):
                yield f"tool calls {sorted(due)} are not answered before the next message"
            due = set(_calls(message)) or (due if _results(message) else set())
        if due:
            yield f"tool calls {sorted(due)} are not answered at the end"

    def _messages(self) -> list[dict[str, JsonValue]]:
        """Messages of the history; on the Responses wire its items."""
        if self.wire == "gemini":
            return [_from_gemini(one) for one in _dicts(self.body.get("contents"))]
        found = self.body.get("input" if self.wire == "responses" else "messages")
        if isinstance(found, str):
            return [{"role": "user", "content": found}]
        return _dicts(found)


SYSTEM = ("system", "developer")


def _from_gemini(content: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A message of the Gemini wire in the shape of the Anthropic one."""
    parts: list[JsonValue] = []
    for part in _dicts(content.get("parts")):
        call, result = part.get("functionCall"), part.get("functionResponse")
        if isinstance(call, dict):
            parts.append({"type": "tool_use", "id": call.get("id") or call.get("name")})
        elif isinstance(result, dict):
            name = result.get("id") or result.get("name")
            parts.append({"type": "tool_result", "tool_use_id": name})
        elif "text" in part:
            parts.append({"type": "text", "text": part["text"]})
    return {"role": "user" if content.get("role") == "user" else "assistant", "content": parts}


def _dicts(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(content: JsonValue) -> str:
    """The text of a content that is a text or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in _dicts(content) if "text" in part)


def _human(message: Mapping[str, JsonValue]) -> str:
    """What a person said; a message that carries tool results is not one of a person."""
    person = message.get("role") == "user" and not _results(message)
    return _text(message.get("content")) if person else ""


def _calls(message: Mapping[str, JsonValue]) -> Iterator[str]:
    if message.get("type") in ("function_call", "custom_tool_call"):
        yield str(message.get("call_id"))
    for call in _dicts(message.get("tool_calls")):
        yield str(call.get("id"))
    for part in _dicts(message.get("content")):
        if part.get("type") == "tool_use":
            yield str(part.get("id"))


def _results(message: Mapping[str, JsonValue]) -> list[str]:
    if message.get("type") in ("function_call_output", "custom_tool_call_output"):
        return [str(message.get("call_id"))]
    if message.get("role") == "tool":
        return [str(message.get("tool_call_id"))]
    parts = _dicts(message.get("content"))
    return [str(part.get("tool_use_id")) for part in parts if part.get("type") == "tool_result"]


def _tool_names(tools: JsonValue) -> Iterator[str]:
    """Names of functions in any of the three shapes; a namespace has its functions inside."""
    for tool in _dicts(tools):
        inner = tool.get("function")
        if "functionDeclarations" in tool:
            yield from _tool_names(tool["functionDeclarations"])
        elif isinstance(inner, dict):
            yield str(inner.get("name"))
        elif tool.get("type") == "namespace":
            yield from (f"{tool.get('name')}/{name}" for name in _tool_names(tool.get("tools")))
        elif "name" in tool:
            yield str(tool["name"])
