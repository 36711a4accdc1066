"""What requests about loops of roles carry and are answered with, in the words of their system."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.app.assistants import Parting
from loopwright.model.actions import MAX_PASSES
from loopwright.model.record import JsonValue
from loopwright.server.routes import Body, OptionalBody, Query

Words: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Part: TypeAlias = dict[str, JsonValue]
Most: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSES)]


class LoopsQuery(Query):
    """Which loops, and which page of them."""

    status: str | None = None
    headless: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100
    cursor: str | None = None


class StartBody(Body):
    """What a loop is started with. `agent` and `agents` say what stands behind its roles, and
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
    on_disconnect: Parting | None = None


class EditBody(Body):
    """What shall be different from the next stage on; what is left out stays as it is."""

    goal: Words | UnsetType = UNSET
    max_iterations: Most | UnsetType | None = UNSET  # None: no limit
    metadata: Part | UnsetType = UNSET
    labels: list[Words] | UnsetType = UNSET


class NoteBody(OptionalBody):
    """Something that the next stage is told, once."""

    note: str = ""
    allow_unknown_cost: bool = False


class RetryBody(NoteBody):
    """The same; for a loop that has ended also what stands behind its roles and limits it from now
    on.
    """

    agent: str | None = None
    agents: dict[str, str] = {}
    budget: str | None = None


class DefinitionBody(Body):
    """A definition as its file has it. What the server alone says about one is refused."""

    roles: Annotated[list[Part], msgspec.Meta(min_length=1)]
    description: str | UnsetType = UNSET
    termination_condition: Part | UnsetType = UNSET
    name: str | UnsetType = UNSET
    parameters: list[Part] | UnsetType = UNSET
    max_rework_attempts: int | UnsetType | None = UNSET
    on_question: str | UnsetType | None = UNSET


class Loop(msgspec.Struct):
    """A loop."""

    id: str
    definition_name: str
    session_id: str | None
    project_id: str | None
    goal: str
    status: str
    outcome: str | None
    reason: str | None
    current_iteration: int
    current_stage: int
    max_iterations: int | None
    termination_criteria: str | None
    configuration: Part
    started_at: str | None
    completed_at: str | None
    last_activity_at: str | None
    metadata: Part
    labels: list[str]
    origin: str
    escalation: Part | None
    started_by: str


class Stage(msgspec.Struct):
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


class Iteration(msgspec.Struct):
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


class IterationInFull(Iteration):
    """An iteration with its stages."""

    stages: list[Stage] = []


class OneLoop(msgspec.Struct):
    """A loop with its newest iteration."""

    loop: Loop
    iteration: Iteration
    stages: list[Stage]


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


class History(msgspec.Struct):
    """All iterations of a loop, in their order."""

    loop: Loop
    history: list[IterationInFull]
    count: int


class Iterations(msgspec.Struct):
    """The same without their stages."""

    iterations: list[Iteration]
    count: int


class OneIteration(msgspec.Struct):
    """An iteration and its stages."""

    iteration: Iteration
    stages: list[Stage]


class Figures(msgspec.Struct):
    """Totals of a loop."""

    loop_id: str
    status: str
    current_iteration: int
    duration_seconds: float
    iterations: Part
    stages: Part
    timings: Part


class Deleted(msgspec.Struct):
    """It is gone."""

    deleted: bool
    id: str


class Steered(msgspec.Struct):
    """What a loop is now."""

    id: str
    status: str


class Live(msgspec.Struct):
    """A loop at this moment."""

    loop: Part
    position: Part
    current_stage: Part | None
    budget: Part
    stages: list[Part]
    recent_events: list[Part]


class LoopDefinition(msgspec.Struct):
    """A definition by its name."""

    name: str
    description: str
    roles: list[Part]
    termination: Part
    parameters: list[Part]
    builtin: bool
    source: str
    version: str
    valid: bool
    problems: list[Part]
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
    details: Part = {}
