"""The form of a ZenFlow workflow: its keys, the kinds of value in them, its recognition.

Strict: an unknown key is rejected, and each kind of value has its own error message. Only rules
about one value at a time are here. Rules between several values are in `rules.py` and
`references.py`, so that one report contains all findings. An optional key without a value is the
same as no key, except where that would allow more than the author seems to intend.
"""

import re
import unicodedata
from functools import partial
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
)

from loopwright.syntax.document import name_character, show
from loopwright.syntax.validation import check_references, fault, visible

_ROOT = frozenset({"includes", "options"})
_AGENT = frozenset({"description", "disallowedTools", "maxTurns", "resultSchema", "topP"})
_STEP = frozenset(
    {
        *("condition", "contextFiles", "dependsOn", "include", "instructions", "loop"),
        *("maxRetries", "tool", "toolInput"),
    }
)
# Keys that this dialect does not have: with this many of them, a file has another format.
_FOREIGN_ROOT = frozenset({"agent", "budget", "goal", "inputs", "nodes", "parallel", "repeat"})
_FOREIGN_AGENT = frozenset({"deny_tools", "permission", "system", "use"})
_FOREIGN_STEP = frozenset(
    {
        "depends_on",
        "gate",
        "needs",
        "prompt",
        "repeat",
        "run",
        "script",
        "stop",
        "trigger_rule",
        "wait",
        "when",
    }
)

SURE = 90
PERHAPS = 20


def recognise(value: object) -> int:
    """From 0 (not mine) to 100."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        return 0
    agents = value.get("agents")
    steps = _mappings(value["steps"])
    named = _mappings(list(agents.values())) if isinstance(agents, dict) else []
    own = len(_ROOT & value.keys())
    own += sum(len(_AGENT & one.keys()) for one in named)
    own += sum(len(_STEP & one.keys()) for one in steps)
    foreign = len(_FOREIGN_ROOT & value.keys())
    foreign += sum(len(_FOREIGN_AGENT & one.keys()) for one in named)
    foreign += sum(len(_FOREIGN_STEP & one.keys()) for one in steps)
    if own > foreign:
        return SURE
    return PERHAPS if not foreign and any("id" in one for one in steps) else 0


def _mappings(values: list[object]) -> list[dict[str, object]]:
    return [one for one in values if isinstance(one, dict)]


MAX_TEXT = 2_000
MAX_ID = 64
STRICT_ID = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_ID - 1}}}")
_LOOSE_ID = re.compile(rf"[a-zA-Z][a-zA-Z0-9_-]{{0,{MAX_ID - 1}}}")

# Characters that change the text direction: the text would not read as it is.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


# -- texts -----------------------------------------------------------------------------------------


def prose_problem(text: str) -> str | None:
    """Why a longer text may not be shown to an agent; signs that join letters are fine in it."""
    for at, char in enumerate(text):
        unsafe = unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t\r"
        if unsafe or char in _TURNING:
            return f"hidden character {name_character(char)} at character {at + 1}"
    return None


def _prose(text: str) -> str:
    problem = None if text.isascii() and text.isprintable() else prose_problem(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text


def _id(text: str) -> str:
    visible(text)
    if not _LOOSE_ID.fullmatch(text):
        raise fault("bad-id", f'"{text[:40]}" cannot be an id', hint=ID_HINT)
    return text


def _agent_name(text: str) -> str:
    visible(text)
    if not STRICT_ID.fullmatch(text):
        raise fault("bad-id", f'"{text[:40]}" cannot be the name of an agent', hint=ID_HINT)
    return text


def _expression(text: str) -> str:
    if not text.strip():
        raise fault("empty-expression", "an expression must say something", hint="or leave it out")
    return _prose(text)


ID_HINT = f"use a-z, 0-9, _ and -, first a letter, at most {MAX_ID} characters"

Prose: TypeAlias = Annotated[str, AfterValidator(_prose)]
Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(visible)]
Name: TypeAlias = Annotated[str, Field(max_length=500), AfterValidator(visible)]
StepId: TypeAlias = Annotated[
    str,
    AfterValidator(_id),
    WithJsonSchema({"type": "string", "pattern": f"^{_LOOSE_ID.pattern}$"}),
]
AgentName: TypeAlias = Annotated[
    str,
    AfterValidator(_agent_name),
    WithJsonSchema({"type": "string", "pattern": f"^{STRICT_ID.pattern}$"}),
]
Expression: TypeAlias = Annotated[str, AfterValidator(_expression)]

# -- amounts ---------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
_DURATION_HINT = "write whole hours, minutes and seconds, in this order: 45s, 10m, 1h30m"
MAX_DURATION_MS = 365 * 86_400_000


def milliseconds(value: object) -> int | None:
    """The duration in milliseconds, or None if it is not one."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (hours * 3_600 + minutes * 60 + seconds) * 1_000


