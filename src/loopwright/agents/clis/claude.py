"""One event of Claude Code (`--output-format stream-json`)."""

import re

import msgspec
from msgspec.structs import replace

from loopwright.agents.clis.loose_json import amount, at, items, text, whole
from loopwright.agents.clis.transcript import LiveEntry, Transcript, Trouble, as_text, tool_line
from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue

_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,3})\b")
SYNTHETIC = "<synthetic>"
"""The model that Claude Code names in messages that it has written itself."""
_TROUBLES: dict[str, Trouble] = {
    "error_max_turns": "turns",
    "error_max_budget_usd": "budget",
}


def read_event(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    """Process one event; returns its part for the live view."""
    transcript.session = text(event, "session_id") or transcript.session
    match text(event, "type"):
        case "system":
            return _system(transcript, event)
        case "stream_event":
            return _partial(transcript, event)
        case "assistant":
            return _assistant(transcript, event)
        case "user" if at(event, "isReplay") is True:
            _message_read(transcript, event)
        case "user":
            _tool_results(transcript, event)
        case "rate_limit_event":
            return _allowance(transcript, at(event, "rate_limit_info"))
        case "result":
            _result(transcript, event)
    return []


def input_line(words: str, name: str = "") -> str:
    """A message as the program reads it on its standard input (`--input-format stream-json`)."""
    content: JsonValue = [{"type": "text", "text": words.encode(errors="replace").decode()}]
    line: dict[str, JsonValue] = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "session_id": "",
    }
    return msgspec.json.encode({**line, "uuid": name} if name else line).decode()


def _message_read(transcript: Transcript, event: JsonValue) -> None:
    """A message that was sent while the agent worked has been read. One that arrived after the last
    request of a turn starts another turn, whose result counts.
    """
    transcript.read_messages.add(text(event, "uuid"))
    transcript.ending.ended, transcript.spoken.final = None, None
    transcript.ending.problem, transcript.ending.trouble = "", "other"


