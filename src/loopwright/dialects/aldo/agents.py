"""From the blocks of an agent to the agent of a plan, its checks and its limits."""

from typing import assert_never

from loopwright.dialects.aldo.rules import SHELL, own_tool, tool_names
from loopwright.dialects.aldo.surface import (
    AgentSpec,
    BudgetExhausted,
    CommandPasses,
    Condition,
    Files,
    NoToolCalls,
    TextIncludes,
    Tier,
    ToolResultRule,
)
from loopwright.dialects.aldo.units import Unit
from loopwright.model.checks import (
    AnyOf,
    Cap,
    Check,
    Command,
    Contains,
    NoCalls,
    Spend,
    ToolResult,
)
from loopwright.model.plan import Agent
from loopwright.model.policy import NO_LIMITS, Limits
from loopwright.model.record import JsonValue

_TIERS: tuple[Tier, ...] = ("public", "internal", "sensitive")
_REACHES: tuple[Files, ...] = ("none", "repo-readonly", "repo-readwrite", "full")
PROGRAMS: tuple[str, ...] = ("node", "npm", "pnpm", "python3", "tsc")
"""What `shell.exec` starts when nobody says otherwise, in a sandbox that holds it to the workspace.
Of the programs of the original, `curl` and `gh` are left to the person who starts the run: what
they do cannot be undone from here.
"""
REFUSED: tuple[str, ...] = (
    "rm -rf",
    "git push --force",
    "git push -f",
    "npm publish",
    "pnpm publish",
    "--no-verify",
)


def stricter(one: Tier, other: Tier) -> Tier:
    """The more private of two."""
    return max(one, other, key=_TIERS.index)


def lower_agent(unit: Unit, tier: Tier) -> Agent:
    """The agent; what the plan has no field for stands under its options."""
    spec = unit.spec
    tools = tuple(tool_names(spec.tools.model_dump()))
    return Agent(
        system=unit.system,
        tools=tools,
        temperature=spec.model_policy.decoding.temperature,
        approvals=dict(spec.tools.approvals),
        options=_options(spec, tier),
    )


def _options(spec: AgentSpec, tier: Tier) -> dict[str, JsonValue]:
    """Stable words; only what was written, but for what decides where data may go."""
    policy, tools = spec.model_policy, spec.tools
    classes: list[JsonValue] = [policy.primary.capability_class]
    classes += [one.capability_class for one in policy.fallbacks]
    reach = _reach(spec)
    found: dict[str, JsonValue | None] = {
        "privacy_tier": tier,
        "capability_classes": classes,
        "capabilities": list(policy.capability_requirements) or None,
        "usd_per_run": policy.budget.usd_per_run,
        "usd_grace": policy.budget.usd_grace,
        "max_input_tokens": policy.budget.tokens_in_max,
        "max_output_tokens": policy.budget.tokens_out_max,
        "latency_p95_ms": policy.latency.p95_ms if policy.latency else None,
        "decoding": policy.decoding.mode,
        "mcp": [one.model_dump() for one in tools.mcp] or None,
        "permissions": tools.permissions.model_dump() | {"filesystem": reach},
        "skip_missing_tools": True,
        "commands": _commands(spec, reach),
        "tool_limits": _limits(spec),
        "identity": spec.identity.model_dump(),
        "role": spec.role.model_dump(exclude_none=True),
        "eval_gate": spec.eval_gate.model_dump() if spec.eval_gate else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _reach(spec: AgentSpec) -> Files:
    """The files that tools may touch: the narrower one of the two blocks that say so."""
    own = spec.tools.permissions.filesystem
    block = spec.sandbox.filesystem if spec.sandbox is not None else None
    return min(own, block.permission, key=_REACHES.index) if block is not None else own


def _commands(spec: AgentSpec, reach: Files) -> dict[str, JsonValue] | None:
    """Which programs `shell.exec` starts, and how they are confined."""
    if not any(own_tool(name) == SHELL for name in tool_names(spec.tools.model_dump())):
        return None
    network = spec.sandbox.network if spec.sandbox is not None else None
    offline = spec.tools.permissions.network == "none" or (
        network is not None and network.mode == "none"
    )
    return {
        "confined": list(PROGRAMS),
        "deny": list(REFUSED),
        "sandbox": "workspace" if reach in ("repo-readwrite", "full") else "readonly",
        "offline": offline,
    }


def _limits(spec: AgentSpec) -> dict[str, JsonValue] | None:
    """How long one call of a tool may take, where the file says so."""
    most = spec.sandbox.timeout_ms if spec.sandbox is not None else None
    if most is None:
        return None
    names = [own_tool(name) or name for name in tool_names(spec.tools.model_dump())]
    return {name: {"seconds": most / 1_000} for name in names}


def lower_limits(spec: AgentSpec) -> Limits:
    """What a run of this agent may cost, with the grace. With 0 only models that cost nothing are
    asked, which is checked at the start; a limit of 0 would stop those before they begin.
    """
    budget, ceilings = spec.model_policy.budget, spec.termination
    amounts = [budget.usd_per_run + (budget.usd_grace or 0)] if budget.usd_per_run else []
    if ceilings is not None and ceilings.max_usd is not None:
        amounts.append(ceilings.max_usd)
    return Limits(usd=min(amounts)) if amounts else NO_LIMITS


def lower_conditions(spec: AgentSpec) -> Check:
    """What ends the cycles: the conditions in their order, then the text of `termination`."""
    written = spec.iteration.termination_conditions if spec.iteration else [NO_TOOL_CALLS]
    usd = spec.model_policy.budget.usd_per_run
    checks = [_check(one, usd) for one in written]
    if spec.termination is not None and spec.termination.text_mention is not None:
        checks.append(Contains(text=spec.termination.text_mention, ignore_case=True))
    if len(checks) > 1:
        return AnyOf(parts=tuple(checks))
    return checks[0] if checks else Cap()


NO_TOOL_CALLS = NoToolCalls(kind="no-tool-calls")


def _check(condition: Condition, usd: float) -> Check:
    match condition:
        case TextIncludes(text=text):
            return Contains(text=text)
        case ToolResultRule(tool=tool, match=wanted):
            return ToolResult(tool=tool, exit_code=wanted.exit_code, contains=wanted.contains)
        case BudgetExhausted():
            return Spend(usd=usd)
        case NoToolCalls():
            return NoCalls()
        case CommandPasses(run=argv):
            return Command(argv=tuple(argv))
        case never:
            assert_never(never)
