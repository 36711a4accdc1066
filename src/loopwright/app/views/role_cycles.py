"""A loop, iteration by iteration with its stages, read off its facts."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loopwright.app.moments import timestamp
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    EffectFailed,
    IterationFinished,
    IterationStarted,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import CallAgent, Steps
from loopwright.model.checks import Approval, leaves
from loopwright.model.ids import last_id, parent_path
from loopwright.model.plan import Plan, only_repeat
from loopwright.model.record import JsonValue, Text

SUMMARY_CHARS = 200
_TRY = re.compile(r"~\d+")


@dataclass(slots=True)
class Stage:
    """One stage of an iteration."""

    index: int
    id: str
    role: str
    status: str = "pending"
    summary: str = ""
    session: str | None = None  # of the agent that has worked on it, as far as it has told one

    def as_dict(self) -> dict[str, JsonValue]:
        return {
            "index": self.index,
            "name": self.id,
            "role": self.role,
            "status": self.status,
            "summary": " ".join(self.summary.split())[:SUMMARY_CHARS],
            "session_id": self.session,
        }


@dataclass(slots=True)
class Cycle:
    """One iteration."""

    number: int
    stages: list[Stage]
    started_at: int
    finished_at: int | None = None
    status: str = "running"
    now: int | None = None  # when it is looked at, for one that has not finished
    stages_by_id: dict[str, Stage] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        end = self.finished_at or self.now or self.started_at
        return max(0, end - self.started_at) / 1000

    @property
    def completed(self) -> int:
        return sum(one.status == "completed" for one in self.stages)

    def name(self, run: str) -> str:
        return f"{run}.{self.number}"

    def as_dict(self, run: str) -> dict[str, JsonValue]:
        return {
            "id": self.name(run),
            "iteration_number": self.number,
            "status": self.status,
            "started_at": timestamp(self.started_at),
            "completed_at": timestamp(self.finished_at) if self.finished_at else None,
            "duration_seconds": self.seconds,
            "stage_count": len(self.stages),
            "completed_stage_count": self.completed,
            "stages": [one.as_dict() for one in self.stages],
        }


def cycles_of(
    plan: Plan,
    facts: Sequence[AnyFact],
    read: Callable[[Text | None], str],
    *,
    now: int | None = None,
) -> list[Cycle]:
    """The iterations of the outermost loop of a plan, in their order; where there are several, of
    the one that began an iteration last. Those that have not finished last until `now`.
    """
    loop = only_repeat(plan)
    until = loop.until if loop is not None else None
    is_reviewed = until is not None and any(isinstance(one, Approval) for one in leaves(until))
    loops: dict[str, dict[str, Cycle]] = {"": {}}
    newest = ""
    for fact in facts:
        match fact:
            case IterationStarted(path=path) if is_outermost(path) and fact.iteration != 0:
                newest = loop_path(path)
                loops[newest] = _begun(plan, loops.get(newest, {}), fact)
            case IterationFinished(path=path) if path in loops.get(loop_path(path), {}):
                cycle = loops[loop_path(path)][path]
                cycle.finished_at = fact.at
                rejected = fact.status == "completed" and not fact.done and is_reviewed
                cycle.status = "needs_rework" if rejected else fact.status
            case StepStarted() | StepFinished() | StepSkipped() | StepKept():
                _note(loops[newest], fact, read)
            case EffectDone(session=str(session)) | EffectFailed(session=str(session)):
                stage = _stage_at(loops[newest], fact.path)
                if stage is not None:
                    stage.session = session
            case _:
                pass
    found = list(loops[newest].values())
    for cycle in found:
        cycle.now = now
    return found


def _begun(plan: Plan, known: dict[str, Cycle], fact: IterationStarted) -> dict[str, Cycle]:
    if fact.resumed and fact.path in known:
        known[fact.path].status, known[fact.path].finished_at = "running", None
        return known
    stages, number = stages_of(plan), fact.iteration or len(known) + 1
    # One that is made once more, and whatever came after it, counts from here on.
    found = {name: one for name, one in known.items() if one.number < number}
    found[fact.path] = Cycle(number, stages, fact.at)
    found[fact.path].stages_by_id = {one.id: one for one in stages}
    return found


def is_outermost(path: str) -> bool:
    """Whether a pass is one of a loop that is in no pass of another."""
    around = parent_path(path)
    return "[" not in around and not any(one.isdecimal() for one in around.split("."))


def loop_path(path: str) -> str:
    """The loop that a pass belongs to; tries of it are one."""
    return _TRY.sub("", parent_path(path))


def stages_of(plan: Plan) -> list[Stage]:
    """The stages of the only loop of a plan, none of them begun."""
    loop = only_repeat(plan)
    steps = loop.body.steps if loop is not None and isinstance(loop.body, Steps) else ()
    calls = [(step.id, step.action) for step in steps if isinstance(step.action, CallAgent)]
    return [Stage(n, name, _role(plan, call)) for n, (name, call) in enumerate(calls)]


def _note(
    found: dict[str, Cycle],
    fact: StepStarted | StepFinished | StepSkipped | StepKept,
    read: Callable[[Text | None], str],
) -> None:
    stage = _stage_at(found, fact.path)
    if stage is None:
        return
    if isinstance(fact, StepStarted):
        stage.status = "running"
        return
    if isinstance(fact, StepKept):
        stage.status, stage.summary = "completed", read(fact.output)
        return
    stage.status = fact.status
    if isinstance(fact, StepFinished) and fact.status == "failed":
        stage.summary = f"FAILED: {fact.error.detail if fact.error else fact.reason}"
    elif isinstance(fact, StepFinished):
        stage.summary = read(fact.output)


def _stage_at(found: dict[str, Cycle], path: str) -> Stage | None:
    """The stage at a place; tries of it are one."""
    cycle = found.get(parent_path(path))
    return cycle.stages_by_id.get(last_id(path).partition("~")[0]) if cycle is not None else None


def _role(plan: Plan, call: CallAgent) -> str:
    agent = plan.agents.get(call.agent)
    return (agent.role if agent is not None else None) or call.agent
