"""The price list of the installation."""

from decimal import Decimal

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from loopwright.model.chat import ModelUsage

_SAMPLE = 1_000  # tokens: below every threshold above which a provider charges more


def window(provider: str, model: str) -> int | None:
    """How many tokens a model's context holds, None if the list does not say."""
    try:
        _, found = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    return found.context_window


def cost(provider: str, model: str, usage: ModelUsage) -> float | None:
    """The cost of usage in USD, None if it is not in the list. Cached tokens are part of the input,
    so each is paid once, at its own price.
    """
    read = min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    parsed = Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    found = _price(provider, model, parsed)
    return None if found is None else float(found)


def cost_of_many(provider: str | None, model: str, usage: ModelUsage) -> float | None:
    """The cost of the requests of a whole call in USD, None if it is not in the list. Only their
    sum is known, so no request is assumed to exceed the threshold of a higher price.
    """
    read = min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    parts = (
        (usage.input_tokens - read - written, Usage(input_tokens=_SAMPLE)),
        (read, Usage(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE)),
        (written, Usage(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE)),
        (usage.output_tokens, Usage(output_tokens=_SAMPLE)),
    )
    total = Decimal(0)
    for count, sample in parts:
        price = _price(provider, model, sample)
        if price is None:
            return None
        total += price * count / _SAMPLE
    return float(total)


def _price(provider: str | None, model: str, usage: Usage) -> Decimal | None:
    try:
        return calc_price(usage, model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return None
