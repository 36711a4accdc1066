"""Edits of a run under way: what begins later sees them, and nothing that was done changes."""

import pytest

from loopwright.kernel.events import IterationStarted, RunEdited, RunReopened, RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.reopened_runs import merge_objects
from loopwright.model.actions import CallAgent, Each, Repeat, Step
from loopwright.model.checks import Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue, LiteralItems
from tests.kernel.driving import Driver, Reply, by_effect
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

CALL = CallAgent(agent="worker")
LOOP = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"))


def plan_of(action: object = LOOP, **more: object) -> Plan:
    return Plan(name="p", steps=(Step(id="main", action=action),), **more)  # type: ignore[arg-type]


def edited(driver: Driver, **changes: object) -> Driver:
    driver.append(RunEdited(at=driver.clock, **changes))  # type: ignore[arg-type]
    return driver


def passes(driver: Driver) -> list[tuple[int | None, int | None]]:
    found = [event for event in driver.events if isinstance(event, IterationStarted)]
    return [(event.iteration, event.of) for event in found]


def whole(driver: Driver) -> Driver:
    driver.run()
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)
    return driver


def test_a_new_goal_is_the_message_from_then_on() -> None:
    """Whoever asks what the run is for is told the new one; the first event stays as it is."""
    driver = edited(Driver(plan_of()).start(), message="other")
    first = driver.events[0]
    assert isinstance(first, RunStarted)
    assert driver.state.started is not None
    assert (driver.state.started.message, first.message) == ("other", "Do the work.")


def test_an_edit_before_the_beginning_changes_no_message() -> None:
    """A log that begins with an edit is damaged, and yet it folds."""
    state = fold(plan_of(), [RunEdited(at=1, message="x", labels=("a",))])
    assert (state.started, state.control.labels) == (None, ("a",))


@pytest.mark.parametrize(
    ("most", "made"),
    [
        pytest.param(1, [(1, 2)], id="less"),
        pytest.param(4, [(1, 2), (2, 4), (3, 4), (4, 4)], id="more"),
    ],
)
def test_the_cap_is_another(most: int, made: list[tuple[int, int]]) -> None:
    """The iteration under way goes on; the loop ends where the new cap is."""
    assert passes(whole(edited(Driver(plan_of()).start(), passes=most))) == made


def test_a_cap_may_go_and_come() -> None:
    """Without one the loop goes on until its check passes; one that had none may get one."""
    script = by_effect({"main.4/agent#1": "DONE"})
    driver = whole(edited(Driver(plan_of(), script).start(), passes=0))
    assert passes(driver)[-1] == (5, None)
    endless = Driver(plan_of(Repeat(body=CALL, until=Regex(pattern="DONE")))).start()
    assert passes(whole(edited(endless, passes=2))) == [(1, None), (2, 2)]


def test_a_changed_cap_holds_when_the_run_is_reopened() -> None:
    """It is what the loop stopped at, and what more iterations are counted from."""
    driver = whole(edited(Driver(plan_of()).start(), passes=1))
    driver.append(RunReopened(at=driver.clock, passes=3))
    assert passes(whole(driver)) == [(1, 2), (2, 3), (3, 3)]
    driver.append(RunReopened(at=driver.clock))
    assert passes(whole(driver))[3:] == [(1, 1)]


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(CALL, id="no loop"),
        pytest.param(
            Repeat(body=CALL, each=Each(items=LiteralItems(values=("a", "b")))), id="a list"
        ),
        pytest.param(CallAgent(agent="chat"), id="a conversation"),
    ],
)
def test_only_loops_that_count_have_a_cap(action: object) -> None:
    """All else goes on as it would have."""
    agents = {"chat": Agent(spec="model:x")}
    plan = plan_of(action, agents=agents)
    before = Driver(plan, by_effect({}, default=Reply("ok"))).start()
    assert edited(before, passes=1).state.control.passes == 1
    body = before.state.root.body.active["main"].body
    assert getattr(getattr(body, "action", None), "max", None) != 1


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({}, {"a": 1}, {"a": 1}, id="new"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="taken away"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="inside"),
        pytest.param({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}, id="a list as a whole"),
        pytest.param({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="over a value"),
        pytest.param({}, {"a": None}, {}, id="never there"),
    ],
)
def test_metadata_is_merged(
    before: dict[str, JsonValue], patch: dict[str, JsonValue], after: dict[str, JsonValue]
) -> None:
    """Key by key, and lists as a whole."""
    assert merge_objects(before, patch) == after


def test_metadata_and_labels_are_kept() -> None:
    """One is merged, the others replaced; what is not spoken of stays."""
    driver = edited(Driver(plan_of()).start(), metadata={"a": 1}, labels=("x", "y"))
    edited(driver, metadata={"b": 2})
    edited(driver, labels=())
    assert (driver.state.control.metadata, driver.state.control.labels) == ({"a": 1, "b": 2}, ())
