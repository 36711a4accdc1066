"""What the loops around a call say about it."""

import pytest

from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.checks import AllOf, CommandCheck, Signal
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from tests.engine.world import World, run


@pytest.mark.item("rec-31")
def test_a_call_knows_the_check_commands_of_all_loops_around_it() -> None:
    """The innermost loop first; the commands themselves are calls without them."""
    tests, lint = CommandCheck(argv=("pytest", "-q")), CommandCheck(argv=("ruff", "check"))
    inner = Repeat(
        body=CallAgent(agent="w", prompt=literal("x")),
        max=1,
        until=AllOf(parts=(Signal(word="DONE"), tests)),
    )
    outer = Repeat(body=inner, max=1, until=AllOf(parts=(lint, tests)))
    agents = {"w": Agent(spec="command:x")}
    plan = Plan(name="p", steps=(Step(id="a", action=outer),), agents=agents)
    process = World().process()
    run(process.finish(plan))
    called, *others = process.scripted.jobs
    assert called.confinement.checks == (("pytest", "-q"), ("ruff", "check"))
    assert {job.confinement.checks for job in others} == {()}
