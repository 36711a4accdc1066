"""The Gemini protocol (`generateContent`): the model is in the path, and a stream consists of whole
parts.
"""

from collections.abc import Iterator

import msgspec

from loopwright.model.record import JsonValue
from loopwright.testing.wires.script import (
    Answer,
    Piece,
    ScriptedCall,
    ScriptedFault,
    WireRequest,
    message_of,
    pieces,
    prompt_tokens,
)

ENDINGS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_use": "STOP", "refusal": "SAFETY"}
KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def whole(answer: Answer) -> dict[str, JsonValue]:
    """The answer in one piece."""
    turn = answer.turn
    parts: list[JsonValue] = [{"text": turn.text}] if turn.text or not turn.calls else []
    parts += [_call(name, call) for name, call in answer.calls("call")]
    return _response(answer, parts, ENDINGS[turn.ending])


def stream(answer: Answer) -> Iterator[Piece]:
    """The answer as the events of a stream; a call comes in one piece."""
    turn = answer.turn
    for part in pieces(turn.text, turn.chunk):
        yield Piece(data=_response(answer, [{"text": part}]), delta=True)
    for name, call in answer.calls("call"):
        yield Piece(data=_response(answer, [_call(name, call)]), delta=True)
    yield Piece(data=_response(answer, [{"text": ""}], ENDINGS[turn.ending]))


def error(fault: ScriptedFault) -> dict[str, JsonValue]:
    """The body of an error."""
    kind = fault.type or KINDS.get(fault.status, "UNKNOWN")
    text = message_of(fault, kind.replace("_", " ").capitalize())
    return {"error": {"code": fault.status, "message": text, "status": kind}}


def broken(fault: ScriptedFault) -> Piece:
    """An error inside a stream."""
    return Piece(data=error(fault))


def too_long(request: WireRequest, window: int) -> ScriptedFault:
    """The error for a prompt that does not fit."""
    size = max(prompt_tokens(request), window + 1)
    return ScriptedFault(
        status=400,
        message=f"The input token count ({size}) exceeds the maximum number of tokens allowed "
        f"({window}).",
    )


def _call(name: str, call: ScriptedCall) -> JsonValue:
    arguments: JsonValue = msgspec.json.decode(call.arguments)
    return {"functionCall": {"id": name, "name": call.name, "args": arguments}}


def _response(
    answer: Answer, parts: list[JsonValue], finish: str | None = None
) -> dict[str, JsonValue]:
    content: dict[str, JsonValue] = {"role": "model", "parts": parts}
    candidate: dict[str, JsonValue] = {"content": content, "index": 0}
    body: dict[str, JsonValue] = {"modelVersion": answer.request.model}
    if finish is not None:
        candidate["finishReason"] = finish
        if answer.turn.report_usage:
            usage = answer.usage
            body["usageMetadata"] = {
                "promptTokenCount": usage.input,
                "candidatesTokenCount": usage.output,
                "cachedContentTokenCount": usage.cached,
                "totalTokenCount": usage.input + usage.output,
            }
    return {"candidates": [candidate], **body}
