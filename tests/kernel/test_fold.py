"""Folding: pause and resume, answers in any order, events that change no decision."""

from __future__ import annotations

import random

import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    BudgetReserved,
    BudgetSettled,
    CoordinatorNarrated,
    EffectDone,
    IterationStarted,
    MessageSent,
    Usage,
)
from loopwright.kernel.fold import apply, fold
from loopwright.model.actions import CallAgent, Each, Repeat, Step, Steps
from loopwright.model.checks import CommandCheck, PersonCheck
from loopwright.model.plan import Agent
from loopwright.model.policy import ProgressLog
from loopwright.model.record import LiteralItems
from tests.kernel.driving import (
    Driver,
    Reply,
    by_effect,
    by_iteration,
    drive,
    plan_of,
    plan_of_steps,
    without_time,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
LOOP = plan_of(Repeat(body=WORK, max=2))


# -- pause and resume ------------------------------------------------------------------------------


def test_pause_lets_the_iteration_finish() -> None:
    """The iteration that is under way ends; the next one begins after the resume."""
    run = Driver(LOOP).start()
    assert len(run.pause()) == 1
    run.answer("main.0/agent#1", "x")
    assert run.kinds()[-1] == "iteration.finished"
    assert run.state.pending == {}
    assert not run.step()
    assert run.resume()[1:] == run.of(IterationStarted)[1:] + run.events[-1:]
    assert run.run().passes == 2


def test_pause_includes_the_checks() -> None:
    """Checks belong to the iteration: they are asked also while paused."""
    run = Driver(plan_of(Repeat(body=WORK, max=2, until=CommandCheck(argv=("t",))))).start()
    run.pause()
    run.answer("main.0/agent#1", "x")
    run.answer("main.0/check0#1", 1)
    assert run.kinds()[-1] == "iteration.finished"


def test_pause_during_the_last_iteration() -> None:
    """A pause that comes too late does not keep a run from ending."""
    run = Driver(plan_of(Repeat(body=WORK, max=1))).start()
    run.pause()
    run.answer("main.0/agent#1", "x")
    assert run.ended == ("exhausted", "max_iterations", "x")


def test_pause_during_a_gate() -> None:
    """A person may decide while the run is paused; what follows waits for the resume."""
    run = Driver(plan_of(Repeat(body=WORK, max=3, until=PersonCheck())), by_iteration("x")).run()
    run.pause()
    run.decide("continue")
    assert run.kinds()[-1] == "iteration.finished"
    run.resume()
    assert run.kinds()[-1] == "effect.requested"


def test_pause_before_a_step() -> None:
    """In a graph no further step begins while paused."""
    plan = plan_of_steps(
        Step(id="a", action=WORK),
        Step(id="b", action=WORK, needs=("a",)),
        Step(id="c", action=WORK),
    )
    run = Driver(plan).start()
    run.pause()
    run.answer("a/agent#1", "x")
    assert sorted(run.state.pending) == ["c/agent#1"]
    run.resume()
    assert sorted(run.state.pending) == ["b/agent#1", "c/agent#1"]


def test_pause_of_items() -> None:
    """No further item begins while paused."""
    each = Each(items=LiteralItems(values=(1, 2, 3)), parallel=1)
    run = Driver(plan_of(Repeat(body=WORK, each=each))).start()
    run.pause()
    run.answer("main[0]/agent#1", "x")
    assert run.state.pending == {}
    run.resume()
    assert sorted(run.state.pending) == ["main[1]/agent#1"]


def test_pause_between_iterations() -> None:
    """A wait that ends while paused is not asked for again."""
    run = Driver(plan_of(Repeat(body=WORK, max=2, delay_ms=50))).start()
    run.answer("main.0/agent#1", "x")
    run.pause()
    run.fire("main/delay#1")
    assert run.state.pending == {}
    run.resume()
    assert sorted(run.state.pending) == ["main.1/agent#1"]


@pytest.mark.parametrize("times", [1, 2])
def test_pausing_twice_is_pausing_once(times: int) -> None:
    """One resume is enough."""
    run = Driver(LOOP).start()
    for _ in range(times):
        run.pause()
    run.answer("main.0/agent#1", "x")
    run.resume()
    assert run.run().passes == 2


def test_resume_of_a_running_run() -> None:
    """Resuming what is not paused changes nothing."""
    run = Driver(LOOP).start()
    assert len(run.resume()) == 1
    assert run.run().passes == 2


def test_paused_runs_come_back_paused() -> None:
    """A crash while paused does not start anything."""
    run = Driver(LOOP).start()
    run.pause()
    run.answer("main.0/agent#1", "x")
    again = run.cut(len(run.events))
    assert again.state.control.paused
    assert again.events == run.events


# -- answers ---------------------------------------------------------------------------------------

GRAPH = plan_of(
    Steps(
        steps=(
            Step(id="a", action=WORK),
            Step(id="b", action=WORK),
            Step(id="c", action=Repeat(body=WORK, max=2, at_cap="complete")),
            Step(id="d", action=WORK, needs=("a", "b", "c")),
        )
    )
)


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_answers(seed: int) -> None:
    """In whichever order answers come, the run ends the same."""
    texts = by_effect({"main.d/agent#1": "end"})
    run = Driver(GRAPH, texts, order=random.Random(seed).randrange).run()
    assert run.ended == ("completed", "done", "end")
    assert broken_laws(run.events) == []


@pytest.mark.parametrize("twice", ["at once", "after the next"])
def test_double_answers(twice: str) -> None:
    """A second answer, also a different one, changes nothing."""
    run = Driver(
        plan_of(Repeat(body=WORK, max=3, until=CommandCheck(argv=("t",)))), by_iteration("x")
    ).start()
    first = run.request("main.0/agent#1")
    run.answer(first.effect, "one")
    if twice == "after the next":
        run.answer("main.0/check0#1", 1)
    before = without_time(run.events)
    run.append(run.answer_event(first, Reply("two", usage=Usage(1, 1, 9.0))))
    assert without_time(run.events)[:-1] == before
    assert run.state.ignored == 1
    assert run.state.usage == Usage()
    assert run.run().ended[:2] == ("completed", "command")


def test_answer_to_something_never_asked() -> None:
    """An answer out of nowhere is counted and changes nothing."""
    run = Driver(LOOP).start()
    run.append(EffectDone(at=run.clock, path="main.7", effect="main.7/agent#1", output="x"))
    assert run.state.ignored == 1
    assert run.run().passes == 2


def test_several_answers_in_one_append() -> None:
    """Answers that arrive together are folded together."""
    one, two = Driver(GRAPH).start(), Driver(GRAPH).start()
    for event in one.ready():
        one.append(event)
    two.append(*two.ready())
    assert sorted(one.state.pending) == sorted(two.state.pending)
    assert one.run().ended == two.run().ended


def test_silence_after_the_end() -> None:
    """After the last event nothing is decided, whatever comes."""
    run = drive(LOOP)
    ended, ignored = run.end, run.state.ignored
    for event in [*run.events, MessageSent(at=run.clock, path="main", to="x", text="y")]:
        apply(run.state, event)
        assert settle(run.state, run.texts, run.clock) == []
    assert run.state.finished is ended
    assert run.state.ignored == ignored + len(run.events) + 1


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(CoordinatorNarrated(at=5_000, path="", text="hi"), id="narration"),
        pytest.param(BudgetReserved(at=5_000, path="main", effect="e", usd=1.0), id="reserved"),
        pytest.param(BudgetSettled(at=5_000, path="main", effect="e", usd=1.0), id="settled"),
    ],
)
def test_events_that_only_tell(event: AnyEvent) -> None:
    """Events for later parts of the product move the clock and the version, nothing else."""
    run = Driver(LOOP).start()
    version = run.state.version
    assert run.append(event) == [event]
    assert (run.state.version, run.state.now, run.state.ignored) == (version + 1, 5_000, 0)


