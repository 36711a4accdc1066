"""A call of an agent that is a chat model: a loop of turns instead of a single call."""

from __future__ import annotations

import pytest

from loopwright.kernel.coordination import ToolCaller, caller_of
from loopwright.kernel.event_parts import AgentCall, ModelCall
from loopwright.kernel.events import (
    EffectRequested,
    IterationFinished,
    MessageSent,
    StepFinished,
    TurnTaken,
    Usage,
)
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.state import MOST_TURNS, WINDOW, conversation
from loopwright.model.actions import Action, CallAgent, Repeat, Step
from loopwright.model.checks import Contains, NoCalls
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import ConversationHistory, Limits, Retry
from tests.kernel.driving import Driver, Fail, Reply, plan_of
from tests.kernel.invariants import broken_laws
from tests.kernel.test_cycles import call, kinds, script, turn

CHAT = Agent(spec="model:local/tiny")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def plan(action: Action | None = None, agent: Agent = CHAT, **more: object) -> Plan:
    made = plan_of(action or CallAgent(agent="coder"), **more)
    return Plan(name=made.name, steps=made.steps, agents={"coder": agent})


def begun(what: Plan, *turns: object, **more: object) -> Driver:
    return Driver(what, script=script(*turns, **more)).start()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("agent", "most", "window", "limits"),
    [
        pytest.param(CHAT, MOST_TURNS, WINDOW, Limits(), id="nothing said"),
        pytest.param(
            Agent(spec="model:a/b", max_turns=3, max_usd=0.5, options={"context_window": 9_000}),
            3,
            9_000,
            Limits(usd=0.5),
            id="limits of the agent",
        ),
        pytest.param(
            Agent(spec="model:a/b", options={"context_window": "wide"}),
            MOST_TURNS,
            WINDOW,
            Limits(),
            id="a window that is none",
        ),
    ],
)
def test_what_a_call_of_a_chat_model_is(
    agent: Agent, most: int, window: int, limits: Limits
) -> None:
    """Turns until the model asks for nothing, within what the agent may use."""
    talk = conversation(agent, CallAgent(agent="coder", schema=SCHEMA))
    assert (talk.max, talk.until, talk.limits) == (most, NoCalls(), limits)
    assert talk.memory == ConversationHistory(window=window)
    assert talk.at_cap == "fail"


def test_a_call_is_its_turns() -> None:
    """Tools are done and shown, and the last words are the answer of the call."""
    run = begun(plan(), turn("I look.", call("c1")), turn("It is fine.")).run()
    assert run.ended[:2] == ("completed", "done")
    assert [f.status for f in run.events if isinstance(f, IterationFinished)] == ["completed"] * 2
    [step] = [f for f in run.events if isinstance(f, StepFinished)]
    assert (step.output, step.iterations) == ("It is fine.", 0)  # turns are not iterations
    assert broken_laws(run.events) == []


def test_an_agent_that_is_no_chat_model_is_called_once() -> None:
    """What stands behind the agent decides, and it may be another one in the next run."""
    run = Driver(plan(agent=Agent(spec="command:x"))).start()
    [asked] = [f for f in run.events if isinstance(f, EffectRequested)]
    assert isinstance(asked.call, AgentCall)


@pytest.mark.parametrize("most", [1, 4])
def test_turns_run_out(most: int) -> None:
    """A model that always wants one more tool is ended, and the step has failed."""
    agent = Agent(spec="model:local/tiny", max_turns=most)
    run = begun(plan(agent=agent), turn("Once more.", call("c"))).run()
    assert run.ended[:2] == ("failed", "max_iterations")
    assert sum(isinstance(f, TurnTaken) for f in run.events) == most


def test_a_result_ends_the_conversation() -> None:
    """The result is handed in by a tool; the others of that turn are done, no turn follows."""
    handed = call("r", "submit_result", arguments={"n": 3}, paths=())
    run = begun(plan(CallAgent(agent="coder", schema=SCHEMA)), turn("", call("c1"), handed)).run()
    [step] = [f for f in run.events if isinstance(f, StepFinished)]
    assert (run.ended[:2], step.result) == (("completed", "done"), '{"n":3}')
    assert kinds(run.events).count("turn.taken") == 1


@pytest.mark.parametrize(
    ("tries", "status"),
    [pytest.param(1, "completed", id="once"), pytest.param(2, "failed", id="twice")],
)
def test_a_result_that_is_missing_is_asked_for_once_more(tries: int, status: str) -> None:
    """A turn that neither asks nor hands in is repeated once, at once; then the call has failed."""
    missing = Fail("bad_result")
    handed = turn("", call("r", "submit_result", arguments={"n": 3}, paths=()))
    said = iter([missing] * tries + [handed])
    run = Driver(
        plan(CallAgent(agent="coder", schema=SCHEMA)), script=lambda request: next(said)
    ).start()
    run.run()
    assert run.ended[0] == status


