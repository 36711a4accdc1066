"""Calls of stages whose process disappeared: repeated at most twice."""

import pytest

from loopwright.kernel.effects import vanished
from loopwright.kernel.events import AnyEvent, EffectFailed, EffectRepeated
from loopwright.kernel.fold import fold
from loopwright.model.actions import Action, CallAgent, Repeat, Step, Steps
from loopwright.model.checks import Approval
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import NoMemory, StageOutputs
from tests.kernel.driving import Driver, by_effect
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

CALL = CallAgent(agent="coder")
STAGE = Steps(steps=(Step(id="code", action=CALL),))


def driver_of(body: Action = STAGE, memory: object = StageOutputs(), **more: object) -> Driver:
    loop = Repeat(body=body, max=2, until=Approval(words=True), memory=memory)  # type: ignore[arg-type]
    plan = Plan(name="p", steps=(Step(id="main", action=loop),), **more)  # type: ignore[arg-type]
    return Driver(plan, by_effect({}, default=None)).start()


def lost(driver: Driver) -> list[AnyEvent]:
    """The process is gone, and another one takes the run up."""
    events: list[AnyEvent] = [*vanished(driver.state, driver.clock)]
    for event in events:
        driver.append(event)
    return events


@pytest.mark.item("coqui-67")
def test_a_vanished_call_is_made_again_twice_and_then_fails() -> None:
    """The stage fails with it, and so does the loop; the log tells each time."""
    driver = driver_of()
    for _ in range(2):
        assert len(lost(driver)) == 1
        assert list(driver.state.pending) == ["main.0.code/agent#1"]
    lost(driver)
    assert driver.state.finished is not None
    assert driver.state.finished.outcome == "failed"
    [failed] = [event for event in driver.events if isinstance(event, EffectFailed)]
    assert (failed.error.type, "3 times" in failed.error.detail) == ("vanished", True)
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)


@pytest.mark.parametrize(
    ("body", "memory"),
    [
        pytest.param(CALL, NoMemory(), id="another loop"),
        pytest.param(STAGE, NoMemory(), id="steps of another loop"),
    ],
)
def test_other_calls_are_not_counted(body: Action, memory: object) -> None:
    """They are made again however often; each time is recorded."""
    driver = driver_of(body, memory)
    for _ in range(5):
        assert len(lost(driver)) == 1
    assert driver.state.finished is None
    assert len(driver.state.pending) == 1


def test_a_turn_of_a_model_in_a_stage_counts_too() -> None:
    """Each of its calls by itself."""
    driver = driver_of(agents={"coder": Agent(spec="model:x")})
    assert [event.effect for event in vanished(driver.state, 0)] == ["main.0.code.0/model#1"]


def test_what_has_been_answered_meanwhile_is_left_alone() -> None:
    """A late note about a call that is over changes nothing."""
    driver = driver_of()
    driver.append(EffectRepeated(at=driver.clock, path="main.0.code", effect="main.9/agent#1"))
    assert driver.state.ignored == 1
