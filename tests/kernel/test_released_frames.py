"""Frames of places that have ended are freed without the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loopwright.kernel.events import EffectRequested
from loopwright.kernel.frames import (
    CycleBody,
    GateState,
    IterationOwner,
    LeafBody,
    RepeatBody,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.state import release_frames
from loopwright.model.actions import Action, CallAgent, Each, LoopGate, Repeat, Step, Steps
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.checks import CommandCheck, Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Retry
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer, decisions, plan_of

FRAMES = (IterationOwner, StepOwner, LeafBody, CycleBody, StepsBody, RepeatBody, GateState)
CALL = CallAgent(agent="worker")
FEW, MANY = 5, 45


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing but reference counts frees objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def frames() -> Counter[str]:
    """The frames that exist now."""
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, FRAMES))


def answer(request: EffectRequested) -> ScriptedAnswer:
    """Steps named `weak` fail, a step named `second` fails the first time, all else works. A chat
    uses a tool in each turn.
    """
    if "weak" in request.effect or request.effect.endswith("second/agent#1"):
        return Fail(detail="broken")
    if "/model#" in request.effect:
        message = AssistantMessage(parts=(TextPart(text="go on"),))
        calls = (RequestedCall(id="c1", tool="look"),)
        return Reply("go on", result=encode_turn(ModelTurn(message=message, calls=calls)))
    return Reply(f"ok {request.effect}", code=0)


def repeat(body: Action, most: int, **more: object) -> Repeat:
    more.setdefault("until", Regex(pattern="DONE"))
    return Repeat(body=body, max=most, at_cap="complete", **more)  # type: ignore[arg-type]


def steps(*names: str, **more: object) -> Steps:
    return Steps(steps=tuple(Step(id=name, action=CALL, **more) for name in names))  # type: ignore[arg-type]


def chat(most: int) -> Plan:
    return plan_of(CALL, agents={"worker": Agent(spec="model:openai/gpt-5", max_turns=most)})


PLANS = {
    "a call": lambda n: plan_of(repeat(CALL, n)),
    "a call and a check": lambda n: plan_of(repeat(CALL, n, until=CommandCheck(argv=("false",)))),
    "steps": lambda n: plan_of(repeat(steps("a", "b"), n)),
    "a step that may fail": lambda n: plan_of(repeat(steps("a", "weak", on_error="continue"), n)),
    "a step that is tried again": lambda n: plan_of(
        repeat(steps("a", "second", retry=Retry(attempts=2, on=("any",))), n)
    ),
    "a loop in a loop": lambda n: plan_of(repeat(repeat(CALL, 2), n)),
    "a person": lambda n: plan_of(repeat(CALL, n, gate=LoopGate())),
    "items": lambda n: plan_of(
        Repeat(body=CALL, each=Each(items=LiteralItems(values=tuple(range(n))), max_items=n))
    ),
    "a conversation": chat,
}


def left_after(make: str, iterations: int) -> Counter[str]:
    """The frames that a run has left while it is still in memory."""
    with no_collector():
        before = frames()
        driver = Driver(PLANS[make](iterations), script=answer, people=decisions("approve"))
        driver.run()
        assert driver.state.finished is not None
        return frames() - before


@pytest.mark.item("bnd-m1")
@pytest.mark.parametrize("make", PLANS)
def test_a_longer_loop_leaves_no_more_frames(make: str) -> None:
    """What a run has in memory does not depend on how many iterations it has made."""
    assert left_after(make, MANY) == left_after(make, FEW)


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize("answers", [1, 4, 10_000], ids=["begun", "under way", "ended"])
def test_a_run_that_is_given_up_leaves_no_frame(make: str, answers: int) -> None:
    """Also one whose places are open, or have failed."""
    with no_collector():
        before = frames()
        driver = Driver(PLANS[make](FEW), script=answer, people=decisions("approve")).start()
        for _ in range(answers):
            if not driver.step():
                break
        release_frames(driver.state.root)
        del driver
        assert frames() - before == Counter()
