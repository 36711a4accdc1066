"""Time limits: who is ended by which timer, and what is closed with it."""

from __future__ import annotations

import msgspec
import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import HOME_BUDGET, SleepCall
from loopwright.kernel.events import (
    EffectFailed,
    EffectRequested,
    IterationFinished,
    StepFinished,
    StepSkipped,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.model.actions import AskPerson, CallAgent, Each, Repeat, RunCommand, Step, Steps
from loopwright.model.checks import CommandCheck, PersonCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import LiteralItems
from tests.kernel.driving import (
    START,
    Driver,
    Fail,
    Reply,
    Texts,
    by_effect,
    by_iteration,
    drive,
    plan_of,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
WALL = Limits(wall_ms=1_000)


def loop(**more: object) -> Repeat:
    return Repeat(**{"body": WORK, "max": 9, **more})


@pytest.mark.parametrize(
    ("plan", "timer"),
    [
        pytest.param(plan_of(loop(), limits=WALL), "/deadline#1", id="run"),
        pytest.param(plan_of(loop(), limits_of_step=WALL), "main/deadline#1", id="step"),
        pytest.param(plan_of(loop(limits=WALL)), "main/loop-deadline#1", id="loop"),
        pytest.param(
            plan_of(loop(limits=Limits(pass_wall_ms=1_000))), "main.1/deadline#1", id="pass"
        ),
        pytest.param(plan_of(WORK, limits_of_step=WALL), "main/deadline#1", id="single call"),
        pytest.param(
            plan_of(Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2))), limits=WALL)),
            "main/loop-deadline#1",
            id="items",
        ),
        pytest.param(
            plan_of(loop(body=loop(), limits=WALL)), "main/loop-deadline#1", id="loop in a loop"
        ),
        pytest.param(
            plan_of(loop(until=CommandCheck(argv=("t",)), limits=WALL)),
            "main/loop-deadline#1",
            id="during a check",
        ),
        pytest.param(
            plan_of(loop(until=PersonCheck(), limits=WALL)), "main/loop-deadline#1", id="gate"
        ),
        pytest.param(
            plan_of(loop(at_cap="ask", max=1, limits=WALL)), "main/loop-deadline#1", id="cap gate"
        ),
        pytest.param(plan_of(AskPerson(), limits_of_step=WALL), "main/deadline#1", id="gate step"),
        pytest.param(
            plan_of(
                Steps(steps=(Step(id="a", action=WORK), Step(id="b", action=WORK, needs=("a",)))),
                limits_of_step=WALL,
            ),
            "main/deadline#1",
            id="graph",
        ),
        pytest.param(
            plan_of(loop(delay_ms=5_000, limits=WALL)), "main/loop-deadline#1", id="between passes"
        ),
    ],
)
def test_deadlines(plan: Plan, timer: str) -> None:
    """The timer ends its place as exhausted and closes everything inside."""
    run = drive(plan, by_effect({"main.0/agent#1": "one"}, default=None))
    assert run.ended[:2] == ("exhausted", "deadline")
    assert run.end.error is not None
    assert run.end.error.type == "deadline"
    assert broken_laws(run.events) == []
    (asked,) = [f for f in run.of(EffectRequested) if f.effect == timer]
    assert isinstance(asked.call, SleepCall)
    assert asked.call.until == asked.at + 1_000
    assert run.end.at >= asked.call.until


@pytest.mark.item("zenflow-53")
@pytest.mark.parametrize(
    ("plan", "status", "run_ends"),
    [
        pytest.param(plan_of(loop(), limits=WALL), "cancelled", "exhausted", id="run"),
        pytest.param(plan_of(loop(), limits_of_step=WALL), "failed", "failed", id="step"),
        pytest.param(plan_of(loop(limits=WALL)), "failed", "failed", id="loop"),
        pytest.param(
            plan_of(loop(limits=Limits(pass_wall_ms=1_000))), "failed", "failed", id="pass"
        ),
        pytest.param(
            plan_of(Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2))), limits=WALL)),
            "failed",
            "failed",
            id="items",
        ),
    ],
)
def test_a_late_part_of_a_partial_run_has_failed(plan: Plan, status: str, run_ends: str) -> None:
    """Where a run may be partly completed there is nothing between done and failed for a part."""
    plan = msgspec.structs.replace(plan, outcome="partial")
    run = drive(plan, by_effect({"main.0/agent#1": "one"}, default=None))
    assert run.ended[:2] == (run_ends, "deadline")
    assert [event.status for event in run.of(StepFinished)] == [status]
    assert broken_laws(run.events) == []


