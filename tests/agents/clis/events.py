"""Events as the programs print them, cut down to what counts; versions stand in the how-to."""

import json
from collections.abc import Sequence

from loopwright.model.record import JsonValue

Event = dict[str, JsonValue]

SESSION = "11111111-1111-4111-8111-111111111111"
MODEL = "claude-opus-5-5"


def lines(events: Sequence[Event]) -> bytes:
    """A stream of events."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


# -- Claude Code -----------------------------------------------------------------------------------


def claude(kind: str, **more: JsonValue) -> Event:
    return {"type": kind, "session_id": SESSION, **more}


def claude_says(*blocks: Event, **more: JsonValue) -> Event:
    message: Event = {"role": "assistant", "model": MODEL, "content": list(blocks)}
    return claude("assistant", **{"message": message, "parent_tool_use_id": None, **more})


def claude_text(text: str) -> Event:
    return claude_says({"type": "text", "text": text})


def claude_tool(name: str, **given: JsonValue) -> Event:
    return claude_says({"type": "tool_use", "id": "toolu_1", "name": name, "input": given})


def claude_piece(text: str, **more: JsonValue) -> Event:
    event: Event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return claude("stream_event", **{"event": event, "parent_tool_use_id": None, **more})


def claude_usage(read: int, written: int, usd: float) -> Event:
    return {MODEL: {"inputTokens": read, "outputTokens": written, "costUSD": usd}}


def claude_result(**more: JsonValue) -> Event:
    """The last event of a turn that went well, unless told otherwise."""
    fields: Event = {
        "subtype": "success",
        "is_error": False,
        "result": "DONE. File written.",
        "num_turns": 2,
        "terminal_reason": "completed",
        "api_error_status": None,
        "permission_denials": [],
        "total_cost_usd": 0.0132,
        "usage": {"input_tokens": 2000, "output_tokens": 40},
        "modelUsage": claude_usage(3000, 60, 0.0132),
        "model_usage_since_last_result": claude_usage(2000, 40, 0.0088),
    }
    return claude("result", **{**fields, **more})


CLAUDE_INIT = claude("system", subtype="init", tools=["Bash", "Write"], model=MODEL)
CLAUDE_WRITES = [
    CLAUDE_INIT,
    claude_tool("Write", file_path="/ws/hello.txt", content="hello\n"),
    claude(
        "user",
        message={"content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]},
    ),
    claude_text("DONE. File written."),
    claude_result(),
]


def claude_api_error(status: int, said: str) -> list[Event]:
    """A refusal of the provider: the subtype still says `success`."""
    retry = claude("system", subtype="api_retry", attempt=1, error_status=status, error="refused")
    shown = claude_says(
        {"type": "text", "text": said}, is_api_error_message=True, api_error_status=status
    )
    end = claude_result(
        is_error=True,
        result=said,
        terminal_reason="api_error",
        api_error_status=status,
        usage={"input_tokens": 0, "output_tokens": 0},
        model_usage_since_last_result={},
        total_cost_usd=0,
    )
    return [CLAUDE_INIT, retry, shown, end]


def claude_fails(subtype: str, *errors: str, **more: JsonValue) -> Event:
    return claude_result(
        **{"subtype": subtype, "is_error": True, "result": None, "errors": list(errors), **more}
    )


# -- Codex -----------------------------------------------------------------------------------------

THREAD = "01a1e09f-88d4-7e21-95b9-fedb161aba9b"
CODEX_BEGINS: list[Event] = [
    {"type": "thread.started", "thread_id": THREAD},
    {
        "type": "item.completed",
        "item": {"id": "item_0", "type": "error", "message": "Model metadata not found."},
    },
    {"type": "turn.started"},
]


def codex_item(kind: str, state: str = "completed", **more: JsonValue) -> Event:
    return {"type": f"item.{state}", "item": {"id": "item_1", "type": kind, **more}}


def codex_usage(read: int, written: int) -> Event:
    usage: Event = {"input_tokens": read, "cached_input_tokens": 0, "output_tokens": written}
    return {"type": "turn.completed", "usage": usage}


def codex_fails(said: str) -> list[Event]:
    return [
        *CODEX_BEGINS,
        {"type": "error", "message": f"Reconnecting... 1/1 ({said})"},
        {"type": "error", "message": said},
        {"type": "turn.failed", "error": {"message": said}},
    ]


CODEX_WRITES: list[Event] = [
    *CODEX_BEGINS,
    codex_item("command_execution", "started", command="/bin/bash -lc 'touch a'", status="x"),
    codex_item("command_execution", command="/bin/bash -lc 'touch a'", exit_code=0),
    codex_item("agent_message", text="DONE. File written."),
    codex_usage(2000, 40),
]

# -- OpenCode --------------------------------------------------------------------------------------

SES = "ses_e1f525602ffeRDcF3NmO2s4cqy"


def opencode(kind: str, **part: JsonValue) -> Event:
    return {"type": kind, "sessionID": SES, "part": part}


def opencode_step(reason: str, cost: float = 0.0033) -> Event:
    tokens: Event = {"input": 1000, "output": 20, "reasoning": 0, "cache": {"write": 0, "read": 5}}
    return opencode("step_finish", reason=reason, tokens=tokens, cost=cost)


def opencode_tool(name: str, **state: JsonValue) -> Event:
    return opencode("tool_use", tool=name, callID="call_1", state=state)


def opencode_error(message: str, status: int | None, **more: JsonValue) -> list[Event]:
    data: Event = {"message": message, "statusCode": status, "isRetryable": False, **more}
    return [{"type": "error", "sessionID": SES, "error": {"name": "APIError", "data": data}}]


OPENCODE_WRITES: list[Event] = [
    opencode("step_start"),
    opencode_tool("write", status="completed", input={"filePath": "/ws/a.txt"}, output="ok"),
    opencode_step("tool-calls"),
    opencode("step_start"),
    opencode("text", text="DONE. File written."),
    opencode_step("stop"),
]
OPENCODE_REFUSED: list[Event] = [
    opencode("step_start"),
    opencode_tool(
        "write",
        status="error",
        input={"filePath": "/ws/a.txt"},
        error="The user rejected permission to use this specific tool call.",
    ),
    opencode_step("tool-calls"),
]

# -- Gemini CLI ------------------------------------------------------------------------------------

GEMINI_WRITES: list[Event] = [
    {"type": "init", "session_id": SESSION, "model": "gemini-2.5-flash"},
    {"type": "message", "role": "user", "content": "write it"},
    {"type": "message", "role": "assistant", "content": "I will ", "delta": True},
    {"type": "message", "role": "assistant", "content": "write.", "delta": True},
    {"type": "tool_use", "tool_name": "write_file", "parameters": {"file_path": "/ws/a.txt"}},
    {"type": "tool_result", "tool_id": "t1", "status": "success", "output": "ok"},
    {"type": "message", "role": "assistant", "content": "DONE.", "delta": True},
    {
        "type": "result",
        "status": "success",
        "stats": {"input_tokens": 900, "output_tokens": 30, "duration_ms": 5},
    },
]
