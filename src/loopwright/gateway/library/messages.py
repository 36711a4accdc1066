"""Our records as the library's messages, and its answers as our records.

The SDKs traverse every message and every tool to translate names that differ between Python and
JSON. The library gives them JSON already, so the traversal changes nothing, and with a few hundred
turns it is most of the cost of a request. `around` avoids it: the SDK receives empty lists, and the
real ones as additions to the body, which it merges unchanged. For an SDK that also traverses
additions, they are `Sealed` and opened afterwards. A test compares the bodies of both ways.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as LibraryRequest
from pydantic_ai.messages import TextPart as LibraryText
from pydantic_ai.messages import ThinkingPart as LibraryThought
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from loopwright.gateway.models import Wire, WireNames
from loopwright.model.chat import (
    AnyMessage,
    AnyPart,
    AssistantMessage,
    CallPart,
    ChatTool,
    DecodingOptions,
    Finish,
    ModelRequest,
    ModelUsage,
    SystemMessage,
    TextPart,
    ThoughtPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.model.record import JsonValue

# The library stamps each part with a time that no wire carries; asking the clock for each costs.
_WHEN = datetime(2020, 1, 1, tzinfo=UTC)
_NO_ARGUMENTS: dict[str, JsonValue] = {"type": "object", "properties": {}}
_ANSWER = "answer"
_MOST_TOKENS = 10**12

_MARKING: tuple[Wire, ...] = ("anthropic", "google")
"""Protocols that can mark a result as an error."""

Kept: TypeAlias = LibraryText | LibraryThought | ToolCallPart
_FIELDS = ("id", "signature", "provider_name", "provider_details")


def library_messages(
    request: ModelRequest, names: WireNames, wire: Wire = "chat"
) -> list[ModelMessage]:
    """The history. Everything between two turns of the model is gathered into one message, results
    before texts, because one protocol requires it.
    """
    marks = wire in _MARKING
    made: list[ModelMessage] = []
    waiting: list[ModelRequestPart] = []
    if request.system:
        waiting.append(SystemPromptPart(request.system, timestamp=_WHEN))
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            if waiting:
                made.append(LibraryRequest(parts=waiting))
                waiting = []
            made.append(
                ModelResponse(
                    parts=[_library_part(part, names) for part in message.parts], timestamp=_WHEN
                )
            )
        else:
            waiting += _request_parts(message, names, marks=marks)
    if waiting or not made:
        made.append(LibraryRequest(parts=waiting))
    return made


def _request_parts(
    message: SystemMessage | UserMessage | ToolMessage, names: WireNames, *, marks: bool
) -> Iterator[ModelRequestPart]:
    if isinstance(message, ToolMessage):
        for result in message.results:
            text, failed = _error_text(result.text, marks=marks) if result.error else _fine(result)
            yield ToolReturnPart(
                tool_name=names.wire(result.tool),
                content=text,
                tool_call_id=result.id,
                timestamp=_WHEN,
                outcome="failed" if failed else "success",
            )
    elif isinstance(message, UserMessage):
        shown = [BinaryContent(one.data, media_type=one.media_type) for one in message.files]
        yield UserPromptPart([message.text, *shown] if shown else message.text, timestamp=_WHEN)
    else:
        yield SystemPromptPart(message.text, timestamp=_WHEN)


def _fine(result: ToolResult) -> tuple[str, bool]:
    return result.text, False


def _error_text(text: str, *, marks: bool) -> tuple[str, bool]:
    """The text of an error for a protocol, and whether the library should mark it as an error. The
    library wraps the text for protocols without such a mark: an object that already contains the
    error would be wrapped twice, and with a mark our own wrapping adds nothing.
    """
    try:
        parsed = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return text, True
    if not marks:
        return text, False
    alone = parsed.get("error") if len(parsed) == 1 else None
    return (alone if isinstance(alone, str) else text), True


def _library_part(part: AnyPart, names: WireNames) -> ModelResponsePart:
    made: Kept
    if isinstance(part, CallPart):
        made = ToolCallPart(names.wire(part.tool), part.args, part.id)
    elif isinstance(part, TextPart):
        made = LibraryText(part.text)
    else:
        made = LibraryThought(part.text)
    if part.extra:
        for field, value in part.extra.items():
            if field in _FIELDS:
                setattr(made, field, value)
    return made


def library_parameters(request: ModelRequest, names: WireNames) -> ModelRequestParameters:
    """The tools, and the schema of the answer if one is requested."""
    tools = [_definition(tool, names) for tool in request.tools]
    schema = request.decoding.schema
    if schema is None:
        return ModelRequestParameters(function_tools=tools)
    shape = OutputObjectDefinition(name=_ANSWER, json_schema={**schema})
    return ModelRequestParameters(
        function_tools=tools, output_mode="native", output_object=shape, allow_text_output=True
    )


def _definition(tool: ChatTool, names: WireNames) -> ToolDefinition:
    return ToolDefinition(
        name=names.wire(tool.name),
        description=tool.description or None,
        parameters_json_schema={**(tool.schema or _NO_ARGUMENTS)},
        # schemas are sent as their authors wrote them; answers are validated locally anyway
        strict=False,
    )


def library_settings(decoding: DecodingOptions) -> ModelSettings:
    """Options of the answer, without those that have no value."""
    settings = ModelSettings()
    if decoding.temperature is not None:
        settings["temperature"] = decoding.temperature
    if decoding.top_p is not None:
        settings["top_p"] = decoding.top_p
    if decoding.max_output_tokens is not None:
        settings["max_tokens"] = decoding.max_output_tokens
    if decoding.seed is not None:
        settings["seed"] = decoding.seed
    if decoding.cache:
        settings["cache"] = True
    return settings


def our_message(response: ModelResponse, names: WireNames) -> AssistantMessage:
    """The model's turn as our record; parts of kinds that we do not use are left out."""
    return AssistantMessage(parts=tuple(_our_parts(response.parts, names)))


