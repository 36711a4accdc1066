"""One event of Gemini CLI (`gemini -o stream-json`)."""

import re

from loopwright.agents.clis.loose_json import at, text, whole
from loopwright.agents.clis.transcript import LiveEntry, Transcript, as_text, tool_line
from loopwright.kernel.event_parts import Usage
from loopwright.model.record import JsonValue

_DENIED = re.compile(r"policy_violation|denied by policy|requires (?:user )?confirmation", re.I)
_EXIT_CODE = re.compile(r"^Exit Code: (\d{1,3})$", re.M)


def take(heard: Transcript, event: JsonValue) -> list[LiveEntry]:
    """Process one event; returns its part for the live view."""
    heard.session = text(event, "session_id") or heard.session
    match text(event, "type"):
        case "init":
            heard.model = text(event, "model") or heard.model
        case "message" if text(event, "role") == "assistant":
            return _message(heard, event)
        case "tool_use":
            return _tool(heard, event)
        case "tool_result":
            _tool_result(heard, event)
        case "error":
            return heard.tell_status(text(event, "message"))
        case "result":
            _result(heard, event)
    return []


def _message(heard: Transcript, event: JsonValue) -> list[LiveEntry]:
    piece = text(event, "content")
    heard.say(piece, new_part=not heard.said.streaming)
    heard.said.streaming = at(event, "delta") is True
    return [LiveEntry("text", piece)]


def is_progress(event: JsonValue) -> bool:
    """Whether an event shows that the agent gets on."""
    return text(event, "type") != "error"


def _tool(heard: Transcript, event: JsonValue) -> list[LiveEntry]:
    heard.counts.tools += 1
    heard.said.streaming = False
    given = at(event, "parameters")
    call = heard.begin_call(text(event, "tool_id"), text(event, "tool_name"), given)
    return [tool_line(call.tool, call.target)]


def _tool_result(heard: Transcript, event: JsonValue) -> None:
    heard.said.streaming = False
    call = text(event, "tool_id")
    failed = text(event, "status") not in ("success", "")
    said = text(event, "error", "message") or as_text(at(event, "output"))
    if failed and _DENIED.search(f"{text(event, 'error', 'type')} {said}"):
        heard.deny(call, "", reason=said)
        return
    exited = _EXIT_CODE.search(said)
    code = int(exited.group(1)) if exited is not None else None
    heard.end_call(call, ok=not failed and code in (None, 0), code=code, result=said)


def _result(heard: Transcript, event: JsonValue) -> None:
    read, written = whole(event, "stats", "input_tokens"), whole(event, "stats", "output_tokens")
    if read is not None or written is not None:
        cached = whole(event, "stats", "cached") or 0
        heard.spent.usage = Usage(
            input_tokens=read or 0,
            output_tokens=written or 0,
            unpriced=1,
            cache_read_tokens=cached,
        )
    if text(event, "status") == "success":
        heard.end("well")
        return
    heard.end("badly", text(event, "error", "message") or "it ended with an error", "api")
