"""Prices and context windows, from the settings and from a list that comes with the installation
and asks no network.

A model that neither has a price nor runs on the user's own machine is a case for a policy. It is
never free of charge.
"""

from collections.abc import Mapping
from importlib import import_module
from ipaddress import ip_address
from typing import Protocol, cast
from urllib.parse import urlsplit

import msgspec

from loopwright.gateway.specs import PROVIDERS, Endpoint, endpoint_of
from loopwright.model.exchange import ModelUsage, Pricing
from loopwright.model.prices import CostSource, Price, TokenCounts, cost_at, cost_of_call

_ONE = ModelUsage(input_tokens=1)
_PRIVATE_NAMES = (".localhost", ".local", ".lan", ".internal", ".home.arpa")


class PriceList(Protocol):
    """What `library.prices` offers."""

    def window(self, provider: str, model: str) -> int | None: ...

    def cost(self, provider: str, model: str, usage: ModelUsage) -> float | None: ...

    def cost_of_many(self, provider: str | None, model: str, usage: ModelUsage) -> float | None: ...


class Catalogue:
    """The port `ModelCatalogue`. The first question reads the list, 0.3 s of CPU. `prices` are
    those of the settings, by `PROVIDER/NAME`; `env` says where models are asked.
    """

    def __init__(
        self, prices: Mapping[str, Price] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._configured = prices or {}
        self._env = env or {}

    def window(self, model: str) -> int | None:
        """How many tokens the context of `PROVIDER/NAME` holds, None if nobody knows."""
        provider, name = _in_list(model)
        return _prices().window(provider, name) if provider else None

    def price(
        self, model: str, input_tokens: int, output_tokens: int, pricing: Pricing
    ) -> float | None:
        """What so many tokens would cost in USD without a cache, None if nobody knows."""
        usage = ModelUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        return self.priced(model, usage, pricing).usd

    def knows(self, model: str) -> bool:
        """Whether a model has a price."""
        return self.source(model, Pricing()) != "unknown"

    def source(self, model: str, pricing: Pricing) -> CostSource:
        """How the cost of a model is known."""
        return self.priced(model, _ONE, pricing).price

    def priced(self, model: str, usage: ModelUsage, pricing: Pricing) -> ModelUsage:
        """Usage with its price: the configured or listed one, else what the policy says."""
        provider, name = _in_list(model)
        # A price in the definition is the author's, also for a model on the author's machine.
        is_assumed = pricing.unknown == "assume"
        if not usage.measured:
            # Without a price to multiply with, a model on this machine costs nothing, whatever it
            # counts; every other cost is unknown.
            has_price = is_assumed or model in self._configured or bool(provider)
            free = not has_price and self.is_local(model)
            return msgspec.structs.replace(
                usage, usd=0.0 if free else None, price="local" if free else "unknown"
            )
        tokens = counts(usage)
        usd, source = cost_of_call(
            None,
            tokens,
            configured=self._configured.get(model),
            local=not is_assumed and self.is_local(model),
            listed=lambda: _prices().cost(provider, name, usage) if provider else None,
        )
        if usd is None and is_assumed:
            price = Price(input=pricing.input_usd, output=pricing.output_usd)
            usd, source = cost_at(price, tokens), "assumed"
        return msgspec.structs.replace(usage, usd=usd, price=source)

    def cost_of_call(
        self, provider: str | None, model: str, usage: ModelUsage, configured: Price | None
    ) -> float | None:
        """What a whole call of an agent costs that says which model it used; None if nobody knows.
        The settings name such a model with its provider or without.
        """
        names = (f"{provider}/{model}", model)
        found = (self._configured[name] for name in names if name in self._configured)
        usd, _ = cost_of_call(
            None,
            counts(usage),
            configured=next(found, configured),
            listed=lambda: _prices().cost_of_many(provider, model, usage) if model else None,
        )
        return usd

    def is_local(self, model: str) -> bool:
        """Whether a model is asked on the user's own machine or in its private network."""
        to = endpoint_of(model, self._env)
        return isinstance(to, Endpoint) and is_private_host(urlsplit(to.url).hostname or "")


def counts(usage: ModelUsage) -> TokenCounts:
    """The tokens of a usage."""
    return TokenCounts(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
    )


def is_private_host(host: str) -> bool:
    """Whether a host is this machine or one of its private network."""
    try:
        address = ip_address(host)
    except ValueError:
        name = host.lower()
        # A name without a dot is resolved by the own network only: a machine, or a container.
        is_single = bool(name) and "." not in name
        return is_single or name == "host.docker.internal" or name.endswith(_PRIVATE_NAMES)
    return address.is_loopback or address.is_private


def _in_list(spec: str) -> tuple[str, str]:
    """A model as the list calls it; no provider when the list cannot have it."""
    name, _, model = spec.partition("/")
    provider = PROVIDERS.get(name)
    return (provider.prices or "") if provider else "", model


def _prices() -> PriceList:
    """The list, read when it is first needed."""
    return cast(PriceList, import_module("loopwright.gateway.library.prices"))
