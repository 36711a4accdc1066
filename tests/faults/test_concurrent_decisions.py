"""A decision of another process between a commit and its notification."""

from __future__ import annotations

import asyncio

from loopwright.engine.driver import POLL_MS
from loopwright.model.actions import AskPerson
from tests.faults.simulation import settled
from tests.faults.world import World
from tests.support.plans import plan_of, step

PLAN = plan_of(step("ask", AskPerson()))


async def _history() -> list[str]:
    world = World(0)
    world.processes = [None, None]
    here, there = world.boot(0), world.boot(1)
    world.start(here, PLAN)
    await settled()
    here.read_mail(2)  # the run exists and this process knows
    await settled()
    here.read_mail(1)  # the gate is open, which this process does not know yet
    [gate] = there.log.gates()
    world.decide(there, gate.gate, calm=True)
    await settled()
    there.read_mail(2)
    await settled()
    world.elapse(POLL_MS)
    here.clock.fire()  # it looks at what others wrote while its own append is under way
    for _ in range(5):
        here.read_mail(2)
        await settled()
    problems = [*world.problems, *world.unfinished()]
    world.end()
    await settled()
    return problems


def decided_while_the_news_is_on_its_way() -> list[str]:
    """What is wrong after that order of events."""
    return asyncio.run(_history())


def test_a_decision_is_seen_however_early_it_comes() -> None:
    """The process that opened a gate sees its answer, even one that overtakes its own news."""
    assert decided_while_the_news_is_on_its_way() == []