def _duration(value: object) -> int:
    length = milliseconds(value)
    if length is None:
        hint = _DURATION_HINT
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            hint += f'; is "{value}s" meant?'
        raise fault("bad-duration", f"{show(value)} is not a time", hint=hint)
    if length > MAX_DURATION_MS:
        raise fault("out-of-range", "a time may be 8760h at most, which is a year")
    return length


def _not_negative(value: int) -> int:
    if value < 0:
        raise fault("negative-value", f"{value} is below 0", hint="0 is the same as leaving it out")
    return value


def _positive(value: int) -> int:
    if value < 1:
        message = f"a loop of {value} iterations is not possible"
        raise fault("negative-value", message, hint="write a number from 1")
    return value


Duration: TypeAlias = Annotated[
    int,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?=.)(\d+h)?(\d+m)?(\d+s)?$",
            "examples": ["45s", "1h30m"],
        }
    ),
]
NotNegative: TypeAlias = Annotated[
    int, AfterValidator(_not_negative), WithJsonSchema({"type": "integer", "minimum": 0})
]
Positive: TypeAlias = Annotated[
    int, AfterValidator(_positive), WithJsonSchema({"type": "integer", "minimum": 1})
]

# -- schemas and files -----------------------------------------------------------------------------


JsonSchema: TypeAlias = Annotated[
    dict[str, JsonValue], AfterValidator(partial(check_references, definitions="$defs"))
]


VERSION = 1

OnStepFailure: TypeAlias = Literal["cascade", "skip-dependents", "abort"]
Scheduler: TypeAlias = Literal["dependency-first", "round-robin", "least-busy"]
OutputMode: TypeAlias = Literal["", "last", "cumulative"]


class ZenflowModel(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AgentSpec(ZenflowModel):
    """An agent by name: its role, its instructions, its permissions."""

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


class LoopSpec(ZenflowModel):
    """A loop: with forEach over a list, otherwise until a check or the maximum number of
    iterations.
    """

    max_iterations: Positive | None = Field(
        default=None, alias="maxIterations", description="The most passes.", examples=[5]
    )
    until: Expression | None = Field(
        default=None, description="An expression that ends the loop when it is true."
    )
    until_agent: Name | None = Field(
        default=None, alias="untilAgent", description="An agent that judges each iteration."
    )
    for_each: Expression | list[JsonValue] | None = Field(
        default=None, alias="forEach", description="A list, or an expression that gives one."
    )
    max_concurrency: NotNegative | None = Field(
        default=None, alias="maxConcurrency", description="With forEach: most passes at once."
    )
    delay: Duration | None = Field(default=None, description="Wait between passes.")
    steps: list["StepSpec"] | None = Field(
        default=None, description="Steps of an iteration; without them the step itself is repeated."
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
        description="What it means that all iterations are used and no check has passed. "
        "Default fail.",
    )
    on_item_failure: Literal["stop", "continue"] | None = Field(
        default=None,
        alias="onItemFailure",
        description="With forEach: what a failed item means for the others. Default stop.",
    )


class StepSpec(ZenflowModel):
    """One step: a call of an agent, another workflow, or a loop."""

    id: StepId = Field(description="Its name.")
    agent: Name | None = Field(default=None, description="Name of the agent.")
    instructions: Prose | None = Field(
        default=None, description="The prompt of the agent; @file takes it from a file."
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


class Options(ZenflowModel):
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


class ZenflowWorkflow(ZenflowModel):
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
