"""Forks: a prefix of one run is the beginning of another, and everything holds for both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from loopwright.kernel.event_parts import ModelCall, SleepCall, ToolCall
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunForked,
    RunReopened,
    RunStarted,
    StepStarted,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.reopened_runs import copied, end_of, places
from loopwright.model.actions import CallAgent, Decision, Repeat, Step
from loopwright.model.checks import Contains, PersonCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, PreviousOutput
from tests.golden.recording import RECORDINGS
from tests.kernel.driving import (
    Driver,
    Fail,
    People,
    Reply,
    Script,
    by_iteration,
    decisions,
    plan_of,
    plan_of_steps,
)
from tests.kernel.test_cycles import HELD, answer, begun, call, loop_of, script, turn
from tests.kernel.test_cycles import plan as cycle_plan
from tests.kernel.test_laws import SEEDS, world
from tests.model.plans import runnable_plans
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

LATER = 1_000_000
WORK = CallAgent(agent="coder")


def fork(
    run: Driver,
    place: str,
    *,
    text: str = "",
    passes: int | None = None,
    script: Script | None = None,
    people: People | None = None,
) -> Driver:
    """A run that begins with what another has recorded up to the end of a place."""
    first = run.events[0]
    assert isinstance(first, RunStarted)
    prefix = run.events[: end_of(run.events, place)]
    now = prefix[-1].at + LATER
    begins = replace(first, run="r_fork", parent=first.run)
    forked = RunForked(at=now, parent="r", place=place, text=text, passes=passes)
    events = [*copied(prefix, begins, now), forked]
    return Driver(
        run.plan,
        script or run.script,
        people or run.people,
        run.order,
        texts=run.texts,
        events=events,
        clock=now,
    ).start()


def finished(events: Sequence[AnyEvent]) -> list[str]:
    return [place for place, how in places(events).items() if how == "completed"]


def answers(events: Sequence[AnyEvent]) -> set[str]:
    return {event.effect for event in events if isinstance(event, EffectDone | EffectFailed)}


def requests(events: Sequence[AnyEvent]) -> list[str]:
    return [event.effect for event in events if isinstance(event, EffectRequested)]


def check(run: Driver, place: str, **more: object) -> Driver:
    """Fork, go on to the end, and hold every law against what came of it."""
    before = list(run.events)
    made = fork(run, place, **more)  # type: ignore[arg-type]
    known = made.events.index(next(f for f in made.events if isinstance(f, RunForked)))
    assert picture(fold(run.plan, made.events)) == picture(made.state), place
    assert event_problems(run.plan, made.events) == [], place
    made.run(most=2_000)
    assert made.state.finished is not None, f"{place}: waits for {sorted(made.state.pending)}"
    assert event_problems(run.plan, made.events) == [], place
    again = set(requests(made.events[known:])) & answers(made.events[:known])
    assert not again, f"{place}: asked again for {again}"
    assert made.state.ignored == 0
    assert run.events == before
    return made


@pytest.mark.item("aldo-48", "aldo-49")
@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_every_finished_place_of_a_recorded_run(name: str) -> None:
    """A fork there is a history that could have been, and comes to an end."""
    run = RECORDINGS[name]()
    for place in finished(run.events):
        patient, people = world(1, patient=True)
        check(run, place, script=patient, people=fitting(people))


def fitting(people: People) -> People:
    """People who only give answers that a gate takes."""

    def answer(gate: GateOpened) -> tuple[Decision, str] | None:
        said = people(gate)
        return said if said is None or said[0] in gate.answers else ("approve", "")

    return answer


def law_of_forks(plan: Plan, seed: int) -> None:
    answers, people = world(seed)
    run = Driver(plan, answers, fitting(people)).run(most=400)
    patient, people = world(seed, patient=True)
    for number, place in enumerate(finished(run.events)):
        text = "Shorter." if number % 2 else ""
        check(run, place, script=patient, people=fitting(people), text=text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(plan=runnable_plans(), seed=SEEDS)
def test_forks_of_random_runs(plan: Plan, seed: int) -> None:
    """Whatever the plan and whatever happened: every finished place can be gone on from."""
    law_of_forks(plan, seed)


@pytest.mark.deep
@settings(max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
@given(plan=runnable_plans(), seed=SEEDS)
def test_forks_of_many_random_runs(plan: Plan, seed: int) -> None:
    """The same, often."""
    law_of_forks(plan, seed)


# -- conversations ---------------------------------------------------------------------------------

PAID = Usage(input_tokens=10, usd=0.1)


def talk(*, turns: int = 4, most: int = 10, limits: Limits | None = None) -> Driver:
    said = [turn(f"step {n}", call(f"c{n}"), usage=PAID) for n in range(1, turns)]
    made = cycle_plan(Contains(text="DONE"), most=most, limits=limits)
    return begun(made, *said, turn("DONE", usage=PAID)).run()


@pytest.mark.item("aldo-48", "aldo-66")
def test_a_fork_of_a_conversation_knows_its_turns() -> None:
    """Turns, results and what they cost are there; the next one is the next."""
    run = talk()
    made = fork(run, "main.1")
    assert [entry.kind for entry in loop_of(made).talk.history] == ["model", "tools"] * 2
    assert made.state.usage == Usage(input_tokens=20, usd=0.2)
    assert requests(made.events)[-1] == "main.2/model#1"
    made.run()
    assert made.passes == run.passes
    assert made.state.usage == run.state.usage


@pytest.mark.item("aldo-49")
def test_words_of_a_person_are_the_next_entry() -> None:
    """The model sees them after the turn of the fork; the original never does."""
    run = talk()
    made = fork(run, "main.1", text="Use the other file.")
    last = loop_of(made).talk.history[-1]
    assert (last.kind, last.text) == ("user", "Use the other file.")
    assert not any(isinstance(event, RunForked) for event in run.events)


@pytest.mark.item("aldo-49")
def test_words_to_a_conversation_that_was_done() -> None:
    """It goes on; without words it has ended, as it did."""
    run = talk()
    assert fork(run, "main.3").ended[0] == "completed"
    made = fork(run, "main.3", text="And now the tests.")
    assert made.state.finished is None
    assert requests(made.events)[-1] == "main.4/model#1"


@pytest.mark.item("aldo-49")
def test_the_count_and_the_budget_are_carried_over() -> None:
    """A fork has as many cycles and as much money left as the original had there."""
    made = check(talk(turns=9, most=5), "main.2", script=script(turn("more", call("c"))))
    assert made.ended[:2] == ("exhausted", "max_iterations")
    assert made.passes == 5
    poor = talk(turns=9, limits=Limits(usd=0.4))
    costly = script(turn("more", call("c"), usage=PAID))
    made = check(poor, "main.1", script=costly)
    assert made.ended[:2] == ("exhausted", "budget")
    assert (made.passes, made.state.usage.usd) == (4, 0.4)


def test_a_pending_approval_is_asked_under_a_new_name() -> None:
    """The call waits in the fork too, for a decision of its own: the one in the original run says
    nothing about it. Tools that were let through for good are asked about again.
    """
    steps = (
        Step(id="talk", action=cycle_plan().steps[0].action),
        Step(id="other", action=WORK),
    )
    made = Plan(name="x", steps=steps, agents=cycle_plan(approvals=HELD).agents)
    wanted = turn("", call("c1", "shell.exec"))
    run = Driver(made, script=lambda request: None).start()
    run.answer("talk.0/model#1", wanted)
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.answer("other/agent#1", "done")
    other = fork(run, "other")
    [asked] = other.open_gates()
    assert asked.gate != gate.gate
    assert asked.digest == gate.digest
    run.append(answer(gate, "approve", remember=True))
    assert list(other.state.gates) == [asked.gate]
    [opened] = [event for event in other.events if isinstance(event, GateOpened)]
    other.append(answer(opened, "approve"))
    assert isinstance(other.state.pending["talk.0/tool1#1"].call, ToolCall)
    run.answer("talk.0/tool1#1", Reply("ok"))
    later = fork(run, "talk.0")
    assert not later.state.agents.remembered
    assert event_problems(made, later.events) == []


# -- other loops -----------------------------------------------------------------------------------


def test_words_to_another_loop_are_its_feedback() -> None:
    """The next iteration is told, and one that had ended goes on."""
    loop = Repeat(body=WORK, max=5, until=Contains(text="DONE"), memory=PreviousOutput())
    run = Driver(plan_of(loop), by_iteration("a", "b", "DONE")).run()
    made = fork(run, "main.2", text="Shorter.")
    assert loop_of(made).progress.feedback == "Shorter."
    assert requests(made.events)[-1] == "main.3/agent#1"


def test_sessions_are_not_passed_on() -> None:
    """A session has seen what came after the fork, so the fork begins one of its own."""
    loop = Repeat(body=replace(WORK, session="continue"), max=3)
    said = Reply("x", session="s1")
    run = Driver(plan_of(loop), by_iteration(said)).run()
    made = fork(run, "main.0")
    assert loop_of(made).memory.sessions == {}


def test_what_is_under_way_elsewhere_is_asked_anew() -> None:
    """A sibling keeps what it has done and repeats the call that had no answer, no more."""
    loop = Repeat(body=WORK, max=3)
    plan = plan_of_steps(Step(id="a", action=loop), Step(id="b", action=WORK))
    run = Driver(plan, script=lambda request: None).start()
    run.answer("a.0/agent#1", "one")
    run.answer("b/agent#1", "other")
    run.answer("a.1/agent#1", "two")
    made = fork(run, "b")
    assert sorted(made.state.pending) == ["a.1/agent#1"]
    made.answer("a.1/agent#1", "another two")
    assert requests(made.events)[-1] == "a.2/agent#1"


def test_a_question_elsewhere_is_asked_again() -> None:
    """Somebody who was asked in the original is asked in the fork, under another name."""
    asks = Repeat(body=WORK, max=2, until=PersonCheck())
    plan = plan_of_steps(Step(id="a", action=asks), Step(id="b", action=WORK))
    run = Driver(plan, script=lambda request: None).start()
    run.answer("a.0/agent#1", "one")
    run.answer("b/agent#1", "other")
    [before] = run.open_gates()
    made = fork(run, "b", people=decisions("approve"))
    [asked] = made.open_gates()
    assert (asked.path, asked.digest) == (before.path, before.digest)
    assert asked.gate != before.gate
    assert made.run().ended[0] == "completed"
    assert event_problems(plan, made.events) == []


def test_time_that_was_left_is_left() -> None:
    """A limit in time goes on from where it was, however long ago that is."""
    loop = Repeat(body=WORK, max=5, limits=Limits(wall_ms=500))
    run = Driver(plan_of(loop), by_iteration("x")).start()
    run.step()
    run.step()
    [timer] = [one for one in run.timers() if "loop-deadline" in one.effect]
    made = fork(run, "main.0")
    [later] = [one for one in made.timers() if "loop-deadline" in one.effect]
    cut = run.events[end_of(run.events, "main.0") - 1].at
    assert isinstance(timer.call, SleepCall)
    assert isinstance(later.call, SleepCall)
    assert later.call.until - made.clock == timer.call.until - cut


def test_a_fork_of_a_paused_run_continues() -> None:
    """A pause belongs to the run that was paused."""
    run = Driver(plan_of(Repeat(body=WORK, max=3)), by_iteration("x")).start()
    run.pause()
    run.step()
    made = fork(run, "main.0")
    assert not made.state.control.paused
    assert made.run().passes == 3


def test_the_last_end_of_a_place_counts() -> None:
    """A step that a reopened run began anew has ended twice; what came of it at last is kept."""
    plan = plan_of_steps(
        Step(id="a", action=WORK),
        Step(id="b", action=WORK, needs=("a",)),
        Step(id="c", action=WORK),
    )
    run = Driver(plan, lambda request: Fail() if request.effect == "a/agent#1" else Reply("ok"))
    run.run()
    run.append(RunReopened(at=run.clock))
    run.run()
    assert places(run.events) == {"a": "completed", "c": "completed", "b": "completed"}
    made = fork(run, "a")
    assert requests(made.events)[-1] == "b/agent#1"
    assert check(run, "a").ended[0] == "completed"


def test_how_places_stand() -> None:
    """Open, failed and skipped ones are told apart from those that completed."""
    plan = plan_of_steps(
        Step(id="a", action=WORK, on_error="continue"),
        Step(id="b", action=WORK, needs=("a",)),
        Step(id="c", action=Repeat(body=WORK, max=3)),
    )
    run = Driver(plan, script=lambda request: None).start()
    run.answer("a/agent#1", Fail())
    run.answer("c.0/agent#1", "x")
    assert places(run.events) == {
        "a": "failed",
        "b": "skipped",
        "c": "running",
        "c.0": "completed",
        "c.1": "running",
    }
    assert isinstance(run.events[end_of(run.events, "c.0") - 1], IterationFinished)
    with pytest.raises(IndexError):
        end_of(run.events, "a")


# -- reopening conversations -----------------------------------------------------------------------


def reopened(run: Driver, **more: object) -> list[AnyEvent]:
    before = len(run.events)
    run.clock += 1
    run.append(RunReopened(at=run.clock, **more))  # type: ignore[arg-type]
    run.run()
    assert event_problems(run.plan, run.events) == []
    assert picture(fold(run.plan, run.events)) == picture(run.state)
    return run.events[before:]


def started(events: Sequence[AnyEvent]) -> list[tuple[str, int | None]]:
    return [
        (event.path, event.iteration) for event in events if isinstance(event, IterationStarted)
    ]


@pytest.mark.item("aldo-48", "aldo-66")
def test_a_conversation_that_failed_continues() -> None:
    """Its cycles stay counted and its turns known; the one that failed is taken again."""
    said = [turn("one", call("c1"), usage=PAID), turn("two", call("c2"), usage=PAID)]

    def answers(request: EffectRequested) -> Reply | Fail:
        if isinstance(request.call, ToolCall):
            return Reply("ok")
        assert isinstance(request.call, ModelCall)
        if request.effect == "main.2/model#1":
            return Fail("auth", "no key")
        return (*said, turn("DONE", usage=PAID))[(request.iteration or 1) - 1]

    run = Driver(cycle_plan(Contains(text="DONE"), most=3), script=answers).run()
    assert run.ended[0] == "failed"
    new = reopened(run)
    assert started(new) == [("main~2.2", 3)]
    assert run.ended[:2] == ("completed", "contains")
    assert [event.iterations for event in new if hasattr(event, "iterations")] == [3]
    assert run.state.usage.usd == pytest.approx(0.3)


@pytest.mark.item("aldo-48", "W12")
def test_a_conversation_at_its_cap_has_no_more_cycles() -> None:
    """Resuming it does not hand out the cycles a second time."""
    run = begun(cycle_plan(most=2), turn("more", call("c1"))).run()
    assert run.ended[:2] == ("exhausted", "max_iterations")
    new = reopened(run)
    assert started(new) == []
    assert [type(event) for event in new[:2]] == [RunReopened, StepStarted]
    assert run.ended[:2] == ("exhausted", "max_iterations")
    assert run.texts.read(run.end.output) == "more"


@pytest.mark.item("aldo-48", "W12")
def test_a_conversation_at_its_cap_may_be_allowed_more() -> None:
    """It goes on with its next turn, knows its turns, and keeps what it spent."""
    said = turn("more", call("c1"), usage=PAID)
    run = begun(cycle_plan(most=2), said, said, said, turn("DONE", usage=PAID)).run()
    new = reopened(run, passes=3)
    assert started(new) == [("main~2.2", 3)]
    assert run.ended[:2] == ("exhausted", "max_iterations")
    [kept] = run.state.reopenings.kept.values()
    assert (kept.passes, kept.most, kept.talk, kept.spent.tokens) == (3, 3, True, 30)
    history = kept.values["talk.history"]
    assert isinstance(history, list)
    assert [entry.kind for entry in history] == ["model", "tools"] * 3


def test_another_agent_stands_where_a_conversation_was() -> None:
    """A program has no turns to go on with: it is called as any other."""
    plan = Plan(
        name="p",
        steps=(Step(id="main", action=WORK),),
        agents={"coder": Agent(spec="model:x/y", max_turns=1)},
    )
    run = Driver(plan, script=lambda request: turn("more", call("c1"))).run()
    assert run.ended[:2] == ("failed", "max_iterations")
    run.script = lambda request: Reply("by hand")
    before = len(run.events)
    changed = AgentChanged(at=run.clock, agent="coder", becomes=Agent(spec="command:x"))
    run.append(RunReopened(at=run.clock, passes=2), changed)
    run.run()
    assert requests(run.events[before:]) == ["main~2/agent#1"]
    assert run.ended[0] == "completed"


@pytest.mark.item("aldo-48", "W12")
def test_a_fork_may_make_more_iterations() -> None:
    """The loop around the place has that many in all, also where it had made all of them."""
    made = check(talk(turns=9, most=5), "main.4", passes=7, script=script(turn("m", call("c"))))
    assert (made.ended[:2], made.passes) == (("exhausted", "max_iterations"), 7)
    fewer = check(talk(turns=9, most=9), "main.1", passes=3, script=script(turn("m", call("c"))))
    assert fewer.passes == 3
    run = talk()
    assert fork(run, "main", passes=9).ended[0] == "completed"


@pytest.mark.item("aldo-48", "W12")
def test_a_budget_of_a_conversation_is_not_spent_twice() -> None:
    """Without another budget it has ended; with one it goes on from the next turn."""
    said = turn("more", call("c1"), usage=PAID)
    run = begun(cycle_plan(most=9, limits=Limits(usd=0.2)), said, said, said, said).run()
    assert (run.ended[:2], run.passes) == (("exhausted", "budget"), 2)
    assert requests(reopened(run)) == []
    assert run.ended[:2] == ("exhausted", "budget")
    new = reopened(run, limits=Limits(usd=0.4))
    assert started(new) == [("main~3.2", 3), ("main~3.3", 4)]
    assert run.state.usage.usd == pytest.approx(0.4)


def test_a_conversation_that_never_had_a_turn() -> None:
    """It begins with its first."""
    run = begun(cycle_plan(most=3), Fail("auth", "no key")).run()
    assert started(reopened(run)) == [("main~2.0", 1)]


def test_a_conversation_that_was_cut_short() -> None:
    """A turn whose tools were still running when time was over is taken again."""
    made = cycle_plan(most=5)
    step = replace(made.steps[0], limits=Limits(wall_ms=100))
    run = Driver(replace(made, steps=(step,)), script=lambda request: None).start()
    run.answer("main.0/model#1", turn("", call("c1")))
    run.answer("main.0/tool1#1", Reply("ok"))
    run.answer("main.1/model#1", turn("", call("c2")))
    run.run()
    assert run.ended[:2] == ("exhausted", "deadline")
    run.script = script(turn("more", call("c")))  # type: ignore[assignment]
    assert started(reopened(run))[0] == ("main~2.1", 2)