def _our_parts(parts: Sequence[ModelResponsePart], names: WireNames) -> Iterator[AnyPart]:
    for part in parts:
        match part:
            case LibraryText(content=text) if text:
                yield TextPart(text=text, extra=_extra(part))
            case LibraryThought(content=text):
                yield ThoughtPart(text=text, extra=_extra(part))
            case ToolCallPart(tool_name=name, tool_call_id=call):
                args = part.args if isinstance(part.args, str) else part.args_as_json_str()
                yield CallPart(
                    id=call, tool=names.tool(name), args=args or "{}", extra=_extra(part)
                )
            case _:
                continue


def _extra(part: Kept) -> dict[str, JsonValue]:
    """What the protocol requires back with a part."""
    found = {name: getattr(part, name, None) for name in _FIELDS}
    kept: dict[str, JsonValue] = {
        name: to_jsonable_python(value, fallback=str) for name, value in found.items() if value
    }
    return kept


def our_finish(reason: str | None, message: AssistantMessage) -> Finish:
    """Why the model stopped. Some services report `stop` for a turn that ends in calls."""
    match reason:
        case "length":
            return "length"
        case "content_filter":
            return "refused"
        case "stop" | "tool_call":
            return "tool_calls" if message.calls else "stop"
        case _:
            return "unknown"


def our_usage(response: ModelResponse) -> ModelUsage:
    """The reported counts, and whether there were any. Impossible numbers are ignored."""
    parsed = response.usage
    counts = (
        parsed.input_tokens,
        parsed.output_tokens,
        parsed.cache_read_tokens,
        parsed.cache_write_tokens,
    )
    sensible = all(isinstance(count, int) and 0 <= count <= _MOST_TOKENS for count in counts)
    sensible = sensible and not getattr(parsed, "unmeasured_requests", 0)
    if not sensible or parsed.input_tokens + parsed.output_tokens == 0:
        return ModelUsage(measured=False)
    return ModelUsage(
        input_tokens=parsed.input_tokens,
        output_tokens=parsed.output_tokens,
        cache_read_tokens=parsed.cache_read_tokens,
        cache_write_tokens=parsed.cache_write_tokens,
    )


def tool_names(tools: Iterable[ChatTool], messages: Iterable[AnyMessage]) -> Iterator[str]:
    """Every tool that is offered or used in the history."""
    for tool in tools:
        yield tool.name
    for message in messages:
        if isinstance(message, AssistantMessage):
            for part in message.parts:
                if isinstance(part, CallPart):
                    yield part.tool


@dataclass(frozen=True, slots=True)
class Sealed:
    """A part of a body that must not be traversed."""

    value: object


def opened(body: object) -> object:
    """The body with its sealed parts opened."""
    if not isinstance(body, dict):
        return body
    return {name: part.value if isinstance(part, Sealed) else part for name, part in body.items()}


def around(
    options: Mapping[str, object], names: tuple[str, ...], *, sealed: bool = False
) -> dict[str, Any]:
    """The options of a request with the named lists moved into the body's additions."""
    lists = {name: options[name] for name in names if isinstance(options.get(name), list)}
    moved = {name: Sealed(one) if sealed else one for name, one in lists.items()}
    if not moved:
        return {**options}
    given = options.get("extra_body")
    added = given if isinstance(given, Mapping) else {}
    hollow: dict[str, list[object]] = {name: [] for name in moved}
    return {**options, **hollow, "extra_body": {**moved, **added}}
