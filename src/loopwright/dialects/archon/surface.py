"""The form of an Archon workflow: its settings, its nodes, and its recognition.

Each kind of value has its own error message. Unknown keys and keys without an effect on a kind
of node are reported in `rules.py`.

The JSON Schema of the format, for editors, is generated from these models.
"""

import re
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
)

from loopwright.dialects.archon.variables import FIELD_PATTERN, ID_PATTERN, RESERVED_IDS
from loopwright.model.record import JsonValue as SchemaValue
from loopwright.syntax.document import name_character
from loopwright.syntax.validation import HIDDEN, HIDE, Maybe, fault, visible

NAME = "archon"

_OLD_STEPS = ("command", "parallel", "loop")


def recognise(value: object) -> int:
    """Confidence from 0 (another format) to 100. Workflows of the old form are recognised too, for
    a helpful error.
    """
    if not isinstance(value, dict):
        return 0
    if isinstance(value.get("nodes"), list):
        return 100
    steps = value.get("steps")
    if not isinstance(steps, list) or not steps:
        return 0
    old = all(isinstance(one, dict) and "id" not in one and _is_old(one) for one in steps)
    return 40 if old else 0


def _is_old(step: dict[str, object]) -> bool:
    return any(key in step for key in _OLD_STEPS)


_ID = re.compile(ID_PATTERN)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LONGEST_ID = 63
_EMOJI = r"[\u2600-\u27bf\U0001f000-\U0001faff]"
_JOINED = re.compile(rf"(?<={_EMOJI})(?:\ufe0f)?\u200d(?={_EMOJI})")


