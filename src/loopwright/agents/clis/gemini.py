"""One event of Gemini CLI (`gemini -o stream-json`)."""

import re

from loopwright.agents.clis.loose_json import at, text, whole
from loopwright.agents.clis.transcript import LiveEntry, Transcript, as_text, tool_line
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue

_DENIED = re.compile(r"policy_violation|denied by policy|requires (?:user )?confirmation", re.I)
_EXIT_CODE = re.compile(r"^Exit Code: (\d{1,3})$", re.M)


def read_event(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    """Process one event; returns its part for the live view."""
    transcript.session = text(event, "session_id") or transcript.session
    match text(event, "type"):
        case "init":
            transcript.model = text(event, "model") or transcript.model
        case "message" if text(event, "role") == "assistant":
            return _message(transcript, event)
        case "tool_use":
            return _tool(transcript, event)
        case "tool_result":
            _tool_result(transcript, event)
        case "error":
            return transcript.note_status(text(event, "message"))
        case "result":
            _result(transcript, event)
    return []


def _message(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    piece = text(event, "content")
    transcript.add_text(piece, new_part=not transcript.spoken.streaming)
    transcript.spoken.streaming = at(event, "delta") is True
    return [LiveEntry("text", piece)]


def is_progress(event: JsonValue) -> bool:
    """Whether an event shows that the agent gets on."""
    return text(event, "type") != "error"


def _tool(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    transcript.counts.tools += 1
    transcript.spoken.streaming = False
    given = at(event, "parameters")
    call = transcript.begin_call(text(event, "tool_id"), text(event, "tool_name"), given)
    return [tool_line(call.tool, call.target)]


def _tool_result(transcript: Transcript, event: JsonValue) -> None:
    transcript.spoken.streaming = False
    call = text(event, "tool_id")
    failed = text(event, "status") not in ("success", "")
    message = text(event, "error", "message") or as_text(at(event, "output"))
    if failed and _DENIED.search(f"{text(event, 'error', 'type')} {message}"):
        transcript.deny(call, "", reason=message)
        return
    exited = _EXIT_CODE.search(message)
    code = int(exited.group(1)) if exited is not None else None
    transcript.end_call(call, ok=not failed and code in (None, 0), code=code, result=message)


def _result(transcript: Transcript, event: JsonValue) -> None:
    read, written = whole(event, "stats", "input_tokens"), whole(event, "stats", "output_tokens")
    if read is not None or written is not None:
        cached = whole(event, "stats", "cached") or 0
        transcript.spent.usage = Usage(
            input_tokens=read or 0,
            output_tokens=written or 0,
            unpriced=1,
            cache_read_tokens=cached,
        )
    if text(event, "status") == "success":
        transcript.end("well")
        return
    transcript.end("badly", text(event, "error", "message") or "it ended with an error", "api")