def test_a_step_whose_time_is_over_is_not_begun_anew() -> None:
    """The time of a step is that of all its tries."""
    retried = Step(id="main", action=loop(), limits=WALL, retry=Retry(attempts=3, on=("any",)))
    plan = Plan(name="t", steps=(retried,), agents={"a": Agent()}, outcome="partial")
    run = drive(plan, by_effect({}, default=None))
    assert run.ended[:2] == ("failed", "deadline")
    assert [f.effect for f in run.of(EffectRequested)] == ["main/deadline#1", "main.0/agent#1"]


def test_closing_events_of_a_deadline() -> None:
    """What was under way is withdrawn, ended, and said to have been ended by the deadline."""
    inner = Steps(steps=(Step(id="a", action=WORK), Step(id="b", action=WORK, needs=("a",))))
    run = drive(plan_of(loop(body=inner, limits=WALL)), by_effect({}, default=None))
    closing = [f for f in run.events if f.at == run.end.at][1:]
    assert [type(f) for f in closing[:4]] == [
        EffectFailed,
        StepFinished,
        StepSkipped,
        IterationFinished,
    ]
    failed, step, skipped, ended = closing[:4]
    assert (failed.error.type, failed.error.detail) == ("cancelled", "deadline")
    assert (step.path, step.status, step.reason) == ("main.0.a", "cancelled", "deadline")
    assert (skipped.path, skipped.status, skipped.reason) == ("main.0.b", "cancelled", "deadline")
    assert (ended.path, ended.status, ended.reason) == ("main.0", "cancelled", "deadline")


def test_a_deadline_keeps_what_was_done() -> None:
    """The output of the last finished iteration survives the deadline."""
    run = drive(plan_of(loop(limits=WALL)), by_iteration("one", "two", None))
    assert run.ended == ("exhausted", "deadline", "two")
    assert run.passes == 3


def test_timer_of_an_iteration_starts_anew() -> None:
    """Each iteration has its own time; one that ends in time withdraws its timer."""
    run = drive(plan_of(loop(max=3, limits=Limits(pass_wall_ms=50))), by_iteration("x"))
    assert run.ended[:2] == ("exhausted", "max_iterations")
    timers = [f for f in run.of(EffectRequested) if isinstance(f.call, SleepCall)]
    assert [f.effect for f in timers] == [f"main.{n}/deadline#1" for n in range(3)]
    assert broken_laws(run.events) == []


def test_late_timer_changes_nothing() -> None:
    """A timer that goes off after its place has ended is ignored."""
    run = Driver(plan_of(loop(max=2, limits=Limits(pass_wall_ms=50))), by_iteration("x")).start()
    timer = run.request("main.0/deadline#1")
    run.answer("main.0/agent#1", "x")
    ignored = run.state.ignored
    new = run.append(run.answer_event(timer, by_iteration("")(timer)))
    assert (len(new), run.state.ignored) == (1, ignored + 1)
    assert run.run().ended[:2] == ("exhausted", "max_iterations")


def test_time_limit_covers_retries() -> None:
    """Waiting for another try counts as time."""
    plan = plan_of(
        WORK, limits_of_step=WALL, retry=Retry(attempts=99, base_ms=400, on=("rate_limited",))
    )
    run = drive(plan, by_effect({}, default=Fail("rate_limited")))
    assert run.ended[:2] == ("exhausted", "deadline")
    assert run.end.at - START <= 1_010


def test_step_with_a_tolerated_deadline() -> None:
    """A step that may fail may also run out of time."""
    run = drive(
        plan_of(WORK, limits_of_step=WALL, on_error="continue"), by_effect({}, default=None)
    )
    assert run.ended[:2] == ("completed", "done")


# -- retries ---------------------------------------------------------------------------------------

LIMITED = Fail("rate_limited")


def sleeps(run: Driver) -> list[int]:
    return [
        f.call.until - f.at
        for f in run.of(EffectRequested)
        if isinstance(f.call, SleepCall) and "/backoff#" in f.effect
    ]


@pytest.mark.parametrize(
    ("answers", "retry", "ended", "waits"),
    [
        pytest.param(
            [LIMITED, "ok"], Retry(attempts=3, base_ms=100), "completed", [100], id="second try"
        ),
        pytest.param(
            [LIMITED, LIMITED, "ok"], Retry(attempts=3, base_ms=100), "completed", [100, 200],
            id="third try",
        ),
        pytest.param(
            [LIMITED] * 3, Retry(attempts=3, base_ms=100), "failed", [100, 200], id="gives up"
        ),
        pytest.param([LIMITED], Retry(), "failed", [], id="no policy"),
        pytest.param(
            [Fail("agent")], Retry(attempts=3), "failed", [], id="not a failure to retry"
        ),
        pytest.param(
            [Fail("rate_limited", retry_after_ms=7_000), "ok"], Retry(attempts=3, base_ms=100),
            "completed", [7_000], id="told when to come back",
        ),
        pytest.param(
            [LIMITED] * 4 + ["ok"], Retry(attempts=5, base_ms=100, cap_ms=250), "completed",
            [100, 200, 250, 250], id="capped waits",
        ),
    ],
)  # fmt: skip
def test_retries(answers: list[object], retry: Retry, ended: str, waits: list[int]) -> None:
    """A retryable failure is tried again after its wait, so often and no more."""
    table = {f"main.0/agent#{n}": answer for n, answer in enumerate(answers, start=1)}
    run = drive(plan_of(Repeat(body=WORK, max=1, at_cap="complete"), retry=retry), by_effect(table))
    assert run.end.outcome == ended
    assert sleeps(run) == waits
    assert run.passes == 1, "tries are counted apart from passes"
    assert broken_laws(run.events) == []


