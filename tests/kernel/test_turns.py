"""Turns in unusual orders: cuts that do not help, summaries in a queue, words between two turns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from loopwright.kernel.events import AgentChanged, GateOpened, Usage
from loopwright.model.actions import CallAgent, Step, Wait
from loopwright.model.checks import Contains, NoCalls, PersonCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, NoMemory, Retry
from tests.kernel.driving import Driver, Fail, Reply
from tests.kernel.test_cycles import (
    HELD,
    answer,
    begun,
    call,
    compressed,
    effects,
    loop_of,
    plan,
    turn,
)
from tests.support.laws.run import event_problems

OVERFLOW = Fail("overflow", "200001 tokens")


def laws(run: Driver) -> list[str]:
    return event_problems(run.plan, run.events)


def test_a_cut_that_was_not_enough_is_followed_by_another() -> None:
    """A conversation that was cut because it filled up, and that the provider still finds too
    long, is cut once more; only then has the model failed.
    """
    wanted = turn("y" * 400, call("c1"))
    run = begun(plan(most=9, memory=ConversationHistory(window=300)), wanted)
    for number in range(3):
        run.answer(f"main.{number}/model#1", wanted)
        run.answer(f"main.{number}/tool1#1", Reply("z" * 300))
    before = len(compressed(run))
    assert before
    run.answer("main.3/model#1", OVERFLOW)
    assert len(compressed(run)) == before + 1
    assert effects(run)[-1] == "main.3/model#2"
    run.answer("main.3/model#2", OVERFLOW)
    assert run.ended[0] == "failed"
    assert laws(run) == []


def test_a_conversation_that_cannot_be_cut_is_left_alone() -> None:
    """One turn fills the window, and there is nothing before it that could go."""
    wanted = turn("y" * 400, call("c1"))
    run = begun(plan(most=2, memory=ConversationHistory(window=100)), wanted).run()
    assert compressed(run) == []
    assert laws(run) == []


@pytest.mark.parametrize(
    "memory", [NoMemory(), ConversationHistory(window=10_000)], ids=["none", "history"]
)
def test_no_policy_asks_again_with_what_did_not_fit(memory: NoMemory | ConversationHistory) -> None:
    """A retry of any failure does not mean an overflow: nothing would have changed."""
    made = plan(NoCalls())
    [step] = made.steps
    action = replace(step.action, memory=memory)
    step = replace(step, action=action, retry=Retry(attempts=5, on=("overflow",)))
    run = begun(replace(made, steps=(step,)), OVERFLOW).run()
    assert effects(run) == ["main.0/model#1"]
    assert run.ended[0] == "failed"


def test_a_summary_takes_a_place_among_the_calls() -> None:
    """Where one call at a time is allowed, a summary waits for the call of another step."""
    wanted = turn("y" * 900, call("c1"))
    made = plan(most=6, memory=ConversationHistory(window=300, strategy="periodic-summary"))
    pause = Step(id="pause", action=Wait(ms=10))
    other = Step(id="other", action=CallAgent(agent="worker"), needs=("pause",))
    run = begun(replace(made, steps=(*made.steps, pause, other), parallel=1), wanted)
    for number in range(2):
        run.answer(f"main.{number}/model#1", wanted)
        if number == 1:
            run.fire("pause/wait#1")
        run.answer(f"main.{number}/tool1#1", Reply("ok"))
    assert sorted(run.state.pending) == ["other/agent#1"]
    run.answer("other/agent#1", Reply("ok"))
    assert sorted(run.state.pending) == ["main.2/summary#1"]
    assert laws(run) == []


def test_a_turn_that_says_nothing_is_not_remembered() -> None:
    """No service takes a message without a content; the nudge that follows it is there."""
    run = begun(plan(Contains(text="DONE"), most=3), turn(""))
    run.answer("main.0/model#1", turn(""))
    assert [(one.kind, one.text) for one in loop_of(run).talk.history] == [("user", "Go on.")]


def test_what_a_person_says_after_an_iteration_is_read() -> None:
    """Words with which somebody lets a loop go on follow the results of the turn."""
    run = begun(plan(PersonCheck()), turn("hm", call("c1")))
    run.answer("main.0/model#1", turn("hm", call("c1")))
    run.answer("main.0/tool1#1", Reply("ok"))
    run.decide("continue", "look into b.txt")
    assert [one.kind for one in loop_of(run).talk.history] == ["model", "tools", "user"]
    assert loop_of(run).talk.history[-1].text == "look into b.txt"
    assert effects(run)[-1] == "main.1/model#1"
    assert laws(run) == []


def test_what_a_person_says_at_the_cap_is_read() -> None:
    """Whoever lets a loop go on beyond its cap speaks to the model."""
    made = plan(Contains(text="DONE"), most=1)
    [step] = made.steps
    step = replace(step, action=replace(step.action, at_cap="ask"))
    run = begun(replace(made, steps=(step,)), turn("hm"))
    run.answer("main.0/model#1", turn("hm"))
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, "continue", text="look into b.txt"))
    assert loop_of(run).talk.history[-1].text == "look into b.txt"
    assert effects(run)[-1] == "main.1/model#1"
    assert event_problems(run.plan, run.events) == []


def test_only_an_approval_lets_a_call_through() -> None:
    """Whatever else a gate is answered with, by whatever mistake: the call is not made."""
    wanted = turn("", call("c1", "shell.exec"))
    run = begun(plan(approvals=HELD), wanted)
    run.answer("main.0/model#1", wanted)
    [gate] = [event for event in run.events if isinstance(event, GateOpened)]
    run.append(answer(gate, "continue"))
    assert "main.0/tool1#1" not in effects(run)
    assert effects(run)[-1] == "main.1/model#1"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"max_usd": 0.1}, id="given later"),
        pytest.param({"max_usd": 0.1}, {"max_usd": 0.1, "system": "Be brief."}, id="kept"),
    ],
)
def test_a_budget_of_a_model_that_is_edited_holds(
    before: dict[str, float], after: dict[str, float]
) -> None:
    """What a failed call has used up is not spent again, whether or not the run had a limit."""
    run = _edited_while_waiting(before, after)
    run.answer("first/agent#1", Reply("ok"))
    run.answer("talk.0/model#1", Fail("overloaded", usage=Usage(usd=0.2)))
    assert run.ended[:2] == ("exhausted", "budget")


def test_a_conversation_keeps_its_budget_when_its_agent_becomes_a_program() -> None:
    """Edits are for what begins later."""
    run = _edited_while_waiting({"max_usd": 0.1}, {"max_usd": 0.1})
    run.answer("first/agent#1", Reply("ok"))
    run.append(AgentChanged(at=run.clock, agent="coder", becomes=Agent()))
    run.answer("talk.0/model#1", Fail("overloaded", usage=Usage(usd=0.2)))
    assert run.ended[:2] == ("exhausted", "budget")


def _edited_while_waiting(before: dict[str, float], after: dict[str, float]) -> Driver:
    first = Step(id="first", action=CallAgent(agent="worker"))
    talk = Step(
        id="talk",
        action=CallAgent(agent="coder"),
        needs=("first",),
        retry=Retry(attempts=3, base_ms=1),
    )
    chat = Agent(spec="model:fake")
    agents = {"coder": replace(chat, **before), "worker": Agent()}
    run = Driver(Plan(name="x", steps=(first, talk), agents=agents)).start()
    run.append(AgentChanged(at=run.clock, agent="coder", becomes=replace(chat, **after)))
    return run
