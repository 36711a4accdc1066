"""A loop that stopped in an iteration continues there: completed steps are not run again."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import (
    AnyEvent,
    EffectRequested,
    IterationStarted,
    RunReopened,
    StepKept,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopened_runs import stopped_half_way
from loopwright.model.actions import CallAgent, Each, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import Approval
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, StageOutputs
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, Fail, Reply, Script, by_effect, decisions
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

BROKEN = Fail(detail="broken")
STAGES = Steps(
    steps=(
        Step(id="plan", action=CallAgent(agent="plan")),
        Step(id="code", action=CallAgent(agent="coder"), needs=("plan",)),
        Step(id="review", action=CallAgent(agent="reviewer"), needs=("code",)),
    )
)


def looped(**changes: object) -> Plan:
    fields = {
        "body": STAGES,
        "max": 3,
        "until": Approval(words=True),
        "memory": StageOutputs(),
        "broken_after": 0,
    }
    loop = Repeat(**(fields | changes))  # type: ignore[arg-type]
    return Plan(name="p", steps=(Step(id="main", action=loop),))


def rejected_once(broken: str, **more: object) -> Script:
    """The first review rejects, the second approves, and one call fails."""
    table = {"main.0.review/agent#1": Reply("Rejected"), broken: BROKEN, **more}
    return by_effect(table, default=Reply("APPROVED"))  # type: ignore[arg-type]


def again(driver: Driver, **more: object) -> list[AnyEvent]:
    before = len(driver.events)
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, **more))  # type: ignore[arg-type]
    driver.run()
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)
    return driver.events[before:]


def asked(events: list[AnyEvent]) -> list[str]:
    return [event.effect for event in events if isinstance(event, EffectRequested)]


def kept(events: list[AnyEvent]) -> list[tuple[str, str, str]]:
    return [(f.path, f.of, f.reason) for f in events if isinstance(f, StepKept)]


def ended(driver: Driver) -> tuple[str, str]:
    assert driver.state.finished is not None
    return driver.state.finished.outcome, driver.state.finished.reason


def test_the_failed_stage_alone_is_run_again() -> None:
    """The loop goes on in its second iteration, keeps the stage before, and ends as it would
    have.
    """
    driver = Driver(looped(), rejected_once("main.1.code/agent#1")).run()
    assert ended(driver) == ("failed", "error")
    assert [one.stuck for one in stopped_half_way(driver.state).values()] == ["code"]
    new = again(driver, stage="retry", note="mind the gap")
    assert kept(new) == [("main~2.1.plan", "main.1.plan", "kept")]
    assert asked(new) == ["main~2.1.code/agent#1", "main~2.1.review/agent#1"]
    assert [(f.path, f.iteration, f.of) for f in new if isinstance(f, IterationStarted)] == [
        ("main~2.1", 2, 3)
    ]
    assert ended(driver) == ("completed", "approved")


def test_a_note_is_reported_to_the_stage_that_begins_and_to_no_other() -> None:
    """It stands at the step that is run again; the one after it has none."""
    driver = Driver(looped(), rejected_once("main.1.code/agent#1")).run()
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, stage="retry", note="mind the gap"))
    assert driver.state.owners["main~2.1.code"].note == "mind the gap"  # type: ignore[union-attr]
    loop = driver.state.owners["main"].body
    assert isinstance(loop, RepeatBody)
    assert (loop.carry.note, loop.finished, len(loop.memory.learnings)) == ("", 1, 1)


def test_a_stage_is_left_out() -> None:
    """It counts as completed with words that say so, and the ones behind it are run."""
    driver = Driver(looped(), rejected_once("main.1.code/agent#1")).run()
    new = again(driver, stage="skip", note="done by hand")
    assert kept(new) == [
        ("main~2.1.plan", "main.1.plan", "kept"),
        ("main~2.1.code", "", "skipped"),
    ]
    words = [f.output for f in new if isinstance(f, StepKept)][-1]
    assert words == "SKIPPED by a person: done by hand"
    assert asked(new) == ["main~2.1.review/agent#1"]
    assert ended(driver) == ("completed", "approved")


def test_leaving_out_the_reviewer_approves_nothing() -> None:
    """The iteration is judged at once by what is there, which is no approval."""
    script = rejected_once("main.1.review/agent#1")
    driver = Driver(looped(), script).run()
    new = again(driver, stage="skip")
    assert [f.output for f in new if isinstance(f, StepKept)][-1] == "SKIPPED by a person"
    assert asked(new)[0] == "main~2.2.plan/agent#1"
    assert ended(driver) == ("completed", "approved")


def test_again_and_again() -> None:
    """A stage that fails once more is tried once more, under a name of its own each time."""
    script = rejected_once("main.1.code/agent#1", **{"main~2.1.code/agent#1": BROKEN})
    driver = Driver(looped(), script).run()
    again(driver, stage="retry")
    assert ended(driver) == ("failed", "error")
    new = again(driver, stage="retry")
    assert kept(new) == [("main~3.1.plan", "main~2.1.plan", "kept")]
    assert ended(driver) == ("completed", "approved")


def test_without_a_stage_the_loop_begins_anew() -> None:
    """The event of a plain reopening means what it always meant."""
    driver = Driver(looped(), rejected_once("main.1.code/agent#1")).run()
    new = again(driver)
    assert kept(new) == []
    assert asked(new)[0] == "main~2.0.plan/agent#1"


def test_rounds_that_a_person_has_ended_are_followed_by_another() -> None:
    """Nothing of that pass is run again; the next one begins, though it was the last allowed."""
    plan = looped(max=2, gate=LoopGate(after=1))
    script = by_effect({"main~2.1.review/agent#1": "LGTM"}, default=Reply("Rejected"))
    driver = Driver(plan, script, people=decisions("reject")).run()
    assert ended(driver) == ("failed", "rejected")
    new = again(driver, stage="retry", note="try this")
    assert asked(new)[0] == "main~2.1.plan/agent#1"
    assert ended(driver) == ("completed", "approved")


def test_a_rejected_last_round_gets_one_more() -> None:
    """Whoever asks for it grants it."""
    plan = looped(max=1, gate=LoopGate())
    script = by_effect({"main~2.1.review/agent#1": "LGTM"}, default=Reply("Rejected"))
    driver = Driver(plan, script, people=decisions("reject")).run()
    again(driver, stage="skip")
    assert ended(driver) == ("completed", "approved")


def test_a_budget_that_was_used_up_is_given_anew() -> None:
    """With other limits the stage that had none left goes on."""
    plan = Plan(
        name="p",
        steps=looped().steps,
        limits=Limits(tokens=100),
    )
    script = by_effect({}, default=Reply("LGTM", usage=Usage(input_tokens=60)))
    driver = Driver(plan, script).run()
    assert ended(driver) == ("exhausted", "budget")
    new = again(driver, stage="retry", limits=Limits(tokens=500))
    assert asked(new) == ["main~2.0.review/agent#1"]
    assert ended(driver) == ("completed", "approved")


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param({"body": CallAgent(agent="plan")}, id="one call"),
        pytest.param({"each": Each(items=LiteralItems(values=("a", "b")))}, id="a list"),
    ],
)
def test_other_loops_do_not_stop_half_way(loop: dict[str, object]) -> None:
    """An iteration that is one call, or one of many, has nothing to keep."""
    driver = Driver(looped(**loop), by_effect({}, default=BROKEN)).run()
    assert stopped_half_way(driver.state) == {}


def test_it_is_the_same_after_any_cut() -> None:
    """Cut anywhere after it and settled again, the run says what its log says."""
    script = rejected_once("main.1.code/agent#1")
    driver = Driver(looped(), script).run()
    opened = len(driver.events) + 1
    again(driver, stage="retry", note="n")
    for end in [end for end in driver.ends if end >= opened]:
        one = Driver(driver.plan, script=script, events=driver.events[:end], texts=driver.texts)
        one.run()
        assert [type(f) for f in one.events] == [type(f) for f in driver.events]
