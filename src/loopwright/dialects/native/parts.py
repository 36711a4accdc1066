"""Parts of a native definition that are used in several places: agents, inputs, limits, gates.

`jsonschema` is imported only when a JSON Schema is checked, because importing it is slow.
"""

from importlib import import_module
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from loopwright.dialects.native.fields import (
    Duration,
    EnvName,
    Line,
    NotYet,
    PointInTime,
    Prose,
    SpecLine,
    Tokens,
    Usd,
)
from loopwright.model.plan import Access, ApprovalRule, LoopRight
from loopwright.model.sandbox import ConfinedLevel
from loopwright.syntax.patterns import pattern_fault
from loopwright.syntax.validation import Maybe, check_references, fault

RetryKind: TypeAlias = Literal[
    "exit",
    "agent",
    "rate_limited",
    "overloaded",
    "idle_timeout",
    "wall_timeout",
    "not_found",
    "workspace_gone",
    "bad_result",
    "bad_input",
    "script",
    "any",
]


class NativeModel(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _local_schema(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not schema:
        raise fault("matches-everything", "an empty schema fits any result")
    check_references(schema, definitions="definitions")
    for pattern in _patterns(schema):
        found = pattern_fault(pattern)
        if found is not None and found.code != "matches-everything":
            raise fault(found.code, found.message, hint=found.hint)
    problem = _schema_problem(schema)
    if problem is not None:
        raise fault("bad-schema", problem, hint="write it as JSON Schema, draft 2020-12")
    return schema


def _schema_problem(schema: dict[str, JsonValue]) -> str | None:
    """Why a value is not a valid JSON Schema. The library is loaded only when needed."""
    checker = import_module("jsonschema").Draft202012Validator
    found = next(checker(checker.META_SCHEMA).iter_errors(schema), None)
    if found is None:
        return None
    place = "/".join(str(part) for part in found.absolute_path) or "the schema itself"
    return f"{place}: {str(found.message)[:200]}"


def _patterns(value: JsonValue) -> list[str]:
    """Every pattern that a schema matches texts with."""
    if isinstance(value, list):
        return [pattern for one in value for pattern in _patterns(one)]
    if not isinstance(value, dict):
        return []
    own, named = value.get("pattern"), value.get("patternProperties")
    found = [own] if isinstance(own, str) else []
    found += named if isinstance(named, dict) else ()
    return [*found, *(pattern for one in value.values() for pattern in _patterns(one))]


JsonSchema: TypeAlias = Annotated[dict[str, JsonValue], AfterValidator(_local_schema)]

# -- agents and inputs -----------------------------------------------------------------------------


class AgentSpec(NativeModel):
    """An agent by name: its backend, its instructions, its permissions."""

    use: Maybe[SpecLine] = Field(
        default=None,
        description="Spec of the agent; if omitted, `--agent` chooses it when the run starts.",
        examples=["claude", "command:./agent.sh"],
    )
    role: Maybe[Line] = Field(
        default=None,
        description="A role (`loopwright roles` lists them): its instructions, its access and, "
        "unless they are set in this definition, its model and its number of turns.",
        examples=["reviewer"],
    )
    access: Maybe[Access] = Field(
        default=None,
        description="Its access, whatever else it is given: `full`, `readonly-shell` (reading, and "
        "a few commands that only read), `readonly`, or `minimal` (no files). If this machine "
        "cannot enforce the level, the run is refused when it starts.",
    )
    sandbox: Maybe[ConfinedLevel] = Field(
        default=None,
        description="Minimum sandbox level of its program: `guard`, `workspace`, `readonly` or "
        "`none`. The strictest of this, the level of the run and its access applies.",
    )
    system: Prose = Field(default="", description="Instructions for every call.")
    model: Maybe[Line] = Field(default=None, description="Model, by the name that the agent uses.")
    tools: Maybe[list[Line]] = Field(default=None, description="The only tools it may use.")
    deny_tools: list[Line] = Field(default=[], description="Tools it may not use.")
    loops: list[LoopRight] = Field(
        default=[],
        description="Loop tools for a coding CLI, an `acp:` agent or a chat model: `start` starts "
        "child runs of its run, `look` shows its run and its child runs. It never answers gates.",
        examples=[["start", "look"]],
    )
    permission: Maybe[Line] = Field(default=None, description="Permission mode of the agent.")
    max_turns: Maybe[Annotated[int, Field(ge=1, le=10_000)]] = Field(
        default=None, description="Maximum number of turns in one call."
    )
    max_usd: Maybe[Usd] = Field(default=None, description="Maximum cost of one call in USD.")
    temperature: Maybe[Annotated[float, Field(ge=0, le=2)]] = Field(
        default=None, description="Temperature of the model."
    )
    env: dict[EnvName, str] = Field(default={}, description="Further environment variables.")
    pass_env: list[EnvName] = Field(
        default=[],
        description="Names of environment variables that are passed to it; values are never "
        "recorded.",
        examples=[["ANTHROPIC_API_KEY"]],
    )
    idle: Maybe[Duration] = Field(default=None, description="Longest silence in one call.")
    wall: Maybe[Duration] = Field(default=None, description="Longest time of one call.")
    approvals: dict[Line, ApprovalRule] = Field(
        default={},
        description="For a chat model, by tool, whether a person must approve a call: `never` "
        "(default), `always`, or `protected_paths` for calls that use a protected path. The short "
        "name of a tool also matches the full one.",
        examples=[{"shell.exec": "always"}],
    )
    options: dict[str, JsonValue] = Field(
        default={}, description="Passed on unchanged; programs receive it in LOOPWRIGHT_OPTIONS."
    )


class CoordinatorSpec(NativeModel):
    """An agent that receives the messages of a run, can forward them and report progress to
    people.
    """

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Prose = Field(default="", description="Its prompt.")
    narrates: bool = Field(
        default=True,
        description="The coordinator can write messages about the progress for people.",
    )


class WorkspaceSpec(NativeModel):
    """Snapshots and the worktree of a run."""

    snapshots: Maybe[bool] = Field(
        default=None,
        description="Take a snapshot of the files before the first iteration and after each one. "
        "Default: yes, where Git is available and something in the run can write.",
    )
    worktree: bool = Field(
        default=False,
        description="Work in a Git worktree on the branch loopwright/RUN.",
    )


class InputSpec(NativeModel):
    """A value given by name when the run is started."""

    description: Prose = Field(default="", description="Description for people.")
    required: Maybe[bool] = Field(default=None, description="True unless there is a default.")
    default: JsonValue = Field(default=None, description="Value used if none is given.")


# -- limits and tries ------------------------------------------------------------------------------


class BudgetSpec(NativeModel):
    """Limits: money, tokens, time, and the longest silence of an agent."""

    usd: Maybe[Usd] = Field(default=None, description="Money in USD.", examples=[5])
    tokens: Maybe[Tokens] = Field(default=None, description="Tokens, in and out.")
    time: Maybe[Duration] = Field(default=None, description="Time from start to end.")
    idle: Maybe[Duration] = Field(default=None, description="Longest silence of an agent.")


class LoopLimitsSpec(BudgetSpec):
    """Limits of a loop."""

    pass_time: Maybe[Duration] = Field(default=None, description="Longest time of one iteration.")
    identical: Maybe[Annotated[int, Field(ge=2, le=1000)]] = Field(
        default=None, description="The loop has stalled after this many equal results in a row."
    )
    until: Maybe[PointInTime] = Field(
        default=None,
        description="The point in time at which the loop ends.",
        examples=["2027-01-31T18:00:00Z"],
    )
    no_progress: NotYet = None


class RetrySpec(NativeModel):
    """How often a failed call is attempted; attempts are counted separately from iterations."""

    attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="Maximum number of attempts, including the first."
    )
    delay: Maybe[Duration] = Field(
        default=None,
        description="Wait before the second attempt; doubled for each further one. Default 1s.",
    )
    max_delay: Maybe[Duration] = Field(default=None, description="Longest wait. Default 1m.")
    on: Maybe[Annotated[list[RetryKind], Field(min_length=1)]] = Field(
        default=None,
        description="Failures to retry; `any` means all failures. Default rate_limited and "
        "overloaded.",
    )
    if_says: list[Line] = Field(
        default=[], description="Retry failures whose message contains one of these texts."
    )
    unless_says: list[Line] = Field(
        default=[], description="Never retry failures whose message contains one of these texts."
    )


# -- people ----------------------------------------------------------------------------------------


def _distinct(answers: list[str]) -> list[str]:
    if len(set(answers)) < len(answers):
        raise fault("bad-value", "an answer is listed twice")
    return answers


Answers: TypeAlias = Annotated[
    list[Literal["approve", "reject", "continue"]],
    Field(min_length=1),
    AfterValidator(_distinct),
]


Reject: TypeAlias = Literal["fail", "cancel"]
_REJECT = "What a rejection means: the step has failed, or the whole run is cancelled."


class GateSpec(NativeModel):
    """A question to a person."""

    message: Prose = Field(default="", description="The question to the person.")
    answers: Maybe[Answers] = Field(default=None, description="The possible decisions.")


class LoopGateSpec(GateSpec):
    """A question to a person after an iteration."""

    first_always: bool = Field(
        default=False,
        description="Open the gate after the first iteration even if its check passed.",
    )
    approve_continues: bool = Field(
        default=False,
        description="Approving an iteration whose check did not pass starts another iteration.",
    )
    grants: bool = Field(
        default=False, description="`continue` after the last iteration raises the limit by one."
    )
    reject: Reject = Field(default="fail", description=_REJECT)
    after: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0,
        description="Open the gate only after this many iterations in a row that did not end the "
        "loop, and not after the last allowed one.",
    )


