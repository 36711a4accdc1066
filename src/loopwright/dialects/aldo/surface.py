"""The form of an ALDO agent file: its blocks, the kinds of value in them, its recognition.

Each kind of value has its own error message. Nothing is coerced. An unknown key is rejected in the
blocks that define what an agent may do and spend (`AldoModel`); in the other blocks
(`OpenAldoModel`) `rules.py` warns about it. Blocks that have no effect here are `Inert`: they load
with a warning. Rules between several blocks are in `rules.py`.

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
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from loopwright.dialects.aldo.files import parse_path
from loopwright.model.record import JsonValue
from loopwright.syntax.document import check_text, clip
from loopwright.syntax.notations import path_inside

API = ("aldo-ai/", "meridian/agent")
_BLOCKS = frozenset({"identity", "model_policy", "iteration", "composite", "eval_gate"})


def recognise(value: object) -> int:
    """Confidence from 0 (another format) to 100. The blocks alone are enough, so that a missing
    head is reported.
    """
    if not isinstance(value, dict):
        return 0
    if str(value.get("apiVersion", "")).startswith(API):
        return 100
    return 80 if len(_BLOCKS & value.keys()) > 1 else 0


MAX_NAME = 63
OUTPUTS = "#/outputs/"
"""The prefix of a reference to an answer of the same file."""
_KEBAB = re.compile(r"[a-z0-9][a-z0-9-]*")
_SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class AldoModel(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenAldoModel(BaseModel):
    """Base of blocks in which an unknown key changes nothing that an agent may do."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def fault(
    code: str, message: str, *, hint: str | None = None, at: str | None = None
) -> PydanticCustomError:
    """The error to raise; `code` is the slug that the author sees, `at` a key below."""
    # The message goes in as a value: braces in it are the author's, not placeholders.
    context: dict[str, object] = {"text": message}
    context |= {"hint": hint} if hint else {}
    return PydanticCustomError(
        code.replace("-", "_"), "{text}", context | ({"at": at} if at else {})
    )


# -- texts -----------------------------------------------------------------------------------------


