"""Event payloads and loop state in the format of RondoFlow, made from plain values.

Within an iteration the order is: iteration, progress, then the request for a review. A terminal
event is last. A failed iteration has no iteration event, and a stopped loop has no terminal
event.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from loopwright.dialects.rondoflow.lower import PATTERN
from loopwright.model.checks import CommandCheck, PersonCheck, Regex
from loopwright.model.plan import Plan, only_repeat

Payload: TypeAlias = dict[str, str | int]
EventName: TypeAlias = Literal[
    "iteration", "progress", "manual_approval_required", "completed", "failed"
]
Status: TypeAlias = Literal["running", "paused", "completed", "failed"]


class RondoflowEvent(NamedTuple):
    """One event of a loop."""

    name: EventName
    payload: Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantIteration:
    """An iteration whose call has succeeded; `review` is the id of its gate."""

    iteration: int
    max_iterations: int
    output: str
    learning: str
    review: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a loop: its outcome, number of iterations, and its result or error."""

    outcome: Literal["completed", "exhausted", "failed", "cancelled"]
    reason: str
    iterations: int
    output: str = ""
    error: str = ""


class CriteriaView(TypedDict):
    """The criterion as it is shown."""

    type: str
    value: str


class LoopState(TypedDict):
    """The answer to a request for the status of a loop."""

    agentId: str
    sessionId: str
    iteration: int
    maxIterations: int
    criteria: CriteriaView
    status: Status
    progressLog: list[str]


def events_of_iteration(done: AssistantIteration) -> list[RondoflowEvent]:
    """The events of one iteration, in their order."""
    events = [
        RondoflowEvent(
            "iteration",
            {
                "iteration": done.iteration,
                "maxIterations": done.max_iterations,
                "output": done.output,
            },
        ),
        RondoflowEvent("progress", {"iteration": done.iteration, "learning": done.learning}),
    ]
    if done.review is not None:
        review: Payload = {
            "iteration": done.iteration,
            "output": done.output,
            "loopId": done.review,
        }
        events.append(RondoflowEvent("manual_approval_required", review))
    return events


def event_of_end(end: End) -> RondoflowEvent | None:
    """The terminal event, or None for a loop that was stopped."""
    match end.outcome:
        case "completed":
            payload: Payload = {"totalIterations": end.iterations, "finalOutput": end.output}
            return RondoflowEvent("completed", payload)
        case "cancelled":
            return None
        case _:
            return RondoflowEvent("failed", {"iteration": end.iterations, "error": _error(end)})


def _error(end: End) -> str:
    if end.reason == "rejected":
        return end.error
    return f"Iteration {end.iterations}: {end.error or end.reason}"


def status_of(status: str) -> Status:
    """The status of a run in the four words that this dialect has."""
    words: dict[str, Status] = {
        "running": "running",
        "waiting": "running",
        "paused": "paused",
        "completed": "completed",
    }
    return words.get(status, "failed")


def loop_state(
    plan: Plan, *, agent_id: str, status: str, learnings: list[str], iteration: int | None = None
) -> LoopState:
    """The state of a loop; the log is a copy. `iteration` is the current or the last one."""
    loop = only_repeat(plan)
    return {
        "agentId": agent_id,
        "sessionId": "",
        "iteration": len(learnings) if iteration is None else iteration,
        "maxIterations": (loop.max if loop else None) or 0,
        "criteria": criteria_of(plan),
        "status": status_of(status),
        "progressLog": list(learnings),
    }


def criteria_of(plan: Plan) -> CriteriaView:
    """The criterion of a loop, read off its plan."""
    loop = only_repeat(plan)
    until = loop.until if loop else None
    if isinstance(until, Regex):
        return {"type": "regex", "value": plan.settings.get(PATTERN, until.pattern)}
    if isinstance(until, CommandCheck):
        return {"type": "test_pass", "value": " ".join(until.argv)}
    manual = isinstance(until, PersonCheck)
    return {"type": "manual" if manual else "max_iterations", "value": ""}