class ReworkSpec(NativeModel):
    """An agent that changes what a person has rejected; then the gate opens again."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Prose = Field(
        default="", description="Its prompt; {{rejection}} is the text of the rejection."
    )
    attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="After this many rejections, the step fails."
    )


class GateStepSpec(GateSpec):
    """A step that waits until a person has decided."""

    capture: bool = Field(default=False, description="The text of the person becomes the output.")
    on_reject: Maybe[ReworkSpec] = Field(
        default=None,
        description="After a rejection, an agent changes the result and the gate opens again.",
    )
    reject: Reject = Field(default="fail", description=_REJECT)


class PersonSpec(GateSpec):
    """A person as the check of a loop."""

    rejected: Maybe[Line] = Field(default=None, description="The error when it is rejected.")


def _true_is_empty(value: object) -> object:
    return {} if value is True else value


Gate: TypeAlias = Annotated[
    LoopGateSpec,
    BeforeValidator(_true_is_empty, json_schema_input_type=LoopGateSpec | Literal[True]),
]
GateStep: TypeAlias = Annotated[
    GateStepSpec,
    BeforeValidator(_true_is_empty, json_schema_input_type=GateStepSpec | Literal[True]),
]
PersonField: TypeAlias = Annotated[
    PersonSpec, BeforeValidator(_true_is_empty, json_schema_input_type=PersonSpec | Literal[True])
]
