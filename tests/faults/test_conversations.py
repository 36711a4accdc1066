"""What a model is shown at every turn of simulated histories, read from the events alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loopwright.engine.services import TextServices
from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import AnyEvent, EffectRequested, HistoryCompressed, RunStarted
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import IterationOwner
from loopwright.kernel.state import State
from loopwright.model.chat import UserMessage
from loopwright.model.plan import Plan, decode_plan
from loopwright.prompts.conversation import BEFORE, converse, is_paired
from tests.faults.replies import schema_problem
from tests.faults.simulation import simulate
from tests.faults.talking import TASK, talking_plan
from tests.support.memory_log import MemoryLog

SEEDS = 60


def turns_shown(plan: Plan, events: list[AnyEvent], texts: TextServices) -> Iterator[str]:
    """What is wrong with the history of each turn, at the moment when it was asked for."""
    state = State(plan)
    for event in events:
        apply(state, event)
        if not isinstance(event, EffectRequested) or not isinstance(event.call, ModelCall):
            continue
        if event.call.role != "turn" or event.call.agent == "worker":
            continue
        owner = state.owners[event.path]
        assert isinstance(owner, IterationOwner)
        shown = converse(state, owner, state.plan.agents[event.call.agent], texts).messages
        if not is_paired(shown):
            yield f"{event.effect}: {shown}"
        if not isinstance(shown[0], UserMessage) or TASK not in shown[0].text:
            yield f"{event.effect} has {shown[0]} first"
        if any(BEFORE in one.text for one in shown[2:] if isinstance(one, UserMessage)):
            yield f"{event.effect} has a summary behind the second place"


@pytest.mark.item("aldo-43", "aldo-47")
def test_every_turn_is_shown_a_history_that_a_service_accepts() -> None:
    """Whatever was cut, crashed or rejected: each call has its result, and the task is first."""
    cuts = asked = 0
    for seed in range(SEEDS):
        world = asyncio.run(simulate(seed, plans=talking_plan))
        log = MemoryLog(alive=world.alive, store=world.store, deliver=lambda call: None)
        for row in log.rows():
            events = [numbered.event for numbered in log.read(row.run)]
            assert isinstance(events[0], RunStarted)
            plan = decode_plan(log.blob(events[0].plan))
            problems = list(turns_shown(plan, events, TextServices(log.blob, schema_problem)))
            assert problems == [], f"talking {seed}"
            cuts += sum(isinstance(event, HistoryCompressed) for event in events)
            asked += sum(
                isinstance(f, EffectRequested) and isinstance(f.call, ModelCall) for f in events
            )
    assert cuts > SEEDS / 4
    assert asked > SEEDS