def _visible(text: str) -> str:
    problem = check_text(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text


def _kebab(text: str) -> str:
    _visible(text)
    if _KEBAB.fullmatch(text) and len(text) <= MAX_NAME:
        return text
    hint = f"use a-z, 0-9 and hyphens, at most {MAX_NAME} characters"
    better = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if _KEBAB.fullmatch(better) and len(better) <= MAX_NAME:
        hint += f": {better}"
    raise fault("bad-id", f'"{clip(text)}" is not in kebab-case', hint=hint)


def _semver(text: str) -> str:
    if not _SEMVER.fullmatch(text):
        message = f'"{clip(text)}" is not a version'
        raise fault("bad-format", message, hint="three numbers with dots between: 0.1.0")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        message = f'"{clip(text)}" cannot be the name of a variable'
        raise fault("bad-id", message, hint="use letters, digits, _ . and -, first a letter or _")
    return text


def _file(text: str) -> str:
    path = path_inside("", text)
    if path is None:
        message = f'"{clip(text)}" is not a file in the folder of the agent'
        raise fault(
            "file-outside", message, hint="name a file beside it or below: prompts/coder.md"
        )
    return path


def _schema_ref(text: str) -> str:
    return text if text.startswith(OUTPUTS) else _file(text)


def _unquoted(value: object) -> object:
    """true and false need no quotes."""
    return str(value).lower() if isinstance(value, bool) else value


def _terminate(text: str) -> str:
    if parse_path(text) is None:
        message = f'"{clip(text)}" is not a path of the output'
        hint = "write true, false, $, $.done, $['done'] or $[0]"
        raise fault("bad-path", message, hint=hint)
    return text


Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_visible)]
Prose: TypeAlias = Annotated[str, Field(min_length=1, max_length=100_000)]
Kebab: TypeAlias = Annotated[
    str,
    AfterValidator(_kebab),
    WithJsonSchema({"type": "string", "pattern": f"^{_KEBAB.pattern}$", "maxLength": MAX_NAME}),
]
Semver: TypeAlias = Annotated[
    str,
    AfterValidator(_semver),
    WithJsonSchema({"type": "string", "pattern": f"^{_SEMVER.pattern}$"}),
]
Variable: TypeAlias = Annotated[
    str,
    AfterValidator(_variable),
    WithJsonSchema({"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}),
]
File: TypeAlias = Annotated[str, AfterValidator(_file)]
SchemaRef: TypeAlias = Annotated[str, AfterValidator(_schema_ref)]
Terminate: TypeAlias = Annotated[
    str,
    BeforeValidator(_unquoted),
    AfterValidator(_terminate),
    WithJsonSchema({"type": ["string", "boolean"], "examples": ["$.done"]}),
]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Usd: TypeAlias = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]

# -- blocks that have no effect --------------------------------------------------------------------


def is_empty_block(value: object) -> bool:
    """Whether a block is empty: null, an empty list, or a mapping of nothing else."""
    if isinstance(value, dict):
        return all(is_empty_block(one) for one in value.values())
    return value is None or value == []


Json: TypeAlias = Annotated[Any, WithJsonSchema({})]
Inert: TypeAlias = Annotated[Any, WithJsonSchema({})]
"""A block that loads and has no effect here."""


Tier: TypeAlias = Literal["public", "internal", "sensitive"]
Strategy: TypeAlias = Literal["sequential", "parallel", "debate", "iterative"]
FileAccess: TypeAlias = Literal["none", "repo-readonly", "repo-readwrite", "full"]
Rule: TypeAlias = Literal["never", "always", "protected_paths"]

ALL_TOOLS = "*"


class Identity(OpenAldoModel):
    """Who it is."""

    name: Kebab = Field(description="Its name, in kebab-case.")
    version: Semver = Field(description="Its version.", examples=["0.1.0"])
    description: Prose = Field(description="What it is for.")
    owner: Word = Field(description="Who answers for it.")
    tags: list[Word] = Field(default=[], description="Words to find it by.")


class Role(OpenAldoModel):
    """Its place among others."""

    team: Word = Field(description="The team it belongs to.")
    reports_to: Word | None = Field(default=None, description="The agent above it.")
    pattern: Literal["supervisor", "worker", "pipeline", "debate", "subscribe"] = Field(
        description="How it works with others."
    )


# -- models ----------------------------------------------------------------------------------------


class ModelClass(AldoModel):
    """A kind of model, by what it can do."""

    capability_class: Word = Field(description="Name of the class.")


class Budget(AldoModel):
    """What a run may cost."""

    usd_per_run: Usd = Field(description="USD of a run; with 0, only models that cost nothing.")
    usd_grace: Usd | None = Field(default=None, description="USD by which it may be exceeded.")
    tokens_in_max: Positive | None = Field(default=None, description="Most tokens of one prompt.")
    tokens_out_max: Positive | None = Field(default=None, description="Most tokens of one answer.")


class Latency(OpenAldoModel):
    """How fast a model should be."""

    p95_ms: Positive | None = Field(default=None, description="Milliseconds, 95 of 100 calls.")


class Decoding(AldoModel):
    """How the model answers."""

    mode: Literal["free", "json", "constrained"] = Field(default="free", description="The form.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Temperature of the model."
    )
    json_schema_ref: SchemaRef | None = Field(
        default=None,
        description="JSON Schema of the answer: a file, or #/outputs/NAME; not with free.",
    )


class ModelPolicy(AldoModel):
    """Which models may be used, and for how much."""

    capability_requirements: list[Word] = Field(default=[], description="What it must be able to.")
    privacy_tier: Tier = Field(description="How private its data is.")
    primary: ModelClass = Field(description="The class that is asked first.")
    fallbacks: list[ModelClass] = Field(default=[], description="The classes after it, in order.")
    budget: Budget = Field(description="What a run may cost.")
    latency: Latency | None = Field(default=None, description="How fast it should be.")
    decoding: Decoding = Field(default=Decoding(), description="How it answers.")


class Prompt(OpenAldoModel):
    """The prompt of the model."""

    system_file: File = Field(description="File with the system prompt; {{name}} is filled in.")
    templates: dict[Variable, File] = Field(default={}, description="Files to fill in, by name.")
    variables: dict[Variable, Json] = Field(default={}, description="Values to fill in, by name.")


# -- tools -----------------------------------------------------------------------------------------


class McpServer(AldoModel):
    """A server of tools."""

    server: Word = Field(description="Its name.")
    allow: Annotated[list[Word], Field(min_length=1)] = Field(description="Tools that may be used.")


class NativeTool(AldoModel):
    """A tool of the engine."""

    ref: Word = Field(description="Its name.", examples=["fs.read"])


FORMER_NETWORK = "egress-allowlist"
"""What earlier versions called `allowlist`."""


def _present_network(value: object) -> object:
    return "allowlist" if value == FORMER_NETWORK else value


class Permissions(AldoModel):
    """What tools may reach."""

    network: Annotated[Literal["none", "allowlist", "full"], BeforeValidator(_present_network)] = (
        Field(default="none", description="The net.")
    )
    filesystem: FileAccess = Field(default="none", description="Files.")


Approvals: TypeAlias = dict[Word, Rule]


def _for_all_tools(value: object) -> object:
    """One word instead of a mapping is the rule for every tool."""
    return {ALL_TOOLS: value} if isinstance(value, str) else value


_RULES = {"enum": ["never", "always", "protected_paths"]}
_APPROVALS = {"anyOf": [_RULES, {"type": "object", "additionalProperties": _RULES}]}


class Tools(AldoModel):
    """The tools of the agent, and when a person must approve a call."""

    mcp: list[McpServer] = Field(default=[], description="Servers with the tools that are allowed.")
    native: list[NativeTool] = Field(default=[], description="Tools of the engine.")
    permissions: Permissions = Field(default=Permissions(), description="What tools may reach.")
    guards: Inert = Field(default=None, description="Filters for tool results. No effect.")
    approvals: Annotated[Approvals, BeforeValidator(_for_all_tools), WithJsonSchema(_APPROVALS)] = (
        Field(
            default={},
            description="When a person must approve a call: one word for all tools, or by tool.",
        )
    )


# -- the loop --------------------------------------------------------------------------------------


class TextIncludes(AldoModel):
    """The model's text contains this."""

    kind: Literal["text-includes"]
    text: Annotated[str, Field(min_length=1)] = Field(description="Case counts.")


class Match(AldoModel):
    """What a result must look like; with both, both."""

    exit_code: int | None = Field(default=None, description="The code it ended with.")
    contains: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Text in it."
    )


