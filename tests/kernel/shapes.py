"""Short ways to write plans for tests, and to read what came of them."""

from __future__ import annotations

import json

from loopwright.kernel.events import StepFinished, StepSkipped
from loopwright.model.actions import Action, CallAgent, Each, Repeat, Step
from loopwright.model.plan import Plan
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, plan_of

WORK = CallAgent(agent="a")


def step(name: str, *needs: str, action: Action = WORK, **more: object) -> Step:
    return Step(id=name, action=action, needs=needs, **more)


def over(*values: object, **more: object) -> Plan:
    """A plan of one loop over these items."""
    each = {
        k: more.pop(k)
        for k in ("parallel", "on_item_error", "max_items", "failed_key")
        if k in more
    }
    return plan_of(Repeat(body=WORK, each=Each(items=LiteralItems(values=values), **each), **more))


def statuses(run: Driver) -> dict[str, str]:
    """How each step of a run ended."""
    return {
        event.path: event.status
        for event in run.events
        if isinstance(event, StepFinished | StepSkipped)
    }


def rows(run: Driver) -> list[dict[str, object]]:
    """The results of the items, one for each."""
    return json.loads(run.texts.read(run.end.result))["iterations"]
