"""One event of Codex (`codex exec --json`)."""

from loopwright.agents.clis.heard import Heard, Said, note, tool_line
from loopwright.agents.clis.loose import at, items, text, whole
from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue


def take(heard: Heard, event: JsonValue) -> list[Said]:
    """Take one event in; what of it is for the live view."""
    match text(event, "type"):
        case "thread.started":
            heard.session = text(event, "thread_id") or heard.session
        case "item.started":
            return _started(heard, at(event, "item"))
        case "item.completed":
            return _completed(heard, at(event, "item"))
        case "turn.completed":
            heard.total = Usage(
                input_tokens=whole(event, "usage", "input_tokens") or 0,
                output_tokens=whole(event, "usage", "output_tokens") or 0,
            )
            heard.end("well")
        case "turn.failed":
            heard.end("badly", text(event, "error", "message"), "api")
        case "error":  # a try that failed; whether the turn did is told by its last event
            return [note(text(event, "message"))]
    return []


def _started(heard: Heard, item: JsonValue) -> list[Said]:
    tool = _tool(item)
    if tool is None:
        return []
    heard.tools += 1
    return [tool]


def _completed(heard: Heard, item: JsonValue) -> list[Said]:
    match text(item, "type"):
        case "agent_message":
            heard.say(text(item, "text"))
            return [Said("text", text(item, "text"))]
        case "error":  # about its own settings: not fatal
            return [note(text(item, "message"))]
    return []


def _tool(item: JsonValue) -> Said | None:
    match text(item, "type"):
        case "command_execution":
            return tool_line("command", text(item, "command"))
        case "file_change":
            return tool_line("edit", ", ".join(text(one, "path") for one in items(item, "changes")))
        case "mcp_tool_call":
            return tool_line(f"{text(item, 'server')}.{text(item, 'tool')}")
        case "web_search":
            return tool_line("search", text(item, "query"))
    return None
