"""The cost of agents: what is known before a call, and the price of a call that has ended."""

import os
from collections.abc import Mapping

from msgspec.structs import replace

from loopwright.agents.clis.arguments import named_model
from loopwright.agents.clis.table import CLIS
from loopwright.gateway.asking import models_of, pricing_of
from loopwright.gateway.catalogue import Catalogue
from loopwright.kernel.facts import Usage
from loopwright.model.exchange import ModelUsage
from loopwright.model.plan import Agent
from loopwright.model.prices import MILLION, CostSource, Price
from loopwright.programs.codex_model import codex_model
from loopwright.programs.specs import Spec, parse_spec

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
        """How the cost of an agent's calls will be known, as far as that can be said before."""
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
