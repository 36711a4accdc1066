"""Conversations that outgrow the window of a model, over a real wire that refuses what is too long.

The wire counts four bytes of the request for a token, tools and all, as a hosted service counts
what it is sent and not what somebody estimates.
"""

import asyncio
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import (
    EffectDone,
    EffectFailed,
    EffectRequested,
    HistoryCompressed,
    RunFinished,
    StepFinished,
)
from loopwright.model.actions import CallAgent, ModelCycle, Repeat, Step
from loopwright.model.checks import NoCalls
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, Limits
from loopwright.model.record import literal
from loopwright.operations.run_request import RunStart
from loopwright.operations.wiring import Local, local
from loopwright.testing.wires import ScriptedTurn, WireRequest, WireScript, WireServer
from tests.safety.stage import Played, Scene, call, doing, furnish, play

TASK = "The task is to find the blue door."
CODER = Agent(spec="model:local/tiny", tools=("fs.read",))
PRICED = Agent(
    spec="model:local/tiny",
    tools=("fs.read",),
    options={"unknown_price": {"input_usd": 100.0, "output_usd": 100.0}},
)
SUMMED = "Summary of the conversation before this point:"


class Reader:
    """A model that reads: so many turns with so many calls each, then it is done. It sums up when
    it is offered no tools.
    """

    def __init__(self, turns: int, calls: int = 1, path: str = "long.txt") -> None:
        self.left = [doing(*[call("fs_read", path=path)] * calls) for _ in range(turns)]
        self.summaries = 0

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        if not request.tools:
            self.summaries += 1
            return ScriptedTurn(text=f"summed up {self.summaries}")
        return self.left.pop(0) if self.left else ScriptedTurn(text="Found.")


