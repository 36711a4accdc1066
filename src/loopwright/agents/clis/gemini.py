"""One event of Gemini CLI (`gemini -o stream-json`)."""

from loopwright.agents.clis.heard import Heard, Said, note, tool_line
from loopwright.agents.clis.loose import at, text, whole
from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue

_TOLD_OF = ("file_path", "path", "absolute_path", "command", "pattern", "query", "prompt")


def take(heard: Heard, event: JsonValue) -> list[Said]:
    """Take one event in; what of it is for the live view."""
    heard.session = text(event, "session_id") or heard.session
    match text(event, "type"):
        case "init":
            heard.model = text(event, "model") or heard.model
        case "message" if text(event, "role") == "assistant":
            return _message(heard, event)
        case "tool_use":
            return _tool(heard, event)
        case "tool_result":
            heard.streaming = False
        case "error":
            return [note(text(event, "message"))]
        case "result":
            _result(heard, event)
    return []


def _message(heard: Heard, event: JsonValue) -> list[Said]:
    piece = text(event, "content")
    heard.say(piece, new_part=not heard.streaming)
    heard.streaming = at(event, "delta") is True
    return [Said("text", piece)]


def _tool(heard: Heard, event: JsonValue) -> list[Said]:
    heard.tools += 1
    heard.streaming = False
    given = at(event, "parameters")
    about = next((found for name in _TOLD_OF if (found := text(given, name))), "")
    return [tool_line(text(event, "tool_name"), about)]


def _result(heard: Heard, event: JsonValue) -> None:
    read, written = whole(event, "stats", "input_tokens"), whole(event, "stats", "output_tokens")
    if read is not None or written is not None:
        heard.usage = Usage(input_tokens=read or 0, output_tokens=written or 0)
    if text(event, "status") == "success":
        heard.end("well")
        return
    heard.end("badly", text(event, "error", "message") or "it ended with an error", "api")
