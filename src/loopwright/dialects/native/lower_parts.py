"""From the parts of a definition to the parts of a plan: agents, inputs, limits, memory."""

import msgspec

from loopwright.dialects.native.parts import (
    AgentSpec,
    BudgetSpec,
    InputSpec,
    LoopLimitsSpec,
    RetrySpec,
    WorkspaceSpec,
)
from loopwright.dialects.native.surface import MemoryKind, MemorySpec
from loopwright.model.memory import (
    History,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    SameSession,
    StageOutputs,
)
from loopwright.model.plan import Agent, Input
from loopwright.model.policy import (
    NO_LIMITS,
    NO_WORKSPACE_POLICY,
    RETRYABLE,
    Limits,
    Retry,
    WorkspacePolicy,
)

DEFAULT_RETRY = Retry(attempts=3)
"""A provider that asks to come back later does not end a run."""

STAGE_CHARS = StageOutputs().chars
LOG_CHARS = 8_000
"""How long the progress log in a prompt may be, where the definition does not say."""
HISTORY = History(window=128_000)
"""A conversation of which nothing else is said."""


def lower_agent(spec: AgentSpec) -> Agent:
    return Agent(
        spec=spec.use,
        system=spec.system,
        model=spec.model,
        tools=None if spec.tools is None else tuple(spec.tools),
        deny_tools=tuple(spec.deny_tools),
        permission=spec.permission,
        max_turns=spec.max_turns,
        max_usd=spec.max_usd,
        temperature=spec.temperature,
        env=spec.env,
        pass_env=tuple(spec.pass_env),
        idle_ms=spec.idle,
        wall_ms=spec.wall,
        approvals=dict(spec.approvals),
        options=spec.options,
        role=spec.role,
        access=spec.access,
        sandbox=spec.sandbox,
        loops=tuple(dict.fromkeys(spec.loops)),
    )


def lower_input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)


def lower_workspace(spec: WorkspaceSpec | None, protect: list[str]) -> WorkspacePolicy:
    if spec is None and not protect:
        return NO_WORKSPACE_POLICY  # this very record is left out of an encoded plan
    snapshots = spec.snapshots if spec is not None else None
    worktree = spec is not None and spec.worktree
    return WorkspacePolicy(snapshots=snapshots, worktree=worktree, protect=tuple(protect))


def lower_limits(spec: BudgetSpec | None) -> Limits:
    if spec is None:
        return NO_LIMITS
    loop = spec if isinstance(spec, LoopLimitsSpec) else None
    return Limits(
        wall_ms=spec.time,
        ends_at=loop.until if loop else None,
        pass_wall_ms=loop.pass_time if loop else None,
        idle_ms=spec.idle,
        tokens=spec.tokens,
        usd=spec.usd,
        identical=loop.identical if loop else None,
    )


def lower_retry(spec: RetrySpec | None) -> Retry:
    if spec is None:
        return DEFAULT_RETRY
    return Retry(
        attempts=spec.attempts,
        base_ms=spec.delay or 1_000,
        cap_ms=spec.max_delay or 60_000,
        on=tuple(spec.on) if spec.on else RETRYABLE,
        if_says=tuple(spec.if_says),
        unless_says=tuple(spec.unless_says),
    )


def lower_memory(spec: MemorySpec | None, usual: MemoryKind) -> Memory:
    """What is carried on; `usual` is what a loop of this kind carries when nothing is said."""
    match spec.kind if spec else usual:
        case "progress-log":
            total = LOG_CHARS if spec is None or spec.total is None else spec.total
            return ProgressLog(chars=(spec and spec.chars) or 300, total=total)
        case "previous-output":
            return PreviousOutput(by_step=spec is not None and spec.by_step)
        case "stages":
            return StageOutputs(chars=(spec and spec.chars) or STAGE_CHARS)
        case "session":
            return SameSession()
        case "history":
            return _history(spec)
        case _:
            return NoMemory()


def _history(spec: MemorySpec | None) -> History:
    said = spec.model_dump(include=set(History.__struct_fields__)) if spec else {}
    given = {name: value for name, value in said.items() if value is not None}
    return msgspec.structs.replace(HISTORY, **given)
