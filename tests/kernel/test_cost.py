"""The cost of a run is linear: counted in operations, never in seconds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest
from msgspec.structs import replace

from loopwright.kernel.fold import fold
from loopwright.model.actions import CallAgent, Each, Repeat, Step, Steps
from loopwright.model.checks import Contains
from loopwright.model.plan import Coordinator, Plan
from loopwright.model.policy import ProgressLog
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, drive, plan_of

WORK = CallAgent(agent="a")


def passes(count: int) -> Plan:
    until = Contains(text="never")
    return plan_of(Repeat(body=WORK, max=count, until=until, memory=ProgressLog()))


def items(count: int) -> Plan:
    each = Each(items=LiteralItems(values=tuple(range(count))), parallel=3, max_items=count)
    return plan_of(Repeat(body=WORK, each=each))


def passes_of_steps(count: int) -> Plan:
    steps = (Step(id="a", action=WORK), Step(id="b", action=WORK, needs=("a",)))
    return plan_of(Repeat(body=Steps(steps=steps), max=count))


def chain(count: int) -> Plan:
    steps = [Step(id="s0", action=WORK)]
    steps += [Step(id=f"s{n}", action=WORK, needs=(f"s{n - 1}",)) for n in range(1, count)]
    return Plan(name="t", steps=tuple(steps))


def wide(count: int) -> Plan:
    return Plan(name="t", steps=tuple(Step(id=f"s{n}", action=WORK) for n in range(count)))


def listened_to(count: int) -> Plan:
    """As `passes of steps`, with a coordinator that hears of all of it."""
    return replace(passes_of_steps(count), coordinator=Coordinator(agent="c", max_calls=count))


PLANS: dict[str, Callable[[int], Plan]] = {
    "passes": passes,
    "passes of steps": passes_of_steps,
    "items": items,
    "chain of steps": chain,
    "steps side by side": wide,
    "passes that a coordinator hears of": listened_to,
}


def calls_of_the_kernel(work: Callable[[], object]) -> Counter[str]:
    """How often each function of the kernel is called, its comprehensions included."""
    counts: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("loopwright.kernel"):
            counts[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counts


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_deciding_is_linear(make: Callable[[int], Plan]) -> None:
    """Ten times the iterations make ten times the calls, in every function of the kernel."""
    few = calls_of_the_kernel(lambda: driven(make(100)))
    many = calls_of_the_kernel(lambda: driven(make(1_000)))
    assert many["decide"] <= 10 * few["decide"] + 10
    assert {name for name, n in many.items() if n > 10 * few[name] + 20} == set()


def test_a_list_is_found_once() -> None:
    """A long list is not looked up again for each of its items."""
    assert calls_of_the_kernel(lambda: driven(items(50)))["_find_items"] == 1


def driven(plan: Plan) -> Driver:
    """Answer what is pending without looking through all of it each time."""
    run = Driver(plan).start()
    while run.state.pending:
        run.answer(next(iter(run.state.pending)), "x")
    return run


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
def test_folding_is_linear(make: Callable[[int], Plan]) -> None:
    """Reading a log ten times as long makes ten times the calls."""
    few, many = driven(make(100)), driven(make(1_000))
    small = calls_of_the_kernel(lambda: fold(few.plan, few.events))
    large = calls_of_the_kernel(lambda: fold(many.plan, many.events))
    assert large["apply"] == len(many.events)
    assert sum(large.values()) <= 10 * sum(small.values()) + 20


@pytest.mark.parametrize(
    ("make", "most"),
    [
        pytest.param(passes, 3, id="passes"),
        pytest.param(passes_of_steps, 4, id="passes of steps"),
        pytest.param(items, 5, id="items"),
        pytest.param(chain, 2, id="chain of steps"),
    ],
)
def test_memory_follows_what_is_open(make: Callable[[int], Plan], most: int) -> None:
    """Frames alive at once do not grow with what has been."""
    run = Driver(make(300)).start()
    alive = 0
    while run.state.pending:
        run.answer(next(iter(run.state.pending)), "x")
        alive = max(alive, len(run.state.owners))
        assert len(run.state.queues.agenda) == 0
    assert alive <= most


@pytest.mark.parametrize("count", [10, 200])
def test_events_for_each_iteration(count: int) -> None:
    """An iteration of one call and one check is five events and one append, however many there
    are.
    """
    run = drive(passes(count))
    assert len(run.events) == 5 * count + 4
    assert len(run.ends) == count + 1


def test_resuming_looks_at_what_is_open() -> None:
    """Taking up a run after a thousand passes decides about as much as after ten."""

    def decided(plan: Plan, length: int) -> int:
        run = driven(plan)
        state = run.cut(length)
        return calls_of_the_kernel(lambda: state.cut(length))["decide"]

    assert decided(passes(1_000), 4_904) == decided(passes(1_000), 54)
