"""Names of places: what a path says, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.ids import (
    child_path,
    is_id,
    item_path,
    iteration_number,
    iteration_path,
    last_id,
    parent_path,
)
from tests.model.plans import IDS

PARTS = st.lists(
    IDS.map(lambda name: ("step", name))
    | st.integers(0, 10**6).map(lambda n: ("pass", n))
    | st.integers(0, 10**6).map(lambda n: ("item", n)),
    max_size=5,
)


def built(first: str, parts: list[tuple[str, object]]) -> str:
    path = first
    for kind, value in parts:
        path = {"step": child_path, "pass": iteration_path, "item": item_path}[kind](path, value)
    return path


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        pytest.param("a", True, id="one letter"),
        pytest.param("dev-cycle_2", True, id="hyphen, underscore, digit"),
        pytest.param("a" * 63, True, id="63 characters"),
        pytest.param("a" * 64, False, id="64 characters"),
        pytest.param("", False, id="empty"),
        pytest.param("2nd", False, id="digit first"),
        pytest.param("A", False, id="capital"),
        pytest.param("a.b", False, id="dot"),
        pytest.param("a[0]", False, id="bracket"),
        pytest.param("a/b", False, id="slash"),
        pytest.param("a#b", False, id="hash"),
        pytest.param("../x", False, id="path"),
        pytest.param("а", False, id="cyrillic a"),
        pytest.param("a\n", False, id="line end"),
    ],
)
def test_ids_are_plain(text: str, allowed: bool) -> None:
    """An id can stand in a path without being mistaken for one of its signs."""
    assert is_id(text) is allowed


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        pytest.param("build", "", id="step of the run"),
        pytest.param("dev.0", "dev", id="pass"),
        pytest.param("dev.-1", "dev", id="look before the first pass"),
        pytest.param("each[3]", "each", id="item"),
        pytest.param("dev.0.review", "dev.0", id="step in a pass"),
        pytest.param("each[3].review", "each[3]", id="step in an item"),
        pytest.param("dev.0[2]", "dev.0", id="item in a pass"),
        pytest.param("each[3].0", "each[3]", id="pass in an item"),
        pytest.param("a.1.2", "a.1", id="pass in a pass"),
    ],
)
def test_parent_of_a_place(path: str, parent: str) -> None:
    """Each kind of place knows the one that holds it."""
    assert parent_path(path) == parent


@given(first=IDS, parts=PARTS)
def test_paths_round_trip(first: str, parts: list[tuple[str, object]]) -> None:
    """Taking a path apart gives what it was put together from."""
    path = built(first, parts)
    for kind, value in reversed(parts):
        assert (last_id(path) if kind == "step" else iteration_number(path)) == value
        path = parent_path(path)
    assert path == first
    assert parent_path(path) == ""
    assert child_path("", path) == path


@given(first=IDS, one=PARTS, other=PARTS)
def test_paths_are_unique(
    first: str, one: list[tuple[str, object]], other: list[tuple[str, object]]
) -> None:
    """Two places never share a name."""
    assert (built(first, one) == built(first, other)) == (one == other)


def test_look_before_the_first_iteration_has_a_number() -> None:
    """The place before pass 0 is numbered -1."""
    assert iteration_number(iteration_path("dev", -1)) == -1
