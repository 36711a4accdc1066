"""The Anthropic Messages protocol: answers, streams and errors as that service sends them."""

from collections.abc import Iterator

from loopwright.model.record import JsonValue
from loopwright.testing.wires.script import (
    Answer,
    Piece,
    ScriptedFault,
    WireRequest,
    message_of,
    pieces,
    prompt_tokens,
)

ENDINGS = {"stop": "end_turn", "length": "max_tokens", "tool_use": "tool_use", "refusal": "refusal"}
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _blocks(answer: Answer) -> list[dict[str, JsonValue]]:
    turn = answer.turn
    blocks: list[dict[str, JsonValue]] = []
    if turn.thinking:
        blocks.append({"type": "thinking", "thinking": turn.thinking, "signature": "c2lnbmVk"})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    for name, call in answer.calls("toolu"):
        blocks.append({"type": "tool_use", "id": name, "name": call.name, "input": {**call.args}})
    return blocks


def _usage(answer: Answer) -> dict[str, JsonValue]:
    """In this protocol `input_tokens` excludes tokens read from or written to a cache."""
    if not answer.turn.report_usage:
        return {"input_tokens": 0, "output_tokens": 0}
    usage = answer.usage
    return {
        "input_tokens": usage.input - usage.cached - usage.written,
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _message(answer: Answer) -> dict[str, JsonValue]:
    return {
        "id": f"msg_{answer.number:04d}",
        "type": "message",
        "role": "assistant",
        "model": answer.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(answer),
    }


def whole(answer: Answer) -> dict[str, JsonValue]:
    """The answer in one piece."""
    message = _message(answer)
    message["content"] = list(_blocks(answer))
    message["stop_reason"] = ENDINGS[answer.turn.ending]
    return message


def stream(answer: Answer) -> Iterator[Piece]:
    """The answer as the events of a stream."""
    start = _message(answer)
    start["usage"] = {**_usage(answer), "output_tokens": 0}
    yield _event("message_start", message=start)
    yield _event("ping")
    raws = {name: call.arguments for name, call in answer.calls("toolu")}
    for index, block in enumerate(_blocks(answer)):
        yield _event("content_block_start", index=index, content_block=_opening(block))
        for delta in _deltas(block, raws, answer.turn.chunk):
            yield _event("content_block_delta", delta=True, index=index, content=delta)
        yield _event("content_block_stop", index=index)
    end: dict[str, JsonValue] = {"stop_reason": ENDINGS[answer.turn.ending], "stop_sequence": None}
    usage: JsonValue = {"output_tokens": _usage(answer)["output_tokens"]}
    yield Piece(name="message_delta", data={"type": "message_delta", "delta": end, "usage": usage})
    yield _event("message_stop")


def _event(
    name: str, *, delta: bool = False, content: JsonValue = None, **fields: JsonValue
) -> Piece:
    data: dict[str, JsonValue] = {"type": name, **fields}
    return Piece(name=name, data={**data, "delta": content} if delta else data, delta=delta)


def _opening(block: dict[str, JsonValue]) -> dict[str, JsonValue]:
    match block["type"]:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case _:
            return {**block, "input": {}}


def _deltas(
    block: dict[str, JsonValue], raws: dict[str, str], size: int
) -> Iterator[dict[str, JsonValue]]:
    match block["type"]:
        case "thinking":
            for part in pieces(str(block["thinking"]), size):
                yield {"type": "thinking_delta", "thinking": part}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "text":
            for part in pieces(str(block["text"]), size):
                yield {"type": "text_delta", "text": part}
        case _:
            for part in pieces(raws[str(block["id"])], size):
                yield {"type": "input_json_delta", "partial_json": part}


def error(fault: ScriptedFault) -> dict[str, JsonValue]:
    """The body of an error."""
    kind = fault.type or TYPES.get(fault.status, "api_error")
    text = message_of(fault, kind.replace("_", " ").capitalize())
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_fake"}


def broken(fault: ScriptedFault) -> Piece:
    """An error inside a stream."""
    return Piece(name="error", data=error(fault))


def too_long(request: WireRequest, window: int) -> ScriptedFault:
    """The error for a prompt that does not fit."""
    size = max(prompt_tokens(request), window + 1)
    return ScriptedFault(
        status=400, message=f"prompt is too long: {size} tokens > {window} maximum"
    )