def setting(top: Path, size: int) -> Scene:
    scene = furnish(top)
    lines = "".join(f"line {number} of the house\n" for number in range(size // 20))
    (scene.work / "long.txt").write_text(lines[:size])
    return scene


def cycle(memory: ConversationHistory, agent: Agent = CODER, limits: Limits | None = None) -> Plan:
    loop = Repeat(
        body=ModelCycle(agent="coder", prompt=literal(TASK)),
        max=40,
        until=NoCalls(),
        memory=memory,
        limits=limits or Limits(),
    )
    return Plan(name="work", steps=(Step(id="work", action=loop),), agents={"coder": agent})


def cuts(played: Played) -> list[HistoryCompressed]:
    return [event for event in played.events if isinstance(event, HistoryCompressed)]


def turns(played: Played) -> list[WireRequest]:
    """Requests for a turn, not for a summary."""
    return [request for request in played.requests if request.tools]


def tokens(request: WireRequest) -> int:
    return len(request.raw) // 4 + 1


def fits(played: Played, window: int) -> None:
    """Every request that was answered fits, has its task, and each call has its one result."""
    for request in played.requests:
        assert request.status != 200 or tokens(request) <= window
        assert request.complaints() == []
    assert all(TASK in request.raw.decode() for request in turns(played))
    assert played.status == "completed"


@pytest.mark.item("aldo-42", "aldo-43", "aldo-45", "W6")
def test_before_the_window_is_full(tmp_path: Path) -> None:
    """Nothing is cut below the mark; above it the conversation is made shorter before it is sent,
    so that the provider never has to refuse; the task stays.
    """
    scene = setting(tmp_path, 1_900)
    window = 6_000
    played = play(
        scene,
        cycle(ConversationHistory(window=window)),
        Reader(25),
        script=WireScript(window=window),
    )
    fits(played, window)
    assert all(request.status == 200 for request in played.requests)
    assert cuts(played)
    first = next(number for number, event in enumerate(played.events) if event in cuts(played))
    sent = [f for f in played.events[:first] if isinstance(f, EffectDone) and f.usage is not None]
    last = sent[-1].usage
    assert last is not None
    assert last.input_tokens + last.output_tokens + 1_900 // 4 >= 0.7 * window
    assert [tokens(request) for request in played.requests[: len(sent)]] == sorted(
        tokens(request) for request in played.requests[: len(sent)]
    ), "it only grows until the first cut"
    assert all(event.kept >= 4 for event in cuts(played)), "the last two turns with their results"


@pytest.mark.item("aldo-42", "aldo-43", "W7")
@pytest.mark.parametrize("turns_", [1, 2, 6])
def test_a_tail_that_is_too_long_by_itself(tmp_path: Path, turns_: int) -> None:
    """Four long results in the newest turn are cut to their heads when nothing else is left."""
    scene = setting(tmp_path, 20_000)
    window = 8_000
    reader = Reader(turns_, calls=4)
    played = play(
        scene, cycle(ConversationHistory(window=window)), reader, script=WireScript(window=window)
    )
    fits(played, window)
    assert all(request.status == 200 for request in played.requests)


@pytest.mark.item("W13", "W7")
@pytest.mark.parametrize(
    ("turns_", "calls"),
    [
        pytest.param(1, 1, id="one long result"),
        pytest.param(1, 3, id="three at once"),
        pytest.param(3, 1, id="turn after turn"),
    ],
)
def test_a_provider_with_a_smaller_window(tmp_path: Path, turns_: int, calls: int) -> None:
    """Nobody knows its window, and the estimate says that all fits: its refusal is believed. The
    conversation is made shorter once, really, and the run goes on.
    """
    scene = setting(tmp_path, 20_000)
    plan = Plan(
        name="work",
        steps=(Step(id="work", action=CallAgent(agent="coder", prompt=literal(TASK))),),
        agents={"coder": CODER},
    )
    window = 4_500
    played = play(scene, plan, Reader(turns_, calls), script=WireScript(window=window))
    fits(played, window)
    refused = [request for request in played.requests if request.status != 200]
    assert len(refused) == len(cuts(played)) >= 1
    failed = [event for event in played.events if isinstance(event, EffectFailed)]
    assert [event.error.type for event in failed] == ["overflow"] * len(refused)


@pytest.mark.item("W13")
def test_a_task_that_does_not_fit_at_all(tmp_path: Path) -> None:
    """What cannot be made shorter fails by its name and is not sent again and again."""
    scene = setting(tmp_path, 100)
    window = 100
    played = play(
        scene,
        cycle(ConversationHistory(window=100_000)),
        Reader(0),
        script=WireScript(window=window),
    )
    assert played.status == "failed"
    end = played.events[-1]
    assert isinstance(end, RunFinished)
    assert end.error is not None
    assert end.error.type == "overflow"
    assert len(played.requests) <= 2


@pytest.mark.item("aldo-44", "aldo-45", "W10")
def test_summaries(tmp_path: Path) -> None:
    """At most three in a run, then turns are dropped. What is summed up has the calls and their
    results in it, and one summary takes the place of another.
    """
    scene = setting(tmp_path, 1_900)
    window = 6_000
    plan = cycle(ConversationHistory(window=window, strategy="periodic-summary"))
    played = play(scene, plan, Reader(36), script=WireScript(window=window))
    fits(played, window)
    asked = [request for request in played.requests if not request.tools]
    assert len(asked) == 3
    assert [event.strategy for event in cuts(played)][:4] == [
        *["periodic-summary"] * 3,
        "rolling-window",
    ]
    for request in asked:
        assert "calls fs.read" in request.user_text
        assert "line 1 of the house" in request.user_text
    assert "summed up 1" in asked[1].user_text
    assert all(r.raw.decode().count(SUMMED) <= 1 for r in turns(played))
    assert any("summed up 3" in r.raw.decode() for r in turns(played))


@pytest.mark.item("aldo-44", "W8")
def test_every_run_has_its_own_summaries(tmp_path: Path) -> None:
    """Runs of one process, one after the other and side by side, have three each."""
    scene = setting(tmp_path, 1_900)
    plan = cycle(ConversationHistory(window=6_000, strategy="periodic-summary"))
    readers = {f"number {number}": Reader(30) for number in range(3)}

    def choose(request: WireRequest) -> ScriptedTurn:
        if not request.tools:
            return ScriptedTurn(text="summed up")
        raw = request.raw.decode()
        return next(reader for name, reader in readers.items() if name in raw)(request)

    async def run(here: Local, name: str) -> int:
        start = RunStart(plan=told(plan, name), workspace=scene.work)
        one = await here.service.start(start)
        await here.driver.rest(one)
        events = [numbered.event for numbered in here.service.events(one)]
        assert events[-1].outcome == "completed"  # type: ignore[union-attr]
        return sum(isinstance(f, HistoryCompressed) and f.summary is not None for f in events)

    async def whole() -> list[int]:
        async with local(scene.settings) as here:
            first = await run(here, "number 0")
            return [first, *await asyncio.gather(run(here, "number 1"), run(here, "number 2"))]

    with WireServer(choose=choose) as wires:
        address = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
        with patch.dict(os.environ, address):
            assert asyncio.run(whole()) == [3, 3, 3]


def told(plan: Plan, name: str) -> Plan:
    """The plan with a name in its task."""
    loop = plan.steps[0].action
    assert isinstance(loop, Repeat)
    assert isinstance(loop.body, ModelCycle)
    body = replace(loop.body, prompt=literal(f"{TASK} You are {name}."))
    return replace(plan, steps=(Step(id="work", action=replace(loop, body=body)),))


@pytest.mark.item("W9")
def test_summaries_are_paid(tmp_path: Path) -> None:
    """The bill of a run is the sum of all its calls, summaries too, and they count in its limit."""
    scene = setting(tmp_path, 1_900)
    window = 6_000
    memory = ConversationHistory(window=window, strategy="periodic-summary")
    played = play(scene, cycle(memory, PRICED), Reader(20), script=WireScript(window=window))
    paid = {
        event.effect: event.usage.usd
        for event in played.events
        if isinstance(event, EffectDone) and event.usage is not None
    }
    summaries = [
        event.effect
        for event in played.events
        if isinstance(event, EffectRequested)
        and isinstance(event.call, ModelCall)
        and event.call.role == "summary"
    ]
    assert summaries
    assert all(paid[effect] > 0 for effect in summaries)
    [end] = [event for event in played.events if isinstance(event, StepFinished)]
    assert end.usage is not None
    assert end.usage.usd == pytest.approx(sum(paid.values()))
    before = [e for e in paid if list(paid).index(e) < list(paid).index(summaries[0])]
    spent = sum(paid[effect] for effect in before)
    limit = Limits(usd=spent + paid[summaries[0]] / 2)  # the summary itself goes beyond it
    short = play(
        furnish_again(tmp_path),
        cycle(memory, PRICED, limit),
        Reader(20),
        script=WireScript(window=window),
    )
    assert short.status == "exhausted"
    asked = [f for f in short.events if isinstance(f, EffectRequested)]
    assert asked[-1].effect == summaries[0], "after the summary nothing more is asked"


def furnish_again(top: Path) -> Scene:
    return setting(top / "again", 1_900)
