"""Stopping at every moment of a run: each request has its answer, each start its end."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectRequested,
    IterationStarted,
    RunFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Each,
    LoopGate,
    Repeat,
    RunCommand,
    Step,
    Steps,
    Wait,
)
from loopwright.model.checks import AllOf, CommandCheck, PersonCheck, Signal
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, Fail, by_effect, decisions, plan_of
from tests.kernel.invariants import broken_laws
from tests.support.laws.run import steps_left_open

WORK = CallAgent(agent="a")
ALL_LIMITS = Limits(wall_ms=10_000, pass_wall_ms=5_000)
GRAPH = Steps(
    steps=(
        Step(id="last", action=WORK, needs=("late",)),  # declared before what it needs
        Step(id="late", action=WORK, needs=("work",)),
        Step(id="work", action=WORK, limits=Limits(wall_ms=2_000)),
        Step(id="make", action=RunCommand(argv=("make",))),
        Step(id="ask", action=AskPerson(), needs=("work",)),
        Step(id="rest", action=Wait(ms=30), needs=("make",)),
    )
)
PLANS: dict[str, Plan] = {
    "loop": plan_of(Repeat(body=WORK, max=3, until=Signal(word="DONE"), delay_ms=20)),
    "checked by a program and a person": plan_of(
        Repeat(body=WORK, max=2, until=AllOf(parts=(CommandCheck(argv=("t",)), PersonCheck())))
    ),
    "gated, all limits": plan_of(
        Repeat(body=WORK, max=2, gate=LoopGate(), limits=ALL_LIMITS),
        limits=ALL_LIMITS,
        limits_of_step=ALL_LIMITS,
    ),
    "asked at the cap": plan_of(Repeat(body=WORK, max=1, at_cap="ask")),
    "retried": plan_of(WORK, retry=Retry(attempts=3, base_ms=10)),
    "graph in a loop": plan_of(Repeat(body=GRAPH, max=2, limits=ALL_LIMITS)),
    "items": plan_of(
        Repeat(
            body=WORK,
            each=Each(items=LiteralItems(values=(1, 2, 3)), parallel=2),
            limits=ALL_LIMITS,
        )
    ),
    "loop in a loop": plan_of(Repeat(body=Repeat(body=WORK, max=2, at_cap="complete"), max=2)),
    "looked at first": plan_of(
        Repeat(body=WORK, max=1, until=CommandCheck(argv=("t",)), check_first=True)
    ),
    "places are few": Plan(
        name="t", steps=tuple(Step(id=f"s{n}", action=WORK) for n in range(3)), parallel=1
    ),
}
ANSWERS = by_effect({"main/agent#1": Fail("rate_limited"), "main.-1/check0#1": 1})


def whole(name: str) -> Driver:
    return Driver(PLANS[name], ANSWERS, decisions("approve")).run()


def starts(events: list[AnyEvent]) -> list[AnyEvent]:
    return [f for f in events if isinstance(f, StepStarted | IterationStarted | EffectRequested)]


@pytest.mark.item("inv-14")
@pytest.mark.parametrize("name", PLANS)
def test_stop_at_every_moment(name: str) -> None:
    """Cancelled after any append, a run closes all that is open, begins nothing, and ends."""
    run = whole(name)
    assert run.state.finished is not None
    for end in run.ends[:-1]:
        stopped = run.cut(end)
        new = stopped.cancel("enough")
        assert broken_laws(stopped.events) == []
        assert stopped.ended[:2] == ("cancelled", "enough")
        assert isinstance(new[0], CancelRequested)
        assert starts(new) == []
        assert isinstance(new[-1], RunFinished)
        assert (stopped.state.pending, stopped.state.gates) == ({}, {})


@pytest.mark.parametrize("deadline", [True, False], ids=["deadline", "stop"])
@pytest.mark.parametrize("looped", [True, False], ids=["in a loop", "alone"])
def test_step_that_has_not_begun_when_nothing_else_is_open_is_skipped(
    deadline: bool, looped: bool
) -> None:
    """A paused run begins no step, and a deadline or a stop ends it all the same."""
    graph = Steps(steps=(Step(id="a", action=WORK), Step(id="b", action=WORK, needs=("a",))))
    action = Repeat(body=graph, max=2) if looped else graph
    run = Driver(plan_of(action, limits_of_step=Limits(wall_ms=2_000))).start()
    run.pause()
    place = "main.0" if looped else "main"
    run.answer(f"{place}.a/agent#1", "x")
    if deadline:
        run.fire("main/deadline#1")
        run.resume()
    else:
        run.cancel()
    (skipped,) = run.of(StepSkipped)
    assert isinstance(skipped, StepSkipped)
    assert (skipped.path, skipped.reason) == (f"{place}.b", "deadline" if deadline else "stopped")
    assert list(steps_left_open(run.plan, run.events)) == []
    assert run.end.reason == skipped.reason


@pytest.mark.parametrize("name", PLANS)
def test_stop_cut_anywhere(name: str) -> None:
    """A crash in the middle of closing is taken up: what is closed stays, the rest follows."""
    run = whole(name)
    for end in run.ends[:-1]:
        stopped = run.cut(end)
        stopped.cancel()
        for length in range(end + 1, len(stopped.events)):
            again = stopped.cut(length)
            assert again.ended[:2] == ("cancelled", "stopped")
            assert broken_laws(again.events) == []


@pytest.mark.parametrize("name", PLANS)
def test_late_answers_after_a_stop(name: str) -> None:
    """Answers that come after the end change nothing."""
    run = whole(name)
    for end in run.ends[:-1]:
        stopped = run.cut(end)
        late = stopped.ready()
        stopped.cancel()
        before = list(stopped.events)
        ended = stopped.end
        for event in late:
            assert stopped.append(event) == [event]
        assert stopped.end is ended
        assert stopped.events[: len(before)] == before


def test_stop_while_paused() -> None:
    """A paused run can be stopped."""
    run = Driver(PLANS["loop"]).start()
    run.pause()
    run.answer("main.0/agent#1", "x")
    run.cancel("torn_down")
    assert run.ended[:2] == ("cancelled", "torn_down")


def test_stopped_twice() -> None:
    """The first stop counts."""
    run = Driver(PLANS["loop"]).start()
    run.append(
        CancelRequested(at=run.clock, reason="first"),
        CancelRequested(at=run.clock, reason="second"),
    )
    assert run.end.reason == "first"
    run.cancel("third")
    assert run.end.reason == "first"


def test_stop_during_a_review_is_not_a_rejection() -> None:
    """The open question is closed, not answered."""
    run = Driver(PLANS["asked at the cap"], ANSWERS).run()
    new = run.cancel()
    assert [type(event).__name__ for event in new] == [
        "CancelRequested",
        "GateClosed",
        "StepFinished",
        "RunFinished",
    ]
    assert run.end.error is None
