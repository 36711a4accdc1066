"""The blocks of an agent file. Nothing is coerced.

An unknown key is refused in the blocks that say what an agent may do and spend (`Surface`); in the
others (`OpenSurface`) `rules.py` warns of it. Blocks that have no effect here are `Inert`: they
load, with a warning. What holds between several blocks is in `rules.py`.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from loopwright.dialects.aldo.fields import (
    File,
    Inert,
    Json,
    Kebab,
    OpenSurface,
    Positive,
    Prose,
    SchemaRef,
    Semver,
    Surface,
    Terminate,
    Usd,
    Variable,
    Word,
    fault,
)

Tier: TypeAlias = Literal["public", "internal", "sensitive"]
Strategy: TypeAlias = Literal["sequential", "parallel", "debate", "iterative"]
Files: TypeAlias = Literal["none", "repo-readonly", "repo-readwrite", "full"]
Rule: TypeAlias = Literal["never", "always", "protected_paths"]

ALL_TOOLS = "*"


class Identity(OpenSurface):
    """Who it is."""

    name: Kebab = Field(description="Its name, in kebab-case.")
    version: Semver = Field(description="Its version.", examples=["0.1.0"])
    description: Prose = Field(description="What it is for.")
    owner: Word = Field(description="Who answers for it.")
    tags: list[Word] = Field(default=[], description="Words to find it by.")


class Role(OpenSurface):
    """Its place among others."""

    team: Word = Field(description="The team it belongs to.")
    reports_to: Word | None = Field(default=None, description="The agent above it.")
    pattern: Literal["supervisor", "worker", "pipeline", "debate", "subscribe"] = Field(
        description="How it works with others."
    )


# -- models ----------------------------------------------------------------------------------------


class ModelClass(Surface):
    """A kind of model, by what it can do."""

    capability_class: Word = Field(description="Name of the class.")


class Budget(Surface):
    """What a run may cost."""

    usd_per_run: Usd = Field(description="USD of a run; with 0, only models that cost nothing.")
    usd_grace: Usd | None = Field(default=None, description="USD by which it may be exceeded.")
    tokens_in_max: Positive | None = Field(default=None, description="Most tokens of one prompt.")
    tokens_out_max: Positive | None = Field(default=None, description="Most tokens of one answer.")


class Latency(OpenSurface):
    """How fast a model should be."""

    p95_ms: Positive | None = Field(default=None, description="Milliseconds, 95 of 100 calls.")


class Decoding(Surface):
    """How the model answers."""

    mode: Literal["free", "json", "constrained"] = Field(default="free", description="The form.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Temperature of the model."
    )
    json_schema_ref: SchemaRef | None = Field(
        default=None,
        description="JSON Schema of the answer: a file, or #/outputs/NAME; not with free.",
    )


class ModelPolicy(Surface):
    """Which models may be used, and for how much."""

    capability_requirements: list[Word] = Field(default=[], description="What it must be able to.")
    privacy_tier: Tier = Field(description="How private its data is.")
    primary: ModelClass = Field(description="The class that is asked first.")
    fallbacks: list[ModelClass] = Field(default=[], description="The classes after it, in order.")
    budget: Budget = Field(description="What a run may cost.")
    latency: Latency | None = Field(default=None, description="How fast it should be.")
    decoding: Decoding = Field(default=Decoding(), description="How it answers.")


class Prompt(OpenSurface):
    """What the model is told."""

    system_file: File = Field(description="File with the system prompt; {{name}} is filled in.")
    templates: dict[Variable, File] = Field(default={}, description="Files to fill in, by name.")
    variables: dict[Variable, Json] = Field(default={}, description="Values to fill in, by name.")


# -- tools -----------------------------------------------------------------------------------------


class McpServer(Surface):
    """A server of tools."""

    server: Word = Field(description="Its name.")
    allow: Annotated[list[Word], Field(min_length=1)] = Field(description="Tools that may be used.")


class NativeTool(Surface):
    """A tool of the engine."""

    ref: Word = Field(description="Its name.", examples=["fs.read"])


FORMER_NETWORK = "egress-allowlist"
"""What earlier versions called `allowlist`."""


def _present_network(value: object) -> object:
    return "allowlist" if value == FORMER_NETWORK else value


class Permissions(Surface):
    """What tools may reach."""

    network: Annotated[Literal["none", "allowlist", "full"], BeforeValidator(_present_network)] = (
        Field(default="none", description="The net.")
    )
    filesystem: Files = Field(default="none", description="Files.")


Approvals: TypeAlias = dict[Word, Rule]


def _for_all_tools(value: object) -> object:
    """One word instead of a mapping is the rule for every tool."""
    return {ALL_TOOLS: value} if isinstance(value, str) else value


_RULES = {"enum": ["never", "always", "protected_paths"]}
_APPROVALS = {"anyOf": [_RULES, {"type": "object", "additionalProperties": _RULES}]}


class Tools(Surface):
    """The tools of the agent, and when a person is asked."""

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


class TextIncludes(Surface):
    """The model has said this."""

    kind: Literal["text-includes"]
    text: Annotated[str, Field(min_length=1)] = Field(description="Case counts.")


class Match(Surface):
    """What a result must look like; with both, both."""

    exit_code: int | None = Field(default=None, description="The code it ended with.")
    contains: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Text in it."
    )


class ToolResultRule(Surface):
    """A tool has answered like this."""

    kind: Literal["tool-result"]
    tool: Word = Field(description="Name of the tool, with its server or without.")
    match: Match = Field(description="What its result must look like.")

    @model_validator(mode="after")
    def _says_something(self) -> "ToolResultRule":
        if self.match.exit_code is None and self.match.contains is None:
            message = "match needs exit_code, contains or both"
            raise fault("missing-field", message, at="match", hint="match: {exit_code: 0}")
        return self


class BudgetExhausted(Surface):
    """The run has cost what it may cost."""

    kind: Literal["budget-exhausted"]


class NoToolCalls(Surface):
    """The model has asked for no tool: it has said what it had to say."""

    kind: Literal["no-tool-calls"]


class CommandPasses(Surface):
    """A program, outside the agent's reach, ends with code 0."""

    kind: Literal["command"]
    run: Annotated[list[Word], Field(min_length=1)] = Field(description="Program and arguments.")