def _system(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    match text(event, "subtype"):
        case "init":
            transcript.model = text(event, "model") or transcript.model
        case "api_retry":
            transcript.ending.status = whole(event, "error_status") or transcript.ending.status
            return transcript.note_status(_retry_words(event))
        case "permission_denied":
            reason = text(event, "message")
            transcript.deny(text(event, "tool_use_id"), text(event, "tool_name"), reason=reason)
    return []


def is_progress(event: JsonValue) -> bool:
    """Whether an event shows that the agent gets on: a retry, a refusal of the provider and a sign
    of life on the wire do not.
    """
    match text(event, "type"):
        case "system":
            return text(event, "subtype") not in ("api_retry", "status", "ui_invalidate")
        case "rate_limit_event":
            return False
        case "stream_event":
            return text(event, "event", "type") != "ping"
        case "assistant":
            return at(event, "is_api_error_message") is not True
    return True


def _retry_words(event: JsonValue) -> str:
    reason = text(event, "error").replace("_", " ") or "the request failed"
    status = whole(event, "error_status")
    if reason == "unknown":  # without a status: there was no response
        reason = "the request failed" if status else "cannot reach the model service"
    attempt, most = whole(event, "attempt") or "?", whole(event, "max_retries")
    delay = amount(event, "retry_delay_ms")
    return (
        f"{reason}{f' ({status})' if status else ''}: retrying"
        f"{f' in {delay / 1000:.0f} s' if delay else ''}"
        f" (attempt {attempt}{f' of {most}' if most else ''})"
    )


def _tool_results(transcript: Transcript, event: JsonValue) -> None:
    for block in items(event, "message", "content"):
        if text(block, "type") != "tool_result":
            continue
        message = _result_text(at(block, "content"))
        failed = at(block, "is_error") is True
        exited = _EXIT_CODE.match(message) if failed else None
        transcript.end_call(
            text(block, "tool_use_id"),
            ok=not failed,
            code=int(exited.group(1)) if exited is not None else None,
            result=message,
        )


def _result_text(content: JsonValue) -> str:
    """The text of a result, which is a text or a list of parts."""
    if isinstance(content, list):
        return "\n".join(text(part, "text") or f"({text(part, 'type')})" for part in content)
    return as_text(content)


def _partial(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    """A piece of a text that comes whole a moment later."""
    piece = text(event, "event", "delta", "text")
    if not piece or at(event, "parent_tool_use_id") is not None:
        return []
    transcript.spoken.streaming = True
    return [LiveEntry("text", piece)]


def _assistant(transcript: Transcript, event: JsonValue) -> list[LiveEntry]:
    if at(event, "is_api_error_message") is True:
        transcript.ending.status = whole(event, "api_error_status") or transcript.ending.status
        return []
    message: list[LiveEntry] = []
    inner = at(event, "parent_tool_use_id") is not None  # of a helper that the agent started
    if not inner and (model := text(event, "message", "model")) != SYNTHETIC:
        transcript.model = model or transcript.model
    _count_turn(transcript, at(event, "message"))
    for block in items(event, "message", "content"):
        kind = text(block, "type")
        if kind == "tool_use":
            transcript.counts.tools += 1
            call = transcript.begin_call(text(block, "id"), text(block, "name"), at(block, "input"))
            message.append(tool_line(call.tool, call.target))
        elif kind == "text" and not inner:
            transcript.add_text(text(block, "text"))
            if not transcript.spoken.streaming:
                message.append(LiveEntry("text", text(block, "text")))
    if not inner:
        transcript.spoken.streaming = False
    return message


def _count_turn(transcript: Transcript, message: JsonValue) -> None:
    """The usage of one request, while the call runs. A message comes once for each of its blocks,
    with the same usage.
    """
    used = _of_usage(at(message, "usage"))
    if used != Usage():
        transcript.spent.turns[text(message, "id")] = (
            text(message, "model"),
            replace(used, unpriced=1),
        )


def _of_usage(usage: JsonValue) -> Usage:
    return Usage(
        input_tokens=sum(whole(usage, name) or 0 for name in _READ),
        output_tokens=whole(usage, "output_tokens") or 0,
        cache_read_tokens=whole(usage, "cache_read_input_tokens") or 0,
        cache_write_tokens=whole(usage, "cache_creation_input_tokens") or 0,
    )


def _allowance(transcript: Transcript, info: JsonValue) -> list[LiveEntry]:
    transcript.limit.resets_at = whole(info, "resetsAt") or transcript.limit.resets_at
    if text(info, "status") != "rejected":
        return []
    transcript.limit.blocked = True
    until = (
        f" until {transcript.time_text(transcript.limit.resets_at)}"
        if transcript.limit.resets_at is not None
        else ""
    )
    return transcript.note_status(f"rate limit reached{until}")


def _result(transcript: Transcript, event: JsonValue) -> None:
    transcript.spent.usage = _usage(event, transcript.spent.usage)
    transcript.ending.status = whole(event, "api_error_status") or transcript.ending.status
    transcript.data = at(event, "structured_output")
    for denial in items(event, "permission_denials"):
        given = at(denial, "tool_input")
        transcript.deny(text(denial, "tool_use_id"), text(denial, "tool_name"), given)
    message = text(event, "result")
    if at(event, "is_error") is not True and text(event, "subtype") == "success":
        transcript.spoken.final = message
        transcript.end("well")
        return
    problems = "; ".join(one for one in items(event, "errors") if isinstance(one, str))
    transcript.end(
        "badly", message or problems or text(event, "subtype"), _trouble(event, problems)
    )


def _trouble(event: JsonValue, problems: str) -> Trouble:
    reason = text(event, "terminal_reason")
    if reason == "api_error":
        return "api"
    if reason.startswith("aborted"):
        return "aborted"
    if "No conversation found" in problems:
        return "session"
    return _TROUBLES.get(text(event, "subtype"), "other")


def _usage(event: JsonValue, before: Usage | None) -> Usage | None:
    """The usage of this call. The totals of a result are those of the whole session; the usage
    since the previous result is listed beside them, by model. `before` is the usage in earlier
    results of this call.
    """
    since = at(event, "model_usage_since_last_result")
    if isinstance(since, dict) and since:
        used = sum((_of_model(one) for one in since.values()), Usage())
        # A model that answered from a cache may have no cost of its own.
        unpriced = int(used.unpriced == len(since))
        total = used if before is None else before + used
        return replace(total, unpriced=max(unpriced, before.unpriced if before else 0))
    used = _of_usage(at(event, "usage"))
    if used == Usage():
        return before
    usd = amount(event, "total_cost_usd")
    total = used if before is None else before + used
    return replace(total, usd=usd or 0.0, unpriced=int(usd is None))


_READ = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_READ_OF_MODEL = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")


def _of_model(one: JsonValue) -> Usage:
    usd = amount(one, "costUSD")
    return Usage(
        input_tokens=sum(whole(one, name) or 0 for name in _READ_OF_MODEL),
        output_tokens=whole(one, "outputTokens") or 0,
        usd=usd or 0.0,
        unpriced=int(usd is None),
        cache_read_tokens=whole(one, "cacheReadInputTokens") or 0,
        cache_write_tokens=whole(one, "cacheCreationInputTokens") or 0,
    )
