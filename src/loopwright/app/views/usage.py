"""Usage as every interface shows it. An unknown cost is called unknown, never zero."""

from typing import TYPE_CHECKING

import msgspec

from loopwright.model.record import JsonValue

if TYPE_CHECKING:
    from loopwright.kernel.facts import Usage  # amounts in words are needed before a run is read
    from loopwright.kernel.state import State

UNKNOWN = "unknown"
NOTHING = "–"  # nothing was called, so nothing can have been spent


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


def usage_item(usage: "Usage", *, called: bool = True) -> dict[str, JsonValue]:
    """What was used, as one object. `usd` is null when nothing of the cost is known; with unpriced
    calls it is the part that is known. Without any call, the cost in words is a dash.
    """
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "usd": known_usd(usage.usd, usage.unpriced),
        "unpriced_calls": usage.unpriced,
        "cost": cost_text(usage.usd, usage.unpriced) if called else NOTHING,
    }


def run_usage(state: "State") -> "Usage":
    """What a run has used. A program that has just been called, and of which nothing is recorded
    yet, is a call of unknown cost.
    """
    unknown = sum(pending.has_unknown_cost for pending in state.pending.values())
    used = state.usage
    return msgspec.structs.replace(used, unpriced=used.unpriced + unknown) if unknown else used


def run_usage_item(state: "State") -> dict[str, JsonValue]:
    """What a run has used, as one object."""
    used = run_usage(state)
    is_used = used.tokens or used.usd or used.unpriced
    return usage_item(used, called=bool(state.served or is_used))
