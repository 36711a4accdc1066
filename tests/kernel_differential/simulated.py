"""Histories of the simulation in `tests.faults`: the real engine, with several processes.

The simulation runs as it is, with the kernel of the product. What is committed to its store is
noted, and which of the events `settle` had produced. Afterwards each run is gone through append by
append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from loopwright.engine import actor
from loopwright.kernel.events import AnyEvent, RunStarted, encode_events
from loopwright.model.plan import decode_plan
from loopwright.ports import Append
from tests.faults import simulation
from tests.faults.chance import random_plan
from tests.faults.replies import schema_problem
from tests.faults.talking import talking_plan
from tests.faults.world import Plans, World
from tests.kernel_differential.harness import History, Move


class _World(World):
    """A world that keeps every append that was committed, in order."""

    def __init__(self, seed: int, plans: Plans) -> None:
        super().__init__(seed, plans)
        self.appends: list[Append] = []

    def committing(self, append: Append) -> None:
        super().committing(append)
        run = self.store.runs.get(append.run)
        if append.expected == (run.version if run is not None else 0):
            self.appends.append(append)


@contextmanager
def _settled() -> Iterator[dict[int, AnyEvent]]:
    """The events that `settle` produces inside the actors, by their identity."""
    found: dict[int, AnyEvent] = {}
    settle = actor.settle

    def noting(*given: Any) -> list[AnyEvent]:
        new = settle(*given)
        found.update((id(event), event) for event in new)
        return new

    with mock.patch.object(actor, "settle", noting):
        yield found


def simulated(seed: int) -> list[History]:
    """The runs of one history with plans of agents and programs."""
    return _histories("simulated", seed, random_plan)


def talking(seed: int) -> list[History]:
    """The same with chat models and their tools."""
    return _histories("talking", seed, talking_plan)


def _histories(name: str, seed: int, plans: Plans) -> list[History]:
    with _settled() as settled:
        world = asyncio.run(_simulate(seed, plans))
        assert not world.problems, f"{name} {seed}: {world.problems}"
        dice = Random(seed)
        return [_history(f"{name} {seed}", world, run, settled, dice) for run in world.store.runs]


async def _simulate(seed: int, plans: Plans) -> _World:
    world = _World(seed, plans)
    with mock.patch.object(simulation, "World", return_value=world):
        await simulation.simulate(seed, plans=plans)
    return world


def _history(
    name: str, world: _World, run: str, settled: dict[int, AnyEvent], dice: Random
) -> History:
    appends = [append for append in world.appends if append.run == run]
    started = appends[0].events[0]
    assert isinstance(started, RunStarted)
    assert sum(len(append.events) for append in appends) == world.store.runs[run].version
    return History(
        name=name,
        plan=decode_plan(world.store.blobs[started.plan]),
        moves=[_move(append, settled) for append in appends],
        contents=dict(world.store.blobs),
        check_schema=schema_problem,
        cuts=(dice.random(), dice.random()),
    )


def _move(append: Append, settled: dict[int, AnyEvent]) -> Move:
    """An append of an actor ends with what was decided; one of the service has only events."""
    decided = [event for event in append.events if id(event) in settled]
    outside = [event for event in append.events if id(event) not in settled]
    return Move(
        at=decided[0].at if decided else 0,
        events=_encoded(outside),
        settles=append.token is not None,
        recorded=_encoded(decided),
    )


def _encoded(events: list[AnyEvent]) -> tuple[bytes, ...]:
    return tuple(encode_events([event])[1:-1] for event in events)
