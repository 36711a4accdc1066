"""Cost limits and prices: a limit in USD is enforced for every agent of a run, or refused.

Also knows the cost of agents before a call, and the price of a finished call.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from msgspec.structs import replace

from loopwright.agents.calls import codex_model
from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.clis.command_line import named_model
from loopwright.agents.specs import Spec, parse_spec
from loopwright.errors import LoopwrightError
from loopwright.gateway.models import Catalogue
from loopwright.gateway.turns import models_of, pricing_of
from loopwright.kernel.events import Usage
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.chat import MILLION, CostSource, ModelUsage, Price
from loopwright.model.checks import Goal, Judge, leaves
from loopwright.model.plan import CHAT, Agent, Plan
from loopwright.operations.settings_files import SharedBudget
from loopwright.views.formats import agent_title, quoted_agent

PROVIDERS = {"claude": "anthropic", "codex": "openai", "gemini": "google"}
"""Whose models a coding CLI uses, as the price list calls the provider."""
REPORTING_ACP = ("claude", "opencode")
"""Programs that report their cost over the Agent Client Protocol."""
_NAMES_ITS_MODEL = ("gemini",)


class PriceBook:
    """Prices of the settings and of the list, for every kind of agent."""

    def __init__(
        self, prices: Mapping[str, Price] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._prices = prices or {}
        self._env = os.environ if env is None else env
        self.catalogue = Catalogue(self._prices, self._env)

    def price(self, agent: Agent, model: str, usage: Usage) -> Usage:
        """The usage of a call with its cost. What the agent has reported stays as it is."""
        if not usage.unpriced:
            return usage
        spec = parse_spec(agent.spec or "")
        configured = self._configured(agent, spec) if isinstance(spec, Spec) else None
        if not usage.tokens:
            if configured is None or not configured.per_call:
                return usage
            return replace(usage, usd=round(usage.usd + configured.call, 9), unpriced=0)
        provider, name = _provider(spec, model or self._model(agent, spec))
        counted = ModelUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        usd = self.catalogue.cost_of_call(provider, name, counted, configured)
        if usd is None:
            return usage
        return replace(usage, usd=round(usage.usd + usd, 9), unpriced=0)

    def costly_model(self, agent: Agent) -> str | None:
        """The first model of a chat agent that costs money, or may."""
        if not agent.is_chat:
            return None
        pricing = pricing_of(agent.options, budgeted=True)
        for model in models_of(agent):
            usd = self.catalogue.price(model, MILLION, MILLION, pricing)
            if usd is None or usd > 0:
                return model
        return None

    def source(self, agent: Agent) -> CostSource:
        """How the cost of an agent's calls will be known, as far as that can be predicted."""
        spec = parse_spec(agent.spec or "")
        if not isinstance(spec, Spec):
            return "unknown"
        if spec.kind == "model":
            return self._chat_source(agent)
        if spec.kind == "script":
            return "script"
        configured = self._configured(agent, spec)
        if spec.kind == "command":
            return "configured" if configured is not None and configured.per_call else "unknown"
        if spec.kind == "acp":
            program = os.path.basename(spec.argv[0]) if spec.argv else ""
            words = " ".join((program, *spec.argv[1:]))
            reports = any(name in words for name in REPORTING_ACP)
            return "reported" if reports else "configured" if configured else "unknown"
        if spec.kind == "jsonl" or CLIS[spec.kind].has_cost:
            return "reported"
        return self._cli_source(agent, spec, configured)

    def _cli_source(self, agent: Agent, spec: Spec, configured: Price | None) -> CostSource:
        """Of a coding CLI that reports tokens only."""
        model = self._model(agent, spec)
        if not model and spec.kind in _NAMES_ITS_MODEL:
            return "listed"  # by the model that it names when it starts
        if not model:
            return "configured" if configured is not None else "unknown"
        provider, name = _provider(spec, model)
        usd = self.catalogue.cost_of_call(provider, name, ModelUsage(input_tokens=1), configured)
        return "unknown" if usd is None else "listed"

    def _chat_source(self, agent: Agent) -> CostSource:
        """Of a chat model; any of the models that are named may have to answer."""
        pricing = pricing_of(agent.options, budgeted=True)
        found = [self.catalogue.source(model, pricing) for model in models_of(agent)]
        return "unknown" if "unknown" in found or not found else found[0]

    def _configured(self, agent: Agent, spec: Spec) -> Price | None:
        """The price of the settings for an agent: by its whole spec, by its program, or by the
        name of a coding CLI.
        """
        program = f"{spec.kind}:{spec.argv[0]}" if spec.argv else spec.kind
        names = (agent.spec or "", program, spec.kind if spec.kind in CLIS else "")
        return next((self._prices[name] for name in names if name in self._prices), None)

    def _model(self, agent: Agent, spec: object) -> str:
        """The model that a coding CLI will use, as far as its settings say."""
        if not isinstance(spec, Spec):
            return ""
        named = agent.model or (named_model(spec.argv) if spec.kind in CLIS else "")
        if named or spec.kind != "codex":
            return named
        return codex_model({**self._env, **agent.env})


