"""Places among the parallel calls: capped, shared fairly, and none forgotten."""

from __future__ import annotations

import msgspec
import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import AgentCall, ModelCall
from loopwright.kernel.events import AnyEvent, EffectDone, EffectFailed, EffectRequested, Usage
from loopwright.kernel.fold import fold
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    Repeat,
    Rework,
    RunCommand,
    Steps,
)
from loopwright.model.checks import Goal, Judge
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import LiteralItems
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    decisions,
    drive,
    in_turn,
    plan_of_steps,
)
from tests.kernel.shapes import WORK, over, rows, statuses, step
from tests.kernel.test_cycles import turn

SPEND = Reply("x", usage=Usage(0, 0, 0.5))


def calls_at_once(events: list[AnyEvent]) -> int:
    most, calls = 0, set()
    for event in events:
        if isinstance(event, EffectRequested) and isinstance(event.call, AgentCall):
            calls.add(event.effect)
        elif isinstance(event, EffectDone | EffectFailed):
            calls.discard(event.effect)
        most = max(most, len(calls))
    return most


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_parallel_calls_are_capped(parallel: int) -> None:
    """At most so many agents are called at once in a whole run, and all get their turn."""
    plan = plan_of_steps(
        *[step(f"s{n}") for n in range(4)],
        step("loop", action=Repeat(body=WORK, max=3)),
        parallel=parallel,
    )
    run = drive(plan)
    assert calls_at_once(run.events) == parallel
    assert run.ended[:2] == ("exhausted", "max_iterations")
    assert set(statuses(run).values()) == {"completed", "exhausted"}


def test_a_loop_does_not_keep_its_place() -> None:
    """Who waits longest gets the place that an answer frees, before the next iteration of the
    same.
    """
    loop = Repeat(body=WORK, max=3)
    run = drive(plan_of_steps(step("a", action=loop), step("b", action=loop), parallel=1))
    asked = [f.path for f in run.of(EffectRequested)]
    assert asked == ["a.0", "b.0", "a.1", "b.1", "a.2", "b.2"]


def test_a_place_that_is_not_needed_goes_to_the_next() -> None:
    """When who waits has no money left, the one behind is not forgotten."""
    plan = plan_of_steps(
        step("first"),
        step("poor", limits=Limits(tokens=0)),
        step("rich"),
        step("last"),
        parallel=1,
        on_failure="skip",
    )
    run = drive(plan)
    assert statuses(run) == {
        "first": "completed", "poor": "exhausted", "rich": "completed", "last": "completed",
    }  # fmt: skip


def test_items_without_money_do_not_hang() -> None:
    """Passes that wait for a place end when the budget is used up meanwhile."""
    plan = Plan(
        name="t",
        steps=over(*range(5), on_item_error="continue").steps,
        limits=Limits(usd=0.5),
        parallel=1,
    )
    run = drive(plan, by_effect({}, default=SPEND))
    assert [r["status"] for r in rows(run)] == ["completed", *["exhausted"] * 4]


def test_who_waits_is_looked_at_in_turn() -> None:
    """A call that waits while others use up its money ends at its turn, also after a crash."""
    poor = Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2))), limits=Limits(usd=0.5))
    plan = plan_of_steps(
        step("poor", action=poor), step("rich", action=Repeat(body=WORK, max=3)), parallel=1
    )
    run = drive(plan, by_effect({}, default=SPEND))
    for end in run.ends:
        state = fold(plan, run.events[:end])
        assert settle(state, run.texts, state.now) == []


def test_resume_forgets_no_one_who_waits() -> None:
    """Pausing and resuming while calls wait for a place leaves none behind."""
    plan = plan_of_steps(*[step(f"s{n}") for n in range(4)], parallel=1)
    run = Driver(plan).start()
    run.pause()
    run.resume()
    assert len(run.state.pending) == 1
    run.run()
    assert set(statuses(run).values()) == {"completed"}


