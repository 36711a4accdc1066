"""Messages of people to the agents of any run: who reads them, when, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopwright.kernel.coordination import ToolCaller, caller_of, use
from loopwright.kernel.events import (
    AnyEvent,
    EffectRequested,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunReopened,
)
from loopwright.kernel.messages import MAILBOX_SIZE
from loopwright.kernel.state import ANY_AGENT
from loopwright.model.actions import CallAgent, Repeat, RunCommand, Step, Steps
from loopwright.model.checks import Signal
from loopwright.model.plan import Plan
from loopwright.model.record import literal
from loopwright.prompts.calls import compose
from tests.kernel.driving import Driver, Fail, plan_of, plan_of_steps
from tests.kernel.test_resumption import BODIES, good
from tests.support.laws.run import event_problems

WORK = CallAgent(agent="a", prompt=literal("Work."))
LOOP = plan_of(Repeat(body=WORK, max=3, until=Signal(word="DONE")))
STAGES = plan_of(
    Repeat(
        body=Steps(
            steps=(
                Step(id="plan", action=WORK),
                Step(id="build", action=RunCommand(argv=("make",)), needs=("plan",)),
                Step(id="review", action=WORK, needs=("build",)),
            )
        ),
        max=2,
    )
)
GRAPH = plan_of_steps(Step(id="one", action=WORK), Step(id="two", action=WORK, needs=("one",)))


def tell(run: Driver, text: str = "Keep the API", to: str = ANY_AGENT) -> list[AnyEvent]:
    sent = run.state.mail.sent
    return run.append(
        MessageSent(
            at=run.clock,
            path="",
            to=to,
            text=text,
            sender="ann",
            message=f"m{sent + 1}",
            intent="tell",
        )
    )


def prompt(run: Driver, effect: str) -> str:
    return compose(run.state, run.state.pending[effect].owner, run.texts).text


def delivered(run: Driver) -> list[tuple[str, tuple[str, ...]]]:
    return [(f.effect, f.messages) for f in run.events if isinstance(f, MessageDelivered)]


@pytest.mark.item("rec-35")
@pytest.mark.parametrize(
    ("plan", "first", "next_call"),
    [
        pytest.param(LOOP, "main.0/agent#1", "main.1/agent#1", id="loop"),
        pytest.param(STAGES, "main.0.plan/agent#1", "main.0.review/agent#1", id="loop of steps"),
        pytest.param(GRAPH, "one/agent#1", "two/agent#1", id="graph"),
    ],
)
def test_the_next_agent_call_reads_a_message_once(plan: Plan, first: str, next_call: str) -> None:
    """It stands in the prompt of that call with who sent it, and in no other prompt."""
    run = Driver(plan).start()
    tell(run)
    assert "Keep the API" not in prompt(run, first)
    run.answer(first, "tried")
    if "main.0.build/command#1" in run.state.pending:
        run.answer("main.0.build/command#1", "built")
    assert "Message from ann: Keep the API" in prompt(run, next_call)
    assert delivered(run) == [(next_call, ("m1",))]
    run.run()
    assert delivered(run) == [(next_call, ("m1",))]
    assert event_problems(plan, run.events) == []


@pytest.mark.item("rec-35")
def test_a_later_iteration_does_not_read_it_again() -> None:
    """What was read in iteration 2 is not in the prompt of iteration 3."""
    run = Driver(LOOP).start()
    tell(run)
    run.answer("main.0/agent#1", "tried")
    run.answer("main.1/agent#1", "tried")
    assert "Keep the API" not in prompt(run, "main.2/agent#1")


@pytest.mark.item("rec-35")
def test_a_message_is_neither_lost_nor_doubled_by_a_crash() -> None:
    """Cut off after any append and continued, the log has one delivery, before the same call."""
    run = Driver(LOOP).start()
    tell(run)
    tell(run, "And the tests")
    run.run()
    expected = delivered(run)
    assert expected == [("main.1/agent#1", ("m1", "m2"))]
    told = next(n for n, f in enumerate(run.events) if isinstance(f, MessageSent)) + 2
    for length in [one for one in run.ends if one >= told]:
        again = run.cut(length).start().run()
        assert delivered(again) == expected, length
        assert event_problems(LOOP, again.events) == []


@pytest.mark.item("rec-35")
def test_a_message_that_comes_too_late_is_recorded_as_dropped() -> None:
    """The loop completes before another call: the step is not called again for the message."""
    run = Driver(LOOP).start()
    tell(run)
    tell(run, "To the step", to="main")
    calls = sum(isinstance(event, EffectRequested) for event in run.events)
    run.answer("main.0/agent#1", "DONE")
    drops = [f for f in run.events if isinstance(f, MessageDropped)]
    assert {(f.message, f.reason) for f in drops} == {
        ("m1", "run-ended"),
        ("m2", "target-terminal"),
    }
    assert run.state.finished is not None
    assert run.state.finished.outcome == "completed"
    assert sum(isinstance(event, EffectRequested) for event in run.events) == calls
    assert event_problems(LOOP, run.events) == []


@pytest.mark.item("rec-35")
def test_a_step_that_is_named_reads_it() -> None:
    """An address keeps the message for that step; other calls leave it."""
    run = Driver(STAGES).start()
    tell(run, to="review")
    tell(run, "For anybody")
    run.answer("main.0.plan/agent#1", "planned")
    run.answer("main.0.build/command#1", "built")
    text = prompt(run, "main.0.review/agent#1")
    assert "Message from ann: Keep the API" in text
    assert "Message from ann: For anybody" in text


def test_the_number_of_waiting_messages_is_bounded() -> None:
    """Beyond the limit a message is dropped, and the log says so."""
    run = Driver(LOOP).start()
    run.state.mail.inboxes[ANY_AGENT] = [None] * MAILBOX_SIZE  # type: ignore[list-item]
    events = tell(run)
    assert [f.reason for f in events if isinstance(f, MessageDropped)] == ["mailbox-full"]


# -- a run that is resumed -------------------------------------------------------------------------


def fail_call(run: Driver) -> None:
    run.answer("main.0/agent#1", Fail(detail="lost"))


def stop_run(run: Driver) -> None:
    run.cancel()


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("to", [ANY_AGENT, "main"])
@pytest.mark.parametrize("mode", ["continue", "restart"])
@pytest.mark.parametrize("end", [fail_call, stop_run])
def test_an_unread_message_is_read_after_a_resume(
    end: Callable[[Driver], None], mode: str, to: str
) -> None:
    """It waits while the run has ended, and the first call reads it, once."""
    run = Driver(LOOP).start()
    tell(run, to=to)
    end(run)
    assert run.state.finished is not None
    assert not [f for f in run.events if isinstance(f, MessageDropped)]
    run.append(RunReopened(at=run.clock + 1, mode=mode))  # type: ignore[arg-type]
    [effect] = [name for name in run.state.pending if "/agent#" in name]
    assert prompt(run, effect).count("Message from ann: Keep the API") == 1
    assert delivered(run) == [(effect, ("m1",))]
    run.run()
    assert delivered(run) == [(effect, ("m1",))]
    assert event_problems(LOOP, run.events) == []


@pytest.mark.item("rec-35")
def test_a_message_of_the_call_that_failed_is_in_the_repeated_call() -> None:
    """The call read it and failed: the same iteration has it again, and no later one."""
    run = Driver(LOOP).start()
    tell(run)
    run.answer("main.0/agent#1", "tried")
    run.answer("main.1/agent#1", Fail(detail="lost"))
    run.append(RunReopened(at=run.clock + 1, mode="continue"))
    assert "Message from ann: Keep the API" in prompt(run, "main.1/agent#2")
    run.answer("main.1/agent#2", "tried")
    assert "Keep the API" not in prompt(run, "main.2/agent#1")
    assert delivered(run) == [("main.1/agent#1", ("m1",))]


@pytest.mark.item("rec-35")
def test_a_message_waits_for_more_iterations() -> None:
    """It came during the last iteration that the loop may make."""
    run = Driver(LOOP).start()
    for number in range(2):
        run.answer(f"main.{number}/agent#1", "tried")
    tell(run)
    run.answer("main.2/agent#1", "tried")
    assert run.end.outcome == "exhausted"
    run.append(RunReopened(at=run.clock + 1, mode="continue", passes=5))
    assert delivered(run) == [("main.3/agent#1", ("m1",))]


@pytest.mark.item("rec-35")
def test_a_chat_model_reads_a_message_between_turns_after_a_crash() -> None:
    """Cut off anywhere after the message, the next turn has it and it is delivered once."""
    plan = BODIES["chat"].plan
    run = Driver(plan, script=good).start()
    tell(run)
    run.run()
    expected = delivered(run)
    assert expected == [("main.1/model#1", ("m1",))]
    told = next(n for n, f in enumerate(run.events) if isinstance(f, MessageSent)) + 1
    for length in [one for one in run.ends if one >= told]:
        again = run.cut(length).start().run()
        assert delivered(again) == expected, length
        assert again.end.outcome == "completed"


def test_message_to_any_agent_when_it_is_read_during_a_reply_calls_no_step() -> None:
    """It has its reader; the reply of the ended step goes to its writer too."""
    run = Driver(GRAPH).start()
    run.answer("one/agent#1", "A")
    ask = MessageSent(at=run.clock, path="", to="one", text="?", sender="bob", message="m1")
    run.append(ask)
    tell(run)
    caller = caller_of(run.state, run.state.pending["one/reply#1"])
    assert isinstance(caller, ToolCaller)
    read = use(run.state, caller, "read_inbox", {}, run.texts)
    assert isinstance(read, list)
    run.append(*read)
    assert delivered(run)[-1] == ("one/reply#1", ("m2",))
    assert sorted(run.state.pending) == ["one/reply#1", "two/agent#1"]
    run.answer("one/reply#1", "Yes.")
    assert sorted(run.state.pending) == ["two/agent#1"]
    run.answer("two/agent#1", "B")
    assert run.end.outcome == "completed"
    assert event_problems(run.plan, run.events) == []
