"""A loop in the words of those who steer loops: its round, its stages, and who works on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.app.moments import timestamp
from loopwright.app.views.role_cycles import (
    SUMMARY_CHARS,
    Stage,
    cycles_of,
    is_outermost,
    stages_of,
)
from loopwright.app.views.summary import ReadText
from loopwright.kernel.calls import AgentCall, ModelCall
from loopwright.kernel.facts import (
    AnyFact,
    EffectFailed,
    EffectRequested,
    IterationStarted,
    RunEdited,
)
from loopwright.model.plan import Plan, only_repeat
from loopwright.model.record import JsonValue
from loopwright.ports import RunRow

GOAL_CHARS = 80


def loop_status(row: RunRow) -> str:
    """The status of a loop: an end at its limit is an end, and its reason tells it apart."""
    status = row.headline.status
    return {"exhausted": "completed", "waiting": "blocked"}.get(status, status)


@dataclass(slots=True)
class Seen:
    """What the facts say about the newest round of a loop."""

    stages: list[Stage]
    iteration: int = 0
    most: int | None = None
    round_status: str = "pending"
    asked: str = ""
    task: str = ""
    at: int = 0
    trouble: str = ""

    @property
    def stage(self) -> int:
        """The place of the stage that is under way, or that comes next."""
        waiting = [one.index for one in self.stages if one.status in ("pending", "running")]
        return waiting[0] if waiting else max(len(self.stages) - 1, 0)

    def dispatch(self) -> dict[str, JsonValue]:
        """Whether its work has reached somebody, and what went wrong with that last."""
        if not self.asked:
            return {"status": "pending", "message": "waiting for its first stage to begin"}
        told: dict[str, JsonValue] = {
            "status": "failed" if self.trouble else "dispatched",
            "task_id": self.task,
            "stage_id": self.asked,
            "stage_index": self.stage,
            "updated_at": timestamp(self.at),
        }
        return {**told, "message": self.trouble[:SUMMARY_CHARS]} if self.trouble else told


def seen(plan: Plan, facts: Sequence[AnyFact], read: ReadText) -> Seen:
    """The newest round of the loop of a plan."""
    loop = only_repeat(plan)
    told = Seen(stages_of(plan), most=loop.max if loop is not None else None)
    for cycle in cycles_of(plan, facts, read)[-1:]:
        told.iteration, told.round_status, told.stages = cycle.number, cycle.status, cycle.stages
    for fact in facts:
        match fact:
            case IterationStarted(of=int(most)) if is_outermost(fact.path):
                told.most = most
            case RunEdited(passes=int(most)):
                told.most = most or None
            case EffectRequested(call=AgentCall() | ModelCall()):
                told.asked, told.task, told.at = fact.path, fact.effect, fact.at
                told.trouble = ""
            case EffectFailed() if fact.effect == told.task:
                told.trouble, told.at = f"{fact.error.type}: {fact.error.detail}", fact.at
            case _:
                pass
    return told


def shown_time(ms: int | None) -> str | None:
    return None if ms is None else timestamp(ms)
