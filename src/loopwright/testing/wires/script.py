"""Scripts of the fake servers: requests, scripted turns, and the rendering that the protocols
share.

A script has turns in order, each with the requests that it matches and its faults. A request also
lists what a strict service would reject about it.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec
import yaml

from loopwright.errors import DefinitionError
from loopwright.model.record import JsonValue, Record

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
    """One request: its raw content, and the parts that scripts and assertions use."""

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
        """The requested model."""
        asked = GEMINI_PATH.fullmatch(self.path)
        return asked.group(1) if asked is not None else str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return self.body.get("stream") is True or self.path.endswith(":streamGenerateContent")

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the offered functions; `group/name` if the protocol groups them."""
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
        """The newest text of a user."""
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
        """The number of tool results after the newest text of a user."""
        count = 0
        for message in self._messages():
            count = 0 if _human(message) else count + len(_results(message))
        return count

    @property
    def key(self) -> str:
        """The key that the client sent."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        google = self.headers.get("x-goog-api-key", "")
        return self.headers.get("x-api-key", "") or google or bearer

    def complaints(self) -> list[str]:
        """What a hosted service would reject; empty if it would accept the request."""
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
        """Results must directly follow the message with their calls."""
        due: set[str] = set()
        for message in self._messages():
            due -= set(_results(message))
            if due and not _results(message):
                yield f"tool calls {sorted(due)} are not answered before the next message"
            due = set(_calls(message)) or (due if _results(message) else set())
        if due:
            yield f"tool calls {sorted(due)} are not answered at the end"

    def _messages(self) -> list[dict[str, JsonValue]]:
        """Messages of the history; in the Responses protocol its items."""
        if self.wire == "gemini":
            return [_from_gemini(one) for one in _dicts(self.body.get("contents"))]
        found = self.body.get("input" if self.wire == "responses" else "messages")
        if isinstance(found, str):
            return [{"role": "user", "content": found}]
        return _dicts(found)


SYSTEM = ("system", "developer")


def _from_gemini(content: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A message of the Gemini protocol in the form of the Anthropic one."""
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
    """The text of a user; a message with tool results is not from a user."""
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
    """Names of functions in any of the three forms; a namespace has its functions inside."""
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


Finish: TypeAlias = Literal["stop", "length", "tool_use", "refusal"]


class ScriptedCall(Record, frozen=True):
    """One tool call of a turn. `raw` is sent unchanged instead of `args`, for arguments that are
    not JSON; `text` makes it a call of a free-form tool (Responses protocol); `namespace` is how
    that protocol groups the tools of one server.
    """

    name: str
    args: dict[str, JsonValue] = {}
    id: str | None = None
    raw: str | None = None
    text: str | None = None
    namespace: str | None = None

    @property
    def arguments(self) -> str:
        """The arguments as they are sent."""
        return self.raw if self.raw is not None else msgspec.json.encode(self.args).decode()


class ScriptedUsage(Record, frozen=True):
    """The usage that the server reports. `input` is the whole prompt, `cached` the part of it that
    was read from a cache, `written` the part that was written to one.
    """

    input: int
    output: int
    cached: int = 0
    written: int = 0


class ScriptedFault(Record, frozen=True):
    """An answer that is an error. `after` deltas: inside a stream that began without an error."""

    status: int = 500
    type: str | None = None
    code: str | None = None
    message: str | None = None
    retry_after: float | str | None = None
    headers: dict[str, str] = {}
    after: int | None = None


class TurnFilter(Record, frozen=True):
    """The requests that a turn matches; a field without a value matches every request."""

    wire: WireName | None = None
    model: str | None = None  # part of the model's name
    contains: str | None = None  # part of the newest user text
    system: str | None = None  # part of the system prompt
    tools: bool | None = None  # whether tools are offered
    results: int | None = None  # tool results since the newest user text

    def fits(self, request: WireRequest) -> bool:
        """Whether a request matches."""
        return (
            self.wire in (None, request.wire)
            and (self.model is None or self.model in request.model)
            and (self.contains is None or self.contains in request.user_text)
            and (self.system is None or self.system in request.system_text)
            and (self.tools is None or self.tools == bool(request.tools))
            and self.results in (None, request.results)
        )


