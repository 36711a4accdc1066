"""The state: who stands around a place, and what holds there."""

from __future__ import annotations

import pytest

from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.state import State, chain, enclosing_step, head, index_of, limits_of
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.plan import Plan
from loopwright.model.policy import NO_LIMITS, Limits
from loopwright.model.record import Blob
from tests.kernel.driving import Driver

WORK = CallAgent(agent="a")
INNER = Steps(steps=(Step(id="work", action=WORK, limits=Limits(tokens=3)),))
PLAN = Plan(
    name="t",
    steps=(
        Step(
            id="outer",
            action=Repeat(body=Repeat(body=INNER, max=2), max=2, limits=Limits(tokens=2)),
            limits=Limits(tokens=1),
        ),
    ),
    limits=Limits(tokens=9),
)


def names(places: list[object]) -> list[str]:
    return [
        f"loop at {place.owner.path}" if isinstance(place, RepeatBody) else place.path
        for place in places
    ]


def test_places_around() -> None:
    """From the inside out: every place, and each loop between its iteration and its owner."""
    state = Driver(PLAN).start().state
    assert names(chain(state.owners["outer.0.0.work"])) == [
        "outer.0.0.work",
        "outer.0.0",
        "loop at outer.0",
        "outer.0",
        "loop at outer",
        "outer",
        "",
    ]


@pytest.mark.parametrize(
    ("place", "step"),
    [
        pytest.param("outer.0.0.work", "outer.0.0.work", id="a step is its own"),
        pytest.param("outer.0.0", "outer", id="a pass in a pass"),
        pytest.param("outer", "outer", id="outermost step"),
    ],
)
def test_step_around(place: str, step: str) -> None:
    """The nearest step gives its retry policy and its limits to what is inside."""
    state = Driver(PLAN).start().state
    assert enclosing_step(state.owners[place]) is state.owners[step]


def test_no_step_around_the_run() -> None:
    """The run is in no step."""
    assert enclosing_step(Driver(PLAN).start().state.root) is None


def test_limits_are_read_where_they_are_written() -> None:
    """Each place has its own limits; an iteration has none of its own."""
    state = Driver(PLAN).start().state
    found = [limits_of(state, place).tokens for place in chain(state.owners["outer.0.0.work"])]
    assert found == [3, None, None, None, 2, 1, 9]
    assert limits_of(state, state.owners["outer.0"]) == NO_LIMITS


def test_a_graph_is_laid_out_once() -> None:
    """Passes of the same graph share its layout."""
    state = State(PLAN)
    assert index_of(state, INNER) is index_of(state, INNER)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(None, "", id="none"),
        pytest.param("hello", "hel", id="short text"),
        pytest.param(Blob("h", 9, "stored"), "sto", id="stored text"),
    ],
)
def test_head(text: object, found: str) -> None:
    """The first characters are there without reading a stored text."""
    assert head(text, 3) == found
