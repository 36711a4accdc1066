"""The first golden logs: small runs of a scripted driver. `catalogue` lists all of them."""

from __future__ import annotations

from collections.abc import Callable

from loopwright.kernel.events import Usage
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Each,
    LoopGate,
    Repeat,
    RunCommand,
    Step,
    Steps,
)
from loopwright.model.checks import AllOf, CommandCheck, Contains, PersonCheck, Signal
from loopwright.model.plan import Coordinator
from loopwright.model.policy import Limits, PreviousOutput, ProgressLog, Retry
from loopwright.model.record import LiteralItems, literal
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_iteration,
    decisions,
    drive,
    plan_of,
    plan_of_steps,
)

WORK = CallAgent(agent="coder", prompt=literal("Make the tests pass."))
SPENT = Usage(input_tokens=100, output_tokens=20, usd=0.01)


def signal_loop() -> Driver:
    plan = plan_of(Repeat(body=WORK, max=5, until=Signal(word="DONE"), memory=ProgressLog()))
    return drive(
        plan, by_iteration(Reply("looking", usage=SPENT), Reply("fixed\nDONE", usage=SPENT))
    )


def command_loop() -> Driver:
    tests = AllOf(parts=(Signal(word="DONE"), CommandCheck(argv=("make", "test"))))
    plan = plan_of(Repeat(body=WORK, max=5, until=tests, memory=PreviousOutput()))
    return drive(
        plan, by_iteration("DONE", commands=[Reply("1 failed", code=1), Reply("ok", code=0)])
    )


def gate_approved() -> Driver:
    plan = plan_of(Repeat(body=WORK, max=5, until=PersonCheck(message=literal("Good?"))))
    return drive(plan, by_iteration("v1", "v2"), decisions(("continue", "shorter"), "approve"))


def gate_rejected() -> Driver:
    plan = plan_of(Repeat(body=WORK, max=5, gate=LoopGate()))
    return drive(plan, by_iteration("v1"), decisions(("reject", "wrong file")))


def cap_asked() -> Driver:
    plan = plan_of(Repeat(body=WORK, max=2, at_cap="ask", output="all"))
    run = drive(plan, by_iteration("a", "b", "c"))
    run.decide("continue", "one more")
    run.run()
    run.decide("approve")
    return run


def cap_reached() -> Driver:
    return drive(plan_of(Repeat(body=WORK, max=3, output="learning")), by_iteration("a" * 500))


def stopped() -> Driver:
    body = Steps(steps=(Step(id="plan", action=WORK), Step(id="do", action=WORK, needs=("plan",))))
    run = drive(plan_of(Repeat(body=body, max=3)), by_effect({"main.1.plan/agent#1": None}))
    run.cancel()
    return run


def for_each() -> Driver:
    each = Each(items=LiteralItems(values=("a", "b", "c")), parallel=2, on_item_error="continue")
    plan = plan_of(Repeat(body=WORK, each=each))
    return drive(plan, by_effect({"main[1]/agent#1": Fail("exit", "code 2")}))


def nested() -> Driver:
    fix = Repeat(body=WORK, max=2, until=Contains(text="fixed"), at_cap="complete")
    body = Steps(
        steps=(
            Step(id="build", action=RunCommand(argv=("make",)), on_error="continue"),
            Step(id="fix", action=fix, needs=("build",), join="all_done"),
            Step(id="review", action=WORK, needs=("fix",)),
        )
    )
    plan = plan_of(Repeat(body=body, max=3, until=Contains(text="APPROVED")))
    answers = {
        "main.0.build/command#1": 2,
        "main.0.fix.1/agent#1": "fixed",
        "main.1.review/agent#1": "APPROVED",
    }
    return drive(plan, by_effect(answers))


def limits_and_retries() -> Driver:
    limits = Limits(wall_ms=60_000, pass_wall_ms=5_000, usd=1.0)
    plan = plan_of(
        Repeat(body=WORK, max=4, delay_ms=100, limits=limits),
        retry=Retry(attempts=3, base_ms=50),
        limits=Limits(wall_ms=90_000),
    )
    busy = Fail("rate_limited", "try later", retry_after_ms=200)
    return drive(plan, by_effect({"main.0/agent#1": busy, "main.1/agent#1": None}))


def waiting() -> Driver:
    """Not ended: two gates are open and a call is under way."""
    plan = plan_of_steps(
        Step(id="work", action=WORK),
        Step(id="ship", action=AskPerson(capture=True)),
        Step(id="loop", action=Repeat(body=WORK, max=2, until=PersonCheck(), check_first=True)),
    )
    run = drive(plan, by_effect({"work/agent#1": None}))
    run.pause()
    return run


def coordinated() -> Driver:
    """A coordinator that writes to a step, to one that has ended and to nobody, and sums up."""
    plan = plan_of_steps(
        Step(id="plan", action=WORK),
        Step(id="do", action=WORK, needs=("plan",)),
        coordinator=Coordinator(agent="lead"),
    )
    forward = '{"name": "forward_to_agent", "args": {"target_step_id": "%s", "text": "hi"}}'
    tools = ", ".join(forward % name for name in ("do", "plan", "nobody"))
    last = '{"tools": [{"name": "finalize", "args": {"summary": "Done."}}]}'
    answers = {
        "/coordinator#1": f'{{"tools": [{tools}]}}',
        "/coordinator#2": "Half of it is done.",
        "/coordinator#3": last,
    }
    return drive(plan, by_effect(answers))


RECORDINGS: dict[str, Callable[[], Driver]] = {
    "cap_asked": cap_asked,
    "cap_reached": cap_reached,
    "command_loop": command_loop,
    "coordinated": coordinated,
    "for_each": for_each,
    "gate_approved": gate_approved,
    "gate_rejected": gate_rejected,
    "limits_and_retries": limits_and_retries,
    "nested": nested,
    "signal_loop": signal_loop,
    "stopped": stopped,
    "waiting": waiting,
}
