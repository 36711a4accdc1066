"""Drawings of graphs: golden pictures, narrow terminals, many steps."""

import pytest

from loopwright.cli.charts import MOST_LANES, draw, in_order
from loopwright.cli.terminal import width
from loopwright.views.run_responses import GraphNode


def node(id: str, *needs: str, status: str = "", inner: tuple[GraphNode, ...] = ()) -> GraphNode:
    return GraphNode(id=id, kind="agent w", needs=[*needs], status=status, steps=[*inner])


def picture(nodes: list[GraphNode], *, cells: int = 80, signs: bool = True) -> str:
    return "\n" + "\n".join(line.text for line in draw(nodes, cells=cells, signs=signs)) + "\n"


DIAMOND = [
    node("a", status="completed"),
    node("b", "a", status="failed"),
    node("c", "a", status="running"),
    node("d", "b", "c", status="cancelled"),
    node("alone", status="skipped"),
]
LOOP = [
    node("plan", status="completed"),
    GraphNode(
        id="dev",
        kind="until expr x",
        needs=["plan"],
        status="running",
        passes="iteration 2/4",
        steps=[
            node("code", status="completed"),
            node("review", "code", status="waiting"),
        ],
    ),
    node("ship", "dev"),
    node("notes", "plan"),
]


def test_a_diamond() -> None:
    """Lanes lead from a step to all that need it, and end there."""
    assert (
        picture(DIAMOND)
        == """
✓ a                                completed  agent w
├─╮
│ ✗ b                              failed     agent w
│ │
▶ │ c                              running    agent w
├─╯
– d                                cancelled  agent w
○ alone                            skipped    agent w
"""
    )


def test_a_loop_with_its_inner_steps() -> None:
    """They stand below it, with lanes of their own, and what passes by goes on beside them."""
    assert (
        picture(LOOP)
        == """
✓ plan                             completed  agent w
├─╮
│ ▶ dev                            running    iteration 2/4, until expr x
│ │   ✓ code                       completed  agent w
│ │   │
│ │   ? review                     waiting    agent w
│ │
│ · ship                                      agent w
│
· notes                                       agent w
"""
    )


def test_without_signs() -> None:
    """The same with characters that every terminal has."""
    assert (
        picture(DIAMOND, signs=False)
        == """
+ a                                completed  agent w
+-+
| x b                              failed     agent w
| |
> | c                              running    agent w
+-+
- d                                cancelled  agent w
o alone                            skipped    agent w
"""
    )


def test_status_is_more_than_a_colour() -> None:
    """Each has a sign, a word and a tone."""
    lines = draw(DIAMOND, cells=80, signs=True)
    assert [line.tone for line in lines if " agent w" in line.text] == [
        "good",
        "bad",
        "bold",
        "dim",
        "dim",
    ]


def ladder(count: int) -> list[GraphNode]:
    """Each step needs the one before and the first."""
    return [node("s0"), *[node(f"s{n}", f"s{n - 1}", "s0") for n in range(1, count)]]


def fan(count: int) -> list[GraphNode]:
    """One, then many, then one."""
    middle = [node(f"p{n}", "root") for n in range(count)]
    return [node("root"), *middle, node("join", *[one.id for one in middle])]


@pytest.mark.parametrize("cells", [40, 80, 120])
@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(ladder(100), id="ladder"),
        pytest.param(fan(98), id="fan"),
        pytest.param([node(f"n{n}") for n in range(100)], id="apart"),
        pytest.param([node("x" * 60), node("y", "x" * 60)], id="long name"),
        pytest.param([node("a", inner=(node("b", inner=tuple(fan(20))),))], id="deep"),
    ],
)
def test_many_steps_fit(nodes: list[GraphNode], cells: int) -> None:
    """No line is wider than the terminal, and every step has its line."""
    lines = draw(nodes, cells=cells, signs=True)
    assert max(width(line.text) for line in lines) <= cells
    assert len(lines) >= len(nodes)


def test_what_has_no_lane_is_said_in_words() -> None:
    """With more lanes than fit, the step that needs them names the rest."""
    text = picture(fan(MOST_LANES + 3))
    [join] = [line for line in text.splitlines() if " join " in line]
    told = join.partition("needs ")[2]
    assert told
    assert set(told.split(", ")) <= {f"p{n}" for n in range(MOST_LANES + 3)}


def test_the_order_is_that_of_the_needs() -> None:
    """Steps stand below all that they need, else as they were written; a circle is drawn too."""
    assert [n.id for n in in_order([node("b", "a"), node("c"), node("a")])] == ["c", "a", "b"]
    assert [n.id for n in in_order([node("a", "b"), node("b", "a"), node("c", "x")])] == [
        "c",
        "a",
        "b",
    ]


def test_hostile_names_stay_names() -> None:
    """What an author wrote cannot drive the terminal."""
    assert "\x1b" not in picture([GraphNode(id="a\x1b[2J", kind="agent \x1b]0;x\x07")])
