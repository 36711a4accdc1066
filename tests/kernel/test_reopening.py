"""A run that has ended and goes on: what is kept, what begins anew, and under which names."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import (
    AnyEvent,
    EffectRequested,
    IterationStarted,
    RunFinished,
    RunReopened,
    StepFinished,
    StepSkipped,
    StepStarted,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopened_runs import at_cap
from loopwright.model.actions import AskPerson, CallAgent, Cel, Repeat, Step, Steps, StopRun
from loopwright.model.checks import Regex
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, ProgressLog, Retry
from tests.kernel.driving import Driver, Fail, Reply, by_effect, decisions
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

CALL = CallAgent(agent="worker")
BROKEN = Fail(detail="broken")


def plan_of(*steps: Step, **more: object) -> Plan:
    return Plan(name="p", steps=steps, **more)  # type: ignore[arg-type]


def chain_of(*names: str, **more: object) -> Plan:
    """Steps that need each other in a row."""
    needs = [(), *[(name,) for name in names]]
    steps = [
        Step(id=name, action=CALL, needs=need) for name, need in zip(names, needs, strict=False)
    ]
    return plan_of(*steps, **more)


def reopened(driver: Driver, **more: object) -> list[AnyEvent]:
    """Let a run that has ended go on to its next end; the events of that."""
    before = len(driver.events)
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, **more))  # type: ignore[arg-type]
    driver.run()
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)
    return driver.events[before:]


def started(events: list[AnyEvent]) -> list[str]:
    return [event.path for event in events if isinstance(event, StepStarted)]


def effects(events: list[AnyEvent]) -> list[str]:
    return [event.effect for event in events if isinstance(event, EffectRequested)]


def outcome(driver: Driver) -> str:
    assert driver.state.finished is not None
    return driver.state.finished.outcome


@pytest.mark.item("zenflow-68", "archon-63")
def test_only_what_did_not_complete_is_run_again() -> None:
    """Completed steps keep their results; the failed one and what it spoiled begin, with new names
    for what was asked before."""
    driver = Driver(chain_of("a", "b", "c"), script=by_effect({"b/agent#1": BROKEN})).run()
    assert outcome(driver) == "failed"
    new = reopened(driver)
    assert started(new) == ["b", "c"]
    assert effects(new) == ["b~2/agent#1", "c/agent#1"]
    assert outcome(driver) == "completed"
    assert {name: r.status for name, r in driver.state.root.body.results.items()} == {
        "a": "completed",
        "b": "completed",
        "c": "completed",
    }


@pytest.mark.item("zenflow-68", "archon-63")
def test_a_failed_loop_begins_with_its_first_iteration() -> None:
    """It is the whole step that did not complete, so its iterations are counted anew."""
    loop = Repeat(body=CALL, max=3, until=Regex(pattern="DONE"))
    plan = plan_of(Step(id="dev", action=loop))
    driver = Driver(plan, script=by_effect({"dev.1/agent#1": BROKEN, "dev~2.2/agent#1": "DONE"}))
    driver.run()
    new = reopened(driver)
    passes = [event for event in new if isinstance(event, IterationStarted)]
    assert [(event.path, event.iteration) for event in passes] == [
        ("dev~2.0", 1),
        ("dev~2.1", 2),
        ("dev~2.2", 3),
    ]
    [ended] = [event for event in new if isinstance(event, StepFinished)]
    assert (ended.path, ended.status, ended.iterations) == ("dev", "completed", 3)


def test_what_completed_behind_a_failure_is_not_run_again() -> None:
    """A step that runs whatever came before it has completed once and for all."""
    plan = plan_of(
        Step(id="a", action=CALL),
        Step(id="clean", action=CALL, needs=("a",), join="all_done"),
        Step(id="last", action=CALL, needs=("a", "clean")),
    )
    driver = Driver(plan, script=by_effect({"a/agent#1": BROKEN})).run()
    new = reopened(driver)
    assert started(new) == ["a", "last"]
    assert outcome(driver) == "completed"


def test_a_condition_is_looked_at_again() -> None:
    """What was left out because of the failed step may have its turn now."""
    plan = plan_of(
        Step(id="a", action=CALL, on_error="continue"),
        Step(id="b", action=CALL, needs=("a",)),
        Step(
            id="c",
            action=CALL,
            needs=("a",),
            join="all_done",
            when=Cel(text="steps.a.status == 'completed'"),
        ),
        Step(id="d", action=CALL),
    )
    driver = Driver(plan, script=by_effect({"a/agent#1": BROKEN, "d/agent#1": BROKEN})).run()
    skipped = [event.path for event in driver.events if isinstance(event, StepSkipped)]
    assert skipped == ["b", "c"]
    new = reopened(driver)
    assert sorted(started(new)) == ["a", "b", "c", "d"]
    assert outcome(driver) == "completed"


def test_tries_are_counted_anew() -> None:
    """A policy allows as many tries of a whole step in each opening; names go on counting."""
    loop = Repeat(body=CALL, max=1, at_cap="complete")
    step = Step(id="dev", action=loop, retry=Retry(attempts=2, on=("any",)))
    broken = {f"{name}.0/agent#1": BROKEN for name in ("dev", "dev~2", "dev~3")}
    driver = Driver(plan_of(step), script=by_effect(broken)).run()
    assert outcome(driver) == "failed"
    new = reopened(driver)
    assert effects(new) == ["dev~3.0/agent#1", "dev~4.0/agent#1"]
    assert outcome(driver) == "completed"


def test_steps_begin_after_one_that_was_tried_again() -> None:
    """A new try of a whole step changes nothing for the steps beside and behind it."""
    loop = Repeat(body=CALL, max=1, at_cap="complete")
    again = Step(id="dev", action=loop, retry=Retry(attempts=2, on=("any",)))
    plan = plan_of(again, Step(id="last", action=CALL, needs=("dev",)))
    driver = Driver(plan, script=by_effect({"dev.0/agent#1": BROKEN})).run()
    assert outcome(driver) == "completed"
    assert started(driver.events) == ["dev", "last"]


def test_gates_are_asked_under_new_names() -> None:
    """A rejection failed the run; going on asks the person again, and the answer before is over."""
    plan = plan_of(Step(id="sure", action=AskPerson()), Step(id="go", action=CALL, needs=("sure",)))
    driver = Driver(plan, people=decisions(("reject", "no"))).run()
    assert outcome(driver) == "failed"
    driver.people = decisions("approve")
    reopened(driver)
    assert outcome(driver) == "completed"


def test_a_group_of_steps_begins_as_a_whole() -> None:
    """Steps inside a step are part of it: what of them completed is done again with it."""
    inner = Steps(steps=(Step(id="x", action=CALL), Step(id="y", action=CALL, needs=("x",))))
    driver = Driver(
        plan_of(Step(id="a", action=inner)), script=by_effect({"a.y/agent#1": BROKEN})
    ).run()
    assert effects(reopened(driver)) == ["a~2.x/agent#1", "a~2.y/agent#1"]


def test_what_was_spent_stays_spent() -> None:
    """A budget that is used up ends the run again; another one lets it go on."""
    costly = Reply("ok", usage=Usage(input_tokens=50))
    plan = chain_of("a", "b", "c", limits=Limits(tokens=100))
    driver = Driver(plan, script=by_effect({}, default=costly)).run()
    assert outcome(driver) == "exhausted"
    assert effects(reopened(driver)) == []
    assert outcome(driver) == "exhausted"
    assert effects(reopened(driver, limits=Limits(tokens=150))) == ["c~3/agent#1"]
    assert outcome(driver) == "completed"
    assert driver.state.usage.input_tokens == 150


def test_limits_may_come_with_the_reopening() -> None:
    """A plan without a budget has one from then on."""
    costly = Reply("ok", usage=Usage(input_tokens=50))
    script = by_effect({"a/agent#1": BROKEN}, default=costly)
    driver = Driver(chain_of("a", "b", "c"), script=script).run()
    reopened(driver, limits=Limits(tokens=60))
    assert driver.state.finished is not None
    assert (outcome(driver), driver.state.finished.reason) == ("exhausted", "budget")


def test_time_limits_begin_anew() -> None:
    """The run has its whole time again, measured by a timer of its own."""
    plan = chain_of("a", "b", limits=Limits(wall_ms=1_000))
    driver = Driver(plan, script=by_effect({"a/agent#1": None})).run()
    assert driver.state.finished is not None
    assert (outcome(driver), driver.state.finished.reason) == ("exhausted", "deadline")
    new = reopened(driver)
    assert effects(new) == ["/deadline#2", "a~2/agent#1", "b/agent#1"]
    assert outcome(driver) == "completed"


def test_as_many_calls_at_once_as_before() -> None:
    """Calls that waited for a place when the run ended hold none afterwards."""
    steps = [Step(id=name, action=CALL) for name in ("a", "b", "c")]
    plan = plan_of(*steps, parallel=1, on_failure="abort")
    driver = Driver(plan, script=by_effect({"a/agent#1": BROKEN})).run()
    reopened(driver)
    assert outcome(driver) == "completed"


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "not paused"])
def test_a_run_may_be_reopened_again_and_again(paused: bool) -> None:
    """Each time under a new name; and a pause ends with the run that was paused."""
    broken = {f"a{n}/agent#1": BROKEN for n in ("", "~2", "~3")}
    driver = Driver(chain_of("a"), script=by_effect(broken)).run()
    for _ in range(3):
        driver.state.control.paused = paused
        reopened(driver)
    assert outcome(driver) == "completed"
    assert driver.state.reopenings.count == 3


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(chain_of("a"), id="completed"),
        pytest.param(plan_of(Step(id="a", action=StopRun())), id="cancelled"),
    ],
)
def test_other_ends_are_for_good(plan: Plan) -> None:
    """A run that completed or was stopped is not reopened: the event changes nothing."""
    driver = Driver(plan).run()
    finished, ignored = driver.state.finished, driver.state.ignored
    driver.append(RunReopened(at=driver.clock))
    assert driver.state.finished is finished
    assert driver.state.ignored == ignored + 1
    assert event_problems(plan, driver.events) != []


def test_a_run_under_way_is_not_reopened() -> None:
    """The event is ignored, and the run goes on as it would have."""
    driver = Driver(chain_of("a", "b")).start()
    driver.append(RunReopened(at=driver.clock))
    assert driver.state.ignored == 1
    driver.run()
    assert isinstance(driver.events[-1], RunFinished)
    assert outcome(driver) == "completed"


def test_any_part_of_the_log_folds_to_the_same() -> None:
    """Cut anywhere and settled again, a reopened run says nothing that is not in its log."""
    loop = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"))
    plan = plan_of(Step(id="a", action=CALL), Step(id="b", action=loop, needs=("a",)))
    script = by_effect({"b.1/agent#1": BROKEN, "b~2.1/agent#1": "DONE"})
    driver = Driver(plan, script=script).run()
    reopened(driver)
    for end in driver.ends:
        again = Driver(plan, script=script, events=driver.events[:end], texts=driver.texts).run()
        if not isinstance(again.events[-1], RunFinished) or len(again.events) < len(driver.events):
            again.append(RunReopened(at=again.clock))
            again.run()
        assert [type(f) for f in again.events] == [type(f) for f in driver.events]


# -- a loop that stopped at its cap ----------------------------------------------------------------


LOOP = Repeat(
    body=CALL, max=2, until=Regex(pattern="DONE"), memory=ProgressLog(), limits=Limits(tokens=1_000)
)
COSTLY = Reply("ok", usage=Usage(input_tokens=50))


def test_a_loop_at_its_cap_continues_with_the_next_iteration() -> None:
    """With more iterations allowed it counts on, knows what it knew, and what it spent stays
    spent.
    """
    script = by_effect({"dev~2.3/agent#1": "DONE"}, default=COSTLY)
    driver = Driver(plan_of(Step(id="dev", action=LOOP)), script=script).run()
    assert outcome(driver) == "exhausted"
    assert [(path, kept.passes, kept.most) for path, kept in at_cap(driver.state).items()] == [
        ("dev", 2, 2)
    ]
    before = len(driver.events)
    driver.append(RunReopened(at=driver.clock, passes=5))
    [owner] = driver.state.root.body.active.values()
    assert isinstance(owner.body, RepeatBody)
    assert (owner.body.finished, len(owner.body.memory.learnings), owner.body.spent.tokens) == (
        2,
        2,
        100,
    )
    driver.run()
    passes = [event for event in driver.events[before:] if isinstance(event, IterationStarted)]
    assert [(event.path, event.iteration, event.of) for event in passes] == [
        ("dev~2.2", 3, 5),
        ("dev~2.3", 4, 5),
    ]
    assert outcome(driver) == "completed"
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)


def test_a_cap_may_be_raised_again_and_again() -> None:
    """Each time the loop stops at the new cap, and may be allowed more."""
    driver = Driver(plan_of(Step(id="dev", action=LOOP))).run()
    for most in (3, 5):
        reopened(driver, passes=most)
        assert outcome(driver) == "exhausted"
        [kept] = at_cap(driver.state).values()
        assert (kept.passes, kept.most) == (most, most)


def test_without_more_iterations_a_loop_at_its_cap_begins_anew() -> None:
    """The event of a plain reopening means what it always meant."""
    driver = Driver(plan_of(Step(id="dev", action=LOOP))).run()
    assert [event.path for event in reopened(driver) if isinstance(event, IterationStarted)] == [
        "dev~2.0",
        "dev~2.1",
    ]


def test_a_new_budget_counts_from_the_reopening() -> None:
    """With other limits for the whole run, those of the loop begin anew under them."""
    driver = Driver(plan_of(Step(id="dev", action=LOOP)), script=by_effect({}, default=COSTLY))
    driver.run()
    driver.append(RunReopened(at=driver.clock, passes=3, limits=Limits(tokens=9_000)))
    [owner] = driver.state.root.body.active.values()
    assert isinstance(owner.body, RepeatBody)
    assert owner.body.spent.tokens == 0


def test_the_cap_of_a_loop_inside_is_not_that_of_the_loop_around() -> None:
    """An iteration that failed because a loop in it met its cap: the outer one has not met its
    own.
    """
    inner = Repeat(body=CALL, max=1, until=Regex(pattern="DONE"), at_cap="fail")
    outer = Repeat(body=inner, max=1, until=Regex(pattern="DONE"))
    driver = Driver(plan_of(Step(id="dev", action=outer))).run()
    assert driver.state.finished is not None
    assert driver.state.finished.reason == "max_iterations"
    assert at_cap(driver.state) == {}


def test_a_reopening_with_more_iterations_is_the_same_after_any_cut() -> None:
    """Cut anywhere after it and settled again, the run says what its log says."""
    script = by_effect({"dev~2.3/agent#1": "DONE"}, default=COSTLY)
    driver = Driver(plan_of(Step(id="dev", action=LOOP)), script=script).run()
    opened = len(driver.events) + 1
    reopened(driver, passes=4)
    for end in [end for end in driver.ends if end >= opened]:
        again = Driver(driver.plan, script=script, events=driver.events[:end], texts=driver.texts)
        again.run()
        assert [type(f) for f in again.events] == [type(f) for f in driver.events]