def _provider(spec: object, model: str) -> tuple[str | None, str]:
    """Provider and model as the price list calls them."""
    if isinstance(spec, Spec) and spec.kind in PROVIDERS:
        return PROVIDERS[spec.kind], model
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else (None, model)


REMEDIES = (
    "limit tokens instead (`--budget tokens=2M`), set a price in the settings "
    '(`[prices."PROVIDER/NAME"]`), or give --allow-unknown-cost'
)
_NO_TOKENS = "limit iterations (`--max 5`) or time (`--budget time=30m`)"

_HOW: dict[CostSource, str] = {
    "reported": "{agent} reports its cost",
    "configured": "{agent} has a price in the settings",
    "listed": "the tokens of {agent} have a listed price",
    "assumed": "the tokens of {agent} have a price in the definition",
    "local": "{agent} runs on this machine and costs nothing",
    "script": "{agent} is a script",
    "unknown": "the cost of {agent} is unknown",
}
_LIVE = ("claude", "opencode", "jsonl")
"""Agents that report usage while a call runs; the usage of `model` is estimated from its text."""


@dataclass(frozen=True, slots=True)
class UsdLimit:
    """A limit in USD and an agent that it applies to."""

    agent: str
    limit: str  # in words


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRules:
    """What is known about prices, and what all runs together may spend."""

    book: PriceBook = field(default_factory=PriceBook)
    budget: SharedBudget = field(default_factory=SharedBudget)

    def covered(self, plan: Plan, *, allow: bool = False, remedy: str = "") -> Plan:
        """The plan, if its limits in USD can be enforced. With `allow` it names the agents that
        they do not cover; otherwise such an agent is refused. `remedy` says what to do where an
        interface takes none of the usual remedies.
        """
        self._check_free(plan)
        allow = allow or plan.allow_unknown_cost
        found: dict[str, str] = {}
        silent: set[str] = set()  # may turn out to report no cost, which was allowed
        for one in usd_limits(plan, self.budget):
            source = self.source(plan, one.agent)
            if one.agent not in found and source == "unknown":
                found[one.agent] = one.limit
            elif source == "reported" and _kind(plan, one.agent) == "jsonl":
                silent.add(one.agent)
        allowed = {*plan.uncovered} if not allow else {*found}
        for name, limit in found.items():
            if name not in allowed:
                spec = plan.agents[name].spec or ""
                who = quoted_agent(name, plan.agents, with_spec=True)
                raise LoopwrightError(
                    f"{limit} cannot be enforced: the cost of {who} is unknown",
                    code="unknown-cost",
                    hint=remedy or f"{_own_remedy(spec)}{_remedies(spec)}",
                )
        silent &= silent if allow else {*plan.uncovered}
        return msgspec.structs.replace(
            plan, uncovered=tuple(sorted({*found, *silent})), allow_unknown_cost=allow
        )

    def _check_free(self, plan: Plan) -> None:
        """An agent whose definition lets a run spend nothing asks no model that costs money."""
        for name in sorted(agents_of(plan)):
            agent = plan.agents.get(name, Agent())
            if agent.options.get("usd_per_run") != 0 or agent.options.get("usd_grace"):
                continue
            costly = self.book.costly_model(agent)
            if costly is not None:
                raise LoopwrightError(
                    f"{quoted_agent(name, plan.agents)} may spend nothing (usd_per_run is 0); "
                    f"{costly} costs money",
                    code="unknown-cost",
                    hint="raise usd_per_run in the definition, or use a model on this machine",
                )

    def free_agents(self, plan: Plan) -> Iterator[str]:
        """Limits in USD that never stop an agent, since its model costs nothing here."""
        told: set[str] = set()
        for one in usd_limits(plan, self.budget):
            if one.agent in told or self.source(plan, one.agent) != "local":
                continue
            told.add(one.agent)
            models = (plan.agents[one.agent].spec or "").removeprefix(CHAT)
            yield (
                f"{one.limit} never stops agent {one.agent!r}: {models} runs on this machine and "
                f'costs 0 USD; set a price in the settings to count it (`[prices."{models}"]`)'
            )

    def source(self, plan: Plan, agent: str) -> CostSource:
        """How the cost of an agent of a plan will be known."""
        found = plan.agents.get(agent)
        return self.book.source(found) if found is not None and found.spec else "unknown"

    def enforcement(self, plan: Plan) -> list[str]:
        """Which limits of a plan are enforced, and how; a line for each."""
        lines = [*_usd_lines(self, plan)]
        kinds = {_kind(plan, name) for name in agents_of(plan)} - {""}
        if plan.limits.tokens is not None and kinds:
            silent = sorted({"acp", "codex", "command", "gemini"} & kinds)
            how = "enforced live and after each call"
            if silent:
                how = f"enforced after each call ({', '.join(silent)} reports nothing before)"
            if "command" in kinds:
                how = f"not enforced for command: agents, which report no tokens; {_NO_TOKENS}"
            lines.append(f"tokens={plan.limits.tokens}: {how}")
        if plan.limits.wall_ms is not None and kinds:
            lines.append("time: enforced live; calls under way are ended")
        return lines


