"""The form of a native definition: its keys, strict, and recognition of a file.

Only rules about one value at a time are here. Rules between several values (exactly one kind of
step, a maximum where one is needed, names that must exist) are in `rules.py` and
`references.py`, so that one report contains all findings.

The JSON Schema of the format, for editors, is generated from these models.
"""

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, JsonValue

from loopwright.dialects.native.checks import CheckSpec, When
from loopwright.dialects.native.fields import (
    AGENT_HINT,
    AGENTS_HINT,
    AMOUNT_HINT,
    CHECK_HINT,
    COUNT_HINT,
    IN_REPEAT,
    LOOP_HINT,
    MEMORY_HINT,
    AgentName,
    Argv,
    Count,
    Duration,
    EnvName,
    Expression,
    Id,
    InputName,
    Line,
    OnAgentOnly,
    Prose,
    ScriptText,
    SpecLine,
    WorkspacePath,
    WorkspacePaths,
)
from loopwright.dialects.native.parts import (
    AgentSpec,
    BudgetSpec,
    CoordinatorSpec,
    Gate,
    GateStep,
    InputSpec,
    JsonSchema,
    LoopLimitsSpec,
    NativeModel,
    RetrySpec,
    WorkspaceSpec,
)
from loopwright.model.policy import (
    AtCap,
    CheckOrder,
    GraphOutput,
    Join,
    OnDeadline,
    OnError,
    OnFailure,
    OnItemError,
    OutputMode,
    SessionMode,
)
from loopwright.model.record import JsonValue as SchemaValue
from loopwright.model.sandbox import ConfinedLevel
from loopwright.syntax.validation import HIDDEN, HIDE, Maybe, fault

NAME = "native"

_SIGNS = ("agent", "agents", "budget", "goal", "repeat")


def recognise(value: object) -> int:
    """Confidence from 0 (another format) to 100; native accepts what no other dialect does."""
    if not isinstance(value, dict):
        return 0
    if "converted_from" in value:
        return 100
    return 50 if any(sign in value for sign in _SIGNS) else 10


VERSION = 1

Outcome: TypeAlias = Literal["worst", "some_completed", "partial"]
MemoryKind: TypeAlias = Literal[
    "none", "progress-log", "previous-output", "stages", "session", "history"
]


# -- what is done ----------------------------------------------------------------------------------


class GivenSpec(NativeModel):
    """The message and inputs of steps that are a separate workflow."""

    message: Maybe[Prose] = Field(
        default=None, description="Their message. Default: the message of the outer workflow."
    )
    inputs: dict[InputName, str] = Field(default={}, description="Their inputs by name.")