def test_a_withdrawn_call_frees_its_place() -> None:
    """A call that a deadline ends makes room for the next."""
    plan = plan_of_steps(
        step("slow", limits=Limits(wall_ms=50)), step("next"), parallel=1, on_failure="skip"
    )
    run = drive(plan, by_effect({"slow/agent#1": None}))
    assert statuses(run) == {"slow": "exhausted", "next": "completed"}


def test_who_waits_may_be_closed() -> None:
    """A waiting call whose place has ended is passed over."""
    plan = plan_of_steps(
        step("slow"), step("gone", limits=Limits(wall_ms=50)), step("next"), parallel=1
    )
    run = Driver(plan).start()
    run.fire("gone/deadline#1")
    run.answer("slow/agent#1", "x")
    assert sorted(run.state.pending) == ["next/agent#1"]


def test_programs_and_people_need_no_place() -> None:
    """Only agents are counted: programs and gates are not held up by them."""
    plan = plan_of_steps(
        step("a"),
        step("b", action=RunCommand(argv=("x",))),
        step("c", action=AskPerson()),
        parallel=1,
    )
    run = Driver(plan).start()
    assert sorted(run.state.pending) == ["a/agent#1", "b/command#1"]
    assert len(run.state.gates) == 1


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(Repeat(body=WORK, max=2, until=Judge(agent="j")), id="judges"),
        pytest.param(Repeat(body=WORK, max=2, until=Goal(agent="j")), id="evaluators"),
        pytest.param(AskPerson(on_reject=Rework(agent="fixer", attempts=2)), id="reworks"),
    ],
)
def test_every_call_of_an_agent_needs_a_place(action: Action) -> None:
    """Who judges and who works on a rejection waits for its turn like any other agent."""
    plan = plan_of_steps(*[step(f"s{n}", action=action) for n in range(3)], parallel=1)
    run = drive(plan, by_effect({}, Reply("x", result='{"done":true}')), decisions("reject"))
    assert calls_at_once(run.events) == 1
    assert set(statuses(run).values()) <= {"completed", "failed"}
    assert len(run.of(EffectRequested)) >= 3


def test_work_on_a_rejection_waits_for_a_place() -> None:
    """It begins when the call that was under way at the rejection has been answered."""
    asked = step("ask", action=AskPerson(on_reject=Rework(agent="fixer", attempts=2)))
    run = Driver(plan_of_steps(asked, step("work"), parallel=1)).start()
    run.decide("reject")
    assert sorted(run.state.pending) == ["work/agent#1"]
    run.answer("work/agent#1", "done")
    assert sorted(run.state.pending) == ["ask/rework#1"]


def graph(*names: str, parallel: int | None = None, **actions: Action) -> Steps:
    """Steps that need nothing of one another."""
    return Steps(
        steps=tuple(step(name, action=actions.get(name, WORK)) for name in names),
        parallel=parallel,
    )


def inside_at_once(events: list[AnyEvent], place: str) -> int:
    """The most calls that were under way inside of a place."""
    return calls_at_once([f for f in events if getattr(f, "path", "").startswith(f"{place}.")])


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_graph_inside_has_a_cap_of_its_own(parallel: int) -> None:
    """At most so many are called at once inside of it; what is outside does not wait for that."""
    names = ["a", "b", "c"]
    capped = step("capped", action=graph(*names, parallel=parallel))
    run = drive(plan_of_steps(capped, step("free", action=graph("d", "e", "f"))))
    assert inside_at_once(run.events, "capped") == parallel
    assert inside_at_once(run.events, "free") == 3
    assert set(statuses(run).values()) == {"completed"}
    asked = [f.path for f in run.of(EffectRequested) if f.path.startswith("capped.")]
    assert asked == [f"capped.{name}" for name in names]


@pytest.mark.parametrize(
    ("plan_cap", "outer", "inner", "most"),
    [
        pytest.param(None, 2, 3, 2, id="the graph around"),
        pytest.param(None, 3, 1, 1, id="the inner one"),
        pytest.param(1, 3, 3, 1, id="the plan"),
    ],
)
def test_the_least_cap_around_counts(
    plan_cap: int | None, outer: int, inner: int, most: int
) -> None:
    """A call needs a place in every graph around it, and in the plan."""
    nested = graph("x", "y", "z", parallel=inner)
    plan = plan_of_steps(
        step("all", action=graph("more", parallel=outer, more=nested)), parallel=plan_cap
    )
    run = drive(plan)
    assert inside_at_once(run.events, "all") == most
    assert run.ended[:2] == ("completed", "done")


