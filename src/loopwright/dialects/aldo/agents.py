"""From the blocks of an agent to the agent of a plan, its checks and its limits."""

from typing import assert_never

from loopwright.dialects.aldo.rules import tool_names
from loopwright.dialects.aldo.surface import (
    AgentSpec,
    BudgetExhausted,
    CommandPasses,
    Condition,
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
        "permissions": tools.permissions.model_dump(),
        "identity": spec.identity.model_dump(),
        "role": spec.role.model_dump(exclude_none=True),
        "eval_gate": spec.eval_gate.model_dump() if spec.eval_gate else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def lower_limits(spec: AgentSpec) -> Limits:
    """What a run of this agent may cost, with the grace; 0 is no limit."""
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