Condition: TypeAlias = Annotated[
    TextIncludes | ToolResultRule | BudgetExhausted | NoToolCalls | CommandPasses,
    Field(discriminator="kind"),
]


class Iteration(Surface):
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


class Subagent(Surface):
    """An agent that this one is made of."""

    agent: Kebab = Field(description="Its name; its spec is NAME.yaml in the same folder.")
    alias: Kebab | None = Field(default=None, alias="as", description="What it is called here.")
    input_map: dict[Word, Word] = Field(
        default={}, description="Its input, by name: input.FIELD or outputs.ALIAS.FIELD."
    )


class Rounds(Surface):
    """How often, and until when, an iterative composite goes on."""

    max_rounds: Positive = Field(description="The most rounds.")
    terminate: Terminate = Field(description="Ends it when true of a round's output: $.done")


class Composite(Surface):
    """An agent that lets others work."""

    strategy: Strategy = Field(description="How they work together.")
    subagents: Annotated[list[Subagent], Field(min_length=1, max_length=50)] = Field(
        description="Who they are."
    )
    aggregator: Kebab | None = Field(default=None, description="With debate: who decides.")
    iteration: Rounds | None = Field(default=None, description="With iterative: how often.")


class Ceilings(Surface):
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


class Suite(OpenSurface):
    """A suite that must be passed."""

    suite: Word = Field(description="Its name.")
    min_score: Annotated[float, Field(ge=0, le=1)] = Field(description="The least score.")


class EvalGate(OpenSurface):
    """What must be shown before a version is promoted. It has no part in a run."""

    required_suites: list[Suite] = Field(default=[], description="Suites with their least score.")
    must_pass_before_promote: bool = Field(default=True, description="Whether it is held up.")


class SandboxNetwork(Surface):
    """The network of programs that tools start."""

    mode: Literal["none", "allowlist", "host"] = Field(description="What they may reach.")
    allowed_hosts: list[Word] = Field(default=[], description="With allowlist: the hosts.")


class SandboxFiles(Surface):
    """The files that tools may touch."""

    permission: Files = Field(description="Files.")
    read_paths: list[Word] = Field(default=[], description="Further places to read.")
    write_paths: list[Word] = Field(default=[], description="Further places to write.")


class SandboxBlock(Surface):
    """Limits of the tools."""

    timeout_ms: Positive | None = Field(default=None, description="Most time of one call.")
    env_scrub: bool | None = Field(default=None, description="Always done.")
    network: SandboxNetwork | None = Field(default=None, description="The network of programs.")
    filesystem: SandboxFiles | None = Field(default=None, description="The files of tools.")


class Inputs(OpenSurface):
    """What the agent is given."""

    schema_ref: Word | None = Field(default=None, description="Its JSON Schema. No effect.")


class Output(OpenSurface):
    """An answer of the agent."""

    json_schema: Json = Field(
        default=None, description="Its JSON Schema: a file, {$ref: FILE}, or the schema itself."
    )
    json_schema_ref: Word | None = Field(default=None, description="An older form: a file.")


class AgentSpec(OpenSurface):
    """An agent."""

    api_version: Literal["aldo-ai/agent.v1", "meridian/agent.v1"] = Field(
        alias="apiVersion", description="Version of this language; meridian is its former name."
    )
    kind: Literal["Agent"] = Field(description="What this file describes.")
    identity: Identity = Field(description="Who it is.")
    role: Role = Field(description="Its place among others.")
    model_policy: ModelPolicy = Field(description="Which models may be used.")
    prompt: Prompt = Field(description="What the model is told.")
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
    escalation: Inert = Field(default=None, description="Who is told when. No effect.")
    subscriptions: Inert = Field(default=None, description="Events that start it. No effect.")
