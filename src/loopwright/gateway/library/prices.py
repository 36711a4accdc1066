"""The list of prices that comes with the installation."""

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot

from loopwright.model.exchange import ModelUsage


def window(provider: str, model: str) -> int | None:
    """How many tokens a model's context holds, None if the list does not say."""
    try:
        _, found = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    return found.context_window


def cost(provider: str, model: str, usage: ModelUsage) -> float | None:
    """What usage costs in USD, None if the list does not say. Tokens of a cache are a part of the
    input here, so each is paid once, at its own price.
    """
    read = min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    told = Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    try:
        return float(calc_price(told, model, provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None
