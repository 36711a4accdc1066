"""Metrics as a picture: findings and spend of every round of a loop, as SVG that stands alone."""

from collections.abc import Iterator, Sequence
from html import escape

from loopwright.app.views.metrics import Metrics, Round

WIDTH = 720
PANEL = 190
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 28
MOST_LABELS = 24  # under more bars than that the numbers would run into each other

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-weight: 600; font-size: 13px; fill: #222 }
  .axis { stroke: #bbb; stroke-width: 1 }
  .open { fill: #8aa4c8 } .new { fill: #c8553d }
  .bar { fill: #7fae8f } .line { fill: none; stroke: #2f6b4f; stroke-width: 2 }
  .dot { fill: #2f6b4f } .done { fill: #2f6b4f; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc } .title { fill: #eee } .axis { stroke: #555 }
  }
"""


def picture_of(metrics: Metrics, *, title: str, loop: str | None = None) -> str:
    """The picture of one loop; without a name, of the loop with the most rounds."""
    rounds = rounds_of(metrics, loop)
    reviewed = any(one.compared is not None for one in rounds)
    panels = [*((_findings(rounds),) if reviewed else ()), _spend(rounds)]
    height = 24 + PANEL * len(panels)
    body = []
    for number, panel in enumerate(panels):
        body += [f'<g transform="translate(0 {24 + number * PANEL})">', *panel, "</g>"]
    leads = metrics.trends.get(rounds[0].loop, "") if rounds else ""
    heading = f"{title}: {leads}" if leads else title
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(heading, quote=True)}">'
    )
    name = f'<text class="title" x="{LEFT}" y="18">{escape(heading)}</text>'
    return "\n".join([head, f"<style>{STYLE}</style>", name, *body, "</svg>", ""])


def rounds_of(metrics: Metrics, loop: str | None = None) -> list[Round]:
    """The rounds of one loop; without a name, of the one with the most of them."""
    loops: dict[str, list[Round]] = {}
    for one in metrics.rounds:
        loops.setdefault(one.loop, []).append(one)
    if loop is not None:
        return loops.get(loop, [])
    return max(loops.values(), key=len, default=[])


def _findings(rounds: Sequence[Round]) -> Iterator[str]:
    counts = [one.compared.open if one.compared else 0 for one in rounds]
    scale = max([1, *counts])
    yield from _frame("findings (red: new in this round)", str(scale))
    for number, one in enumerate(rounds):
        x, width = _slot(number, len(rounds))
        if one.compared is not None:
            yield _bar("open", x, width, one.compared.open / scale)
            yield _bar("new", x, width, one.compared.new / scale)
        yield from _label(number, one, len(rounds))


def _spend(rounds: Sequence[Round]) -> Iterator[str]:
    """Money where any was spent, else tokens: bars for the rounds, a line for all so far."""
    in_money = any(one.spent.usd for one in rounds)
    each = [
        one.spent.usd if in_money else float(one.spent.input_tokens + one.spent.output_tokens)
        for one in rounds
    ]
    total = sum(each)
    scale = total or 1.0
    most = f"${total:.2f}" if in_money else f"{total:,.0f}"
    yield from _frame("USD (line: all so far)" if in_money else "tokens (line: all so far)", most)
    so_far, points = 0.0, []
    for number, one in enumerate(rounds):
        x, width = _slot(number, len(rounds))
        yield _bar("bar", x, width, each[number] / scale)
        so_far += each[number]
        points.append((x + width / 2, _y(so_far / scale)))
        yield from _label(number, one, len(rounds))
    if points:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="line" points="{joined}"/>'
        yield from (f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)


def _frame(name: str, most: str) -> Iterator[str]:
    base = _y(0)
    yield f'<text x="{LEFT}" y="{TOP - 14}">{escape(name)}</text>'
    yield f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{escape(most)}</text>'
    yield f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>'


def _label(number: int, one: Round, count: int) -> Iterator[str]:
    if count > MOST_LABELS and number % (count // MOST_LABELS + 1):
        return
    x, width = _slot(number, count)
    kind = ' class="done"' if one.done else ""
    at = f'x="{x + width / 2:.1f}" y="{_y(0) + 16:.1f}"'
    yield f'<text{kind} {at} text-anchor="middle">{one.number}</text>'


def _bar(kind: str, x: float, width: float, share: float) -> str:
    top = _y(share)
    height = max(0.0, _y(0) - top)
    at = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {at}/>'


def _slot(number: int, count: int) -> tuple[float, float]:
    each = (WIDTH - LEFT - RIGHT) / max(1, count)
    return LEFT + number * each + each * 0.15, each * 0.7


def _y(share: float) -> float:
    return PANEL - BOTTOM - share * (PANEL - TOP - BOTTOM)
