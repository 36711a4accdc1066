"""What people write in a native definition: strict, and nothing unknown.

Only what can be said about one value at a time stands here. What holds between several (exactly
one kind of step, a cap where one is needed, names that must exist) is in `rules.py` and
`names.py`, so that one report tells everything.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationInfo

from loopwright.dialects.native.faults import fault
from loopwright.dialects.native.fields import (
    Argv,
    Count,
    Duration,
    EnvName,
    FilesNotYet,
    Id,
    InputName,
    Line,
    Maybe,
    NotYet,
    OnAgentOnly,
    Prose,
    SpecLine,
)
from loopwright.dialects.native.parts import (
    AgentSpec,
    BudgetSpec,
    Gate,
    GateStep,
    InputSpec,
    JsonSchema,
    LoopLimitsSpec,
    Person,
    RetrySpec,
    Surface,
)
from loopwright.dialects.native.patterns import pattern_fault
from loopwright.model.policy import AtCap, Join, OnError, OnFailure, OutputMode, SessionMode

VERSION = 1

MemoryKind: TypeAlias = Literal["none", "progress-log", "previous-output", "session"]


# -- checks ----------------------------------------------------------------------------------------


def _pattern(pattern: str, info: ValidationInfo) -> str:
    problem = None if info.data.get("invalid") else pattern_fault(pattern)
    if problem:
        raise fault(problem.code, problem.sentence(), hint=problem.hint)
    return pattern


def _something(text: str) -> str:
    if not text:
        raise fault("matches-everything", "any output contains an empty text")
    return text


class CheckSpec(Surface):
    """What ends a loop: exactly one kind of check, or `any` or `all` of several."""

    invalid: bool = Field(
        default=False, description="With regex: kept as written, never matches (from conversion)."
    )
    signal: Maybe[Line] = Field(
        default=None, description="A word alone on the last line of the output.", examples=["DONE"]
    )
    regex: Maybe[Annotated[str, AfterValidator(_pattern)]] = Field(
        default=None, description="A pattern (RE2) found in the output."
    )
    contains: Maybe[Annotated[str, AfterValidator(_something)]] = Field(
        default=None, description="A text found in the output."
    )
    ignore_case: bool = Field(default=False, description="With regex or contains.")
    command: Maybe[Argv] = Field(
        default=None, description="A program, run without a shell, that ends with code 0."
    )
    timeout: Maybe[Duration] = Field(default=None, description="With command; default 10m.")
    done_codes: Maybe[Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1)]] = (
        Field(default=None, description="With command: the exit codes that pass. Default [0].")
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None, alias="schema", description="A JSON Schema that the result fits."
    )
    person: Maybe[Person] = Field(default=None, description="A person approves.")
    manual: Maybe[Person] = Field(default=None, description="Another word for person.")
    cap: Maybe[Literal[True]] = Field(default=None, description="Only the number of passes.")
    any: Maybe[Annotated[list["CheckSpec"], Field(min_length=1)]] = Field(
        default=None, description="One of these passes."
    )
    all: Maybe[Annotated[list["CheckSpec"], Field(min_length=1)]] = Field(
        default=None, description="All of these pass."
    )
    judge: NotYet = None
    goal: NotYet = None
    expr: NotYet = None
    script: NotYet = None
    approval: NotYet = None
    tool: NotYet = None


# -- what is done ----------------------------------------------------------------------------------


class BodySpec(Surface):
    """What is done once: a call of an agent, a program, or steps."""

    agent: Maybe[SpecLine] = Field(
        default=None, description="Name of an agent, or what stands behind it."
    )
    prompt: Maybe[Prose] = Field(
        default=None, description="What the agent is told. Default: the goal."
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None, alias="schema", description="A JSON Schema that the answer must fit."
    )
    session: Maybe[SessionMode] = Field(
        default=None, description="`thread`: go on with the session of the pass before."
    )
    files: Maybe[FilesNotYet] = Field(
        default=None, description="Files of the workspace that the agent is shown."
    )
    run: Maybe[Argv] = Field(default=None, description="A program, run without a shell.")
    timeout: Maybe[Duration] = Field(default=None, description="With run; default 10m.")
    env: Maybe[dict[EnvName, str]] = Field(
        default=None, description="With run: further environment variables."
    )
    steps: Maybe[Annotated[list["StepSpec"], Field(min_length=1)]] = Field(
        default=None, description="Steps that form a graph by what they need."
    )
    on_failure: Maybe[OnFailure] = Field(
        default=None, description="With steps: what happens to the others when one fails."
    )

    tools: OnAgentOnly = None
    deny_tools: OnAgentOnly = None
    permission: OnAgentOnly = None
    max_turns: OnAgentOnly = None
    max_usd: OnAgentOnly = None
    system: OnAgentOnly = None
    model: OnAgentOnly = None
    script: NotYet = None
    cycle: NotYet = None


class ForEachSpec(Surface):
    """One pass for each item of a list."""

    items: Maybe[list[JsonValue]] = Field(default=None, description="The list, written out.")
    source: Maybe[Line] = Field(
        default=None,
        alias="from",
        description="Where the list is found.",
        examples=["steps.plan.result.files", "input.files"],
    )
    expr: NotYet = None
    parallel: Maybe[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=None, description="Most passes at once. Default 100."
    )
    max_items: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1_000, description="A longer list is refused."
    )
    on_item_error: Literal["stop", "continue"] = Field(
        default="stop", description="What a failed item means for the others."
    )


def _word_is_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class MemorySpec(Surface):
    """What a pass knows of the passes before."""

    kind: MemoryKind
    chars: Maybe[Annotated[int, Field(ge=1, le=10_000)]] = Field(
        default=None, description="With progress-log: length of an entry. Default 300."
    )


Memory: TypeAlias = Annotated[
    MemorySpec, BeforeValidator(_word_is_kind, json_schema_input_type=MemorySpec | MemoryKind)
]


class RepeatSpec(BodySpec):
    """A loop: repeat a body until a check, a limit or a person ends it."""

    max: Maybe[Count] = Field(default=None, description="The most passes.", examples=[10])
    until: Maybe[CheckSpec] = Field(default=None, description="The check that ends it.")
    for_each: Maybe[ForEachSpec] = Field(default=None, description="Instead of max and until.")
    memory: Maybe[Memory] = Field(default=None, description="Default none.")
    at_cap: Maybe[AtCap] = Field(
        default=None,
        description="What it means that all passes are made. Default: exhaust with an until or a "
        "gate, complete without.",
    )
    output: OutputMode = Field(default="last", description="What the loop gives back.")
    delay: Maybe[Duration] = Field(default=None, description="Wait between passes.")
    gate: Maybe[Gate] = Field(
        default=None, description="Ask a person after each pass that did not end the loop."
    )
    limits: Maybe[LoopLimitsSpec] = Field(default=None, description="What the loop may use.")
    broken_after: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description="So many passes in a row whose check could not be asked end the loop; "
        "0 is never.",
    )
    check_first: bool = Field(default=False, description="Ask the check before the first pass.")


class StepSpec(BodySpec):
    """One step of a graph."""

    id: Id = Field(description="Its name.")
    needs: list[str] = Field(default=[], description="Steps that end before it starts.")
    join: Join = Field(default="all_success", description="How those must have ended.")
    repeat: Maybe[RepeatSpec] = Field(default=None, description="Do it in a loop.")
    gate: Maybe[GateStep] = Field(default=None, description="Stop until a person has decided.")
    wait: Maybe[Duration] = Field(default=None, description="Do nothing for a while.")
    stop: Maybe[Prose] = Field(default=None, description="End the run, for this reason.")
    retry: Maybe[RetrySpec] = Field(default=None, description="Tries of a call.")
    limits: Maybe[BudgetSpec] = Field(default=None, description="What the step may use.")
    on_error: OnError = Field(default="fail", description="`continue`: a failure is no failure.")
    when: NotYet = None


def _version(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value > VERSION:
        message = f"this definition needs version {value}; this program knows version {VERSION}"
        raise fault("newer-schema", message, hint="update loopwright")
    return value


class Definition(BodySpec):
    """A loop definition."""

    version: Annotated[
        int,
        Field(ge=1, le=VERSION),
        BeforeValidator(_version, json_schema_input_type=Literal[1]),
    ] = Field(default=VERSION, description="Version of this language.")
    name: Annotated[Line, Field(max_length=100)] = Field(description="What it is called.")
    description: Prose = Field(default="", description="What it is for.")
    goal: Prose = Field(
        default="",
        description="What is to be reached; a message given at the start takes its place.",
    )
    agents: dict[Id, AgentSpec] = Field(default={}, description="Agents by name.")
    inputs: dict[InputName, InputSpec] = Field(default={}, description="Inputs by name.")
    repeat: Maybe[RepeatSpec] = Field(default=None, description="Do it in a loop.")
    budget: Maybe[BudgetSpec] = Field(default=None, description="What the run may use.")
    parallel: Maybe[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=None, description="Most agent calls at once."
    )
