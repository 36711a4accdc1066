"""The moves of a loop of stages: which stage of which iteration began or ended, fact by fact."""

from dataclasses import dataclass

from loopwright.app.views.role_cycles import is_outermost, stages_of
from loopwright.kernel.facts import (
    AnyFact,
    IterationStarted,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
)
from loopwright.model.ids import last_id, parent_path
from loopwright.model.plan import Plan
from loopwright.ports import Numbered

RUNNING = "running"
ENDS = ("completed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A stage that began or ended."""

    seq: int
    at: int
    iteration: int
    index: int
    role: str
    status: str
    why: str = ""  # it failed
    kept: bool = False  # it did not run again: it was left out, or its end stands from before


class StageMoves:
    """Follows one loop from its first fact on."""

    def __init__(self, plan: Plan) -> None:
        self._stages = {one.id: one for one in stages_of(plan)}
        self._rounds: dict[str, int] = {}

    def take(self, numbered: Numbered) -> Move | None:
        """The move that the next fact is, if it is one."""
        fact = numbered.fact
        if isinstance(fact, IterationStarted) and is_outermost(fact.path):
            self._rounds[fact.path] = fact.iteration or len(self._rounds) + 1
            return None
        if not isinstance(fact, StepStarted | StepFinished | StepSkipped | StepKept):
            return None
        number = self._rounds.get(parent_path(fact.path))
        stage = self._stages.get(last_id(fact.path))
        if number is None or stage is None:
            return None
        return Move(
            seq=numbered.seq,
            at=fact.at,
            iteration=number,
            index=stage.index,
            role=stage.role,
            status=_status(fact),
            why=_why(fact),
            kept=isinstance(fact, StepKept),
        )


def _status(fact: StepStarted | StepFinished | StepSkipped | StepKept) -> str:
    if isinstance(fact, StepStarted):
        return RUNNING
    return "completed" if isinstance(fact, StepKept) else fact.status


def _why(fact: AnyFact) -> str:
    if not isinstance(fact, StepFinished | StepSkipped) or fact.status != "failed":
        return ""
    return fact.error.detail if fact.error else fact.reason
