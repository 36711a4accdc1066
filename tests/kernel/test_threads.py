"""Threads: conversations that a loop keeps from pass to pass."""

import pytest

from loopwright.kernel.events import HistoryCompressed
from loopwright.kernel.frames import IterationOwner, RepeatBody
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.chat import AssistantMessage, ModelTurn, TextPart, encode_turn
from loopwright.model.checks import Contains
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import SameSession
from loopwright.model.record import literal
from tests.kernel.driving import Driver, Reply

CHAT = Agent(spec="model:local/tiny")
NOT_YET = Reply(
    "Not yet.",
    result=encode_turn(ModelTurn(message=AssistantMessage(parts=(TextPart(text="Not yet."),)))),
)


def call(name: str) -> CallAgent:
    return CallAgent(agent=name, prompt=literal("Go."))


def begun(body: CallAgent | Steps) -> Driver:
    loop = Repeat(body=body, max=5, until=Contains(text="DONE"), memory=SameSession())
    agents = {"coder": CHAT, "critic": CHAT}
    return Driver(Plan(name="t", steps=(Step(id="main", action=loop),), agents=agents)).start()


def talk(run: Driver, path: str) -> RepeatBody:
    owner = run.state.owners[path]
    assert isinstance(owner, IterationOwner)
    return owner.parent


def test_each_place_of_an_iteration_has_its_own() -> None:
    """Two steps with the same model behind them do not see what the other one said."""
    steps = (
        Step(id="write", action=call("coder")),
        Step(id="read", action=call("critic"), needs=("write",)),
    )
    run = begun(Steps(steps=steps))
    run.answer("main.0.write.0/model#1", NOT_YET)
    assert talk(run, "main.0.read.0").talk.history == []
    run.answer("main.0.read.0/model#1", NOT_YET)
    assert (
        len(talk(run, "main.1.write.0").talk.history),
        talk(run, "main.1.write.0").talk.carried,
    ) == (1, 1)


@pytest.mark.parametrize(
    ("dropped", "carried", "first"),
    [(1, 2, "summary"), (2, 0, "summary"), (0, 2, "model")],
    ids=["some", "all", "none"],
)
def test_what_stands_before_the_task_after_a_cut(dropped: int, carried: int, first: str) -> None:
    """A summary takes the place of what has gone: before the task while something else is there."""
    run = begun(call("coder"))
    run.answer("main.0.0/model#1", NOT_YET)
    run.answer("main.1.0/model#1", NOT_YET)
    assert talk(run, "main.2.0").talk.carried == 2
    run.append(
        HistoryCompressed(
            at=run.clock,
            path="main.2.0",
            dropped=dropped,
            kept=2 - dropped,
            strategy="periodic-summary",
            summary="in short" if dropped else None,
        )
    )
    body = talk(run, "main.2.0")
    assert (body.talk.carried, body.talk.history[0].kind) == (carried, first)


def test_an_iteration_does_not_change_what_another_one_has_said() -> None:
    """What is kept grows by whole turns, and a run that is folded again keeps the same."""
    run = begun(call("coder"))
    run.answer("main.0.0/model#1", NOT_YET)
    first = talk(run, "main.1.0").talk.history
    run.answer("main.1.0/model#1", NOT_YET)
    second = talk(run, "main.2.0").talk.history
    assert [len(first), len(second)] == [2, 2]
    assert first is not second
