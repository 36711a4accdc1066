"""Small plans for tests that need one and do not depend on its details."""

from loopwright.model.actions import Action, CallAgent, Each, Repeat, Step, Steps
from loopwright.model.checks import Check, CommandCheck
from loopwright.model.ids import MAIN
from loopwright.model.plan import Plan
from loopwright.model.policy import Retry
from loopwright.model.record import JsonValue, LiteralItems

WORKER = CallAgent(agent="worker")
CHECK = CommandCheck(argv=("check",))


def plan_of(*steps: Step, name: str = "test", parallel: int | None = None) -> Plan:
    """A plan of these steps."""
    return Plan(name=name, steps=steps, parallel=parallel)


def step(id: str, action: Action = WORKER, *, needs: tuple[str, ...] = ()) -> Step:
    """A step; by default one call of an agent."""
    return Step(id=id, action=action, needs=needs)


def loop(body: Action = WORKER, *, most: int = 3, until: Check = CHECK) -> Plan:
    """One loop around a body, ended by a check."""
    return plan_of(step(MAIN, Repeat(body=body, max=most, until=until)))


def for_each(
    values: tuple[JsonValue, ...], body: Action = WORKER, *, parallel: int | None = None
) -> Plan:
    """One pass for each of these values."""
    each = Each(items=LiteralItems(values=values), parallel=parallel)
    return plan_of(step(MAIN, Repeat(body=body, each=each)))


def graph(*steps: Step) -> Steps:
    """Steps as a body."""
    return Steps(steps=steps)


def retrying(id: str, action: Action = WORKER, *, attempts: int = 3, wait_ms: int = 5) -> Step:
    """A step that tries again when the provider is overloaded."""
    return Step(id=id, action=action, retry=Retry(attempts=attempts, base_ms=wait_ms))
