"""The OpenAI Responses protocol: items instead of messages, and an event for each step of each
item.
"""

from collections.abc import Iterator
from itertools import count

from loopwright.model.record import JsonValue
from loopwright.testing.wires import chat
from loopwright.testing.wires.script import (
    CREATED,
    Answer,
    Piece,
    ScriptedCall,
    ScriptedFault,
    message_of,
    pieces,
)


def _usage(answer: Answer) -> dict[str, JsonValue]:
    usage = answer.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


def _response(answer: Answer, status: str, output: JsonValue) -> dict[str, JsonValue]:
    cut: JsonValue = None
    if status == "incomplete":
        refused = answer.turn.ending == "refusal"
        cut = {"reason": "content_filter" if refused else "max_output_tokens"}
    over = status in ("completed", "incomplete")
    return {
        "id": f"resp_{answer.number:04d}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": cut,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": answer.request.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": _usage(answer) if over and answer.turn.report_usage else None,
    }


def _items(answer: Answer) -> list[dict[str, JsonValue]]:
    turn, number = answer.turn, answer.number
    items: list[dict[str, JsonValue]] = []
    if turn.thinking:
        summary: JsonValue = [{"type": "summary_text", "text": turn.thinking}]
        items.append({"id": f"rs_{number:04d}", "type": "reasoning", "summary": summary})
    if turn.text or not turn.calls:
        items.append(
            {
                "id": f"msg_{number:04d}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [_text_part(turn.text)],
            }
        )
    return items + [_call_item(name, call) for name, call in answer.calls("call")]


def _text_part(text: str) -> dict[str, JsonValue]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(name: str, call: ScriptedCall) -> dict[str, JsonValue]:
    item: dict[str, JsonValue] = {"status": "completed", "call_id": name, "name": call.name}
    if call.namespace:
        item["namespace"] = call.namespace
    if call.text is not None:
        return {"id": f"ctc_{name}", "type": "custom_tool_call", **item, "input": call.text}
    return {"id": f"fc_{name}", "type": "function_call", **item, "arguments": call.arguments}


def _status(answer: Answer) -> str:
    return "incomplete" if answer.turn.ending in ("length", "refusal") else "completed"


def whole(answer: Answer) -> dict[str, JsonValue]:
    """The answer in one piece."""
    return _response(answer, _status(answer), list(_items(answer)))


def stream(answer: Answer) -> Iterator[Piece]:
    """The answer as the events of a stream, numbered."""
    for number, piece in zip(count(), _events(answer), strict=False):
        if isinstance(piece.data, dict):
            piece.data["sequence_number"] = number
        yield piece


def _events(answer: Answer) -> Iterator[Piece]:
    yield _event("response.created", response=_response(answer, "in_progress", []))
    yield _event("response.in_progress", response=_response(answer, "in_progress", []))
    for index, item in enumerate(_items(answer)):
        yield from _item_events(item, index, answer.turn.chunk)
    status = _status(answer)
    yield _event(f"response.{status}", response=_response(answer, status, list(_items(answer))))


def _item_events(item: dict[str, JsonValue], index: int, size: int) -> Iterator[Piece]:
    at: dict[str, JsonValue] = {"item_id": item["id"], "output_index": index}
    hollow: dict[str, JsonValue] = {"content": [], "summary": [], "arguments": "", "input": ""}
    opening = {**item, **{key: empty for key, empty in hollow.items() if key in item}}
    if "status" in item:
        opening["status"] = "in_progress"
    yield _event("response.output_item.added", output_index=index, item=opening)
    match item:
        case {"type": "message", "content": [{"text": str(text)}]}:
            yield from _text_events(at, text, size)
        case {"type": "reasoning", "summary": [{"text": str(text)}]}:
            yield from _thought_events(at, text, size)
        case {"type": "custom_tool_call", "input": str(text)}:
            for part in pieces(text, size):
                yield _event("response.custom_tool_call_input.delta", delta=part, **at)
            yield _event("response.custom_tool_call_input.done", input=text, **at)
        case {"arguments": str(text), "name": str(name)}:
            for part in pieces(text, size):
                yield _event("response.function_call_arguments.delta", delta=part, **at)
            done: dict[str, JsonValue] = {"arguments": text, "name": name}
            yield _event("response.function_call_arguments.done", **at, **done)
        case _:
            raise AssertionError(f"no such item is made here: {item}")
    yield _event("response.output_item.done", output_index=index, item=item)


def _text_events(at: dict[str, JsonValue], text: str, size: int) -> Iterator[Piece]:
    at = {**at, "content_index": 0}
    yield _event("response.content_part.added", part=_text_part(""), **at)
    for part in pieces(text, size):
        yield _event("response.output_text.delta", delta=part, logprobs=[], **at)
    yield _event("response.output_text.done", text=text, logprobs=[], **at)
    yield _event("response.content_part.done", part=_text_part(text), **at)


def _thought_events(at: dict[str, JsonValue], text: str, size: int) -> Iterator[Piece]:
    at = {**at, "summary_index": 0}
    part: dict[str, JsonValue] = {"type": "summary_text", "text": ""}
    yield _event("response.reasoning_summary_part.added", part=part, **at)
    for bit in pieces(text, size):
        yield _event("response.reasoning_summary_text.delta", delta=bit, **at)
    yield _event("response.reasoning_summary_text.done", text=text, **at)
    yield _event("response.reasoning_summary_part.done", part={**part, "text": text}, **at)


def _event(kind: str, /, **fields: JsonValue) -> Piece:
    return Piece(name=kind, data={"type": kind, **fields}, delta="delta" in fields)


error = chat.error
too_long = chat.too_long


def broken(fault: ScriptedFault) -> Piece:
    """An error inside a stream."""
    kind, code = chat.KINDS.get(fault.status, ("server_error", None))
    word = fault.code or code or fault.type or kind
    text = message_of(fault, word.replace("_", " ").capitalize())
    return _event("error", code=word, message=text, param=None)


__all__ = ["broken", "error", "stream", "too_long", "whole"]
