"""What people write in a workflow: strict, and nothing unknown.

Only what can be said about one value at a time stands here. What holds between several is in
`rules.py` and its neighbours, so that one report tells everything. An optional key without a value
is the same as no key, except where that would allow more than it seems to.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from loopwright.dialects.zenflow.fields import (
    MAX_TEXT,
    AgentName,
    Duration,
    Expression,
    JsonSchema,
    Name,
    NotNegative,
    Positive,
    Prose,
    StepId,
    Word,
)
from loopwright.syntax.fields import fault
from loopwright.syntax.words import show

VERSION = 1

OnStepFailure: TypeAlias = Literal["cascade", "skip-dependents", "abort"]
Scheduler: TypeAlias = Literal["dependency-first", "round-robin", "least-busy"]
OutputMode: TypeAlias = Literal["", "last", "cumulative"]


class Surface(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AgentSpec(Surface):
    """An agent by name: its role, what it is told, what it may do."""

    description: Prose = Field(description="What it is for.")
    prompt: Prose | None = Field(
        default=None, description="Standing instructions; @file takes them from a file."
    )
    model: Word | None = Field(default=None, description="Model to use.")
    tools: list[Word] = Field(default=[], description="The only tools it may use.")
    disallowed_tools: list[Word] | None = Field(
        default=None, alias="disallowedTools", description="Tools that are taken away again."
    )
    max_turns: NotNegative | None = Field(
        default=None, alias="maxTurns", description="Most turns in one call; 0 is the default, 50."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Temperature of the model."
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, alias="topP", description="Nucleus sampling of the model."
    )
    result_schema: JsonSchema | None = Field(
        default=None, alias="resultSchema", description="A JSON Schema that its result must fit."
    )


def _output_mode(value: object) -> object:
    if not isinstance(value, str) or value not in ("", "last", "cumulative"):
        message = f"outputMode must be last or cumulative, not {show(value)}"
        raise fault("loop-validation", message)
    return value


class LoopSpec(Surface):
    """A loop: with forEach over a list, without it until a check or the number of passes."""

    max_iterations: Positive | None = Field(
        default=None, alias="maxIterations", description="The most passes.", examples=[5]
    )
    until: Expression | None = Field(
        default=None, description="An expression that ends the loop when it is true."
    )
    until_agent: Name | None = Field(
        default=None, alias="untilAgent", description="An agent that judges each pass."
    )
    for_each: Expression | list[JsonValue] | None = Field(
        default=None, alias="forEach", description="A list, or an expression that gives one."
    )
    max_concurrency: NotNegative | None = Field(
        default=None, alias="maxConcurrency", description="With forEach: most passes at once."
    )
    delay: Duration | None = Field(default=None, description="Wait between passes.")
    steps: list["StepSpec"] | None = Field(
        default=None, description="Steps of a pass; without them the step itself is repeated."
    )
    output_mode: Annotated[OutputMode, BeforeValidator(_output_mode)] | None = Field(
        default=None, alias="outputMode", description="What the loop gives back. Default last."
    )
    iteration_timeout: Duration | None = Field(
        default=None,
        alias="iterationTimeout",
        description="Longest time of one pass; the step's timeout is for the whole loop.",
    )
    on_exhausted: Literal["fail", "complete", "ask"] | None = Field(
        default=None,
        alias="onExhausted",
        description="What it means that all passes are made and no check has passed. Default fail.",
    )
    on_item_failure: Literal["stop", "continue"] | None = Field(
        default=None,
        alias="onItemFailure",
        description="With forEach: what a failed item means for the others. Default stop.",
    )


class StepSpec(Surface):
    """One step: a call of an agent, another workflow, or a loop."""

    id: StepId = Field(description="Its name.")
    agent: Name | None = Field(default=None, description="Name of the agent.")
    instructions: Prose | None = Field(
        default=None, description="What the agent is told; @file takes it from a file."
    )
    depends_on: list[Name] | None = Field(
        default=None, alias="dependsOn", description="Steps that end before it starts."
    )
    context_files: list[Word] | None = Field(
        default=None,
        alias="contextFiles",
        description="Files that the agent is shown, from the folder of the workflow file on.",
    )
    model: Word | None = Field(default=None, description="Model to use in this step.")
    timeout: Duration | None = Field(default=None, description="Longest time, tries included.")
    retries: NotNegative | None = Field(default=None, description="Further tries after a failure.")
    max_retries: NotNegative | None = Field(
        default=None, alias="maxRetries", description="Further tries of a single model call."
    )
    condition: Expression | None = Field(
        default=None, description="The step is skipped when this expression is false."
    )
    include: Word | None = Field(
        default=None, description="Another workflow: a name in includes, or a file."
    )
    loop: LoopSpec | None = Field(default=None, description="Do it in a loop.")
    tool: Word | None = Field(
        default=None, description="A tool that the step uses itself: bash, read, write, glob, grep."
    )
    tool_input: dict[str, JsonValue] | None = Field(
        default=None,
        alias="toolInput",
        description="The inputs of the tool; a text that begins with $ takes the value of a step.",
    )


WORKTREES = ("worktree", "worktree-per-run")
PER_STEP = "worktree-per-step"
NOT_ISOLATED = ("none", "")


class Options(Surface):
    """What holds for the whole workflow."""

    max_concurrency: NotNegative | None = Field(
        default=None, alias="maxConcurrency", description="Most agent calls at once. Default 5."
    )
    on_step_failure: OnStepFailure | None = Field(
        default=None, alias="onStepFailure", description="Default cascade."
    )
    timeout: Duration | None = Field(default=None, description="Longest time of the whole run.")
    step_timeout: Duration | None = Field(
        default=None, alias="stepTimeout", description="Longest time of a step that says none."
    )
    isolation: Name | None = Field(
        default=None,
        description="none, or worktree: a Git worktree on a branch of its own. Any other word also "
        "means a worktree.",
    )
    scheduler: Scheduler | None = Field(default=None, description="Default dependency-first.")
    max_retries: NotNegative | None = Field(
        default=None, alias="maxRetries", description="Further tries of a single model call."
    )


def _version(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value != VERSION:
        message = f"version {value} is not known; {VERSION} is the only one"
        raise fault("unknown-version", message, hint=f"write version: {VERSION}, or leave it out")
    return value


def _short(text: str) -> str:
    if len(text) > MAX_TEXT:
        message = f"at most {MAX_TEXT:,} characters, not {len(text):,}"
        raise fault("out-of-range", f"description must be text of {message}")
    return text


class Workflow(Surface):
    """A workflow."""

    name: Name = Field(default="", description="What it is called.")
    description: Annotated[Prose, AfterValidator(_short)] | None = Field(
        default=None, description="What it is for."
    )
    version: Annotated[int, BeforeValidator(_version, json_schema_input_type=Literal[1])] | None = (
        Field(default=None, description="Version of this language.")
    )
    agents: dict[AgentName, AgentSpec] | None = Field(default=None, description="Agents by name.")
    includes: dict[Word, Word] | None = Field(
        default=None, description="Files of other workflows by name."
    )
    steps: list[StepSpec] | None = Field(default=None, description="The steps.")
    options: Options | None = Field(default=None, description="What holds for all steps.")
