"""The OpenAI Chat Completions protocol, which most local servers implement too."""

from collections.abc import Iterator

from loopwright.model.record import JsonValue
from loopwright.testing.wires.script import (
    CREATED,
    Answer,
    Piece,
    ScriptedFault,
    WireRequest,
    message_of,
    pieces,
    prompt_tokens,
)

ENDINGS = {
    "stop": "stop",
    "length": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
KINDS = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_exceeded", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", None),
    529: ("server_error", "overloaded"),
}


def _usage(answer: Answer) -> dict[str, JsonValue]:
    """In this protocol the prompt's count includes tokens read from a cache."""
    usage = answer.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _calls(answer: Answer) -> list[dict[str, JsonValue]]:
    return [
        {
            "id": name,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for name, call in answer.calls("call")
    ]


def whole(answer: Answer) -> dict[str, JsonValue]:
    """The answer in one piece."""
    message: dict[str, JsonValue] = {
        "role": "assistant",
        "content": answer.turn.text or None,
        "refusal": None,
    }
    if answer.turn.thinking:
        message["reasoning_content"] = answer.turn.thinking
    if answer.turn.calls:
        message["tool_calls"] = list(_calls(answer))
    choice: dict[str, JsonValue] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": ENDINGS[answer.turn.ending],
    }
    body: dict[str, JsonValue] = {**_head(answer, "chat.completion"), "choices": [choice]}
    return {**body, "usage": _usage(answer)} if answer.turn.report_usage else body


def stream(answer: Answer) -> Iterator[Piece]:
    """The answer as the events of a stream."""
    turn = answer.turn
    yield _chunk(answer, {"role": "assistant", "content": ""})
    for part in pieces(turn.thinking, turn.chunk):
        yield _chunk(answer, {"reasoning_content": part}, delta=True)
    for part in pieces(turn.text, turn.chunk):
        yield _chunk(answer, {"content": part}, delta=True)
    for index, (name, call) in enumerate(answer.calls("call")):
        function: dict[str, JsonValue] = {"name": call.name, "arguments": ""}
        opening: dict[str, JsonValue] = {"index": index, "id": name, "type": "function"}
        yield _chunk(answer, {"tool_calls": [{**opening, "function": function}]})
        for part in pieces(call.arguments, turn.chunk):
            bit: JsonValue = [{"index": index, "function": {"arguments": part}}]
            yield _chunk(answer, {"tool_calls": bit}, delta=True)
    yield _chunk(answer, {}, finish=ENDINGS[turn.ending])
    options = answer.request.body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") and turn.report_usage:
        head = _head(answer, "chat.completion.chunk")
        yield Piece(data={**head, "choices": [], "usage": _usage(answer)})
    yield Piece(data="[DONE]")


def _head(answer: Answer, kind: str) -> dict[str, JsonValue]:
    return {
        "id": f"chatcmpl-{answer.number:04d}",
        "object": kind,
        "created": CREATED,
        "model": answer.request.model,
        "system_fingerprint": None,
    }


def _chunk(
    answer: Answer, sent: dict[str, JsonValue], *, delta: bool = False, finish: str | None = None
) -> Piece:
    choice: dict[str, JsonValue] = {"index": 0, "delta": sent, "finish_reason": finish}
    head = _head(answer, "chat.completion.chunk")
    return Piece(data={**head, "choices": [choice]}, delta=delta)


def error(fault: ScriptedFault) -> dict[str, JsonValue]:
    """The body of an error."""
    kind, code = KINDS.get(fault.status, ("invalid_request_error", None))
    kind, code = fault.type or kind, fault.code or code
    text = message_of(fault, (code or kind).replace("_", " ").capitalize())
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


def broken(fault: ScriptedFault) -> Piece:
    """An error inside a stream."""
    return Piece(data=error(fault))


def too_long(request: WireRequest, window: int) -> ScriptedFault:
    """The error for a prompt that does not fit."""
    size = max(prompt_tokens(request), window + 1)
    return ScriptedFault(
        status=400,
        code="context_length_exceeded",
        message=f"This model's maximum context length is {window} tokens. However, your messages "
        f"resulted in {size} tokens. Please reduce the length of the messages.",
    )
