"""Charts as text: the graph of steps, metrics with bars, and the report of a dry run.

A graph has one line for each step and lanes beside the lines for dependencies. A lane begins at a
step and ends at the last step that depends on it. Only as many lanes are drawn as fit; the other
dependencies are written as text, so that a graph is never wider than the terminal.

Metrics have a line for each iteration, stage and role.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loopwright.cli.formats import (
    STATUS_SIGNS,
    STATUS_TONES,
    duration,
    fine_duration,
    status_cell,
    table,
    terminal_width,
    tokens,
)
from loopwright.cli.terminal import Terminal, Tone, cut, one_line, padded, width
from loopwright.views.formats import NOTHING, cost_text, money

if TYPE_CHECKING:
    from loopwright.operations.dry_run.simulation import (
        DryRunEnding,
        DryRunReport,
        DryRunWorst,
        SnapshotPlan,
    )
    from loopwright.views.metrics import IterationMetrics, MetricsPart, MetricsUsage, RunFigures
    from loopwright.views.run_responses import GraphNode

MOST_LANES = 12
NAME_CELLS = 34
STATUS_CELLS = 10
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
_SIGNS = {**STATUS_SIGNS, "skipped": ("○", "o"), "": ("·", ".")}
_TONES: dict[str, Tone] = {**STATUS_TONES, "skipped": "dim", "": "plain"}
_CORNERS = {
    0: " ",
    UP | DOWN: "│",
    UP | RIGHT: "╰",
    UP | LEFT: "╯",
    DOWN | RIGHT: "╭",
    DOWN | LEFT: "╮",
    LEFT | RIGHT: "─",
    UP | DOWN | RIGHT: "├",
    UP | DOWN | LEFT: "┤",
    UP | LEFT | RIGHT: "┴",
    DOWN | LEFT | RIGHT: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """One line of a drawing and its style."""

    text: str
    tone: Tone = "plain"


@dataclass(slots=True)
class _Lane:
    """From a step down to those that need it and are not drawn yet."""

    source: str
    waiting: set[str]


@dataclass(slots=True)
class _Canvas:
    signs: bool
    cells: int
    names: int
    lines: list[DrawnLine] = field(default_factory=list)

    def corner(self, bits: int) -> str:
        if self.signs:
            return _CORNERS[bits]
        if bits in (0, UP | DOWN, LEFT | RIGHT):
            return {0: " ", UP | DOWN: "|", LEFT | RIGHT: "-"}[bits]
        return "+"

    def add(self, text: str, tone: Tone = "plain") -> None:
        self.lines.append(DrawnLine(cut(text.rstrip(), self.cells), tone))


def draw(nodes: "Sequence[GraphNode]", *, cells: int, signs: bool) -> list[DrawnLine]:
    """The drawing of a graph, with a maximum width in cells."""
    canvas = _Canvas(signs=signs, cells=cells, names=min(NAME_CELLS, max(12, cells // 2)))
    _draw(canvas, nodes, before="")
    return canvas.lines


def in_order(nodes: "Sequence[GraphNode]") -> "list[GraphNode]":
    """Steps after all that they need, otherwise as they were written."""
    known = {node.id for node in nodes}
    done: set[str] = set()
    left, order = list(nodes), list["GraphNode"]()
    while left:
        ready = (n for n in left if all(need in done or need not in known for need in n.needs))
        first = next(ready, left[0])
        order.append(first)
        done.add(first.id)
        left.remove(first)
    return order


def _draw(canvas: _Canvas, nodes: "Sequence[GraphNode]", *, before: str) -> None:
    dependents: dict[str, set[str]] = {node.id: set() for node in nodes}
    for node in nodes:
        for need in node.needs:
            dependents.setdefault(need, set()).add(node.id)
    lanes: list[_Lane | None] = []
    for node in in_order(nodes):
        column, untold = _enter(canvas, lanes, node, before)
        _leave(lanes, node, column, dependents[node.id])
        _line(canvas, node, before=before, column=column, lanes=lanes, untold=untold)
        _draw(canvas, node.steps, before=f"{before}{_bars(canvas, lanes)}  ")


def _enter(
    canvas: _Canvas, lanes: list[_Lane | None], node: "GraphNode", before: str
) -> tuple[int, list[str]]:
    """Lead the lanes of a step's dependencies to its column; dependencies without a lane are
    listed.
    """
    into = [n for n, lane in enumerate(lanes) if lane is not None and node.id in lane.waiting]
    drawn = {lane.source for lane in lanes if lane is not None and node.id in lane.waiting}
    ends = []
    for number in into:
        lane = lanes[number]
        assert lane is not None
        lane.waiting.discard(node.id)
        if not lane.waiting:
            ends.append(number)
    column = ends[0] if ends else _free(lanes)
    if into:
        _connect(canvas, lanes, into=into, ends=ends, column=column, before=before)
    for number in ends:
        lanes[number] = None
    return column, [need for need in node.needs if need not in drawn]


def _free(lanes: list[_Lane | None]) -> int:
    return next((n for n, lane in enumerate(lanes) if lane is None), len(lanes))


def _connect(
    canvas: _Canvas,
    lanes: list[_Lane | None],
    *,
    into: list[int],
    ends: list[int],
    column: int,
    before: str,
) -> None:
    first, last = min(*into, column), max(*into, column)
    text = ""
    for number in range(max(len(lanes), column + 1)):
        lane = lanes[number] if number < len(lanes) else None
        bits = 0
        if lane is not None:
            bits = UP | (0 if number in ends and number != column else DOWN)
        if number == column:
            bits |= DOWN
        touched = number in into or number == column
        if first < last and touched:
            bits |= (LEFT if number > first else 0) | (RIGHT if number < last else 0)
        elif lane is None and first < number < last:
            bits = LEFT | RIGHT
        gap = LEFT | RIGHT if first <= number < last else 0
        text += canvas.corner(bits) + canvas.corner(gap)
    canvas.add(before + text)


def _leave(lanes: list[_Lane | None], node: "GraphNode", column: int, dependents: set[str]) -> None:
    """Start the lane of a step that others need, if there is space for one."""
    if column >= len(lanes):
        lanes.append(None)
    if dependents and column < MOST_LANES:
        lanes[column] = _Lane(node.id, set(dependents))


def _bars(canvas: _Canvas, lanes: list[_Lane | None]) -> str:
    shown = lanes[:MOST_LANES]
    return "".join((canvas.corner(UP | DOWN) if lane else " ") + " " for lane in shown)


def _line(
    canvas: _Canvas,
    node: "GraphNode",
    *,
    before: str,
    column: int,
    lanes: list[_Lane | None],
    untold: list[str],
) -> None:
    sign = _SIGNS.get(node.status or "", _SIGNS[""])[0 if canvas.signs else 1]
    shown = max(min(len(lanes), MOST_LANES), min(column, MOST_LANES) + 1)
    row = ""
    for number in range(shown):
        lane = lanes[number] if number < len(lanes) else None
        here = number == min(column, MOST_LANES)
        row += (sign if here else canvas.corner(UP | DOWN) if lane else " ") + " "
    while row.endswith("  "):
        row = row[:-1]
    name = f"{before}{row}{one_line(node.id)}"
    words = [w for w in (node.passes, one_line(node.kind)) if w]
    if untold:
        words.append(f"needs {', '.join(untold)}")
    room = max(canvas.names, width(name))
    status = padded(node.status, STATUS_CELLS) if node.status else " " * STATUS_CELLS
    canvas.add(
        f"{padded(name, room)} {status} {', '.join(words)}", _TONES.get(node.status or "", "plain")
    )


BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def figure_lines(metrics: "RunFigures", *, cells: int, signs: bool) -> Iterator[tuple[str, Tone]]:
    """The metrics as lines with their styles."""
    extra = [key for key in ("commands", "tools") if getattr(metrics.total, key)]
    for loop in dict.fromkeys(one.loop for one in metrics.rounds):
        rounds = [one for one in metrics.rounds if one.loop == loop]
        leads = metrics.trends.get(loop, "")
        yield f"iterations of {loop}" + (f": {leads}" if leads else ""), "bold"
        for line in table(_round_rows(rounds, extra, signs=signs), cells):
            yield line, "plain"
        yield "", "plain"
    for name, parts in (("steps", metrics.stages), ("agents", metrics.roles)):
        if parts:
            yield name, "bold"
            for line in table(_part_rows(parts, extra), cells):
                yield line, "plain"
            yield "", "plain"
    yield f"in all  {_bill(metrics.total)}", "bold"


def bar(share: float, *, signs: bool, cells: int = BAR_CELLS) -> str:
    """A share of one as a bar; something is never shown as nothing."""
    share = min(1.0, max(0.0, share))
    if not signs:
        return "#" * (max(1, round(share * cells)) if share else 0)
    eighths = max(1, round(share * cells * 8)) if share else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")


def _round_rows(
    rounds: "Sequence[IterationMetrics]", extra: Sequence[str], *, signs: bool
) -> list[list[str]]:
    reviewed = any(one.compared is not None for one in rounds)
    in_money = any(one.spent.usd for one in rounds)
    most = max((_weight(one, in_money=in_money) for one in rounds), default=0) or 1
    least = max((one.compared.open for one in rounds if one.compared), default=0) or 1
    titles = ["iteration", "took", "calls", *extra, "tokens", "cost"]
    rows = [[*titles, *(("findings",) if reviewed else ()), ""]]
    for one in rounds:
        found = one.compared
        row = [str(one.number), fine_duration(one.ms), *_counts(one.spent, extra)]
        row += [tokens(one.spent.tokens), _cost(one.spent)]
        if reviewed:
            row.append(f"{found.open} ({found.new} new, {found.back} back)" if found else "-")
            share = found.open / least if found else 0.0
        else:
            share = _weight(one, in_money=in_money) / most
        label = ", ".join(check.verdict for check in one.verdicts) or one.status
        row.append(f"{bar(share, signs=signs):<{BAR_CELLS}}  {label}")
        rows.append(row)
    return rows


def _weight(one: "IterationMetrics", *, in_money: bool) -> float:
    if in_money:
        return one.spent.usd or 0.0
    return one.spent.tokens or one.ms


def _part_rows(parts: "Sequence[MetricsPart]", extra: Sequence[str]) -> list[list[str]]:
    rows = [["name", "calls", *extra, "failed", "took", "tokens", "cost"]]
    for one in parts:
        row = [one_line(one.name), *_counts(one, extra), str(one.failed)]
        rows.append([*row, fine_duration(one.ms), tokens(one.tokens), _cost(one)])
    return rows


def _counts(used: "MetricsUsage", extra: Sequence[str]) -> list[str]:
    """Calls of agents, and the numbers of commands and tool calls if there were any."""
    return [str(used.calls), *(str(getattr(used, key)) for key in extra)]


def _cost(used: "MetricsUsage") -> str:
    """The cost of calls; commands and tools have none."""
    return cost_text(used.usd or 0.0, used.unpriced_calls) if used.calls else NOTHING


def _bill(used: "MetricsUsage") -> str:
    counts = ((used.calls, "call"), (used.commands, "command"), (used.tools, "tool call"))
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n or what == "call"]
    total = f"{tokens(used.tokens)} tokens"
    return ", ".join([*parts, fine_duration(used.ms), total, _cost(used)])


DRAWN_CELLS = 100


def put_dry_run(terminal: Terminal, report: "DryRunReport") -> None:
    """Print what a dry run found."""
    if terminal.as_json:
        terminal.put_json(report)
        return
    cells, signs = min(terminal_width(), DRAWN_CELLS), terminal.has_signs(sys.stdout)
    title = f"{one_line(report.name)} ({report.dialect}): a dry run, nothing is called"
    terminal.put(terminal.painted(cut(title, cells), "bold", sys.stdout))
    terminal.put("")
    for line in draw(report.graph, cells=cells, signs=signs):
        terminal.put(terminal.painted(line.text, line.tone, sys.stdout))
    terminal.put("")
    terminal.put("How it can end")
    rows = [_row(one, signs=signs) for one in report.endings]
    for one, text in zip(report.endings, table(rows, cells), strict=True):
        tone = STATUS_TONES.get(one.outcome, "plain")
        terminal.put(terminal.painted(text, tone, sys.stdout))
    terminal.put("")
    for text in _worst(report.worst, report.limits):
        terminal.put(cut(text, cells))
    terminal.put(cut(f"snapshots  {_snapshots(report.snapshots)}", cells))
    if report.worktree:
        terminal.put("worktree   a Git worktree of the workspace, on the branch loopwright/RUN")
    if report.sandbox:
        terminal.put(
            f"sandbox    {report.sandbox}, or stricter where a role or an agent asks for it"
        )
    for limit in report.limits:
        terminal.put(f"limit      {one_line(limit)}")
    for assumed in report.assumed:
        terminal.put(cut(f"assumed    {one_line(assumed)}", cells))


def _snapshots(plan: "SnapshotPlan") -> str:
    """Whether the files of the workspace are recorded."""
    if not plan.taken:
        return "none are taken of the workspace"
    words = "of the workspace, before the first iteration and after each one"
    return f"{words}; protected: {', '.join(plan.protect)}" if plan.protect else words


def _row(one: "DryRunEnding", *, signs: bool) -> list[str]:
    calls = _count(sum(one.calls.values()), "call")
    outcome = status_cell(one.outcome, signs=signs)
    made = f"{_count(one.iterations, 'iteration')}, {calls}"
    return [f"  if {one_line(one.story, 36)}", outcome, one.reason, made]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _worst(worst: "DryRunWorst", limits: list[str]) -> list[str]:
    more = "" if worst.complete else "more than "
    each = ", ".join(f"{one_line(name)} {count}" for name, count in sorted(worst.calls.items()))
    calls = _count(sum(worst.calls.values()), "call")
    counted = f"{more}{calls} of agents, every retry counted"
    total = f"{more}{_count(worst.iterations, 'iteration')}, {counted}"
    spending = _spending(worst, limits)
    return [f"at worst   {total}{f' ({each})' if each else ''}", f"spending   {spending}"]


def _spending(worst: "DryRunWorst", limits: list[str]) -> str:
    """The limits; one that is not enforced is not listed."""
    loose = [one for one in limits if "not enforced" in one]
    no_usd = any("usd=" in one or "usd_" in one for one in loose)
    no_tokens = any(one.startswith("tokens=") for one in loose)
    usd, count, wall = worst.usd, worst.tokens, worst.wall_ms
    parts = [
        f"{money(usd)}{_bound(loose=no_usd)}" if usd is not None else "",
        f"{tokens(count)} tokens{_bound(loose=no_tokens)}" if count is not None else "",
        f"{duration(wall)} at most" if wall is not None else "",
    ]
    label = ", ".join(part for part in parts if part)
    return label or "not limited; --budget usd=5,tokens=2M,time=2h limits it"


def _bound(*, loose: bool) -> str:
    return " (not enforced)" if loose else " at most"
