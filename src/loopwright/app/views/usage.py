"""Usage as every interface shows it. An unknown cost is called unknown, never zero."""

from typing import TYPE_CHECKING

from loopwright.model.record import JsonValue

if TYPE_CHECKING:
    from loopwright.kernel.facts import Usage  # amounts in words are needed before a run is read

UNKNOWN = "unknown"


def known_usd(usd: float, unpriced: int) -> float | None:
    """The cost in USD; None when nothing of it is known."""
    return None if unpriced and not usd else round(usd, 9)


def cost_text(usd: float, unpriced: int) -> str:
    """The cost in words: `$0.89`, `unknown`, or `$0.40 + unknown (2 calls)`."""
    if not unpriced:
        return money(usd)
    calls = f"{unpriced} call{'s' if unpriced > 1 else ''}"
    return f"{money(usd)} + {UNKNOWN} ({calls})" if usd else UNKNOWN


def money(usd: float) -> str:
    """USD in cents; an amount below one cent has more digits."""
    return f"${usd:.2f}" if usd >= 0.01 or usd == 0 else f"${usd:.4f}"


def usage_item(usage: "Usage") -> dict[str, JsonValue]:
    """What was used, as one object. `usd` is null when nothing of the cost is known; with unpriced
    calls it is the part that is known.
    """
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "usd": known_usd(usage.usd, usage.unpriced),
        "unpriced_calls": usage.unpriced,
        "cost": cost_text(usage.usd, usage.unpriced),
    }
