"""Every guard is seen to work: without it, the harness must find something wrong.

That it finds nothing with all guards in place is what the other tests of this folder show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.faults.mutants import (
    BEFORE_DEATH,
    BEFORE_DEATH_WITH_TOOLS,
    IN_CONVERSATIONS,
    IN_SIMULATION,
    NEWS_LOST,
)
from tests.faults.simulation import problems_of
from tests.faults.talking import talking_plan
from tests.faults.test_concurrent_decisions import decided_while_the_news_is_on_its_way
from tests.faults.walking import Children, walk

SEEDS = 500
SEEN_FIRST = {
    "a held call is asked about by nobody": 235,
    "a judge is asked until it answers": 235,
    "a person is not asked again": 39,
    "a turn that says nothing is remembered": 32,
    "an edit shows what it saw before": 60,
    "budget ignored": 69,
    "content lost when an append is refused": 90,
    "fence off": 62,
    "it is cut for as long as it does not fit": 275,
    "judges do not wait for a place": 68,
    "one check of all is enough": 117,
    "the last result that is handed in counts": 51,
    "work after the last rejection": 63,
}
"""The history that showed a bug when this was written: it is tried first, then all of them."""

NEAR = 16
SEEN_NEAR = {
    "events and views in two transactions": 91,
    "a tool that must not be repeated is": 93,
    "nothing is repeated": 79,
}
"""A point shortly before the one that showed a bug: the walk begins there, then at the first."""


def seeds(name: str) -> Iterator[int]:
    """The histories in which a bug is looked for."""
    if name in SEEN_FIRST:
        yield SEEN_FIRST[name]
    yield from range(SEEDS)


def points(name: str, step: int = 1) -> Iterator[int]:
    """The points at which a process dies."""
    if name in SEEN_NEAR:
        yield from range(SEEN_NEAR[name], SEEN_NEAR[name] + NEAR, step)
    yield from range(1, 400, step)


@pytest.mark.parametrize("name", IN_SIMULATION)
def test_the_simulation_catches(name: str) -> None:
    """A bug that is planted in one guard shows within a few hundred histories."""
    with IN_SIMULATION[name].planted():
        assert any(problems_of(range(seed, seed + 1)) for seed in seeds(name))


@pytest.mark.parametrize("name", IN_CONVERSATIONS)
def test_the_simulation_of_conversations_catches(name: str) -> None:
    """The same for what is particular about chat models."""
    with IN_CONVERSATIONS[name].planted():
        assert any(problems_of(range(seed, seed + 1), plans=talking_plan) for seed in seeds(name))


@pytest.mark.parametrize("name", BEFORE_DEATH)
def test_the_kill_walk_catches(name: str, tmp_path: Path) -> None:
    """A bug that shows when a process dies at the wrong moment is found by the walk."""
    children = Children("sequential", name)
    try:
        assert any(walk(children, tmp_path, "facts", points(name)))
    finally:
        children.close()


@pytest.mark.parametrize("name", BEFORE_DEATH_WITH_TOOLS)
def test_the_kill_walk_with_tools_catches(name: str, tmp_path: Path) -> None:
    """A tool that is repeated, or that is not run although it was never begun, is found too."""
    children = Children("working", name)
    try:
        assert any(walk(children, tmp_path, "end", points(name, 2)))
    finally:
        children.close()


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
def test_a_definite_order_catches_lost_events(planted: bool) -> None:
    """An answer that comes between a commit and the news of it is lost only by the planted bug."""
    with NEWS_LOST.planted() if planted else nullcontext():
        assert bool(decided_while_the_news_is_on_its_way()) == planted


def test_a_bug_is_gone_after_its_test() -> None:
    """Planting is undone: afterwards the function is the one it was."""
    lists = (IN_SIMULATION, IN_CONVERSATIONS, BEFORE_DEATH, BEFORE_DEATH_WITH_TOOLS)
    for mutant in (mutant for one in lists for mutant in one.values()):
        before = mutant.function.__code__
        with mutant.planted():
            assert mutant.function.__code__ is not before
        assert mutant.function.__code__ is before