class ToolResultRule(AldoModel):
    """A tool has answered like this."""

    kind: Literal["tool-result"]
    tool: Word = Field(description="Name of the tool, with its server or without.")
    match: Match = Field(description="What its result must look like.")

    @model_validator(mode="after")
    def _is_not_blank(self) -> "ToolResultRule":
        if self.match.exit_code is None and self.match.contains is None:
            message = "match needs exit_code, contains or both"
            raise fault("missing-field", message, at="match", hint="match: {exit_code: 0}")
        return self


class BudgetExhausted(AldoModel):
    """The run has cost what it may cost."""

    kind: Literal["budget-exhausted"]


class NoToolCalls(AldoModel):
    """The model called no tool."""

    kind: Literal["no-tool-calls"]


class CommandPasses(AldoModel):
    """A program, outside the agent's reach, ends with code 0."""

    kind: Literal["command"]
    run: Annotated[list[Word], Field(min_length=1)] = Field(description="Program and arguments.")


Condition: TypeAlias = Annotated[
    TextIncludes | ToolResultRule | BudgetExhausted | NoToolCalls | CommandPasses,
    Field(discriminator="kind"),
]


class Iteration(AldoModel):
    """One agent that loops until a condition holds."""

    max_cycles: Positive = Field(description="The most cycles.")
    context_window: Positive = Field(description="Tokens; at 80 % of them history is compressed.")
    summary_strategy: Literal["rolling-window", "periodic-summary"] = Field(
        description="What becomes of old turns."
    )
    termination_conditions: list[Condition] = Field(
        default=[], description="The first that holds ends it; without any, only max_cycles does."
    )


# -- several agents --------------------------------------------------------------------------------


class Subagent(AldoModel):
    """An agent that this one is made of."""

    agent: Kebab = Field(description="Its name; its spec is NAME.yaml in the same folder.")
    alias: Kebab | None = Field(default=None, alias="as", description="What it is called here.")
    input_map: dict[Word, Word] = Field(
        default={}, description="Its input, by name: input.FIELD or outputs.ALIAS.FIELD."
    )


class Rounds(AldoModel):
    """How often, and until when, an iterative composite repeats."""

    max_rounds: Positive = Field(description="The most rounds.")
    terminate: Terminate = Field(description="Ends it when true of a round's output: $.done")


class Composite(AldoModel):
    """An agent that lets others work."""

    strategy: Strategy = Field(description="How they work together.")
    subagents: Annotated[list[Subagent], Field(min_length=1, max_length=50)] = Field(
        description="Who they are."
    )
    aggregator: Kebab | None = Field(default=None, description="With debate: who decides.")
    iteration: Rounds | None = Field(default=None, description="With iterative: how often.")


class Ceilings(AldoModel):
    """Further ends of a run."""

    max_turns: Positive | None = Field(default=None, description="The most model calls.")
    max_usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="USD."
    )
    text_mention: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Text that ends it; case does not count."
    )
    success_roles: list[Word] = Field(
        default=[], description="With composite: aliases of subagents whose answer ends it."
    )


class Suite(OpenAldoModel):
    """A suite that must be passed."""

    suite: Word = Field(description="Its name.")
    min_score: Annotated[float, Field(ge=0, le=1)] = Field(description="The least score.")