def test_each_iteration_has_all_its_tries() -> None:
    """Tries of one iteration take none from the next."""
    table = {f"main.{n}/agent#1": LIMITED for n in range(3)}
    retry = Retry(attempts=2, base_ms=10)
    run = drive(plan_of(Repeat(body=WORK, max=3), retry=retry), by_effect(table))
    assert run.ended == ("exhausted", "max_iterations", "ok")
    assert sleeps(run) == [10, 10, 10]


@pytest.mark.parametrize(
    ("on", "outcome"),
    [
        pytest.param(("exit",), "completed", id="retried"),
        pytest.param(("rate_limited",), "failed", id="not named"),
    ],
)
def test_a_program_that_fails_may_be_retried(on: tuple[str, ...], outcome: str) -> None:
    """For a step that runs a program, a bad code is a failure that a policy can name."""
    plan = plan_of(RunCommand(argv=("x",)), retry=Retry(attempts=2, base_ms=10, on=on))
    run = drive(plan, by_effect({"main/command#1": 1, "main/command#2": 0}))
    assert run.end.outcome == outcome


def test_no_try_without_money() -> None:
    """A retry is a call: it does not begin when the budget is used up."""
    used = by_iteration(Fail("rate_limited", usage=Usage(0, 0, 0.5)))
    run = drive(plan_of(WORK, limits_of_step=Limits(usd=0.5), retry=Retry(attempts=3)), used)
    assert run.ended[:2] == ("exhausted", "budget")
    assert sleeps(run) == []


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        pytest.param(Limits(tokens=15), True, id="used up"),
        pytest.param(Limits(tokens=99), False, id="something left"),
        pytest.param(Limits(usd=0.01), True, id="money"),
    ],
)
def test_a_budget_that_ends_elsewhere_ends_the_wait_for_the_next_iteration(
    limits: Limits, ends: bool
) -> None:
    """A loop between two iterations learns at once that there is no next one, and so after a
    crash.
    """
    plan = plan_of(
        Steps(
            steps=(
                Step(id="calls", action=WORK),
                Step(id="waits", action=loop(body=RunCommand(argv=("t",)), delay_ms=5_000)),
            )
        ),
        limits=limits,
    )
    run = Driver(plan).start()
    run.answer("main.waits.0/command#1", 0)
    used = Usage(input_tokens=10, output_tokens=5, usd=0.01)
    new = run.answer("main.calls/agent#1", Reply("done", usage=used))
    ended = [
        event.path for event in new if isinstance(event, StepFinished) and event.reason == "budget"
    ]
    assert ended == (["main.waits", "main"] if ends else [])
    assert settle(fold(plan, run.events), Texts(), run.state.now) == []


@pytest.mark.item("aldo-27")
@pytest.mark.parametrize("attempts", [1, 3])
def test_what_all_runs_may_use_together_is_no_failure(attempts: int) -> None:
    """A call that is refused for it ends the run at a limit, and is not tried again."""
    retry = Retry(attempts=attempts, on=("any",))
    step = Step(id="main", action=CallAgent(agent="worker"), retry=retry)
    plan = Plan(name="p", steps=(step,))
    driver = Driver(plan, script=by_effect({}, default=Fail(HOME_BUDGET, "spent 5 of 5"))).run()
    assert driver.ended[:2] == ("exhausted", "home_budget")
    assert len([event for event in driver.events if isinstance(event, EffectRequested)]) == 1


@pytest.mark.item("aldo-27")
def test_the_same_for_a_turn_of_a_model() -> None:
    """A conversation that is not paid for ends at the limit too."""
    agent = Agent(spec="model:x/y")
    plan = Plan(
        name="p",
        steps=(Step(id="main", action=CallAgent(agent="worker")),),
        agents={"worker": agent},
    )
    driver = Driver(plan, script=by_effect({}, default=Fail(HOME_BUDGET, "spent 5 of 5"))).run()
    assert driver.ended[:2] == ("exhausted", "home_budget")
