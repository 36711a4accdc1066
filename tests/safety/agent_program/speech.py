"""Say something as the program that one is started as: a coding CLI, an agent with a protocol, or a
plain program.
"""

import json
import sys
from collections.abc import Iterator

SESSION = "11111111-1111-4111-8111-111111111111"


def say(name: str, text: str) -> None:
    """Print a text in the form that the program of this name has."""
    if name == "acp":
        converse(text)
        return
    for event in EVENTS.get(name, plain)(text):
        sys.stdout.write(event if isinstance(event, str) else f"{json.dumps(event)}\n")
    sys.stdout.flush()


def plain(text: str) -> Iterator[str]:
    yield text


def jsonl(text: str) -> Iterator[dict[str, object]]:
    yield {"type": "text", "text": text}


def claude(text: str) -> Iterator[dict[str, object]]:
    yield {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "num_turns": 1,
        "session_id": SESSION,
        "result": text,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "total_cost_usd": 0.0,
    }


def codex(text: str) -> Iterator[dict[str, object]]:
    yield {"type": "thread.started", "thread_id": SESSION}
    yield {"type": "turn.started"}
    yield {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": text}}
    yield {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}


def opencode(text: str) -> Iterator[dict[str, object]]:
    tokens = {"input": 1, "output": 1, "reasoning": 0, "cache": {"write": 0, "read": 0}}
    stop = {"reason": "stop", "tokens": tokens, "cost": 0.0}
    for kind, part in (("step_start", {}), ("text", {"text": text}), ("step_finish", stop)):
        yield {"type": kind, "sessionID": "ses_1", "part": part}


def gemini(text: str) -> Iterator[dict[str, object]]:
    yield {"type": "init", "session_id": SESSION, "model": "gemini-2.5-flash"}
    yield {"type": "message", "role": "assistant", "content": text, "delta": True}
    stats = {"input_tokens": 1, "output_tokens": 1, "duration_ms": 5}
    yield {"type": "result", "status": "success", "stats": stats}


def converse(text: str) -> None:
    """Answer one prompt in the Agent Client Protocol."""

    def send(**message: object) -> None:
        sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                send(id=message["id"], result={"sessionId": "s-1"})
            case "session/prompt":
                content = {"type": "text", "text": text}
                update = {"sessionUpdate": "agent_message_chunk", "content": content}
                send(method="session/update", params={"sessionId": "s-1", "update": update})
                send(id=message["id"], result={"stopReason": "end_turn"})


EVENTS = {
    "jsonl": jsonl,
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "gemini": gemini,
}