def test_a_loop_of_conversations() -> None:
    """Each iteration of a loop around has a conversation of its own."""
    around = Repeat(body=CallAgent(agent="coder"), max=3, until=Contains(text="DONE"))
    said = iter([turn("no", call("a")), turn("not yet"), turn("DONE")])
    run = Driver(
        plan(around),
        script=lambda request: next(said) if isinstance(request.call, ModelCall) else Reply("ok"),
    ).start()
    run.run()
    assert run.ended[:2] == ("completed", "contains")
    paths = [f.path for f in run.events if isinstance(f, TurnTaken)]
    assert len(paths) == 3
    assert paths[0].rpartition(".")[0] == paths[1].rpartition(".")[0] != paths[2].rpartition(".")[0]
    assert broken_laws(run.events) == []


def test_money_of_an_agent_is_a_limit() -> None:
    """What the conversation costs counts, also where the plan itself limits nothing."""
    agent = Agent(spec="model:local/tiny", max_usd=0.1)
    dear = turn("More.", call("c"), usage=Usage(usd=0.06))
    run = begun(plan(agent=agent), dear).run()
    assert run.ended[:2] == ("exhausted", "budget")
    assert sum(isinstance(f, TurnTaken) for f in run.events) == 2


@pytest.mark.parametrize(
    ("retry", "turns", "ended"),
    [
        pytest.param(Retry(attempts=2), 2, "completed", id="the call that failed"),
        pytest.param(Retry(attempts=1), 1, "failed", id="never"),
    ],
)
def test_a_failed_turn_is_tried_again(retry: Retry, turns: int, ended: str) -> None:
    """A model that is overloaded is asked again by the policy of the step; nothing is lost."""
    said = iter([Fail("overloaded"), turn("Here.")])
    step = Step(id="main", action=CallAgent(agent="coder"), retry=retry)
    what = Plan(name="t", steps=(step,), agents={"coder": CHAT})
    run = Driver(what, script=lambda request: next(said)).start().run()
    assert run.ended[0] == ended
    asked = [f for f in run.events if isinstance(f, EffectRequested)]
    assert sum(isinstance(f.call, ModelCall) for f in asked) == turns


def test_a_model_is_parked_until_its_allowance_is_renewed() -> None:
    """A service that names a time is waited for; that is no try, and no turn is lost."""
    limited = Fail("rate_limited", resets_at=50_000)
    said = iter([limited, turn("Here.")])
    run = Driver(plan(), script=lambda request: next(said)).start().run()
    assert run.ended[:2] == ("completed", "done")
    assert run.clock >= 50_000


@pytest.mark.parametrize(
    ("call", "status"),
    [
        pytest.param(CallAgent(agent="coder"), "completed", id="may be silent"),
        pytest.param(CallAgent(agent="coder", on_empty="fail"), "failed", id="must speak"),
    ],
)
def test_a_model_that_says_nothing(call: CallAgent, status: str) -> None:
    """As for any agent: an answer without a word is one, unless the author needs words."""
    assert begun(plan(call), turn("")).run().ended[0] == status


def coordinated() -> Driver:
    made = plan()
    lead = Agent(spec="command:lead")
    what = Plan(
        name="t",
        steps=made.steps,
        agents={**made.agents, "lead": lead},
        coordinator=Coordinator(agent="lead"),
    )
    return Driver(what, script=lambda request: None).start()


def test_messages_are_read_between_turns() -> None:
    """What is written to a step is in its conversation before its next turn, and stays there."""
    run = coordinated()
    run.answer("main.0/model#1", turn("I look.", call("c1")))
    run.append(
        MessageSent(
            at=run.clock, path="", to="main", text="Stop at b.py", message="m1", sender="lead"
        )
    )
    new = run.answer("main.0/tool1#1", "seen")
    assert "message.delivered" in kinds(new)
    body = run.state.owners["main"].body
    assert isinstance(body, RepeatBody)
    assert [(e.kind, e.by) for e in body.talk.history] == [
        ("model", ""),
        ("tools", ""),
        ("user", "lead"),
    ]


def test_who_writes_by_a_tool() -> None:
    """A message that a model sends is one of its step."""
    run = coordinated()
    new = run.answer(
        "main.0/model#1",
        turn("", call("c1", "send_message", arguments={"text": "hi"}, paths=())),
    )
    [asked] = [f for f in new if isinstance(f, EffectRequested)]
    who = caller_of(run.state, run.state.pending[asked.effect])
    assert isinstance(who, ToolCaller)
    assert (who.role, who.sender) == ("step", "main")