def token_warnings(plan: Plan) -> Iterator[str]:
    """Limits of tokens that nothing enforces, since an agent reports none."""
    silent = sorted(name for name in agents_of(plan) if _kind(plan, name) == "command")
    if plan.limits.tokens is None or not silent:
        return
    named = ", ".join(agent_title(name, plan.agents) for name in silent)
    yield (
        f"the budget tokens={plan.limits.tokens} is not enforced for {named}: a `command:` agent "
        f"reports no tokens; {_NO_TOKENS} instead"
    )


def with_specs(plan: Plan, default: str | None, named: Mapping[str, str], *, force: bool) -> Plan:
    """A plan that is not started, with the backends that its agents would have."""
    agents = {name: plan.agents.get(name, Agent()) for name in {*plan.agents, *agents_of(plan)}}
    chosen = {
        name: named.get(name) or (default if force or not agent.spec else agent.spec)
        for name, agent in agents.items()
    }
    return msgspec.structs.replace(
        plan,
        agents={
            name: msgspec.structs.replace(agent, spec=chosen[name])
            for name, agent in agents.items()
        },
    )


def _usd_lines(rules: CostRules, plan: Plan) -> Iterator[str]:
    for one in usd_limits(plan, rules.budget):
        source = rules.source(plan, one.agent)
        kind = _kind(plan, one.agent)
        if not kind:
            continue  # no backend is named yet
        how = _HOW[source].format(agent=one.agent)
        if source == "unknown":
            spec = plan.agents[one.agent].spec or ""
            yield f"{one.limit}: not enforced ({how}); {_remedies(spec)}"
        elif source in ("local", "script"):
            yield f"{one.limit}: enforced after each call ({how})"
        else:
            when = "live" if kind in _LIVE or kind == "model" else "after each call"
            yield f"{one.limit}: enforced {when} ({how})"