class ScriptedTurn(Record, frozen=True):
    """One answer: thoughts, text and calls, its pace and its faults.

    A delta is one piece of a stream: a part of a text, of a thought or of a call's arguments.
    """

    when: TurnFilter = TurnFilter()
    times: int | None = 1  # how often it can be used; None: always
    text: str = ""
    thinking: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: ScriptedUsage | None = None  # None: counted from the sizes
    report_usage: bool = True
    finish: Finish | None = None  # None: by whether there are calls
    chunk: int = 16  # characters of a delta
    header_ms: int = 0  # before the answer begins
    first_token_ms: int = 0  # between the start of the answer and the first delta
    delta_ms: int = 0  # between two deltas
    stall_after: int | None = None  # deltas, then silence until `WireServer.release`
    cut_after: int | None = None  # deltas, then the connection is dropped
    fault: ScriptedFault | None = None
    overflow: bool = False  # the error that says that the prompt is too long

    @property
    def ending(self) -> Finish:
        """Why the turn ends."""
        return self.finish or ("tool_use" if self.calls else "stop")


class WireScript(Record, frozen=True):
    """Turns for a server: the first unused one whose `when` matches answers a request.

    `otherwise` answers requests that match no turn; without it such a request is rejected and
    recorded. With a `window`, a prompt of more tokens (four characters each) is rejected as too
    long. With `keys`, any other key is rejected. `strict` rejects what hosted services reject: tool
    names that they do not allow, and tool calls without exactly one result each.
    """

    turns: tuple[ScriptedTurn, ...] = ()
    otherwise: ScriptedTurn | None = None
    window: int | None = None
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ("fake-model",)
    strict: bool = True


Chooser: TypeAlias = Callable[[WireRequest], ScriptedTurn | None]
"""A script as a function; None rejects the request."""


def read_script(path: Path) -> WireScript:
    """A script from a YAML or JSON file; unknown keys are rejected, with their place."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), WireScript)
    except (msgspec.ValidationError, yaml.YAMLError) as wrong:
        raise DefinitionError(f"{path}: {wrong}") from wrong


def in_order(script: WireScript) -> Chooser:
    """The selection of turns by a script, which remembers the used ones."""
    used = [0] * len(script.turns)

    def choose(request: WireRequest) -> ScriptedTurn | None:
        for number, turn in enumerate(script.turns):
            left = turn.times is None or used[number] < turn.times
            if left and turn.when.fits(request):
                used[number] += 1
                return turn
        return script.otherwise

    return choose


CREATED = 1_700_000_000  # seconds; a fixed time keeps recorded answers equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One event of a stream. Faults and pauses count the pieces that are a `delta`."""

    data: dict[str, JsonValue] | str
    name: str | None = None
    delta: bool = False

    def encoded(self) -> bytes:
        """The event in the format of server-sent events."""
        text = self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()
        return (
            f"event: {self.name}\n" if self.name else ""
        ).encode() + f"data: {text}\n\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn, the request that it answers, and the numbers for its ids."""

    turn: ScriptedTurn
    request: WireRequest
    number: int  # of this answer
    first_call: int  # number of its first tool call

    def calls(self, prefix: str) -> list[tuple[str, ScriptedCall]]:
        """Calls with their ids; an id in the script is kept."""
        return [
            (call.id or f"{prefix}_{self.first_call + index:04d}", call)
            for index, call in enumerate(self.turn.calls)
        ]

    @property
    def usage(self) -> ScriptedUsage:
        """The usage in the script, else an estimate: four bytes per token."""
        sent = len(self.turn.text) + len(self.turn.thinking)
        sent += sum(len(call.name) + len(call.text or call.arguments) for call in self.turn.calls)
        return self.turn.usage or ScriptedUsage(
            input=prompt_tokens(self.request), output=sent // 4 + 1
        )


class Wire(Protocol):
    """What each protocol can render; its module implements it."""

    def whole(self, answer: Answer) -> dict[str, JsonValue]: ...

    def stream(self, answer: Answer) -> Iterator[Piece]: ...

    def error(self, fault: ScriptedFault) -> dict[str, JsonValue]: ...

    def broken(self, fault: ScriptedFault) -> Piece: ...

    def too_long(self, request: WireRequest, window: int) -> ScriptedFault: ...


def prompt_tokens(request: WireRequest) -> int:
    """An estimate of the size of the prompt."""
    return len(request.raw) // 4 + 1


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in parts of this many characters; an empty text has none."""
    return (text[start : start + size] for start in range(0, len(text), max(size, 1)))


def last_call(ids: Sequence[str]) -> int:
    """The highest number in a call id of this server, 0 without one."""
    numbers = [one.rpartition("_")[2] for one in ids]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def message_of(fault: ScriptedFault, usual: str) -> str:
    """The text of an error."""
    return fault.message or usual
