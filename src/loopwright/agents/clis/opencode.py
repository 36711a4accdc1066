"""One event of OpenCode (`opencode run --format json`)."""

from msgspec.structs import replace

from loopwright.agents.clis.loose_json import amount, at, text, whole
from loopwright.agents.clis.transcript import LiveEntry, Transcript, reset_seconds, tool_line
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue

_REFUSED = ("rejected permission", "prevents you from using", "permission denied by rule")


def read_event(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    """Process one event; returns its part for the live view."""
    transcript.session = text(event, "sessionID") or transcript.session
    part = at(event, "part")
    match text(event, "type"):
        case "text":
            transcript.add_text(text(part, "text"))
            return [LiveEntry("text", text(part, "text"))]
        case "tool_use":
            return _tool(transcript, part)
        case "step_finish":
            _finished(transcript, part)
        case "error":
            _error(transcript, at(event, "error"))
    return []


def is_progress(event: JsonValue) -> bool:
    """Whether an event shows that the agent gets on."""
    return text(event, "type") != "error"


def _tool(transcript: Transcript, part: JsonValue) -> list[LiveEntry]:
    """A call that has ended; this program reports none before."""
    transcript.counts.tools += 1
    state = at(part, "state")
    name, call = text(part, "tool"), text(part, "callID") or text(part, "id")
    opened = transcript.begin_call(call, name, at(state, "input"))
    problem = text(state, "error")
    if any(words in problem for words in _REFUSED):
        transcript.deny(call, name, reason=problem)
    else:
        code = whole(state, "metadata", "exit")
        status = text(state, "status")
        transcript.end_call(
            call,
            ok=None
            if status in ("pending", "running")
            else status != "error" and code in (None, 0),
            code=code,
            result=problem or text(state, "output"),
            ms=_duration(state),
        )
    return [tool_line(name, opened.target)]


def _duration(state: JsonValue) -> int | None:
    start, end = whole(state, "time", "start"), whole(state, "time", "end")
    return None if start is None or end is None else max(0, end - start)


def _finished(transcript: Transcript, part: JsonValue) -> None:
    """A step; its reason distinguishes the last one from those that wait for a tool. A call whose
    steps end with a refused tool has no last one.
    """
    usd = amount(part, "cost")
    used = Usage(
        input_tokens=sum(_tokens(part, *path) for path in _READ),
        output_tokens=sum(_tokens(part, *path) for path in _WRITTEN),
        usd=usd or 0.0,
        cache_read_tokens=_tokens(part, "cache", "read"),
        cache_write_tokens=_tokens(part, "cache", "write"),
    )
    # It reports 0 for a model whose price it does not know.
    if not usd and used.tokens:
        used = replace(used, unpriced=1)
    total = (transcript.spent.usage or Usage()) + used
    transcript.spent.usage = replace(total, unpriced=min(total.unpriced, 1))
    if text(part, "reason") != "tool-calls":
        transcript.end("well")
    elif transcript.denied:
        transcript.end("badly", f"permission denied: {transcript.denied[-1]}")
    else:
        transcript.ending.ended = None


_READ = (("input",), ("cache", "read"), ("cache", "write"))
_WRITTEN = (("output",), ("reasoning",))


def _tokens(part: JsonValue, *path: str) -> int:
    return whole(part, "tokens", *path) or 0


def _error(transcript: Transcript, error: JsonValue) -> None:
    transcript.ending.status = whole(error, "data", "statusCode") or transcript.ending.status
    transcript.limit.retry_after = reset_seconds(
        text(error, "data", "responseHeaders", "retry-after")
    )
    message = text(error, "data", "message") or text(error, "name")
    transcript.end("badly", message, "api" if text(error, "name").startswith("API") else "other")