def test_who_waits_inside_holds_up_nobody_outside() -> None:
    """The first in the queue may not fit where another does: that one goes first."""
    plan = plan_of_steps(
        step("tight", action=graph("a", "b", "c", parallel=1)),
        step("d"),
        step("e"),
        parallel=2,
    )
    run = drive(plan)
    asked = [f.path for f in run.of(EffectRequested)]
    assert asked.index("d") < asked.index("tight.c")
    assert calls_at_once(run.events) == 2
    assert inside_at_once(run.events, "tight") == 1
    assert set(statuses(run).values()) == {"completed"}


def test_every_iteration_has_the_places_of_its_own_graph() -> None:
    """A graph that is repeated is capped in each iteration, and a failed call gives its place
    back.
    """
    body = graph("a", "b", parallel=1)
    run = Driver(
        plan_of_steps(step("loop", action=Repeat(body=body, max=2))),
        script=by_effect({"loop.0.a/agent#1": Fail("agent", "no")}),
    ).run()
    assert inside_at_once(run.events, "loop") == 1
    assert {f.path for f in run.of(EffectRequested)} >= {"loop.0.a", "loop.0.b"}


@pytest.mark.parametrize(
    ("scheduler", "parallel", "order"),
    [
        pytest.param("dependency-first", 1, "a1 a2 a3 b1 b2", id="as they came"),
        pytest.param("round-robin", 1, "a1 b1 a2 b2 a3", id="whoever was called longest ago"),
        pytest.param("least-busy", 1, "a1 a2 a3 b1 b2", id="nobody is busy"),
        pytest.param("least-busy", 2, "a1 a2 b1 a3 b2", id="whoever has the least to do"),
    ],
)
def test_who_is_next(scheduler: str, parallel: int, order: str) -> None:
    """Of those who wait for a place, the plan's scheduler says who has the next one."""
    names = ("a1", "a2", "a3", "b1", "b2")
    plan = plan_of_steps(*[step(n, action=CallAgent(agent=n[0])) for n in names])
    plan = msgspec.structs.replace(plan, parallel=parallel, settings={"scheduler": scheduler})
    run = Driver(plan).start()
    for name in order.split():
        run.answer(f"{name}/agent#1", "done")
    asked = [f.path for f in run.events if isinstance(f, EffectRequested)]
    assert asked == order.split()
    assert run.ended[0] == "completed"


@pytest.mark.parametrize("scheduler", ["round-robin", "least-busy"])
def test_everybody_has_a_turn(scheduler: str) -> None:
    """Judges, chat models and what works on a rejection wait like all others, one at a time."""
    judged = Repeat(body=RunCommand(argv=("x",)), max=1, until=Judge(agent="critic"))
    asked = AskPerson(on_reject=Rework(agent="fixer", attempts=2))
    plan = plan_of_steps(
        step("a"),
        step("b", action=judged),
        step("c", action=asked),
        step("d", action=CallAgent(agent="talker")),
        step("e"),
        parallel=1,
        settings={"scheduler": scheduler},
        agents={"talker": Agent(spec="model:local/tiny")},
    )
    said = {
        "b.0/check0#1": Reply("", result='{"done":true}'),
        "d.0/model#1": turn("Fine."),
    }
    run = drive(plan, by_effect(said, default="done"), in_turn("reject", "approve"))
    assert statuses(run) == dict.fromkeys("abcde", "completed")
    agents = [f.call.agent for f in run.events if _is_call(f)]
    assert sorted(agents) == sorted(["a", "a", "critic", "fixer", "talker"])
    assert calls_at_once(run.events) == 1


def _is_call(event: AnyEvent) -> bool:
    return isinstance(event, EffectRequested) and isinstance(event.call, AgentCall | ModelCall)
