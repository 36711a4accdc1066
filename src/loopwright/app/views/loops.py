"""A loop in the words of those who steer loops: its round, its stages, and who works on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.app.moments import timestamp
from loopwright.app.views.summary import ReadText
from loopwright.kernel.facts import (
    AnyFact,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    IterationStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.ids import last_id, parent_path
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue, Text
from loopwright.ports import RunRow

SUMMARY_CHARS = 200
GOAL_CHARS = 80
ENDED = ("completed", "exhausted", "failed", "cancelled")


def loop_status(row: RunRow) -> str:
    """The status of a loop: an end at its limit is an end, and its reason tells it apart."""
    status = row.headline.status
    return {"exhausted": "completed", "waiting": "blocked"}.get(status, status)


@dataclass(slots=True)
class Stage:
    """One stage of the newest round."""

    index: int
    role: str
    status: str = "pending"
    summary: str = ""

    def as_dict(self) -> dict[str, JsonValue]:
        return {
            "index": self.index,
            "role": self.role,
            "status": self.status,
            "summary": self.summary,
        }


@dataclass(slots=True)
class Seen:
    """What the facts say about a loop."""

    iteration: int = 0
    most: int | None = None
    round_status: str = "pending"
    stages: list[Stage] = field(default_factory=list)
    asked: str = ""
    trouble: str = ""

    @property
    def stage(self) -> int:
        """The place of the stage that is under way, or that comes next."""
        waiting = [one.index for one in self.stages if one.status in ("pending", "running")]
        return waiting[0] if waiting else max(len(self.stages) - 1, 0)

    def dispatch(self) -> dict[str, JsonValue]:
        """Whether its work has reached somebody."""
        if self.trouble:
            return {"status": "failed", "message": self.trouble[:SUMMARY_CHARS]}
        if not self.asked:
            return {"status": "pending", "message": "waiting for its first stage to begin"}
        return {"status": "dispatched", "stage_id": self.asked, "stage_index": self.stage}


def seen(plan: Plan, facts: Sequence[AnyFact], read: ReadText) -> Seen:
    """The newest round of the loop of a plan."""
    found = _found(plan)
    if found is None:
        return Seen()
    name, loop = found
    told = Seen(most=loop.max, stages=_fresh(plan, loop))
    for fact in facts:
        _take(told, fact, name, loop, plan, read)
    return told


def _found(plan: Plan) -> tuple[str, Repeat] | None:
    loops = [(one.id, one.action) for one in plan.steps if isinstance(one.action, Repeat)]
    return loops[0] if loops else None


def _steps(loop: Repeat) -> tuple[Step, ...]:
    return loop.body.steps if isinstance(loop.body, Steps) else ()


def _fresh(plan: Plan, loop: Repeat) -> list[Stage]:
    steps = _steps(loop)
    if not steps and isinstance(loop.body, CallAgent):
        return [Stage(0, role_of(plan, loop.body.agent))]
    return [
        Stage(
            number,
            role_of(plan, one.action.agent) if isinstance(one.action, CallAgent) else one.id,
        )
        for number, one in enumerate(steps)
    ]


def role_of(plan: Plan, agent: str) -> str:
    """The role of an agent, or its name."""
    known = plan.agents.get(agent)
    return (known.role if known is not None else None) or agent


def _take(told: Seen, fact: AnyFact, name: str, loop: Repeat, plan: Plan, read: ReadText) -> None:
    match fact:
        case IterationStarted(path=path) if parent_path(path).partition("~")[0] == name:
            told.iteration = fact.iteration or told.iteration + 1
            told.round_status, told.stages = "running", _fresh(plan, loop)
            told.most = fact.of if fact.of is not None else told.most
        case IterationFinished(path=path) if parent_path(path).partition("~")[0] == name:
            told.round_status = fact.status
            if not _steps(loop) and told.stages:
                _ended(told.stages[0], fact.status, fact.output, read)
        case StepStarted(path=path) | StepFinished(path=path) | StepSkipped(path=path):
            _stage(told, fact, _steps(loop), path, read)
        case EffectRequested():
            told.asked, told.trouble = fact.path, ""
        case EffectFailed():
            told.trouble = f"{fact.error.type}: {fact.error.detail}"
        case _:
            pass


def _stage(
    told: Seen,
    fact: StepStarted | StepFinished | StepSkipped,
    steps: tuple[Step, ...],
    path: str,
    read: ReadText,
) -> None:
    place = next((n for n, one in enumerate(steps) if one.id == last_id(path)), None)
    if place is None:
        return
    stage = told.stages[place]
    match fact:
        case StepStarted():
            stage.status = "running"
        case StepSkipped():
            stage.status = fact.status
        case StepFinished():
            _ended(stage, fact.status, fact.output, read)
            if fact.error is not None:
                stage.summary = f"FAILED: {fact.error.detail}"[:SUMMARY_CHARS]


def _ended(stage: Stage, status: str, output: Text | None, read: ReadText) -> None:
    stage.status = status
    stage.summary = " ".join(read(output).split())[:SUMMARY_CHARS]


def shown_time(ms: int | None) -> str | None:
    return None if ms is None else timestamp(ms)
