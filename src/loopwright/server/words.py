"""How a loop is told to its starter: the events and notifications of the assistants' own system.

Beyond them, notifications carry the run and what the loop has written, so that it can be read.
"""

from collections.abc import Iterator

from loopwright.app.loops import LoopStory, Told
from loopwright.model.record import JsonValue

STATUS = "agent:status"
ITERATION = "agent:loop_iteration"
ERROR = "agent:error"
NOTIFICATION = "notification"
TITLE_CHARS = 80
OUTPUT_CHARS = 32_000

Event = tuple[str, dict[str, JsonValue]]


def status(agent_id: str, word: str) -> Event:
    return STATUS, {"agentId": agent_id, "status": word}


def error(agent_id: str, text: str, kind: str) -> Event:
    return ERROR, {"agentId": agent_id, "sessionId": "", "error": text, "type": kind}


def torn_down(agent_id: str, name: str, run: str) -> Event:
    """A loop that was ended while nobody looked."""
    agent_id = agent_id or run
    title = f"The loop of {name or agent_id} was ended because nobody was there"
    return NOTIFICATION, {
        "id": f"loop-torn-down-{agent_id}-{run}",
        "level": "critical",
        "title": title,
        "agentId": agent_id,
        "run": run,
    }


def told(story: LoopStory, one: Told) -> Iterator[Event]:
    """What the starter of a loop is sent about something that happened to it."""
    agent_id = story.agent_id
    match one.name:
        case "started" | "resumed":
            yield status(agent_id, "running")
        case "paused":
            yield status(agent_id, "paused")
        case "iteration":
            yield iteration(agent_id, one.payload["iteration"], one.payload["maxIterations"])
        case "progress":
            yield _progress(story, one)
        case "manual_approval_required":
            yield review(story, one.payload)
        case "completed":
            yield _completed(story, one)
            yield status(agent_id, "idle")
        case "failed":
            yield error(agent_id, str(one.payload["error"]), "PROCESS_ERROR")
            yield status(agent_id, "error")
        case _:
            yield status(agent_id, "idle")


def now(story: LoopStory) -> Iterator[Event]:
    """How a loop stands, for somebody who has just come."""
    yield status(story.agent_id, "paused" if story.status == "paused" else "running")
    if story.learnings:
        yield iteration(story.agent_id, len(story.learnings), story.state()["maxIterations"])
    for asked in story.reviews.values():
        yield review(story, asked)


def iteration(agent_id: str, number: JsonValue, most: JsonValue) -> Event:
    return ITERATION, {"agentId": agent_id, "iteration": number, "maxIterations": most}


def _progress(story: LoopStory, one: Told) -> Event:
    number, learning = one.payload["iteration"], str(one.payload["learning"])
    return NOTIFICATION, {
        "id": f"loop-progress-{story.agent_id}-{number}",
        "level": "info",
        "title": f"Iteration {number}: {learning[:TITLE_CHARS]}",
        "agentId": story.agent_id,
        "run": story.run,
        "iteration": number,
        **_cut("output", str(one.payload.get("output", ""))),
    }


def review(story: LoopStory, asked: dict[str, JsonValue]) -> Event:
    """A person is asked."""
    return NOTIFICATION, {
        "id": f"loop-approval-{story.agent_id}-{asked['loopId']}",
        "level": "action_required",
        "title": f"Iteration {asked['iteration']} waits for your review",
        "agentId": story.agent_id,
        "actions": ["approve", "reject"],
        "run": story.run,
        "loopId": asked["loopId"],
        "iteration": asked["iteration"],
        **_cut("output", str(asked["output"])),
    }


def _completed(story: LoopStory, one: Told) -> Event:
    count = one.payload["totalIterations"]
    passes = "1 iteration" if count == 1 else f"{count} iterations"
    return NOTIFICATION, {
        "id": f"loop-completed-{story.agent_id}",
        "level": "info",
        "title": f"The loop is completed after {passes}",
        "agentId": story.agent_id,
        "run": story.run,
        **_cut("finalOutput", str(one.payload["finalOutput"])),
    }


def _cut(name: str, text: str) -> dict[str, JsonValue]:
    """A text as far as it is sent; the run has all of it."""
    if len(text) <= OUTPUT_CHARS:
        return {name: text}
    return {name: text[:OUTPUT_CHARS], "truncated": True}
