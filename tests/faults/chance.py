"""Plans, answers and decisions by chance: everything comes from the dice that are passed in."""

from __future__ import annotations

from random import Random

from loopwright.kernel.calls import AgentCall
from loopwright.kernel.facts import Failure, Usage
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    Gate,
    Repeat,
    RunCommand,
    Step,
    Steps,
    Stop,
    Wait,
)
from loopwright.model.checks import AllOf, AnyOf, Cap, Check, Command, Contains, Person
from loopwright.model.memory import NoMemory, PreviousOutput, ProgressLog
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.template import Items, literal
from loopwright.ports import Answer, Done, Failed, Job

FAILURES = ("overloaded", "rate_limited", "agent", "exit", "idle_timeout")
LONG = "a line of an output that is too long to stand in a fact\n" * 30


def random_plan(dice: Random) -> Plan:
    """A plan that ends by itself: every loop has a cap or a list."""
    return Plan(
        name="chance",
        steps=_steps(dice, depth=2),
        on_failure=dice.choice(("cascade", "cascade", "skip", "abort")),
        parallel=dice.choice((None, None, 1, 2)),
        limits=Limits(
            wall_ms=dice.choice((None, None, None, 60_000)),
            tokens=dice.choice((None, None, None, 30)),
        ),
    )


def _steps(dice: Random, depth: int) -> tuple[Step, ...]:
    ids = [f"s{n}" for n in range(dice.choice((1, 1, 2, 3, 4)))]
    return tuple(
        Step(
            id=id,
            action=_action(dice, depth),
            needs=tuple(before for before in ids[:n] if dice.random() < 0.4),
            join=dice.choice(("all_success", "all_success", "all_done", "one_success")),
            retry=Retry(attempts=dice.choice((1, 2, 3)), base_ms=dice.choice((5, 1_000))),
            limits=Limits(wall_ms=dice.choice((None, None, None, 5_000))),
            on_error=dice.choice(("fail", "fail", "continue")),
        )
        for n, id in enumerate(ids)
    )


def _action(dice: Random, depth: int) -> Action:
    kind = dice.random()
    if depth and kind < 0.30:
        return _repeat(dice, depth)
    if depth and kind < 0.45:
        return _each(dice, depth)
    if depth and kind < 0.52:
        return Steps(steps=_steps(dice, depth - 1))
    if kind < 0.60:
        return AskPerson(message=literal("go on?"), capture=dice.random() < 0.5)
    if kind < 0.67:
        return Wait(ms=dice.choice((0, 10, 700, 20_000)))
    if kind < 0.78:
        return RunCommand(argv=("work",))
    if kind < 0.80:
        return Stop(reason=literal("the plan says so"))
    return CallAgent(agent="worker")


def _repeat(dice: Random, depth: int) -> Repeat:
    return Repeat(
        body=_action(dice, depth - 1),
        max=dice.choice((1, 2, 3)),
        until=_check(dice, 2),
        memory=dice.choice((NoMemory(), ProgressLog(), PreviousOutput())),
        gate=dice.choice((None, None, None, Gate())),
        at_cap=dice.choice(("exhaust", "complete", "fail", "ask")),
        output=dice.choice(("last", "last", "all", "learning")),
        delay_ms=dice.choice((0, 0, 50, 3_000)),
        limits=Limits(
            wall_ms=dice.choice((None, None, 8_000)),
            pass_wall_ms=dice.choice((None, None, 2_000)),
            identical=dice.choice((None, None, 2)),
        ),
        check_first=dice.random() < 0.15,
    )


def _each(dice: Random, depth: int) -> Repeat:
    return Repeat(
        body=_action(dice, depth - 1),
        each=Each(
            items=Items(values=tuple(range(dice.choice((0, 1, 2, 4))))),
            parallel=dice.choice((None, 1, 2)),
            on_item_error=dice.choice(("stop", "continue")),
        ),
    )


def _check(dice: Random, depth: int) -> Check:
    kind = dice.random()
    if depth and kind < 0.2:
        parts = tuple(_check(dice, depth - 1) for _ in range(dice.choice((1, 2))))
        return dice.choice((AnyOf, AllOf))(parts=parts)
    if kind < 0.5:
        return Command(argv=("check",))
    if kind < 0.75:
        return Contains(text="DONE")
    return dice.choice((Cap(), Person()))


def random_answer(dice: Random, job: Job) -> Answer:
    """Mostly good, sometimes long, sometimes a failure that may be tried again."""
    kind = dice.random()
    usage = Usage(input_tokens=10, output_tokens=5, usd=0.01) if dice.random() < 0.3 else None
    if isinstance(job.call, AgentCall):
        if kind < 0.3:
            return Failed(error=Failure(type=dice.choice(FAILURES)), usage=usage)
        text = dice.choice(("ok", "DONE", "more", LONG + str(dice.random())))
        return Done(output=text, usage=usage, session=dice.choice((None, "s1")))
    if kind < 0.1:
        return Failed(error=Failure(type="not_found"))
    return Done(output=dice.choice(("", "3 failed", LONG)), code=0 if kind < 0.6 else 1)
