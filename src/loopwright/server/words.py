"""The events and notifications about a loop that its starter is sent.

The five events of the engine have the names and fields of the assistants' own system, and so have
`agent:status`, `agent:loop_iteration` and `agent:error`. All notifications have one shape.
"""

from collections.abc import Callable, Iterator, Mapping

from loopwright.app.leaving import REASON as TORN_DOWN
from loopwright.app.loops import LoopStory, Told
from loopwright.app.moments import timestamp
from loopwright.model.record import JsonValue
from loopwright.server.notices import notice_id

STATUS = "agent:status"
ITERATION = "agent:loop_iteration"
ERROR = "agent:error"
NOTIFICATION = "notification"
TITLE_CHARS = 80
NOTICE_CHARS = 200
OUTPUT_CHARS = 32_000

Event = tuple[str, dict[str, JsonValue]]


def status(agent_id: str, word: str) -> Event:
    return STATUS, {"agentId": agent_id, "status": word}


def error(agent_id: str, text: str, kind: str) -> Event:
    return ERROR, {"agentId": agent_id, "sessionId": "", "error": text, "type": kind}


def told(story: LoopStory, one: Told) -> Iterator[Event]:
    """What the starter of a loop is sent about something that happened to it."""
    agent_id = story.agent_id
    payload = one.engine_payload()
    if payload is not None:
        yield one.name, {"agentId": agent_id, "run": story.run, **_cut_all(payload)}
    if one.name == "iteration":
        yield iteration(agent_id, one.payload["iteration"], one.payload["maxIterations"])
    elif one.name == "failed":
        yield error(agent_id, str(one.payload["error"]), "PROCESS_ERROR")
    data = notification(story, one)
    if data is not None:
        yield NOTIFICATION, data
    word = _STATUS.get(one.name)
    if word is not None:
        yield status(agent_id, word)


def now(story: LoopStory) -> Iterator[Event]:
    """How a loop stands, for somebody who has just come."""
    yield status(story.agent_id, "paused" if story.status == "paused" else "running")
    if story.learnings:
        yield iteration(story.agent_id, len(story.learnings), story.state()["maxIterations"])
    for gate in story.reviews:
        data = notification(story, story.asked[gate]) if gate in story.asked else None
        if data is not None:
            yield NOTIFICATION, data


def iteration(agent_id: str, number: JsonValue, most: JsonValue) -> Event:
    return ITERATION, {"agentId": agent_id, "iteration": number, "maxIterations": most}


def notification(story: LoopStory, one: Told) -> dict[str, JsonValue] | None:
    """The notification about something that happened to a loop; the same whether it is sent while
    it happens or kept for somebody who is away.
    """
    torn_down = one.name == "stopped" and one.payload.get("reason") == TORN_DOWN
    if one.name not in _TITLES and not torn_down:
        return None
    kind = "loop.torn_down" if torn_down else f"loop.{one.name}"
    title = torn_down_title(story.plan.name) if torn_down else _TITLES[one.name](one.payload)
    name = notice_id(story.run, one.at, one.seq, one.part)
    is_review = one.name == "manual_approval_required"
    return {
        "id": name,
        "notification": name,
        "kind": kind,
        "level": "critical" if torn_down else _LEVELS.get(one.name, "info"),
        "title": title[:NOTICE_CHARS],
        "agentId": story.agent_id,
        "run": story.run,
        "seq": one.seq,
        "at": timestamp(one.at),
        "actions": ["approve", "reject"] if is_review else [],
        **_cut_all(_about(story, one)),
    }


def torn_down_title(name: str) -> str:
    return f"The loop of {name} was stopped because its starter was away"


def _about(story: LoopStory, one: Told) -> dict[str, JsonValue]:
    """What a notification is about: the payload of the event, the number of the iteration, and for
    progress the output, too.
    """
    number = one.payload.get("totalIterations", story.iteration)
    return {"iteration": number, **one.payload}


def _progress(payload: Mapping[str, JsonValue]) -> str:
    return f"Iteration {payload['iteration']}: {str(payload['learning'])[:TITLE_CHARS]}"


def _review(payload: Mapping[str, JsonValue]) -> str:
    return f"Iteration {payload['iteration']} waits for your review"


def _completed(payload: Mapping[str, JsonValue]) -> str:
    count = payload["totalIterations"]
    return f"The loop completed after {count} {'iteration' if count == 1 else 'iterations'}"


_TITLES: Mapping[str, Callable[[Mapping[str, JsonValue]], str]] = {
    "progress": _progress,
    "manual_approval_required": _review,
    "completed": _completed,
    "failed": lambda payload: str(payload["error"]),
}
_LEVELS = {"manual_approval_required": "action_required", "failed": "error"}
_STATUS = {
    "started": "running",
    "resumed": "running",
    "paused": "paused",
    "completed": "idle",
    "stopped": "idle",
    "failed": "error",
}


def _cut_all(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Texts as far as they are sent; the run has all of them."""
    cut: dict[str, JsonValue] = {}
    for name, value in data.items():
        if isinstance(value, str) and len(value) > OUTPUT_CHARS:
            cut |= {name: value[:OUTPUT_CHARS], "truncated": True}
        else:
            cut[name] = value
    return cut
