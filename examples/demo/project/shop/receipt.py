"""The receipt, as the printer has it: lines of 32 characters, amounts at the right."""

from shop.basket import Basket
from shop.money import written

WIDTH = 32


def receipt(basket: Basket) -> str:
    """The whole text."""
    rows = [_row(f"{line.count} {line.article}", written(line.total)) for line in basket.lines]
    if basket.discount:
        rows.append(_row("discount", written(-basket.discount)))
    rows.append("-" * WIDTH)
    rows.append(_row("total", written(basket.total)))
    return "\n".join(rows)


def _row(left: str, right: str) -> str:
    """Text at the left, an amount at the right; a long text is cut, an amount never is."""
    return f"{left:<{WIDTH - len(right)}}{right}"
