"""Requests, responses and errors of Coqui: loops with iterations and stages as one object.

Errors have `error`, `code` and optionally `details`. Loops are computed from their events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from loopwright.http.requests import Body, OptionalBody, Query
from loopwright.http.responses import ODD_PATH, unfit_is_bad
from loopwright.kernel.events import GateOpened
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.checks import Approval, Goal, leaves
from loopwright.model.record import JsonValue, Lit
from loopwright.operations.problems import ProblemReport
from loopwright.operations.run_groups import OnDisconnect
from loopwright.operations.runs import Service, row_ended
from loopwright.ports import NumberedEvent, RunRow
from loopwright.views.role_loops import (
    RUNNING,
    LoopIteration,
    LoopStage,
    Move,
    Seen,
    StageMoves,
    cycles_of,
    loop_status,
    seen,
    shown_time,
    stages_of,
)
from loopwright.views.status_text import goal as goal_of

Words: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
JsonPart: TypeAlias = dict[str, JsonValue]
Most: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)]


class LoopsQuery(Query):
    """Which loops, and which page of them."""

    status: str | None = None
    headless: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100
    cursor: str | None = None


class StartLoopBody(Body):
    """The request to start a loop. `agent` and `agents` are the backends of its roles, and
    `on_disconnect` what becomes of it when the last socket of its starter is gone.
    """

    definition: Words
    goal: Words
    session_id: str | None = None
    project_id: str | None = None
    project_slug: str | None = None
    parameters: dict[str, str | int | float | bool] = {}
    max_iterations: Most | None = None
    agent: str | None = None
    agents: dict[str, str] = {}
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    on_disconnect: OnDisconnect | None = None


class EditLoopBody(Body):
    """What shall be different from the next stage on; what is left out stays as it is."""

    goal: Words | UnsetType = UNSET
    max_iterations: Most | UnsetType | None = UNSET  # None: no limit
    metadata: JsonPart | UnsetType = UNSET
    labels: list[Words] | UnsetType = UNSET


class NoteBody(OptionalBody):
    """A message to the next stage, delivered once."""

    note: str = ""
    allow_unknown_cost: bool = False


class RetryBody(NoteBody):
    """The same; for a loop that has ended also the backends of its roles and its limits from now
    on.
    """

    agent: str | None = None
    agents: dict[str, str] = {}
    budget: str | None = None


class LoopDefinitionBody(Body):
    """A definition as its file has it. What the server alone says about one is refused."""

    roles: Annotated[list[JsonPart], msgspec.Meta(min_length=1)]
    description: str | UnsetType = UNSET
    termination_condition: JsonPart | UnsetType = UNSET
    name: str | UnsetType = UNSET
    parameters: list[JsonPart] | UnsetType = UNSET
    max_rework_attempts: int | UnsetType | None = UNSET
    on_question: str | UnsetType | None = UNSET


class LoopOrigin(msgspec.Struct):
    """A loop, its definition and what it belongs to."""

    id: str
    definition_name: str
    session_id: str | None
    project_id: str | None


class Loop(LoopOrigin):
    """A loop."""

    goal: str
    status: str
    outcome: str | None
    reason: str | None
    current_iteration: int
    current_stage: int
    max_iterations: int | None
    termination_criteria: str | None
    configuration: JsonPart
    started_at: str | None
    completed_at: str | None
    last_activity_at: str | None
    metadata: JsonPart
    labels: list[str]
    origin: str
    escalation: JsonPart | None
    started_by: str


class StageItem(msgspec.Struct):
    """A stage of an iteration."""

    id: str
    iteration_id: str
    stage_index: int
    name: str
    role: str
    status: str
    result_summary: str | None
    started_at: str | None
    completed_at: str | None


class LoopIterationItem(msgspec.Struct):
    """An iteration of a loop."""

    id: str
    loop_id: str
    iteration_number: int
    status: str
    outcome_summary: str | None
    started_at: str | None
    completed_at: str | None
    duration_seconds: float
    stage_count: int
    completed_stage_count: int


class IterationInFull(LoopIterationItem):
    """An iteration with its stages."""

    stages: list[StageItem] = []


class OneLoop(msgspec.Struct):
    """A loop with its newest iteration."""

    loop: Loop
    iteration: LoopIterationItem
    stages: list[StageItem]


class StartedLoop(OneLoop):
    """A loop that was just started, and the warnings about its definition and its workspace."""

    warnings: list[str]


class ManyLoops(msgspec.Struct):
    """A page of loops, newest first; `active` is how many are running at all."""

    loops: list[Loop]
    count: int
    active: int
    next: str | None


class ActiveCount(msgspec.Struct):
    """How many loops are running."""

    active: int


class LoopHistory(msgspec.Struct):
    """All iterations of a loop, in their order."""

    loop: Loop
    history: list[IterationInFull]
    count: int


class LoopIterations(msgspec.Struct):
    """The same without their stages."""

    iterations: list[LoopIterationItem]
    count: int


class OneIteration(msgspec.Struct):
    """An iteration and its stages."""

    iteration: LoopIterationItem
    stages: list[StageItem]


class Figures(msgspec.Struct):
    """Totals of a loop."""

    loop_id: str
    status: str
    current_iteration: int
    duration_seconds: float
    iterations: JsonPart
    stages: JsonPart
    timings: JsonPart


class Steered(msgspec.Struct):
    """What a loop is now."""

    id: str
    status: str


class LoopNow(msgspec.Struct):
    """A loop at this moment."""

    loop: JsonPart
    position: JsonPart
    current_stage: JsonPart | None
    budget: JsonPart
    stages: list[JsonPart]
    recent_events: list[JsonPart]


class LoopDefinition(msgspec.Struct):
    """A definition by its name."""

    name: str
    description: str
    roles: list[JsonPart]
    termination: JsonPart
    parameters: list[JsonPart]
    builtin: bool
    source: str
    version: str
    valid: bool
    problems: list[JsonPart]
    hides: list[str]


class LoopDefinitions(msgspec.Struct):
    """All definitions, also those that cannot be used, with what is wrong with them."""

    definitions: list[LoopDefinition]
    count: int
    next: str | None


class LoopFailure(msgspec.Struct, omit_defaults=True):
    """A refusal."""

    error: str
    code: str
    details: JsonPart = {}


UNFIT = 422
_BY_STATUS = {
    400: "validation_error",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "validation_error",
    429: "rate_limited",
    500: "internal_error",
    503: "unavailable",
}
_BY_CODE = {
    "bad-json": "invalid_format",
    "missing-field": "missing_field",
    "session-closed": "session_closed",
    "session-not-found": "session_not_found",
    "unknown-role": "role_not_found",
    "version-conflict": "version_conflict",
    "precondition-required": "precondition_required",
}
_MISSING = "missing required field"


def refuse(problem: ProblemReport, headers: Mapping[str, str]) -> Response:
    """Of a loop: what does not fit is 400 here."""
    return _answer(problem, headers, unfit_is_bad(problem))


def refuse_definition(problem: ProblemReport, headers: Mapping[str, str]) -> Response:
    """Of a definition: what does not fit is 422, and so is a name that is none."""
    unfit = problem.code in (ODD_PATH, "bad-name")
    return _answer(problem, headers, UNFIT if unfit else problem.status)


def _answer(problem: ProblemReport, headers: Mapping[str, str], status: int) -> Response:
    hint = f" ({problem.hint})" if problem.hint else ""
    details: dict[str, JsonValue] = {"reason": problem.code}
    if problem.hint:
        details["hint"] = problem.hint
    if problem.errors:
        details["errors"] = [dict(one) for one in problem.errors]
    answer = LoopFailure(
        error=f"{problem.detail}{hint}", code=_code(problem, status), details=details
    )
    body = msgspec.json.encode(answer)
    return Response(body, status, headers=dict(headers), media_type="application/json")


def _code(problem: ProblemReport, status: int) -> str:
    if _MISSING in problem.detail:
        return "missing_field"
    return _BY_CODE.get(problem.code) or _BY_STATUS.get(status, "error")


RESULT_CHARS = 2_000
CUT = "\n[… cut: read the whole of it in the run]"
FIRST_CHARS = 200

Part = dict[str, JsonValue]


@dataclass(slots=True)
class Times:
    """When a stage began and ended, the last time it ran."""

    started: int | None = None
    ended: int | None = None


@dataclass(slots=True)
class Sheet:
    """A loop as it is now."""

    row: RunRow
    state: State
    seen: Seen
    cycles: list[LoopIteration]
    blocked: Part | None = None
    times: dict[tuple[int, int], Times] = field(default_factory=dict)

    # -- the loop

    @property
    def status(self) -> str:
        return loop_status(self.row)

    def loop(self) -> Loop:
        head, started = self.row.headline, self.state.started
        assert started is not None, "a run begins with this"
        parameters: JsonValue = dict(started.inputs)
        return Loop(
            id=self.row.run,
            definition_name=head.name,
            session_id=head.session or None,
            project_id=started.project or None,
            goal=goal_of(self.state),
            status=self.status,
            outcome=head.status if row_ended(self.row) else None,
            reason=head.reason or None,
            current_iteration=max(self.seen.iteration, 1),
            current_stage=self.seen.stage,
            max_iterations=self.seen.most,
            termination_criteria=self._criteria(),
            configuration={"plan": started.plan, "resolved_parameters": parameters},
            started_at=shown_time(head.started_at),
            completed_at=shown_time(head.finished_at),
            last_activity_at=shown_time(head.updated_at),
            metadata=self._metadata(),
            labels=[*self.state.control.labels],
            origin="conversation" if head.session else "headless",
            escalation=self.blocked,
            started_by=started.by,
        )

    def _metadata(self) -> Part:
        dispatch = msgspec.to_builtins(self.seen.dispatch(self.status))
        return {**self.state.control.metadata, "dispatch": dispatch}

    def _criteria(self) -> str | None:
        """What approved or reached means, with the parameters of the loop."""
        started = self.state.started
        inputs = started.inputs if started is not None else {}
        loop = self.state.plan_index.loop
        for check in leaves(loop.until) if loop is not None and loop.until is not None else ():
            if isinstance(check, Approval | Goal):
                words = check.criteria if isinstance(check, Approval) else check.prompt
                parts = (
                    part.text if isinstance(part, Lit) else str(inputs.get(part.name or "", ""))
                    for part in words
                )
                return "".join(parts) or None
        return None

    # -- iterations and stages

    def newest(self) -> LoopIteration:
        """The newest iteration; before the first has begun, the first as it will be."""
        if self.cycles:
            return self.cycles[-1]
        return LoopIteration(1, stages_of(self.state.plan), self.row.headline.started_at)

    def iteration(self, cycle: LoopIteration) -> LoopIterationItem:
        run = self.row.run
        return LoopIterationItem(
            id=cycle.name(run),
            loop_id=run,
            iteration_number=cycle.number,
            status=cycle.status,
            outcome_summary=_outcome(cycle) if cycle.finished_at is not None else None,
            started_at=shown_time(cycle.started_at),
            completed_at=shown_time(cycle.finished_at),
            duration_seconds=cycle.seconds,
            stage_count=len(cycle.stages),
            completed_stage_count=cycle.completed,
        )

    def stages(self, cycle: LoopIteration) -> list[StageItem]:
        return [self._stage(cycle, one) for one in cycle.stages]

    def _stage(self, cycle: LoopIteration, stage: LoopStage) -> StageItem:
        name, times = cycle.name(self.row.run), self.times.get((cycle.number, stage.index), Times())
        return StageItem(
            id=f"{name}.{stage.index}",
            iteration_id=name,
            stage_index=stage.index,
            name=stage.id,
            role=stage.role,
            status=stage.status,
            result_summary=_cut(stage.summary) or None,
            started_at=shown_time(times.started),
            completed_at=shown_time(times.ended),
        )

    def in_full(self, cycle: LoopIteration) -> IterationInFull:
        shown = msgspec.structs.asdict(self.iteration(cycle))
        return IterationInFull(**shown, stages=self.stages(cycle))


def sheet(service: Service, row: RunRow) -> Sheet:
    """The sheet of a loop."""
    numbered = service.events(row.run)
    events = [one.event for one in numbered]
    plan = service.plan(events[0])
    now = row.headline.finished_at or service.clock.now_ms()
    made = Sheet(
        row=row,
        state=fold(plan, events),
        seen=seen(plan, events, service.read_text),
        cycles=cycles_of(plan, events, service.read_text, now=now),
    )
    made.blocked = _escalation(made.state, numbered)
    moves = StageMoves(plan)
    for one in numbered:
        move = moves.take(one)
        if move is not None:
            _time(made.times, move)
    return made


def _time(times: dict[tuple[int, int], Times], move: Move) -> None:
    known = times.setdefault((move.iteration, move.index), Times())
    if move.status == RUNNING:
        known.started, known.ended = move.at, None
    else:
        known.ended = move.at


def _escalation(state: State, events: Sequence[NumberedEvent]) -> Part | None:
    """Why a loop is blocked, and the gate whose answer lets it continue."""
    for one in reversed(events):
        event = one.event
        if isinstance(event, GateOpened) and event.gate in state.gates:
            answers: list[JsonValue] = list(event.answers)
            return {
                "gate": event.gate,
                "about": event.about,
                "reason": event.message,
                "answers": answers,
                "at": shown_time(event.at),
            }
    return None


def _cut(text: str) -> str:
    return text if len(text) <= RESULT_CHARS else text[:RESULT_CHARS] + CUT


def _outcome(cycle: LoopIteration) -> str:
    lines = []
    for one in cycle.stages:
        first = one.summary.strip().splitlines()[:1]
        lines.append(f"- {one.role} [{one.status}]: {first[0][:FIRST_CHARS] if first else ''}")
    return "\n".join(lines)