def _kind(plan: Plan, agent: str) -> str:
    found = plan.agents.get(agent)
    spec = parse_spec(found.spec or "") if found is not None else None
    return spec.kind if isinstance(spec, Spec) else ""


def _remedies(spec: str) -> str:
    """What helps against a limit in USD that cannot be enforced."""
    if spec.partition(":")[0] != "command":
        return REMEDIES
    price = f'set a price for each call in the settings (`[prices."{spec}"]`, `call = 0.05`)'
    return f"{price}, {_NO_TOKENS}, or give --allow-unknown-cost"


def _own_remedy(spec: str) -> str:
    """What helps with this agent in particular."""
    kind = spec.partition(":")[0]
    if kind in ("codex", "gemini"):
        return f"name its model (`model:` of the agent, or --agent '{kind}:-m MODEL'), "
    if kind == "command":
        return "report the cost as JSON lines (`jsonl:` instead of `command:`), "
    return ""


def usd_limits(plan: Plan, budget: SharedBudget) -> Iterator[UsdLimit]:
    """Every limit in USD with each agent that it applies to, the outermost limits first."""
    everybody = sorted(agents_of(plan))
    if budget.hard_stop and (budget.usd_per_day is not None or budget.usd_total is not None):
        name = "usd_per_day" if budget.usd_per_day is not None else "usd_total"
        amount = budget.usd_per_day if budget.usd_per_day is not None else budget.usd_total
        yield from (UsdLimit(one, f"the setting {name}={amount:g}") for one in everybody)
    if plan.limits.usd is not None:
        words = f"the budget usd={plan.limits.usd:g}"
        yield from (UsdLimit(one, words) for one in everybody)
    for step in plan.steps:
        if step.limits.usd is not None:
            words = f"the budget usd={step.limits.usd:g} of step {step.id}"
            yield from (UsdLimit(one, words) for one in sorted(_called(step.action)))
        yield from _inside(step.action, step.id)
    for name in everybody:
        agent = plan.agents.get(name)
        if agent is not None and agent.max_usd is not None:
            yield UsdLimit(name, f"max_usd={agent.max_usd:g} of agent {name}")


def _inside(action: Action, where: str) -> Iterator[UsdLimit]:
    match action:
        case Repeat(body=body):
            if action.limits.usd is not None:
                words = f"the budget usd={action.limits.usd:g} of the loop in {where}"
                yield from (UsdLimit(one, words) for one in sorted(_called(action)))
            yield from _inside(body, where)
        case Steps(steps=steps):
            for step in steps:
                if step.limits.usd is not None:
                    words = f"the budget usd={step.limits.usd:g} of step {step.id}"
                    yield from (UsdLimit(one, words) for one in sorted(_called(step.action)))
                yield from _inside(step.action, step.id)
        case CallAgent() | ModelCycle() | RunCommand() | RunScript():
            return
        case AskPerson() | Wait() | StopRun() | FailStep():
            return
        case _:
            assert_never(action)


def agents_of(plan: Plan) -> set[str]:
    """The agents that a plan calls."""
    found = {name for step in plan.steps for name in _called(step.action)}
    return found | ({plan.coordinator.agent} if plan.coordinator is not None else set())


def _called(action: Action) -> set[str]:
    match action:
        case (
            CallAgent(agent=name) | ModelCycle(agent=name) | AskPerson(on_reject=Rework(agent=name))
        ):
            return {name}
        case Repeat(body=body, until=until):
            judges = (leaf for leaf in leaves(until) if isinstance(leaf, Judge | Goal))
            return _called(body) | {leaf.agent for leaf in judges}
        case Steps(steps=steps):
            return {name for step in steps for name in _called(step.action)}
        case AskPerson() | RunCommand() | RunScript() | Wait() | StopRun() | FailStep():
            return set()
        case _:
            assert_never(action)
