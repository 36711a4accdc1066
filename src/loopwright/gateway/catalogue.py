"""Prices and context windows, from a list that comes with the installation and asks no network.

A model that the list does not have is a case for a policy. It is never free of charge.
"""

from importlib import import_module
from typing import Protocol, cast

import msgspec

from loopwright.gateway.specs import PROVIDERS
from loopwright.model.exchange import ModelUsage, Pricing

MILLION = 1_000_000


class PriceList(Protocol):
    """What `library.prices` offers."""

    def window(self, provider: str, model: str) -> int | None: ...

    def cost(self, provider: str, model: str, usage: ModelUsage) -> float | None: ...


class Catalogue:
    """The port `ModelCatalogue`. The first question reads the list, 0.3 s of CPU."""

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
        """Whether the list has a price for a model."""
        return self.priced(model, ModelUsage(input_tokens=1), Pricing()).usd is not None

    def priced(self, model: str, usage: ModelUsage, pricing: Pricing) -> ModelUsage:
        """Usage with its price: the listed one, else what the policy says."""
        if not usage.measured:
            return msgspec.structs.replace(usage, usd=None, price="unknown")
        provider, name = _in_list(model)
        usd = _prices().cost(provider, name, usage) if provider else None
        if usd is not None:
            return msgspec.structs.replace(usage, usd=usd, price="listed")
        if pricing.unknown == "assume":
            spent = (
                usage.input_tokens * pricing.input_usd + usage.output_tokens * pricing.output_usd
            )
            return msgspec.structs.replace(usage, usd=spent / MILLION, price="assumed")
        return msgspec.structs.replace(usage, usd=None, price="unknown")


def _in_list(spec: str) -> tuple[str, str]:
    """A model as the list calls it; no provider when the list cannot have it."""
    name, _, model = spec.partition("/")
    provider = PROVIDERS.get(name)
    return (provider.prices or "") if provider else "", model


def _prices() -> PriceList:
    """The list, read when it is first needed."""
    return cast(PriceList, import_module("loopwright.gateway.library.prices"))
