"""One event of OpenCode (`opencode run --format json`)."""

from loopwright.agents.clis.heard import Heard, Said, tool_line
from loopwright.agents.clis.limits import seconds
from loopwright.agents.clis.loose import amount, at, plus, text, whole
from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue

_TOLD_OF = ("filePath", "path", "command", "pattern", "query", "url", "description")
_REFUSED = ("rejected permission", "denied")


def take(heard: Heard, event: JsonValue) -> list[Said]:
    """Take one event in; what of it is for the live view."""
    heard.session = text(event, "sessionID") or heard.session
    part = at(event, "part")
    match text(event, "type"):
        case "text":
            heard.say(text(part, "text"))
            return [Said("text", text(part, "text"))]
        case "tool_use":
            return _tool(heard, part)
        case "step_finish":
            _finished(heard, part)
        case "error":
            _error(heard, at(event, "error"))
    return []


def _tool(heard: Heard, part: JsonValue) -> list[Said]:
    heard.tools += 1
    given = at(part, "state", "input")
    about = next((found for name in _TOLD_OF if (found := text(given, name))), "")
    if any(word in text(part, "state", "error") for word in _REFUSED):
        heard.denied.append(text(part, "tool"))
    return [tool_line(text(part, "tool"), about)]


def _finished(heard: Heard, part: JsonValue) -> None:
    """A step; its reason tells the last one from those that wait for a tool. A call whose steps
    end with a refused tool has no last one.
    """
    heard.usage = plus(
        heard.usage,
        Usage(
            input_tokens=sum(_tokens(part, *path) for path in _READ),
            output_tokens=sum(_tokens(part, *path) for path in _WRITTEN),
            usd=amount(part, "cost") or 0.0,
        ),
    )
    if text(part, "reason") != "tool-calls":
        heard.end("well")
    elif heard.denied:
        heard.end("badly", f"permission denied: {heard.denied[-1]}")
    else:
        heard.ended = None


_READ = (("input",), ("cache", "read"), ("cache", "write"))
_WRITTEN = (("output",), ("reasoning",))


def _tokens(part: JsonValue, *path: str) -> int:
    return whole(part, "tokens", *path) or 0


def _error(heard: Heard, error: JsonValue) -> None:
    heard.status = whole(error, "data", "statusCode") or heard.status
    heard.retry_after = seconds(text(error, "data", "responseHeaders", "retry-after"))
    said = text(error, "data", "message") or text(error, "name")
    heard.end("badly", said, "api" if text(error, "name").startswith("API") else "other")
