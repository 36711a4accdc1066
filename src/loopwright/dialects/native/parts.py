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
from loopwright.syntax.validation import Maybe, fault, leads_away, ref_loop

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
    if leads_away(schema):
        hint = "copy it into definitions and refer to #/definitions/NAME"
        raise fault("remote-ref", "a $ref must stay inside the schema", hint=hint)
    circle = ref_loop(schema)
    if circle is not None:
        hint = "let it lead into properties or items, so that each round is about a part"
        raise fault("ref-loop", f"$ref {circle} leads back to itself", hint=hint)
    for pattern in _patterns(schema):
        found = pattern_fault(pattern)
        if found is not None and found.code != "matches-everything":
            raise fault(found.code, found.message, hint=found.hint)
    problem = _schema_problem(schema)
    if problem is not None:
        raise fault("bad-schema", problem, hint="write it as JSON Schema, draft 2020-12")
    return schema


def _schema_problem(schema: dict[str, JsonValue]) -> str | None:
    """Why a schema is none. The library is loaded only for definitions that have one."""
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
    """An agent by name: what stands behind it, what it is told, what it may do."""

    use: Maybe[SpecLine] = Field(
        default=None,
        description="Spec of the agent; when left out, `--agent` names it at the start.",
        examples=["claude", "command:./agent.sh"],
    )
    role: Maybe[Line] = Field(
        default=None,
        description="A role (`loopwright roles` lists them): its instructions, its access and, "
        "where nothing is said here, its model and its turns.",
        examples=["reviewer"],
    )
    access: Maybe[Access] = Field(
        default=None,
        description="How far it reaches, whatever else it is given: `full`, `readonly-shell` "
        "(reading, and a few commands that only read), `readonly`, or `minimal` (no files). A "
        "level that it cannot be held to here is refused at the start.",
    )
    sandbox: Maybe[ConfinedLevel] = Field(
        default=None,
        description="Confine its program at least so far: `guard`, `workspace`, `readonly` or "
        "`none`. The strictest of this, the level of the run and its access applies.",
    )
    system: Prose = Field(default="", description="Standing instructions.")
    model: Maybe[Line] = Field(default=None, description="Model, as the agent names it.")
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
        default=None, description="Most turns in one call."
    )
    max_usd: Maybe[Usd] = Field(default=None, description="Most money that one call may cost.")
    temperature: Maybe[Annotated[float, Field(ge=0, le=2)]] = Field(
        default=None, description="Temperature of the model."
    )
    env: dict[EnvName, str] = Field(default={}, description="Further environment variables.")
    pass_env: list[EnvName] = Field(
        default=[],
        description="Names of variables that are handed on from the surroundings; values are "
        "never recorded.",
        examples=[["ANTHROPIC_API_KEY"]],
    )
    idle: Maybe[Duration] = Field(default=None, description="Longest silence in one call.")
    wall: Maybe[Duration] = Field(default=None, description="Longest time of one call.")
    approvals: dict[Line, ApprovalRule] = Field(
        default={},
        description="Of a chat model, by tool, whether a person is asked before a call: `never` "
        "(default), `always`, or `protected_paths` for calls that touch one. The short name of a "
        "tool matches its long one too.",
        examples=[{"shell.exec": "always"}],
    )
    options: dict[str, JsonValue] = Field(
        default={}, description="Handed on as it is, to programs in LOOPWRIGHT_OPTIONS."
    )


class CoordinatorSpec(NativeModel):
    """An agent that hears what happens in a run, may pass messages on and tell people about it."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Prose = Field(default="", description="Its prompt.")
    narrates: bool = Field(default=True, description="It tells people what happens.")


class WorkspaceSpec(NativeModel):
    """How the workspace of a run is recorded and kept apart."""

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
    """A value that whoever starts the run gives by name."""

    description: Prose = Field(default="", description="What it is for.")
    required: Maybe[bool] = Field(default=None, description="True unless there is a default.")
    default: JsonValue = Field(default=None, description="The value when none is given.")


# -- limits and tries ------------------------------------------------------------------------------


class BudgetSpec(NativeModel):
    """What may be used: money, tokens, time, and how long an agent may be silent."""

    usd: Maybe[Usd] = Field(default=None, description="Money.", examples=[5])
    tokens: Maybe[Tokens] = Field(default=None, description="Tokens, in and out.")
    time: Maybe[Duration] = Field(default=None, description="Time from start to end.")
    idle: Maybe[Duration] = Field(default=None, description="Longest silence of an agent.")


class LoopLimitsSpec(BudgetSpec):
    """What a loop may use."""

    pass_time: Maybe[Duration] = Field(default=None, description="Longest time of one pass.")
    identical: Maybe[Annotated[int, Field(ge=2, le=1000)]] = Field(
        default=None, description="So many equal results in a row, and the loop has stalled."
    )
    until: Maybe[PointInTime] = Field(
        default=None,
        description="The point in time at which the loop is over.",
        examples=["2027-01-31T18:00:00Z"],
    )
    no_progress: NotYet = None


class RetrySpec(NativeModel):
    """How often a failed call is made; tries are counted apart from passes."""

    attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="All tries, the first one included."
    )
    delay: Maybe[Duration] = Field(
        default=None, description="Wait before the second try, doubled each time. Default 1s."
    )
    max_delay: Maybe[Duration] = Field(default=None, description="Longest wait. Default 1m.")
    on: Maybe[Annotated[list[RetryKind], Field(min_length=1)]] = Field(
        default=None,
        description="Failures to try again; `any` is whatever went wrong. "
        "Default rate_limited and overloaded.",
    )
    if_says: list[Line] = Field(
        default=[], description="Words in a failure that make another try worth it."
    )
    unless_says: list[Line] = Field(
        default=[], description="Words in a failure that make any other try vain."
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

    message: Prose = Field(default="", description="What the person is asked.")
    answers: Maybe[Answers] = Field(default=None, description="What the person may answer.")


class LoopGateSpec(GateSpec):
    """A question to a person after a pass."""

    first_always: bool = Field(
        default=False, description="Asked after the first pass even when its check passed."
    )
    approve_continues: bool = Field(
        default=False,
        description="An approval of a pass whose check did not pass asks for another pass.",
    )
    grants: bool = Field(
        default=False, description="`continue` after the last iteration raises the limit by one."
    )
    reject: Reject = Field(default="fail", description=_REJECT)
    after: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0,
        description="Asked only after so many passes in a row that did not end the loop, and not "
        "about the last one there may be.",
    )


class ReworkSpec(NativeModel):
    """An agent that works on what a person has rejected; then the person is asked again."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Prose = Field(
        default="", description="Its prompt; {{rejection}} is what the person wrote."
    )
    attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="The rejection with this number ends it."
    )


class GateStepSpec(GateSpec):
    """A step that stops until a person has decided."""

    capture: bool = Field(default=False, description="What the person writes is the output.")
    on_reject: Maybe[ReworkSpec] = Field(
        default=None, description="Let an agent work on it and ask again."
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
