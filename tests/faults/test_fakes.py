"""The public fakes do what they say; that they are of use, the other tests here show."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from loopwright.kernel.event_parts import AgentCall, CommandCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectRequested,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunStarted,
    StepStarted,
    Usage,
)
from loopwright.model.actions import Repeat
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from loopwright.ports import Answer, Clock, EffectJob, EffectSuccess, Performer
from loopwright.testing import FakeClock, ScriptedPerformer, always, by_effect, by_iteration, never
from tests.support.jobs import effect_job
from tests.support.laws.run import event_problems
from tests.support.plans import WORKER, for_each, graph, loop, plan_of, retrying, step


def job(effect: str = "a/agent#1", iteration: int = 1, *, agent: bool = True) -> EffectJob:
    return effect_job(
        run="r",
        effect=effect,
        path=effect.partition("/")[0],
        iteration=iteration,
        attempt=1,
        call=AgentCall(agent="worker") if agent else CommandCall(argv=("x",), timeout_ms=1),
        workspace="",
        token="t",
    )


# -- the clock -------------------------------------------------------------------------------------


def test_time_passes_only_when_told() -> None:
    """Timers run in the order of their times, each at its own, and not before."""
    clock: FakeClock = FakeClock(1_000)
    as_port: Clock = clock
    seen: list[tuple[str, int]] = []
    for name, when in (("late", 1_300), ("early", 1_100)):
        as_port.call_at(when, lambda name=name: seen.append((name, clock.now_ms())))
    as_port.call_after(200, lambda: seen.append(("between", clock.now_ms())))
    assert clock.next_in == 100
    assert clock.advance(250) == 2
    assert clock.advance(250) == 1
    assert seen == [("early", 1_100), ("between", 1_200), ("late", 1_300)]
    assert clock.next_in is None


def test_a_wall_clock_that_is_set_moves_no_steady_timer() -> None:
    """Set forward, what waits for a time is due and what waits for a while is not; and back."""
    clock, seen = FakeClock(1_000), list[str]()
    clock.call_at(1_100, lambda: seen.append("at"))
    clock.call_after(100, lambda: seen.append("after"))
    clock.jump(500)
    assert (clock.fire(), seen) == (1, ["at"])
    clock.jump(-10_000)
    clock.call_at(1_100, lambda: seen.append("at, later"))
    assert clock.advance(100) == 1
    assert seen == ["at", "after"]


def test_a_timer_can_be_cancelled_and_forgotten() -> None:
    """A cancelled timer never runs; a process that ends takes its timers along."""
    clock, seen = FakeClock(), list[str]()
    clock.call_after(1, lambda: seen.append("cancelled"))()
    clock.call_after(2, lambda: seen.append("forgotten"))
    assert clock.next_in == 2
    clock.forget()
    assert (clock.advance(10), seen) == (0, [])


# -- the performer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("performer", "asked", "said"),
    [
        pytest.param(
            ScriptedPerformer(), job(), EffectSuccess(output="ok", code=0), id="by default"
        ),
        pytest.param(ScriptedPerformer(always(3)), job(), EffectSuccess(code=3), id="a code"),
        pytest.param(
            ScriptedPerformer(by_effect({"b/agent#1": "b"}, "other")),
            job("b/agent#1"),
            EffectSuccess(output="b", code=0),
            id="by effect",
        ),
        pytest.param(
            ScriptedPerformer(by_iteration(["one", "two"])),
            job(iteration=5),
            EffectSuccess(output="two", code=0),
            id="the last again",
        ),
        pytest.param(
            ScriptedPerformer(by_iteration(["one"], [1, 0])),
            job(iteration=1, agent=False),
            EffectSuccess(code=1),
            id="a command",
        ),
    ],
)
def test_a_script_answers_at_once(
    performer: ScriptedPerformer, asked: EffectJob, said: Answer
) -> None:
    """An answer of the script comes at once, and the job is noted."""
    as_port: Performer = performer
    assert as_port.perform(asked) == said
    assert performer.jobs == [asked]


def test_a_job_is_held_until_it_is_answered() -> None:
    """A held job waits for its answer, once; one that is no longer wanted is let go."""

    async def story() -> None:
        performer = ScriptedPerformer(never())
        waits = [asyncio.ensure_future(performer.perform(job(e))) for e in ("a/x#1", "b/x#1")]
        await asyncio.sleep(0)
        assert performer.answer("r", "a/x#1", "yes")
        assert not performer.answer("r", "a/x#1", "again")
        assert not performer.answer("r", "c/x#1", "unknown")
        waits[1].cancel()
        assert await waits[0] == EffectSuccess(output="yes", code=0)
        await asyncio.sleep(0)
        assert performer.held == {}

    asyncio.run(story())


# -- the laws --------------------------------------------------------------------------------------

START = RunStarted(at=1, run="r", plan="p", name="t")
STEP = StepStarted(at=1, path="main")
END = RunFinished(at=9, outcome="completed", reason="done")


def asked(effect: str) -> EffectRequested:
    return EffectRequested(
        at=1, path=effect.partition("/")[0], effect=effect, call=AgentCall(agent="worker")
    )


def done(effect: str) -> EffectDone:
    return EffectDone(at=2, path=effect.partition("/")[0], effect=effect)


def passes(*numbers: int) -> list[AnyEvent]:
    return [IterationStarted(at=1, path=f"main.{n}", iteration=n + 1) for n in numbers]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        pytest.param([STEP], "fact 1 is StepStarted", id="no beginning"),
        pytest.param(
            [START, END, STEP], "fact 3 comes after the end of the run", id="after the end"
        ),
        pytest.param([START, STEP, STEP], "main begins or is skipped a second time", id="twice"),
        pytest.param(
            [START, done("main/agent#1")],
            "main/agent#1 is answered and was not requested",
            id="answer",
        ),
        pytest.param(
            [START, STEP, asked("main/agent#1"), END],
            "main/agent#1 is never answered",
            id="open end",
        ),
        pytest.param([START, STEP, *passes(1)], "main.1 is pass 2, expected 1", id="gap"),
        pytest.param(
            [START, STEP, *passes(0, 1, 2, 3)],
            "main.3 is one more than the 3 passes allowed",
            id="cap",
        ),
        pytest.param(
            [START, STEP, *passes(0), asked("main.0/agent#2")],
            "main.0/agent#2 follows None",
            id="tries",
        ),
    ],
)
def test_a_broken_law_is_named(events: list[AnyEvent], problem: str) -> None:
    """Events that cannot be are told from those that can, in words."""
    assert problem in event_problems(loop(), events)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            plan_of(step("main", Repeat(body=WORKER, max=3, limits=Limits(tokens=10)))), id="loop"
        ),
        pytest.param(plan_of(replace(loop().steps[0], limits=Limits(tokens=10))), id="step"),
        pytest.param(replace(loop(), limits=Limits(tokens=10)), id="run"),
        pytest.param(replace(loop(), limits=Limits(usd=0.5)), id="money"),
    ],
)
def test_work_beyond_a_budget_is_named(plan: Plan) -> None:
    """A call that begins when a budget around it is used up breaks a law, one before does not."""
    used = replace(done("main.0/agent#1"), usage=Usage(input_tokens=9, output_tokens=1, usd=0.5))
    events = [START, STEP, *passes(0), asked("main.0/agent#1"), used]
    end = IterationFinished(at=3, path="main.0", iteration=1, status="completed", done=False)
    assert event_problems(plan, events) == []
    [problem] = event_problems(plan, [*events, end, *passes(1), asked("main.1/agent#1")])
    assert problem.startswith("main.1/agent#1 begins after the budget of")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(loop(), id="loop"),
        pytest.param(for_each((1, 2), graph(step("a"), step("b", needs=("a",)))), id="each"),
        pytest.param(plan_of(retrying("main")), id="retrying"),
    ],
)
def test_small_plans_begin_lawfully(plan: Plan) -> None:
    """The start of a run of any of the small plans breaks no law."""
    assert event_problems(plan, [START, STEP]) == []
