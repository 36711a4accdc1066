"""Amounts, times and states as they stand in a table or a line."""

from loopwright.app.views.usage import cost_text
from loopwright.app.views.usage import money as money
from loopwright.cli.door import Tone
from loopwright.cli.texts import padded, width
from loopwright.model.record import JsonValue

STATUS_SIGNS = {
    "running": ("▶", ">"),
    "waiting": ("?", "?"),
    "paused": ("‖", "="),
    "completed": ("✓", "+"),
    "exhausted": ("◼", "#"),
    "failed": ("✗", "x"),
    "cancelled": ("–", "-"),
}
STATUS_TONES: dict[str, Tone] = {
    "running": "bold",
    "waiting": "warn",
    "paused": "dim",
    "completed": "good",
    "exhausted": "warn",
    "failed": "bad",
    "cancelled": "dim",
}


def status_cell(status: str, *, signs: bool) -> str:
    """A status as sign and word."""
    sign = STATUS_SIGNS.get(status, ("·", "."))[0 if signs else 1]
    return f"{sign} {status}"


def duration(ms: int) -> str:
    """A length of time, short."""
    seconds = max(0, ms) // 1_000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def fine_duration(ms: int) -> str:
    """The same where parts of a second count: what took a moment did not take nothing."""
    if 0 < ms < 1_000:
        return f"{ms} ms"
    return f"{ms // 100 / 10:.1f}s" if 0 < ms < 10_000 else duration(ms)


def bill(usage: dict[str, JsonValue]) -> str:
    """What was spent. A server of an older version tells the amounts alone."""
    if "cost" in usage:
        return str(usage["cost"])
    return cost_text(float(str(usage["usd"] or 0)), int(str(usage["unpriced_calls"])))


def tokens(count: int) -> str:
    """A number of tokens, short."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count)


def used_tokens(usage: dict[str, JsonValue]) -> str:
    """How many tokens calls have used, short; empty where calls of unknown cost reported none."""
    used = int(str(usage["input_tokens"])) + int(str(usage["output_tokens"]))
    return "" if not used and int(str(usage["unpriced_calls"])) else tokens(used)


def table(rows: list[list[str]], most: int) -> list[str]:
    """Rows in columns; the last column is free text and takes what is left of `most` cells."""
    count = len(rows[0])
    widths = [max(width(row[n]) for row in rows) for n in range(count - 1)]
    room = max(10, most - sum(widths) - 2 * (count - 1))
    lines = []
    for row in rows:
        cells = [padded(cell, size) for cell, size in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, padded(row[-1], room).rstrip()]).rstrip())
    return lines
