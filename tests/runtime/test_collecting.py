"""The collector of a process that drives runs."""

import gc
from collections.abc import Iterator

import pytest

from loopwright.runtime.collecting import collect_seldom


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The process is as before afterwards."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_circles_are_looked_for_less_often() -> None:
    """And still are: what stands in a circle is freed in the end."""
    gc.set_threshold(700, 10, 10)
    collect_seldom()
    assert gc.get_threshold()[0] > 700
    assert gc.isenabled()


@pytest.mark.parametrize("chosen", [(1_000, 5, 5), (0, 0, 0)], ids=["other figures", "never"])
def test_whoever_has_chosen_is_left_alone(chosen: tuple[int, int, int]) -> None:
    """A program that uses this as a library decides for its own process."""
    gc.set_threshold(*chosen)
    collect_seldom()
    assert gc.get_threshold() == chosen
