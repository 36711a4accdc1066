"""The plan: what a definition of any dialect is translated into. The engine uses nothing else."""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from loopwright.errors import NotFound, StorageError
from loopwright.model.actions import Action, CallAgent, Repeat, Step, Steps
from loopwright.model.checks import CommandCheck, Leaf, ScriptCheck, leaves
from loopwright.model.policy import (
    NO_LIMITS,
    NO_WORKSPACE_POLICY,
    GraphOutput,
    Limits,
    OnFailure,
    WorkspacePolicy,
)
from loopwright.model.record import JsonValue, Record, Template
from loopwright.model.sandbox import SandboxLevel

PLAN_VERSION = 1

CHAT = "model:"
"""The prefix of the spec of an agent that is a chat model."""

ApprovalRule: TypeAlias = Literal["never", "always", "protected_paths"]
Access: TypeAlias = Literal["full", "readonly-shell", "readonly", "minimal"]
"""The access of an agent: everything, reading and a few commands, reading only, no files."""
LoopRight: TypeAlias = Literal["start", "look"]
"""The loop tools of an agent: start child runs of its run; read its run and its child runs."""


class Agent(Record, frozen=True, kw_only=True):
    """An agent by name. `spec` names its backend; the other fields its instructions and
    permissions.
    """

    spec: str | None = None
    system: str = ""
    model: str | None = None
    tools: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    permission: str | None = None
    max_turns: int | None = None
    max_usd: float | None = None
    temperature: float | None = None
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()  # names of variables that are passed on, never their values
    idle_ms: int | None = None
    wall_ms: int | None = None
    approvals: dict[str, ApprovalRule] = {}  # by tool; a short name also matches the full one
    options: dict[str, JsonValue] = {}
    role: str | None = None  # a role of this machine or project; it is bound when a run starts
    access: Access | None = None  # its access level, whatever else it is given
    sandbox: SandboxLevel | None = None  # minimum; the level of the run may be stricter
    loops: tuple[LoopRight, ...] = ()  # its loop tools; none by default

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat model: the engine records its turns and performs its tool calls."""
        return (self.spec or "").startswith(CHAT)


class Input(Record, frozen=True, kw_only=True):
    """A value given by name when the run is started."""

    description: str = ""
    required: bool = True
    default: JsonValue = None


class Coordinator(Record, frozen=True, kw_only=True):
    """An agent that receives the messages of a run, can forward them and report progress to
    people.
    """

    agent: str
    prompt: Template = ()
    narrates: bool = True
    max_calls: int = 100
    hold_ms: int = 120_000  # how long a run whose steps have all ended waits for its last call


class PlannedWork(Record, frozen=True, kw_only=True):
    """The work of a definition: its steps and agents, what it is given, and how it ends."""

    name: str
    steps: tuple[Step, ...]
    agents: dict[str, Agent] = {}
    inputs: dict[str, Input] = {}
    message: Template = ()
    description: str = ""
    limits: Limits = NO_LIMITS
    on_failure: OnFailure = "cascade"
    parallel: int | None = None
    outcome: Literal["worst", "some_completed", "partial"] = "worst"
    output: GraphOutput = "last"
    returns: str | None = None  # the step whose output is the output of the plan, instead
    missing: Literal["empty", "fail"] = "empty"  # the text for a missing value
    coordinator: Coordinator | None = None


class Plan(PlannedWork, frozen=True, kw_only=True):
    """A whole definition with every default filled in and every choice made. Its fields are stored
    in this order, after those of its work.
    """

    uncovered: tuple[str, ...] = ()  # agents of unknown cost: limits in USD do not cover them
    allow_unknown_cost: bool = False  # also for runs that its agents start
    settings: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()  # names of variables that every agent and command is given
    exclusive: Literal["workspace"] | None = None  # what an open run reserves for itself
    sandbox: SandboxLevel | None = None  # of all its programs; decided when a run starts
    # minimum required by its definition, kept when the run is resumed
    sandbox_least: SandboxLevel | None = None
    workspace: WorkspacePolicy = NO_WORKSPACE_POLICY
    dialect: str = "native"
    version: int = PLAN_VERSION


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Plan)


def encode_plan(plan: Plan) -> bytes:
    return _ENCODER.encode(plan)


def encode_agent(agent: Agent) -> bytes:
    return _ENCODER.encode(agent)


def decode_plan(data: bytes | str) -> Plan:
    return _DECODER.decode(data)


def content_hash(data: bytes) -> str:
    """The name of stored content."""
    return blake2b(data, digest_size=16).hexdigest()


def stored_content(load: Callable[[str], bytes], name: str) -> bytes:
    """Stored content, which must match its name: the disk may have changed it."""
    try:
        data: bytes | None = load(name)
    except NotFound:
        data = None
    if data is None or content_hash(data) != name:
        raise StorageError(
            f"content {name} is {'missing' if data is None else 'damaged'}",
            code="damaged",
            hint="`loopwright doctor --deep` says which runs are; a backup may have it whole",
        )
    return data


def stored_plan(load: Callable[[str], bytes], name: str) -> Plan:
    """A plan as it was when a run started."""
    data = stored_content(load, name)
    try:
        return decode_plan(data)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"the plan {name} cannot be read: {error}",
            code="damaged",
            hint="it was written by a newer Loopwright: continue the run with that version",
        ) from error


def only_repeat(plan: Plan) -> Repeat | None:
    """The outermost loop when there is exactly one. A call of a chat model is not a loop."""
    found = [r for step in plan.steps for r in _outermost(step)]
    return found[0] if len(found) == 1 else None


def _outermost(step: Step) -> list[Repeat]:
    if isinstance(step.action, Repeat):
        return [] if step.action.is_one_call else [step.action]
    if isinstance(step.action, Steps):
        return [r for inner in step.action.steps for r in _outermost(inner)]
    return []


def unplaced(plan: Plan) -> Plan:
    """The plan without the source positions of its steps: two plans that are equal have the same
    effect.
    """
    return msgspec.structs.replace(plan, steps=tuple(_unplaced(step) for step in plan.steps))


def _unplaced(step: Step) -> Step:
    return msgspec.structs.replace(step, action=_unplaced_action(step.action), origin=None)


def _unplaced_action(action: Action) -> Action:
    if isinstance(action, Repeat):
        return msgspec.structs.replace(action, body=_unplaced_action(action.body))
    if isinstance(action, Steps):
        return msgspec.structs.replace(action, steps=tuple(_unplaced(s) for s in action.steps))
    return action


def root_steps(plan: Plan) -> Steps:
    """The steps of a plan, as the graph that a run consists of."""
    return Steps(
        steps=plan.steps,
        on_failure=plan.on_failure,
        parallel=plan.parallel,
        output=plan.output,
        returns=plan.returns,
    )


def chat_agents(plan: Plan) -> frozenset[str]:
    """The names of the agents that are chat models."""
    return frozenset(name for name, agent in plan.agents.items() if agent.is_chat)


def graphs_inside(plan: Plan) -> Iterator[Steps]:
    """The graphs of steps inside steps."""
    for step in plan.steps:
        yield from _graphs(step.action)


def _graphs(action: Action) -> Iterator[Steps]:
    while isinstance(action, Repeat):
        action = action.body
    if isinstance(action, Steps):
        yield action
        for step in action.steps:
            yield from _graphs(step.action)


def agent_calls(plan: Plan) -> Iterator[CallAgent]:
    """Every agent call in a plan."""
    for step in plan.steps:
        yield from _agent_calls(step.action)


def _agent_calls(action: Action) -> Iterator[CallAgent]:
    while isinstance(action, Repeat):
        action = action.body
    if isinstance(action, CallAgent):
        yield action
    elif isinstance(action, Steps):
        for step in action.steps:
            yield from _agent_calls(step.action)


def check_words(plan: Plan) -> tuple[str, ...]:
    """The arguments of all check commands of a plan; some of them may name files."""
    found: dict[str, None] = {}
    for check in all_checks(plan):
        found.update(dict.fromkeys(_words(check)))
    return tuple(found)


def all_checks(plan: Plan) -> Iterator[Leaf]:
    """Every check of a plan."""
    for step in plan.steps:
        yield from _checks(step.action)


def _checks(action: Action) -> Iterator[Leaf]:
    while isinstance(action, Repeat):
        yield from leaves(action.until)
        action = action.body
    if isinstance(action, Steps):
        for step in action.steps:
            yield from _checks(step.action)


def _words(check: Leaf) -> Iterator[str]:
    if isinstance(check, CommandCheck):
        words = list(check.argv)
    else:
        words = check.text.split() if isinstance(check, ScriptCheck) else []
    for word in words:
        option, equals, value = word.strip("\"'();").partition("=")
        yield value if equals and option.startswith("-") else f"{option}{equals}{value}"


def all_limits(plan: Plan) -> list[Limits]:
    """Every limits record in a plan."""
    found = [plan.limits]
    for step in plan.steps:
        _gather_limits(step, found)
    return found


def _gather_limits(step: Step, found: list[Limits]) -> None:
    found.append(step.limits)
    action = step.action
    while isinstance(action, Repeat):
        found.append(action.limits)
        action = action.body
    if isinstance(action, Steps):
        for inner in action.steps:
            _gather_limits(inner, found)
