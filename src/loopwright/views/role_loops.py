"""Loops of roles: status, iterations and stages, and when a stage started or ended.

Everything is computed from the events of the run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.kernel.event_parts import AgentCall, ModelCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    IterationStarted,
    RunEdited,
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
from loopwright.ports import NumberedEvent, RunRow
from loopwright.views.event_records import timestamp
from loopwright.views.summary import ReadText

SUMMARY_CHARS = 200
_TRY = re.compile(r"~\d+")


class StageView(msgspec.Struct):
    """A stage of a loop of roles."""

    index: int
    name: str
    role: str
    status: str
    summary: str
    session_id: str | None


class StageInSession(StageView):
    """A stage of the newest iteration, and the session that its loop belongs to."""

    parent_session_id: str


class StageCost(StageView):
    """A stage of one iteration, and what it has used."""

    iteration: int
    tokens: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    unpriced_calls: int
    cost: str


class CurrentStage(StageView):
    """The stage that is under way, its agent, and the time of its last output."""

    model: str | None
    task_id: str
    stage_id: str
    last_event_at: str


class DispatchView(msgspec.Struct, omit_defaults=True):
    """The stage that was given to an agent last, and what keeps the next one from beginning."""

    status: str
    task_id: str | UnsetType = UNSET
    stage_id: str | UnsetType = UNSET
    stage_index: int | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    next_stage_index: int | UnsetType = UNSET


class LoopIdentity(msgspec.Struct):
    """A loop and what people say of it."""

    id: str
    definition: str
    status: str
    goal: str
    labels: list[str]
    metadata: dict[str, JsonValue | DispatchView]


class LoopPosition(msgspec.Struct):
    """Where a loop is."""

    iteration: int
    max_iterations: int | None
    stage: int
    stage_count: int


class IterationsUsed(msgspec.Struct):
    """The number of the newest iteration, and of the last one that is allowed."""

    used: int
    max: int | None


class LoopSpend(msgspec.Struct):
    """What a loop has used, with its judges aside."""

    tokens: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    unpriced_calls: int
    cost: str
    judging_tokens: int
    iterations: IterationsUsed
    elapsed_seconds: float


class LiveLoop(msgspec.Struct):
    """A loop at this moment."""

    loop: LoopIdentity
    position: LoopPosition
    current_stage: CurrentStage | None
    budget: LoopSpend
    stages: list[StageCost]
    recent_events: list[dict[str, JsonValue]]


class IterationCounts(msgspec.Struct):
    """How many iterations, by status."""

    total: int
    by_status: dict[str, int]


class StageCounts(IterationCounts):
    """How many stages, by status and by role."""

    by_role: dict[str, int]


class IterationTiming(msgspec.Struct):
    """How long an iteration took."""

    iteration: int
    duration_seconds: float
    stage_count: int
    completed_stages: int


class LoopTimings(msgspec.Struct):
    """How long all iterations took."""

    total_iteration_seconds: float
    average_iteration_seconds: float
    iteration_timings: list[IterationTiming]


class LoopFigures(msgspec.Struct):
    """Totals of a loop."""

    loop_id: str
    status: str
    current_iteration: int
    iterations: IterationCounts
    stages: StageCounts
    timings: LoopTimings
    duration_seconds: float


@dataclass(slots=True)
class LoopStage:
    """One stage of an iteration."""

    index: int
    id: str
    role: str
    status: str = "pending"
    summary: str = ""
    session: str | None = None  # of the agent that has worked on it, if it has reported one

    def view(self) -> StageView:
        return StageView(
            index=self.index,
            name=self.id,
            role=self.role,
            status=self.status,
            summary=" ".join(self.summary.split())[:SUMMARY_CHARS],
            session_id=self.session,
        )


@dataclass(slots=True)
class LoopIteration:
    """One iteration."""

    number: int
    stages: list[LoopStage]
    started_at: int
    finished_at: int | None = None
    status: str = "running"
    now: int | None = None  # the current time, for one that has not finished
    stages_by_id: dict[str, LoopStage] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        end = self.finished_at or self.now or self.started_at
        return max(0, end - self.started_at) / 1000

    @property
    def completed(self) -> int:
        return sum(one.status == "completed" for one in self.stages)

    def name(self, run: str) -> str:
        return f"{run}.{self.number}"


def cycles_of(
    plan: Plan,
    events: Sequence[AnyEvent],
    read: Callable[[Text | None], str],
    *,
    now: int | None = None,
) -> list[LoopIteration]:
    """The iterations of the outermost loop of a plan, in their order; if there are several, of the
    one that started an iteration last. Unfinished ones last until `now`.
    """
    loop = only_repeat(plan)
    until = loop.until if loop is not None else None
    is_reviewed = until is not None and any(isinstance(one, Approval) for one in leaves(until))
    loops: dict[str, dict[str, LoopIteration]] = {"": {}}
    newest = ""
    for event in events:
        match event:
            case IterationStarted(path=path) if is_outermost(path) and event.iteration != 0:
                newest = loop_path(path)
                loops[newest] = _begun(plan, loops.get(newest, {}), event)
            case IterationFinished(path=path) if path in loops.get(loop_path(path), {}):
                cycle = loops[loop_path(path)][path]
                cycle.finished_at = event.at
                rejected = event.status == "completed" and not event.done and is_reviewed
                cycle.status = "needs_rework" if rejected else event.status
            case StepStarted() | StepFinished() | StepSkipped() | StepKept():
                _note(loops[newest], event, read)
            case EffectDone(session=str(session)) | EffectFailed(session=str(session)):
                stage = _stage_at(loops[newest], event.path)
                if stage is not None:
                    stage.session = session
            case _:
                pass
    found = list(loops[newest].values())
    for cycle in found:
        cycle.now = now
    return found


def _begun(
    plan: Plan, known: dict[str, LoopIteration], event: IterationStarted
) -> dict[str, LoopIteration]:
    if event.resumed and event.path in known:
        known[event.path].status, known[event.path].finished_at = "running", None
        return known
    stages, number = stages_of(plan), event.iteration or len(known) + 1
    # One that is made once more, and whatever came after it, counts from here on.
    found = {name: one for name, one in known.items() if one.number < number}
    found[event.path] = LoopIteration(number, stages, event.at)
    found[event.path].stages_by_id = {one.id: one for one in stages}
    return found


def is_outermost(path: str) -> bool:
    """Whether an iteration belongs to a loop that is not inside another loop."""
    around = parent_path(path)
    return "[" not in around and not any(one.isdecimal() for one in around.split("."))


def loop_path(path: str) -> str:
    """The loop of an iteration; all attempts of it are one."""
    return _TRY.sub("", parent_path(path))


def stages_of(plan: Plan) -> list[LoopStage]:
    """The stages of the only loop of a plan, none of them started."""
    loop = only_repeat(plan)
    steps = loop.body.steps if loop is not None and isinstance(loop.body, Steps) else ()
    calls = [(step.id, step.action) for step in steps if isinstance(step.action, CallAgent)]
    return [LoopStage(n, name, _role(plan, call)) for n, (name, call) in enumerate(calls)]


def _note(
    found: dict[str, LoopIteration],
    event: StepStarted | StepFinished | StepSkipped | StepKept,
    read: Callable[[Text | None], str],
) -> None:
    stage = _stage_at(found, event.path)
    if stage is None:
        return
    if isinstance(event, StepStarted):
        stage.status = "running"
        return
    if isinstance(event, StepKept):
        stage.status, stage.summary = "completed", read(event.output)
        return
    stage.status = event.status
    if isinstance(event, StepFinished) and event.status == "failed":
        stage.summary = f"FAILED: {event.error.detail if event.error else event.reason}"
    elif isinstance(event, StepFinished):
        stage.summary = read(event.output)


def _stage_at(found: dict[str, LoopIteration], path: str) -> LoopStage | None:
    """The stage at a place; tries of it are one."""
    cycle = found.get(parent_path(path))
    return cycle.stages_by_id.get(last_id(path).partition("~")[0]) if cycle is not None else None


def _role(plan: Plan, call: CallAgent) -> str:
    agent = plan.agents.get(call.agent)
    return (agent.role if agent is not None else None) or call.agent


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
    kept: bool = False  # it did not run again: it was skipped, or its result is from before


class StageMoves:
    """Follows one loop from its first event on."""

    def __init__(self, plan: Plan) -> None:
        self._stages = {one.id: one for one in stages_of(plan)}
        self._rounds: dict[str, int] = {}

    def take(self, numbered: NumberedEvent) -> Move | None:
        """The transition of the next event, if it is one."""
        event = numbered.event
        if isinstance(event, IterationStarted) and is_outermost(event.path):
            self._rounds[event.path] = event.iteration or len(self._rounds) + 1
            return None
        if not isinstance(event, StepStarted | StepFinished | StepSkipped | StepKept):
            return None
        number = self._rounds.get(parent_path(event.path))
        stage = self._stages.get(last_id(event.path))
        if number is None or stage is None:
            return None
        return Move(
            seq=numbered.seq,
            at=event.at,
            iteration=number,
            index=stage.index,
            role=stage.role,
            status=_status(event),
            why=_why(event),
            kept=isinstance(event, StepKept),
        )


def _status(event: StepStarted | StepFinished | StepSkipped | StepKept) -> str:
    if isinstance(event, StepStarted):
        return RUNNING
    return "completed" if isinstance(event, StepKept) else event.status


def _why(event: AnyEvent) -> str:
    if not isinstance(event, StepFinished | StepSkipped) or event.status != "failed":
        return ""
    return event.error.detail if event.error else event.reason


GOAL_CHARS = 80
_STAGE_DEPTH = 3  # `main.0.plan`: the loop, the iteration, the stage
_PASSED = ("completed", "skipped")


def loop_status(row: RunRow) -> str:
    """The status of a loop: an end at its limit is an end, and its reason tells it apart."""
    status = row.headline.status
    return {"exhausted": "completed", "waiting": "blocked"}.get(status, status)


@dataclass(slots=True)
class Seen:
    """The data in the events about the newest iteration of a loop."""

    stages: list[LoopStage]
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

    def dispatch(self, status: str = "running") -> DispatchView:
        """The dispatch of the work of a loop with this status: the last dispatched stage, its
        failure, and while the loop is paused the next stage.
        """
        if not self.asked:
            waits = "until it is resumed" if status == "paused" else "for its first stage to begin"
            return DispatchView(status="pending", message=f"waiting {waits}")
        told = DispatchView(
            status="failed" if self.trouble else "dispatched",
            task_id=self.task,
            stage_id=self.asked,
            stage_index=self.asked_index,
            updated_at=timestamp(self.at),
        )
        if self.trouble:
            told.message = self.trouble[:SUMMARY_CHARS]
            return told
        if self.cut_off and status != "running":
            told.message = self.cut_off[:SUMMARY_CHARS]
        elif status == "paused" and self.stages:
            following = self.stages[self.stage]
            word = "continues" if following.status == "running" else "begins"
            told.message = f"paused: stage {following.index} ({following.id}) {word} after a resume"
            told.next_stage_index = following.index
        return told


def seen(plan: Plan, events: Sequence[AnyEvent], read: ReadText) -> Seen:
    """The newest round of the loop of a plan."""
    loop = only_repeat(plan)
    told = Seen(stages_of(plan), most=loop.max if loop is not None else None)
    for cycle in cycles_of(plan, events, read)[-1:]:
        told.iteration, told.round_status, told.stages = cycle.number, cycle.status, cycle.stages
    indexes = {one.id: one.index for one in told.stages}
    for event in events:
        match event:
            case IterationStarted(of=int(most)) if is_outermost(event.path):
                told.most = most
            case RunEdited(passes=int(most)):
                told.most = most or None
            case EffectRequested(call=AgentCall() | ModelCall()) if _is_stage(event.path, indexes):
                told.asked, told.task, told.at = event.path, event.effect, event.at
                told.asked_index = indexes.get(_stage_id(event.path), 0)
                told.trouble = told.cut_off = ""
            case EffectFailed() if event.effect == told.task:
                told.at = event.at
                if event.error.type == "cancelled":  # it was dispatched; a person ended it
                    told.cut_off = event.error.detail
                else:
                    told.trouble = f"{event.error.type}: {event.error.detail}"
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
