"""Drawing a graph of steps: one line for each step, and lanes beside them for who needs whom.

A lane begins at a step and goes down to everything that needs it. There are as many lanes as fit;
what has no place among them is said in words, so a drawing never gets wider than the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loopwright.cli.cells import STATUS_SIGNS, STATUS_TONES
from loopwright.cli.door import Tone
from loopwright.cli.texts import cut, one_line, padded, width

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step to be drawn."""

    id: str
    kind: str = ""
    needs: tuple[str, ...] = ()
    status: str = ""
    passes: str = ""
    inner: tuple["Node", ...] = ()


def node_of(value: "JsonValue") -> Node:
    """A step as the views tell it."""
    assert isinstance(value, dict)
    needs, steps = value["needs"], value["steps"]
    assert isinstance(needs, list)
    assert isinstance(steps, list)
    return Node(
        id=str(value["id"]),
        kind=str(value["kind"]),
        needs=tuple(map(str, needs)),
        status=str(value["status"] or ""),
        passes=str(value["passes"] or ""),
        inner=tuple(map(node_of, steps)),
    )


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """One line of a drawing and how it is painted."""

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


def draw(nodes: Sequence[Node], *, cells: int, signs: bool) -> list[DrawnLine]:
    """The drawing of a graph, at most so many cells wide."""
    canvas = _Canvas(signs=signs, cells=cells, names=min(NAME_CELLS, max(12, cells // 2)))
    _draw(canvas, nodes, before="")
    return canvas.lines


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Steps after all that they need, otherwise as they were written."""
    known = {node.id for node in nodes}
    done: set[str] = set()
    left, order = list(nodes), list[Node]()
    while left:
        ready = (n for n in left if all(need in done or need not in known for need in n.needs))
        first = next(ready, left[0])
        order.append(first)
        done.add(first.id)
        left.remove(first)
    return order


def _draw(canvas: _Canvas, nodes: Sequence[Node], *, before: str) -> None:
    dependents: dict[str, set[str]] = {node.id: set() for node in nodes}
    for node in nodes:
        for need in node.needs:
            dependents.setdefault(need, set()).add(node.id)
    lanes: list[_Lane | None] = []
    for node in in_order(nodes):
        column, untold = _enter(canvas, lanes, node, before)
        _leave(lanes, node, column, dependents[node.id])
        _line(canvas, node, before=before, column=column, lanes=lanes, untold=untold)
        _draw(canvas, node.inner, before=f"{before}{_bars(canvas, lanes)}  ")


def _enter(
    canvas: _Canvas, lanes: list[_Lane | None], node: Node, before: str
) -> tuple[int, list[str]]:
    """Lead the lanes of what a step needs to its column; needs without a lane are told."""
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


def _leave(lanes: list[_Lane | None], node: Node, column: int, dependents: set[str]) -> None:
    """Begin the lane of a step that others need, where there is room for one."""
    if column >= len(lanes):
        lanes.append(None)
    if dependents and column < MOST_LANES:
        lanes[column] = _Lane(node.id, set(dependents))


def _bars(canvas: _Canvas, lanes: list[_Lane | None]) -> str:
    shown = lanes[:MOST_LANES]
    return "".join((canvas.corner(UP | DOWN) if lane else " ") + " " for lane in shown)


def _line(
    canvas: _Canvas,
    node: Node,
    *,
    before: str,
    column: int,
    lanes: list[_Lane | None],
    untold: list[str],
) -> None:
    sign = _SIGNS.get(node.status, _SIGNS[""])[0 if canvas.signs else 1]
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
        f"{padded(name, room)} {status} {', '.join(words)}", _TONES.get(node.status, "plain")
    )