class ArchonModel(BaseModel):
    """Base: nothing is coerced. Unknown keys are reported by `keys.py`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def _filled(text: str, info: ValidationInfo) -> str:
    if not text.strip():
        raise fault("bad-value", f"{info.field_name} must not be empty")
    return text


def _line(text: str, info: ValidationInfo) -> str:
    if "\n" in visible(_filled(text, info)):
        raise fault("bad-value", f"{info.field_name} must be one line of text")
    return text


def _id(text: str) -> str:
    visible(text)
    if text in RESERVED_IDS:
        message = f"{text} is the name of a variable"
        raise fault("bad-id", message, hint=f"call it {text.lower()} or the like")
    if _ID.fullmatch(text) and len(text) <= _LONGEST_ID:
        return text
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    hint = f"use letters, digits, _ and -, first a letter, at most {_LONGEST_ID} characters"
    better = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:_LONGEST_ID]
    if text.isascii() and _ID.fullmatch(better):
        hint += f": {better}"
    strange = next((char for char in text if not char.isascii() and char.isalnum()), None)
    if strange is not None:
        hint = f"{name_character(strange)} is not one of the letters a-z and A-Z; {hint}"
    raise fault("bad-id", f'"{shown}" cannot be an id', hint=hint)


def _file_name(text: str, info: ValidationInfo) -> str:
    visible(text)
    if not is_file_name(text):
        kind = "workflow" if info.field_name == "include" else info.field_name
        message = f'"{text[:60]}" cannot be the name of a {kind}'
        hint = f"name a file in .archon/{kind}s without its ending: review-code"
        raise fault("bad-name", message, hint=hint)
    return text


def _visible_script(text: str) -> str:
    """The text, if a reader sees all of it; one emoji may be joined from several."""
    visible(_JOINED.sub("", text))
    return text


def is_file_name(text: str) -> bool:
    """Whether a text names a file of a folder and nothing outside of it."""
    return _FILE_NAME.fullmatch(text) is not None and ".." not in text and len(text) <= 200


Id: TypeAlias = Annotated[
    str, AfterValidator(_id), WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN}$"})
]
Line: TypeAlias = Annotated[str, Field(max_length=200), AfterValidator(_line)]
Prose: TypeAlias = Annotated[str, Field(max_length=100_000), AfterValidator(_filled)]
ScriptText: TypeAlias = Annotated[Prose, AfterValidator(_visible_script)]
CommandName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
WorkflowName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
FieldName: TypeAlias = Annotated[
    str, AfterValidator(visible), Field(pattern=f"^{FIELD_PATTERN}$", max_length=_LONGEST_ID)
]
ToolName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(visible)]
InputName: TypeAlias = Annotated[
    str, AfterValidator(visible), Field(pattern=f"^{ID_PATTERN}$", max_length=_LONGEST_ID)
]
Usd: TypeAlias = Annotated[float, Field(gt=0, le=1_000_000)]
Milliseconds: TypeAlias = Annotated[float, Field(gt=0, le=31_536_000_000, allow_inf_nan=False)]

# -- words that are known and refused --------------------------------------------------------------


def _old_form(_: object, info: ValidationInfo) -> None:
    message = f"{info.field_name}: belongs to the old form of workflows"
    hint = "write nodes: with - {id: NAME, command: NAME, depends_on: [BEFORE]} for each of them"
    raise fault("old-workflow", message, hint=hint)


OldForm: TypeAlias = Annotated[Any, BeforeValidator(_old_form), HIDE]


TriggerRule: TypeAlias = Literal[
    "all_success", "one_success", "none_failed_min_one_success", "all_done"
]
JsonObject: TypeAlias = dict[str, JsonValue]

MAX_ITERATIONS = 1_000
MAX_ITEMS = 1_000


class WorktreeSpec(ArchonModel):
    """The working directory of a workflow."""

    enabled: bool = Field(
        default=True, description="In a Git worktree on a branch of its own; false: in the folder."
    )


class BudgetSpec(ArchonModel):
    """What a run may use."""

    max_spend_usd: Maybe[Usd] = Field(default=None, description="USD that the run may cost.")
    max_work_units: JsonValue = Field(default=None, description="Has no effect here.")


class EvidenceSpec(ArchonModel):
    """Proof that a run must leave behind."""

    required: bool = Field(
        default=False, description="A run fails unless $ARTIFACTS_DIR/evidence.json exists."
    )


class RetrySpec(ArchonModel):
    """Further tries of a node that failed."""

    max_attempts: Annotated[int, Field(ge=1, le=5)] = Field(
        description="Tries after the first one."
    )
    delay_ms: Annotated[int, Field(ge=1_000, le=60_000)] = Field(
        default=3_000, description="Wait before the second try; it doubles with each."
    )
    on_error: Literal["transient", "all"] = Field(
        default="transient", description="Which failures are tried again."
    )


class LoopControl(ArchonModel):
    """The end of a loop, and its gates."""

    until: Maybe[Line] = Field(
        default=None,
        description="The word that the agent says when all is done, best in a tag.",
        examples=["COMPLETE"],
    )
    until_bash: Maybe[ScriptText] = Field(
        default=None,
        description="A script that runs after each iteration; exit code 0 ends the loop.",
    )
    max_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = Field(
        description="The most passes; a loop that makes them all without an end has failed."
    )
    fresh_context: bool = Field(default=False, description="Every iteration starts a new session.")
    interactive: bool = Field(default=False, description="Ask a person after each iteration.")
    gate_message: Maybe[Prose] = Field(
        default=None, description="What the person is asked. Required with interactive."
    )
    signal_completes: bool = Field(
        default=False,
        description="With interactive: an iteration that completes the loop does not ask.",
    )


class LoopSpec(LoopControl):
    """One prompt, again and again."""

    prompt: Maybe[Prose] = Field(default=None, description="The prompt of each iteration.")
    command: Maybe[CommandName] = Field(
        default=None, description="Instead of prompt: a file in .archon/commands."
    )
    until_field: Maybe[Line] = Field(
        default=None, description="A field of output_format that is true when all is done."
    )


class GroupSpec(LoopControl):
    """Several nodes, again and again."""

    nodes: Annotated[list["NodeSpec"], Field(min_length=1)] = Field(
        description="The nodes of one iteration."
    )
    until_field: JsonValue = Field(default=None, description="Has no effect on a group.")


class OnReject(ArchonModel):
    """The work after a rejection before the gate opens again."""

    prompt: Prose = Field(
        description="The prompt of the agent; $REJECTION_REASON is the reason of the person."
    )
    max_attempts: Annotated[int, Field(ge=1, le=10)] = Field(
        default=3, description="The rejection that makes so many cancels the run."
    )


class DecisionSpec(ArchonModel):
    """One of the decisions that a person can make at a gate."""

    id: Id = Field(description="What the person answers, and what the output says.")
    label: Maybe[str] = Field(default=None, description="What it means.")


class ApprovalSpec(ArchonModel):
    """A person decides."""

    message: Prose = Field(description="What the person is asked.")
    capture_response: bool = Field(
        default=False, description="What the person says is the output of the node."
    )
    on_reject: Maybe[OnReject] = Field(default=None, description="Default: the run is cancelled.")
    decisions: Maybe[Annotated[list[DecisionSpec | Id], Field(min_length=1, max_length=20)]] = (
        Field(
            default=None,
            description="What the person can decide; the output is an object with decision and "
            "comment.",
        )
    )


class FanOutSpec(ArchonModel):
    """One run of the other workflow for each item of a list."""

    items: Line | Annotated[list[JsonValue], Field(max_length=MAX_ITEMS)] = Field(
        description="A list, or a variable that leads to one.", examples=["$list.output"]
    )
    as_: FieldName = Field(
        default="item", alias="as", description="How the other workflow calls its item."
    )
    max_parallel: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=5, description="The most of them at once."
    )
    join: Literal["all_done", "all_success"] = Field(
        default="all_done",
        description="all_done: the node completes, and one that failed is an error in its output. "
        "all_success: the node fails, when all have ended, if one of them failed.",
    )


class WaitSpec(ArchonModel):
    """A pause: for a time, until a moment, or until a person says that something has happened."""

    duration_ms: Maybe[Milliseconds] = Field(default=None, description="Milliseconds.")
    until: Maybe[Line] = Field(
        default=None, description="A moment in ISO 8601.", examples=["2026-08-25T22:00:00Z"]
    )
    event: Maybe[Line] = Field(
        default=None, description="The name of an event; a gate waits until a person approves it."
    )
    deadline_ms: Maybe[Milliseconds] = Field(
        default=None, description="With event: the node completes after so many milliseconds."
    )
    attention: Maybe[Prose] = Field(
        default=None, description="What a person must do; a gate waits until it is approved."
    )


class AgentKeys(ArchonModel):
    """Which agent does the work, and what it may do."""

    provider: Maybe[Line] = Field(
        default=None, description="The spec of the agent, such as `claude`."
    )
    model: Maybe[Line] = Field(default=None, description="Which model it uses.")
    effort: Maybe[Line] = Field(default=None, description="How hard it thinks.")
    thinking: Maybe[str | JsonObject] = Field(default=None, description="How it thinks.")
    fallback_model: Maybe[Line] = Field(
        default=None,
        alias="fallbackModel",
        description="The model to use when the first is overloaded.",
    )
    betas: Maybe[list[Line]] = Field(default=None, description="Features that are not final.")
    sandbox: Maybe[JsonObject] = Field(
        default=None, description="Restrictions of the agent's own sandbox."
    )
    model_reasoning_effort: Maybe[Line] = Field(
        default=None, alias="modelReasoningEffort", description="How hard agents think."
    )
    web_search_mode: Maybe[Line] = Field(
        default=None, alias="webSearchMode", description="Whether agents search the net."
    )
    additional_directories: Maybe[list[Line]] = Field(
        default=None, alias="additionalDirectories", description="Further folders for agents."
    )


class NodeSpec(AgentKeys):
    """One node: an id, and exactly one kind of work."""

    id: Id = Field(description="Its name.")
    description: Maybe[str] = Field(default=None, description="What it is for.")
    depends_on: list[str] = Field(default=[], description="Nodes that end before it starts.")
    when: Maybe[str] = Field(
        default=None,
        description="It runs only if this holds.",
        examples=["$review.output.verdict == 'ok'"],
    )
    trigger_rule: TriggerRule = Field(
        default="all_success", description="How the nodes before it must have ended."
    )
    idle_timeout: Maybe[Milliseconds] = Field(
        default=None, description="Milliseconds of silence after which it is stopped."
    )
    retry: Maybe[RetrySpec] = Field(default=None, description="Further tries.")

    prompt: Maybe[Prose] = Field(default=None, description="A prompt for an agent.")
    command: Maybe[CommandName] = Field(
        default=None,
        description="A prompt for an agent: the text of this file in .archon/commands.",
    )
    bash: Maybe[ScriptText] = Field(default=None, description="A shell script.")
    script: Maybe[ScriptText] = Field(
        default=None, description="Python or JavaScript, or the name of a file in .archon/scripts."
    )
    approval: Maybe[ApprovalSpec] = Field(default=None, description="A person decides.")
    cancel: Maybe[Prose] = Field(default=None, description="The run ends, for this reason.")
    loop: Maybe[LoopSpec] = Field(default=None, description="A prompt, again and again.")
    loop_group: Maybe[GroupSpec] = Field(default=None, description="Nodes, again and again.")
    workflow: Maybe[WorkflowName] = Field(
        default=None, description="Another workflow is run: a file in .archon/workflows."
    )
    include: Maybe[WorkflowName] = Field(
        default=None, description="The nodes of another workflow are part of this one."
    )
    wait: Maybe[WaitSpec] = Field(default=None, description="The run pauses.")

    arguments: Maybe[Prose] = Field(
        default=None, description="With workflow: its message. Default: the message of this one."
    )
    input: Maybe[Prose] = Field(default=None, description="Another word for arguments.")
    inputs: Maybe[dict[InputName, JsonValue]] = Field(
        default=None, description="With workflow: its inputs by name. Another word for with."
    )
    with_: Maybe[dict[InputName, JsonValue]] = Field(
        default=None,
        alias="with",
        description="With workflow and include: its inputs by name. With command and script: "
        "values for $INPUTS.NAME and for the variables INPUTS_NAME.",
    )
    isolation: Maybe[Literal["inherit", "worktree"]] = Field(
        default=None, description="With workflow: worktree runs its items one at a time."
    )
    fan_out: Maybe[FanOutSpec] = Field(
        default=None, description="With workflow and include: run it for each item of a list."
    )

    runtime: Maybe[Literal["bun", "uv"]] = Field(
        default=None, description="With script: bun for JavaScript, uv for Python."
    )
    deps: Maybe[list[Line]] = Field(default=None, description="With script and uv: packages.")
    timeout: Maybe[Milliseconds] = Field(
        default=None, description="With bash and script: milliseconds; default 120000."
    )

    context: Maybe[Literal["fresh", "shared"] | JsonObject] = Field(
        default=None, description="Its session."
    )
    output_format: Maybe[JsonObject] = Field(
        default=None, description="A JSON Schema that the answer must fit."
    )
    allowed_tools: Maybe[list[ToolName]] = Field(
        default=None, description="The only tools that the agent may use."
    )
    denied_tools: Maybe[list[ToolName]] = Field(
        default=None, description="Tools that the agent may not use."
    )
    hooks: Maybe[JsonObject] = Field(
        default=None, description="Answers to the hooks of the agent, by event."
    )
    mcp: Maybe[Line] = Field(default=None, description="A file with MCP servers.")
    skills: Maybe[list[Line]] = Field(default=None, description="Skills that the agent has.")
    agents: Maybe[JsonObject] = Field(default=None, description="Agents below the agent.")
    max_budget_usd: Maybe[Usd] = Field(
        default=None, alias="maxBudgetUsd", description="USD that it may cost."
    )
    system_prompt: Maybe[Prose] = Field(
        default=None, alias="systemPrompt", description="Standing instructions."
    )
    pi: JsonValue = Field(default=None, description="Has no effect here.")
    always_run: bool = Field(default=False, description="Has no effect here.")
    persist_session: bool = Field(default=False, description="Has no effect here.")
    output_type: Maybe[str] = Field(default=None, description="Has no effect here.")
    plugins: JsonValue = Field(default=None, description="Has no effect here.")
    setting_sources: JsonValue = Field(
        default=None, alias="settingSources", description="Has no effect here."
    )
    mutates_checkout: Maybe[bool] = Field(
        default=None,
        description="With false, a prompt, command, bash or script node fails if it changes files "
        "of the Git checkout.",
    )
    on_timeout: Maybe[Literal["fail", "skip"]] = Field(
        default=None, description="With bash and script: skip counts a timeout as not run."
    )


class InputSpec(ArchonModel):
    """A value that the person who starts the run gives by name."""

    description: str = Field(default="", description="What it is for.")
    required: Maybe[bool] = Field(default=None, description="Default: true without a default.")
    default: JsonValue = Field(default=None, description="Taken when none is given.")


class TopKeys(AgentKeys):
    """Keys at the top that are dropped when their value is of another form."""

    interactive: bool = Field(default=False, description="It may ask people while it runs.")
    tags: list[Line] = Field(default=[], description="Words to find it by.")


DROPPED = (
    *("interactive", "tags", "provider", "model", "effort", "thinking"),
    *("modelReasoningEffort", "webSearchMode", "fallbackModel", "betas"),
)
"""Keys at the top with which Archon loads a workflow whatever their value is."""


class ArchonWorkflow(TopKeys):
    """A workflow."""

    name: Line = Field(description="What it is called.")
    description: Prose = Field(description="What it is for.")
    inputs: dict[InputName, InputSpec] = Field(default={}, description="Values it needs.")
    worktree: Maybe[WorktreeSpec] = Field(
        default=None, description="Whether it works in a Git worktree on a branch of its own."
    )
    mutates_checkout: bool = Field(
        default=True,
        description="While a run is open no other starts in its folder; false: others may.",
    )
    returns: Maybe[Id] = Field(
        default=None, description="The node whose output is the output of the workflow."
    )
    budget: Maybe[BudgetSpec] = Field(default=None, description="What a run of it may use.")
    outcome_field: JsonValue = Field(default=None, description="Has no effect here.")
    requires: JsonValue = Field(default=None, description="Has no effect here.")
    deprecated: JsonValue = Field(default=None, description="Why others should not use it.")
    container: JsonValue = Field(default=None, description="Has no effect here.")
    evidence_policy: Maybe[EvidenceSpec] = Field(
        default=None, description="What must be there for a run to complete."
    )
    persist_sessions: JsonValue = Field(default=None, description="Has no effect here.")
    nodes: Annotated[list[NodeSpec], Field(min_length=1)] = Field(description="What is done.")
    steps: OldForm = None
    loop: OldForm = None
    prompt: OldForm = None

    @field_validator(
        *("interactive", "tags", "provider", "model", "effort", "thinking"),
        *("model_reasoning_effort", "web_search_mode", "fallback_model", "betas"),
        mode="wrap",
    )
    @classmethod
    def _drop(
        cls, value: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        try:
            return check(value)
        except ValidationError:
            return cls.model_fields[str(info.field_name)].get_default()


Node: TypeAlias = dict[str, SchemaValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "name": "fix-tests",
    "description": "Repair what the tests complain about",
    "nodes": [
        {"id": "setup", "bash": "git status --short"},
        {
            "id": "fix",
            "depends_on": ["setup"],
            "loop": {
                "prompt": "Repair one failing test. State: $setup.output",
                "until": "TESTS_PASS",
                "until_bash": "npm test",
                "max_iterations": 8,
            },
        },
    ],
}


def json_schema() -> Node:
    """Draft 7, which every editor knows."""
    made = cast("Node", ArchonWorkflow.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    head: Node = {"$schema": _DRAFT, "title": "Archon workflow"}
    return {**tidy, **head, "examples": [_EXAMPLE], "definitions": _tidied(definitions)}


def _tidied(value: SchemaValue) -> SchemaValue:
    """Without reserved keys."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if not _is_hidden(one)}
    if "$ref" in kept and len(kept) > 1:  # draft 7 ignores every key beside a $ref
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}


def _is_hidden(value: SchemaValue) -> bool:
    return isinstance(value, dict) and HIDDEN in value
