"""One event of Codex (`codex exec --json`)."""

import re

from loopwright.agents.clis.loose_json import at, items, text, whole
from loopwright.agents.clis.transcript import (
    LiveEntry,
    OpenCall,
    Transcript,
    as_text,
    tool_line,
    without_shell,
)
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue

# The answer of its own sandbox. In a workspace, the file system is read-only only in that sandbox.
_HELD = re.compile(r"Read-only file system|rejected by user approval settings|sandbox denied", re.I)


def read_event(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    """Process one event; returns its part for the live view."""
    match text(event, "type"):
        case "thread.started":
            transcript.session = text(event, "thread_id") or transcript.session
        case "item.started":
            return _started(transcript, at(event, "item"))
        case "item.completed":
            return _completed(transcript, at(event, "item"))
        case "turn.completed":
            transcript.spent.total = Usage(
                input_tokens=whole(event, "usage", "input_tokens") or 0,
                output_tokens=whole(event, "usage", "output_tokens") or 0,
                unpriced=1,
                cache_read_tokens=whole(event, "usage", "cached_input_tokens") or 0,
            )
            transcript.end("well")
        case "turn.failed":
            transcript.end("badly", text(event, "error", "message"), "api")
        case "error":  # a failed attempt; the last event says whether the turn failed
            return transcript.note_status(text(event, "message"))
    return []


def is_progress(event: JsonValue) -> bool:
    """Whether an event shows that the agent gets on: an error before a retry does not."""
    return text(event, "type") != "error" and text(event, "item", "type") != "error"


def _started(transcript: Transcript, item: JsonValue) -> list[LiveEntry]:
    call = _begin(transcript, item)
    if call is None:
        return []
    transcript.counts.tools += 1
    return [tool_line(_VERBS.get(text(item, "type"), call.tool), call.target)]


def _completed(transcript: Transcript, item: JsonValue) -> list[LiveEntry]:
    match text(item, "type"):
        case "agent_message":
            transcript.add_text(text(item, "text"))
            return [LiveEntry("text", text(item, "text"))]
        case "error":  # about its own settings: not fatal
            return transcript.note_status(text(item, "message"))
        case "command_execution" | "file_change" | "mcp_tool_call" | "web_search":
            _begin(transcript, item)
            _end(transcript, item)
    return []


_VERBS = {"command_execution": "command", "file_change": "edit", "web_search": "search"}


def _begin(transcript: Transcript, item: JsonValue) -> OpenCall | None:
    call, kind = text(item, "id"), text(item, "type")
    match kind:
        case "command_execution":
            command = text(item, "command")
            return transcript.begin_call(call, kind, command, target=without_shell(command))
        case "file_change":
            return transcript.begin_call(call, kind, {"changes": at(item, "changes")})
        case "mcp_tool_call":
            name = f"{text(item, 'server')}.{text(item, 'tool')}"
            return transcript.begin_call(call, name, at(item, "arguments"), kind="tool")
        case "web_search":
            return transcript.begin_call(call, kind, {"query": at(item, "query")})
    return None


def _end(transcript: Transcript, item: JsonValue) -> None:
    call, status = text(item, "id"), text(item, "status")
    code = whole(item, "exit_code")
    result = text(item, "aggregated_output") or as_text(at(item, "error")) or _mcp_text(item)
    held = status != "completed" and _HELD.search(result) is not None
    if status == "declined" or held:
        transcript.deny(call, text(item, "type"), reason=result, code=code)
        return
    transcript.end_call(
        call, ok=status in ("completed", "") and code in (None, 0), code=code, result=result
    )


def _mcp_text(item: JsonValue) -> str:
    """The text of what a tool of a server answered."""
    parts = [text(part, "text") for part in items(item, "result", "content")]
    return "\n".join(part for part in parts if part) or as_text(at(item, "result"))
