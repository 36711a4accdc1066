"""A loop in the words of those who steer loops: its round, its stages, and who works on it."""

from collections.abc import Mapping, Sequence
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
_STAGE_DEPTH = 3  # `main.0.plan`: the loop, the iteration, the stage
_PASSED = ("completed", "skipped")


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
    asked: str = ""  # the place of the stage that was given to an agent last
    asked_index: int = 0
    task: str = ""
    at: int = 0
    trouble: str = ""
    cut_off: str = ""  # why the call was ended from outside

    @property
    def stage(self) -> int:
        """The index of the stage that is under way, that the loop stopped at, or that is next."""
        open_stages = [one.index for one in self.stages if one.status not in _PASSED]
        return open_stages[0] if open_stages else max(len(self.stages) - 1, 0)

    def dispatch(self, status: str = "running") -> dict[str, JsonValue]:
        """Whether the work of a loop with this status was given to an agent: the stage that was
        given last, what went wrong with it, and while the loop is paused what is next.
        """
        if not self.asked:
            waits = "until it is resumed" if status == "paused" else "for its first stage to begin"
            return {"status": "pending", "message": f"waiting {waits}"}
        told: dict[str, JsonValue] = {
            "status": "failed" if self.trouble else "dispatched",
            "task_id": self.task,
            "stage_id": self.asked,
            "stage_index": self.asked_index,
            "updated_at": timestamp(self.at),
        }
        if self.trouble:
            return {**told, "message": self.trouble[:SUMMARY_CHARS]}
        if self.cut_off and status != "running":
            return {**told, "message": self.cut_off[:SUMMARY_CHARS]}
        if status == "paused" and self.stages:
            following = self.stages[self.stage]
            word = "continues" if following.status == "running" else "begins"
            words = f"paused: stage {following.index} ({following.id}) {word} after a resume"
            return {**told, "message": words, "next_stage_index": following.index}
        return told


def seen(plan: Plan, facts: Sequence[AnyFact], read: ReadText) -> Seen:
    """The newest round of the loop of a plan."""
    loop = only_repeat(plan)
    told = Seen(stages_of(plan), most=loop.max if loop is not None else None)
    for cycle in cycles_of(plan, facts, read)[-1:]:
        told.iteration, told.round_status, told.stages = cycle.number, cycle.status, cycle.stages
    indexes = {one.id: one.index for one in told.stages}
    for fact in facts:
        match fact:
            case IterationStarted(of=int(most)) if is_outermost(fact.path):
                told.most = most
            case RunEdited(passes=int(most)):
                told.most = most or None
            case EffectRequested(call=AgentCall() | ModelCall()) if _is_stage(fact.path, indexes):
                told.asked, told.task, told.at = fact.path, fact.effect, fact.at
                told.asked_index = indexes.get(_stage_id(fact.path), 0)
                told.trouble = told.cut_off = ""
            case EffectFailed() if fact.effect == told.task:
                told.at = fact.at
                if fact.error.type == "cancelled":  # it was dispatched; somebody ended it
                    told.cut_off = fact.error.detail
                else:
                    told.trouble = f"{fact.error.type}: {fact.error.detail}"
            case _:
                pass
    return told


def _stage_id(path: str) -> str:
    """The stage that a call is for: `main.0.plan~1` is about `plan`, and so are its turns."""
    parts = path.split(".")
    return parts[_STAGE_DEPTH - 1].partition("~")[0] if len(parts) >= _STAGE_DEPTH else ""


def _is_stage(path: str, indexes: Mapping[str, int]) -> bool:
    """Whether a call is for a stage, and not for an evaluator; all calls of a loop without stages
    count.
    """
    return not indexes or _stage_id(path) in indexes


def shown_time(ms: int | None) -> str | None:
    return None if ms is None else timestamp(ms)
