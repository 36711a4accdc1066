"""The cost of a call: what the agent reports, else its tokens at a known price, else unknown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

MILLION = 1_000_000

CostSource: TypeAlias = Literal[
    "reported",  # the agent reports it
    "configured",  # a price in the settings
    "listed",  # the price list that comes with the installation
    "assumed",  # a price in the definition, for a model that the list does not have
    "local",  # the model runs on the user's own machine
    "script",  # a script says what its replies cost
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD for a million tokens, and for one call. Tokens that a cache serves cost as much as other
    input unless they have a price of their own.
    """

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    call: float = 0.0

    @property
    def per_call(self) -> bool:
        """Whether the price of a call is known without its tokens."""
        return not self.input and not self.output and not self.cache_read


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one call. `cache_read` and `cache_write` are parts of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __bool__(self) -> bool:
        return bool(self.input or self.output)


def cost_at(price: Price, tokens: TokenCounts) -> float:
    """What a call costs at a price, in USD."""
    cached = min(tokens.cache_read, tokens.input)
    read = price.input if price.cache_read is None else price.cache_read
    by_tokens = (tokens.input - cached) * price.input + cached * read + tokens.output * price.output
    return round(by_tokens / MILLION + price.call, 9)


def cost_of_call(
    reported: float | None,
    tokens: TokenCounts,
    *,
    configured: Price | None = None,
    local: bool = False,
    listed: Callable[[], float | None] = lambda: None,
) -> tuple[float | None, CostSource]:
    """What a call cost in USD, and how that is known; None when nobody knows.

    The list is asked before a model counts as local: a model with a price in it that answers on
    this machine is reached through a proxy, and is paid for.
    """
    if reported is not None:
        return reported, "reported"
    if configured is not None and (tokens or configured.per_call):
        return cost_at(configured, tokens), "configured"
    if tokens:
        usd = listed()
        if usd is not None:
            return usd, "listed"
    if local:
        return 0.0, "local"
    return None, "unknown"
