"""Serving leaves the garbage collector of the process as it is."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.engine.activity import CallActivity
from loopwright.kernel.state import PendingEffect
from tests.http.served import Served, served


def settings() -> tuple[object, ...]:
    return gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), gc.get_debug()


def parts_of_calls() -> list[object]:
    """What is in memory of calls, after a collection."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, CallActivity | PendingEffect)]


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is frozen: the number of frozen objects falls when one of them is freed."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.item("bnd-m2")
@pytest.mark.usefixtures("unfrozen")
def test_serving_leaves_the_collector_as_it_is(tmp_path: Path) -> None:
    """While a server has run a loop, and after it has ended, the settings are those of before."""
    before = settings()
    with served(tmp_path) as one:
        run = one.start(one.definition(one.script("some work"), max=1))
        one.until(run, "completed")
        during = settings()
    assert (during, settings()) == (before, before)


@pytest.mark.item("bnd-m1")
def test_calls_of_runs_that_have_ended_are_freed(own: Served) -> None:
    """Nothing of a call stays in memory, though its job, activity and frame are connected."""
    others = parts_of_calls()  # of other tests
    known = {id(one) for one in others}
    run = own.start(own.definition(own.script(*["some work"] * 20), max=20))
    own.until(run, "completed")
    assert [one for one in parts_of_calls() if id(one) not in known] == []