def test_a_changed_agent_is_another_from_then_on() -> None:
    """An edit reaches the calls after it; the plan that other runs share stays as it was."""
    run = Driver(LOOP).start()
    assert (
        len(run.append(AgentChanged(at=run.clock, agent="a", becomes=Agent(system="Be brief."))))
        == 1
    )
    assert run.state.plan.agents == {"a": Agent(system="Be brief.")}
    assert LOOP.agents == {}
    assert run.run().passes == 2


@pytest.mark.parametrize(
    ("becomes", "marks"),
    [
        pytest.param("script:two", {"b": {3, 7}, "c": {5}}, id="another program"),
        pytest.param("script:one", {"a": {3}, "b": {7}, "c": {5}}, id="the same program"),
    ],
)
def test_bookmarks_stay_with_their_program(becomes: str, marks: dict[str, set[int]]) -> None:
    """What an agent has used up of a script stays used up for others of the same script."""
    agents = {name: Agent(spec="script:one") for name in "ab"} | {"c": Agent(spec="script:other")}
    steps = [Step(id=name, action=Repeat(body=CallAgent(agent=name), max=2)) for name in "abc"]
    run = Driver(plan_of_steps(*steps, agents=agents)).start()
    for name, mark in {"a": 3, "b": 7, "c": 5}.items():
        run.answer(f"{name}.0/agent#1", Reply("x", mark=mark))
    run.append(AgentChanged(at=run.clock, agent="a", becomes=Agent(spec=becomes)))
    assert run.state.agents.marks == marks


def test_version_counts_events() -> None:
    """The version of a state is the number of its events."""
    run = drive(LOOP)
    for length in range(len(run.events)):
        assert fold(LOOP, run.events[:length]).version == length


def test_times_never_go_back() -> None:
    """A clock that jumps back does not make events older than those before."""
    run = Driver(LOOP, clock=9_000).start()
    run.clock = 10
    run.answer("main.0/agent#1", "x")
    decided = [event for event in run.events if not isinstance(event, EffectDone)]
    assert all(event.at == 9_000 for event in decided)


def test_timers_are_known() -> None:
    """A run knows when its timers are due, and forgets those that went off or were withdrawn."""
    run = Driver(plan_of(Repeat(body=WORK, max=2, delay_ms=50))).start()
    run.answer("main.0/agent#1", "x")
    assert run.state.queues.timers == {"main/delay#1": run.clock + 50}
    run.fire("main/delay#1")
    assert run.state.queues.timers == {}


def test_frames_of_ended_places_are_gone() -> None:
    """After the end only the run itself is left."""
    memory = ProgressLog()
    run = drive(plan_of(Repeat(body=GRAPH.steps[0].action, max=3, memory=memory)))
    assert list(run.state.owners) == [""]
    assert (run.state.pending, run.state.gates, run.state.queues.timers) == ({}, {}, {})
    assert run.state.agents.calls == 0


def test_a_run_has_its_name() -> None:
    """The run's id is known from its first event on."""
    assert fold(LOOP, []).run == ""
    assert Driver(LOOP).start().state.run == "r_test"