class EvalGate(OpenAldoModel):
    """The requirements before a version is promoted. They have no effect on a run."""

    required_suites: list[Suite] = Field(default=[], description="Suites with their least score.")
    must_pass_before_promote: bool = Field(default=True, description="Whether it is held up.")


class SandboxNetwork(AldoModel):
    """The network of programs that tools start."""

    mode: Literal["none", "allowlist", "host"] = Field(description="What they may reach.")
    allowed_hosts: list[Word] = Field(default=[], description="With allowlist: the hosts.")


class SandboxFiles(AldoModel):
    """The files that tools may touch."""

    permission: FileAccess = Field(description="Files.")
    read_paths: list[Word] = Field(default=[], description="Further places to read.")
    write_paths: list[Word] = Field(default=[], description="Further places to write.")


class SandboxBlock(AldoModel):
    """Limits of the tools."""

    timeout_ms: Positive | None = Field(default=None, description="Most time of one call.")
    env_scrub: bool | None = Field(default=None, description="Always done.")
    network: SandboxNetwork | None = Field(default=None, description="The network of programs.")
    filesystem: SandboxFiles | None = Field(default=None, description="The files of tools.")


class Inputs(OpenAldoModel):
    """The inputs of the agent."""

    schema_ref: Word | None = Field(default=None, description="Its JSON Schema. No effect.")


class Output(OpenAldoModel):
    """An answer of the agent."""

    json_schema: Json = Field(
        default=None, description="Its JSON Schema: a file, {$ref: FILE}, or the schema itself."
    )
    json_schema_ref: Word | None = Field(default=None, description="An older form: a file.")


class AldoAgent(OpenAldoModel):
    """An agent."""

    api_version: Literal["aldo-ai/agent.v1", "meridian/agent.v1"] = Field(
        alias="apiVersion", description="Version of this language; meridian is its former name."
    )
    kind: Literal["Agent"] = Field(description="What this file describes.")
    identity: Identity = Field(description="Who it is.")
    role: Role = Field(description="Its place among others.")
    model_policy: ModelPolicy = Field(description="Which models may be used.")
    prompt: Prompt = Field(description="The prompt of the model.")
    tools: Tools = Field(default=Tools(), description="Its tools.")
    iteration: Iteration | None = Field(default=None, description="It loops until it is done.")
    composite: Composite | None = Field(default=None, description="It is made of other agents.")
    termination: Ceilings | None = Field(default=None, description="Further ends of a run.")
    eval_gate: EvalGate | None = Field(default=None, description="Before it is promoted.")
    sandbox: SandboxBlock | None = Field(default=None, description="Limits of its tools.")
    inputs: Inputs | None = Field(default=None, description="What it is given.")
    outputs: dict[Word, Output] = Field(default={}, description="Its answers, by name.")
    memory: Inert = Field(default=None, description="What it remembers between runs. No effect.")
    spawn: Inert = Field(default=None, description="Agents that it may start. No effect.")
    escalation: Inert = Field(default=None, description="Who is notified, and when. No effect.")
    subscriptions: Inert = Field(default=None, description="Events that start it. No effect.")


Node: TypeAlias = dict[str, JsonValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "apiVersion": "aldo-ai/agent.v1",
    "kind": "Agent",
    "identity": {
        "name": "local-coder",
        "version": "0.1.0",
        "description": "Repairs what the compiler complains about.",
        "owner": "platform",
    },
    "role": {"team": "delivery", "pattern": "worker"},
    "model_policy": {
        "privacy_tier": "internal",
        "primary": {"capability_class": "local-reasoning"},
        "budget": {"usd_per_run": 0.5},
    },
    "prompt": {"system_file": "prompts/local-coder.md"},
    "tools": {"native": [{"ref": "fs.read"}, {"ref": "shell.exec"}]},
    "iteration": {
        "max_cycles": 30,
        "context_window": 128_000,
        "summary_strategy": "rolling-window",
        "termination_conditions": [{"kind": "text-includes", "text": "<task-complete>"}],
    },
}


def json_schema() -> Node:
    """Draft 7, which every editor knows."""
    made = cast("Node", AldoAgent.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    both: Node = {"not": {"required": ["iteration", "composite"]}}
    head: Node = {"$schema": _DRAFT, "title": "Aldo agent"}
    return {**tidy, **both, **head, "examples": [_EXAMPLE], "definitions": _tidied(definitions)}


def _tidied(value: JsonValue) -> JsonValue:
    """Draft 7 ignores every key beside a $ref, and discriminators."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if key != "discriminator"}
    if "$ref" in kept and len(kept) > 1:
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}