class CycleSpec(NativeModel):
    """One turn of a chat model and its tool calls."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Maybe[Prose] = Field(
        default=None, description="The first message to the model. Default: the goal."
    )
    nudge: Maybe[Prose] = Field(
        default=None,
        description="Message to the model after a turn that called no tool and did not end the "
        "loop.",
        examples=["Continue. If you have finished, say DONE."],
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None,
        alias="schema",
        description="A JSON Schema of the result, which the model submits with a separate tool.",
    )
    one_call: bool = Field(
        default=False,
        description="The loop is a single call of the model: its turns do not count as iterations.",
    )


class BodySpec(NativeModel):
    """What is executed once: a call of an agent, a cycle of a chat model, a program, or steps."""

    agent: Maybe[SpecLine] = Field(default=None, description="Name of an agent, or its spec.")
    prompt: Maybe[Prose] = Field(
        default=None, description="The prompt of the agent. Default: the goal."
    )
    result_schema: Maybe[JsonSchema] = Field(
        default=None, alias="schema", description="A JSON Schema that the answer must fit."
    )
    session: Maybe[SessionMode] = Field(
        default=None, description="`thread`: continue the session of the previous iteration."
    )
    files: Maybe[list[WorkspacePath]] = Field(
        default=None, description="Files of the workspace whose contents are added to the prompt."
    )
    show_needs: Maybe[bool] = Field(
        default=None,
        description="Add the results of the steps in `needs` below the prompt.",
    )
    on_idle: Maybe[Literal["fail", "answer"]] = Field(
        default=None,
        description="What happens at the `idle` limit: the call fails (default), or the text so "
        "far is its answer.",
    )
    on_empty: Maybe[Literal["answer", "fail"]] = Field(
        default=None,
        description="Whether an empty answer is accepted (`answer`, the default) or "
        "fails the call.",
    )
    cycle: Maybe[CycleSpec] = Field(
        default=None,
        description="Inside repeat: each iteration is a turn of a chat model with its tools.",
    )
    run: Maybe[Argv] = Field(default=None, description="A program, run without a shell.")
    script: Maybe[ScriptText] = Field(
        default=None,
        description="A script, executed by its interpreter; it receives values through `env` only.",
    )
    interpreter: Maybe[Line] = Field(
        default=None, description="With script; default bash. It is called with -c and the text."
    )
    flags: Maybe[list[str]] = Field(
        default=None, description="With script: arguments before the text. Default [-c]."
    )
    by_stdin: Maybe[bool] = Field(
        default=None, description="With script: the interpreter reads the text from stdin."
    )
    timeout: Maybe[Duration] = Field(
        default=None, description="With run, default 10m; with script, default 2m."
    )
    env: Maybe[dict[EnvName, str]] = Field(
        default=None,
        description="With run or script: further environment variables. For a script, their values "
        "can contain references.",
    )
    steps: Maybe[Annotated[list["StepSpec"], Field(min_length=1)]] = Field(
        default=None, description="Steps, ordered by their `needs`."
    )
    on_failure: Maybe[OnFailure] = Field(
        default=None, description="With steps: what happens to the others when one fails."
    )
    parallel: Maybe[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=None, description="With steps: maximum number of agent calls at once."
    )
    speaker: Maybe[GraphOutput] = Field(
        default=None,
        description="With steps: the step whose output is the output of all. `last` (default): the "
        "last that completed. `sink`: the first that completed with a text and that no other step "
        "needs. `list`: a JSON list of the outputs of all, in their order.",
    )
    returns: Maybe[str] = Field(
        default=None, description="With steps: id of the step whose output is the output of all."
    )
    given: Maybe[GivenSpec] = Field(
        default=None,
        description="With steps: they are a separate workflow that can use only these values and "
        "the item of a list; it fails if none of them completes.",
    )

    role: OnAgentOnly = None
    access: OnAgentOnly = None
    tools: OnAgentOnly = None
    deny_tools: OnAgentOnly = None
    loops: OnAgentOnly = None
    permission: OnAgentOnly = None
    max_turns: OnAgentOnly = None
    max_usd: OnAgentOnly = None
    system: OnAgentOnly = None
    model: OnAgentOnly = None
    approvals: OnAgentOnly = None


class ForEachSpec(NativeModel):
    """One iteration for each item of a list."""

    items: Maybe[list[JsonValue]] = Field(default=None, description="The list itself.")
    source: Maybe[Line] = Field(
        default=None,
        alias="from",
        description="A reference to the list.",
        examples=["steps.plan.result.files", "input.files"],
    )
    expr: Maybe[Expression] = Field(
        default=None,
        description="An expression (CEL) whose value is the list.",
        examples=["steps.list.result.services.filter(s, s.port > 0)"],
    )
    parallel: Maybe[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=None, description="Maximum number of iterations at once. Default 100."
    )
    max_items: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1_000, description="Longer lists are rejected."
    )
    on_item_error: OnItemError = Field(
        default="stop",
        description="What happens if an item fails. `stop`: no further item is started. "
        "`continue`: the failure is one entry of the results. `fail`: all other items are "
        "processed, then the loop fails.",
    )
    failed_key: Maybe[Id] = Field(
        default=None,
        description="With `output: list`: the key that marks the entry of a failed item, as "
        "`KEY: true`.",
    )


def _text_is_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class MemorySpec(NativeModel):
    """What an iteration receives from the previous ones."""

    kind: MemoryKind
    chars: Maybe[Annotated[int, Field(ge=1, le=1_000_000)]] = Field(
        default=None,
        description="With progress-log: length of an entry, default 300. With stages: how much of "
        "an output is shown, default 32000.",
    )
    total: Maybe[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(
        default=None,
        description="With progress-log: length of the whole log in a prompt. The most recent "
        "entries are shown in full, older ones are condensed. Default 8000; 0 means unlimited.",
    )
    by_step: bool = Field(
        default=False,
        description="With previous-output: the output of each step of the previous iteration, and "
        "the last answer of the judge.",
    )
    window: Maybe[Annotated[int, Field(ge=1, le=1_000_000_000)]] = Field(
        default=None,
        description="With history: size of the model's context window in tokens. Default 128000.",
    )
    at: Maybe[Annotated[float, Field(gt=0, le=1)]] = Field(
        default=None,
        description="With history: fraction of the window at which the conversation is shortened. "
        "Default 0.8.",
    )
    strategy: Maybe[Literal["rolling-window", "periodic-summary"]] = Field(
        default=None,
        description="With history: remove old turns (default), or replace them by a summary.",
    )
    summaries: Maybe[Annotated[int, Field(ge=0, le=1000)]] = Field(
        default=None,
        description="With periodic-summary: maximum number of summaries; after that, old turns are "
        "removed. Default 3.",
    )
    trim: Maybe[bool] = Field(
        default=None,
        description="With history: shorten long results before old turns are removed. Default "
        "true.",
    )


Memory: TypeAlias = Annotated[
    MemorySpec,
    MEMORY_HINT,
    BeforeValidator(_text_is_kind, json_schema_input_type=MemorySpec | MemoryKind),
]


class RepeatSpec(BodySpec):
    """A loop: repeat a body until a check, a limit or a person ends it."""

    max: Maybe[Annotated[Count, COUNT_HINT]] = Field(
        default=None, description="Maximum number of iterations.", examples=[10]
    )
    until: Maybe[Annotated[CheckSpec, CHECK_HINT]] = Field(
        default=None, description="The check that ends the loop."
    )
    for_each: Maybe[ForEachSpec] = Field(
        default=None, description="Iterate over a list, instead of max and until."
    )
    memory: Maybe[Memory] = Field(default=None, description="Default none; for a cycle, history.")
    at_cap: Maybe[AtCap] = Field(
        default=None,
        description="Result of the loop when all iterations are used. Default: exhaust with an "
        "until or a gate, complete without.",
    )
    output: OutputMode = Field(
        default="last",
        description="The output of the loop. `list`, with for_each: the output of each item, as a "
        "JSON array in its order.",
    )
    delay: Maybe[Duration] = Field(default=None, description="Time to wait between iterations.")
    gate: Maybe[Gate] = Field(
        default=None, description="Open a gate after each iteration that did not end the loop."
    )
    limits: Maybe[Annotated[LoopLimitsSpec, AMOUNT_HINT]] = Field(
        default=None, description="What the loop may use."
    )
    broken_after: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description="The loop ends after this many iterations in a row whose check could not run; "
        "0 means never.",
    )
    check_first: bool = Field(
        default=False, description="Run the check before the first iteration."
    )
    criteria: bool = Field(
        default=True,
        description="Whether the prompt of each iteration includes the completion criteria and the "
        "failed checks of the previous iteration, with the end of their output.",
    )
    checks: CheckOrder = Field(
        default="all",
        description="`all`: all checks of an `all` run even after one has failed, so that the "
        "agent sees every failure at once; a judge or a gate still starts only if all checks "
        "before it passed. `until_decided`: the first failure ends the checks of the iteration.",
    )
    on_deadline: OnDeadline = Field(
        default="stop",
        description="What happens at the time limit: running calls are stopped (`stop`, the "
        "default), "
        "running steps finish first (`after_step`), or the iteration does (`after_pass`).",
    )


class StepSpec(BodySpec):
    """One step of a graph."""

    id: Id = Field(description="Id of the step.")
    needs: list[str] = Field(default=[], description="Steps that must end before it starts.")
    join: Join = Field(
        default="all_success", description="How the steps in `needs` must have ended."
    )
    repeat: Maybe[Annotated[RepeatSpec, LOOP_HINT]] = Field(
        default=None, description="Repeat it in a loop."
    )
    gate: Maybe[GateStep] = Field(default=None, description="Wait until a person has decided.")
    wait: Maybe[Duration] = Field(default=None, description="Time to wait.")
    stop: Maybe[Prose] = Field(default=None, description="End the run with this reason.")
    retry: Maybe[RetrySpec] = Field(default=None, description="Retries of a call.")
    limits: Maybe[Annotated[BudgetSpec, AMOUNT_HINT]] = Field(
        default=None, description="What the step may use."
    )
    on_error: OnError = Field(
        default="fail", description="`continue`: a failure of the step does not fail the run."
    )
    needs_artifact: bool = Field(
        default=False,
        description="Whether the step must create an artifact; if it does not, a gate opens before "
        "anything else starts.",
    )
    needs_output: bool = Field(
        default=False, description="Whether the step fails if its agent answers with no text."
    )
    on_blocked: Literal["go_on", "ask"] = Field(
        default="go_on",
        description="`ask`: if the answer of the agent begins with STATUS: BLOCKED, a gate opens "
        "before anything else starts.",
    )
    when: Maybe[When] = Field(
        default=None, description="The step is skipped unless this condition is true."
    )
    when_error: Literal["fail", "skip"] = Field(
        default="fail", description="What happens if `when` cannot be evaluated."
    )


def _version(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value > VERSION:
        message = f"this definition needs version {value}; this program knows version {VERSION}"
        raise fault("newer-schema", message, hint="update loopwright")
    return value


InRepeat: TypeAlias = Annotated[Any, IN_REPEAT, HIDE]


class NativeDefinition(BodySpec):
    """A loop definition."""

    max: InRepeat = None
    until: InRepeat = None
    memory: InRepeat = None
    version: Annotated[
        int,
        Field(ge=1, le=VERSION),
        BeforeValidator(_version, json_schema_input_type=Literal[1]),
    ] = Field(default=VERSION, description="Version of this language.")
    name: Line = Field(description="Name of the definition.")
    description: Prose = Field(default="", description="Description for people.")
    goal: Prose = Field(
        default="",
        description="The goal; a message given when the run starts replaces it.",
    )
    agents: Annotated[dict[AgentName, Annotated[AgentSpec, AGENT_HINT]], AGENTS_HINT] = Field(
        default={}, description="Agents by name."
    )
    inputs: dict[InputName, InputSpec] = Field(default={}, description="Inputs by name.")
    repeat: Maybe[Annotated[RepeatSpec, LOOP_HINT]] = Field(
        default=None, description="Repeat it in a loop."
    )
    budget: Maybe[Annotated[BudgetSpec, AMOUNT_HINT]] = Field(
        default=None, description="What the run may use."
    )
    outcome: Outcome = Field(
        default="worst",
        description="The outcome of the run. `worst`: that of its worst step. "
        "`some_completed`: the same, and failed when no step completed. `partial`: failed when "
        "a step did not complete, for the reason `partial` when others did.",
    )
    missing: Literal["empty", "fail"] = Field(
        default="empty",
        description="What happens if a text refers to a field or a setting that does not exist.",
    )
    pass_env: list[EnvName] = Field(
        default=[],
        description="Names of environment variables that are passed to every agent and every "
        "command of the run; `--env` adds to them. Values are never recorded.",
        examples=[["DATABASE_URL"]],
    )
    exclusive: Maybe[Literal["workspace"]] = Field(
        default=None,
        description="`workspace`: only one run can be open in a folder; a second one is refused.",
    )
    sandbox: Maybe[ConfinedLevel] = Field(
        default=None,
        description="Minimum sandbox level of all programs of the run: `guard`, `workspace`, "
        "`readonly` or `none`. A definition cannot choose `off`: only the person who starts a run "
        "can.",
    )
    workspace: Maybe[WorkspaceSpec] = Field(
        default=None, description="Snapshots of the workspace, and a separate worktree."
    )
    protect: WorkspacePaths = Field(
        default=[],
        description="Patterns of files that agents may not change; an iteration that changes one "
        "does not pass its checks.",
        examples=[["tests/**"]],
    )
    coordinator: Maybe[CoordinatorSpec] = Field(
        default=None, description="An agent that receives messages about the progress of the run."
    )
    settings: dict[InputName, str] = Field(
        default={}, description="Named values for {{setting.NAME}}."
    )
    converted_from: Maybe[Id] = Field(
        default=None,
        description="Written by `convert`: the original dialect. Names are kept in the form that "
        "the dialect allows, and runs are listed under it.",
    )


Node: TypeAlias = dict[str, SchemaValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "name": "fix-tests",
    "agent": "claude",
    "goal": "Make the failing test suite pass.",
    "repeat": {
        "max": 10,
        "until": {"all": [{"signal": "DONE"}, {"command": ["pytest", "-q"]}]},
        "memory": "progress-log",
    },
    "budget": {"usd": 5, "time": "2h"},
}


def json_schema() -> Node:
    """Draft 7, which every editor supports."""
    made = cast("Node", NativeDefinition.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    return {
        "$schema": _DRAFT,
        "title": "Loopwright definition",
        **{key: value for key, value in tidy.items() if key != "title"},
        "examples": [_EXAMPLE],
        "definitions": _tidied(definitions),
    }


def _tidied(value: SchemaValue) -> SchemaValue:
    """Without reserved keys, and without titles that add no information."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if not _is_hidden(one)}
    is_properties = "type" not in kept and all(isinstance(one, dict) for one in kept.values())
    if not is_properties:
        kept = {key: one for key, one in kept.items() if (key, one) != ("default", None)}
        kept.pop("title", None)
        if "$ref" in kept and len(kept) > 1:  # draft 7 ignores every key beside a $ref
            kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}


def _is_hidden(value: SchemaValue) -> bool:
    return isinstance(value, dict) and HIDDEN in value
