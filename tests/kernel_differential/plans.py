"""Plans by chance with everything that a kernel decides about.

They are plans of the simulation in `tests.faults`, with and without chat models, to which are
added: stages, snapshots and protected files, a coordinator, workflows inside of workflows, and
options of steps and loops that the simulation leaves as they are.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Repeat,
    RunScript,
    Step,
    Steps,
    WorkflowInputs,
)
from loopwright.model.checks import (
    AllOf,
    Approval,
    Check,
    CommandCheck,
    Contains,
    Goal,
    Judge,
    PersonCheck,
    Regex,
    ResultPath,
    Signal,
)
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import StageOutputs, WorkspacePolicy
from loopwright.model.record import Ref, literal
from tests.faults.chance import random_plan
from tests.faults.talking import talking_plan

PROTECTED = ("tests/**",)


def varied_plan(dice: Random) -> Plan:
    """A plan of the simulation with more in it."""
    plan = talking_plan(dice) if dice.random() < 0.35 else random_plan(dice)
    steps = _varied_steps(dice, plan.steps)
    if dice.random() < 0.35:
        steps = (*steps, Step(id="stages", action=_stages(dice), retry=steps[0].retry))
    settings = dice.choice(({}, {}, {"scheduler": "round-robin"}, {"scheduler": "least-busy"}))
    return replace(
        plan,
        steps=steps,
        parallel=dice.choice((1, 2)) if settings else plan.parallel,
        agents={**plan.agents, "lead": Agent(), "coder_cli": Agent(spec="jsonl:coder")},
        coordinator=_coordinator(dice) if dice.random() < 0.3 else None,
        workspace=_workspace(dice),
        missing=dice.choice(("empty", "empty", "empty", "fail")),
        output=dice.choice(("last", "last", "sink", "list")),
        returns=dice.choice((None, None, None, steps[0].id)),
        settings=settings,
    )


def _coordinator(dice: Random) -> Coordinator:
    return Coordinator(
        agent="lead",
        prompt=dice.choice(((), literal("Lead."))),
        narrates=dice.random() < 0.8,
        max_calls=dice.choice((2, 5, 100)),
        hold_ms=dice.choice((50, 5_000)),
    )


def _workspace(dice: Random) -> WorkspacePolicy:
    on = dice.random() < 0.3
    return WorkspacePolicy(snapshots=on, protect=PROTECTED if on and dice.random() < 0.6 else ())


# -- stages ----------------------------------------------------------------------------------------


def _stages(dice: Random) -> Repeat:
    """A loop whose passes are stages, each of which sees what the others said."""
    code = Step(
        id="code",
        action=CallAgent(agent=dice.choice(("worker", "coder_cli"))),
        on_blocked=dice.choice(("go_on", "ask")),
        needs_artifact=dice.random() < 0.4,
        needs_output=dice.random() < 0.3,
    )
    review = Step(id="review", action=CallAgent(agent="judge"), needs=("code",))
    last = Step(id="publish", action=CallAgent(agent="worker"), needs=("code", "review"))
    steps = (code, review, last)[: dice.choice((2, 3))]
    return Repeat(
        body=Steps(steps=steps),
        max=dice.choice((1, 2, 3)),
        until=_stage_check(dice),
        memory=StageOutputs(chars=dice.choice((200, 32_000))),
        at_cap=dice.choice(("exhaust", "complete", "fail", "ask")),
        output=dice.choice(("last", "learning")),
        criteria=dice.random() < 0.3,
    )


def _stage_check(dice: Random) -> Check:
    approval = Approval(stage=dice.choice((None, "review")), words=dice.random() < 0.5)
    return dice.choice(
        (
            Contains(text="APPROVED"),
            approval,
            Goal(agent="judge"),
            AllOf(parts=(approval, CommandCheck(argv=("tests/check.sh",)))),
        )
    )


# -- options ---------------------------------------------------------------------------------------


def _varied_steps(dice: Random, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(_varied_step(dice, step) for step in steps)


def _varied_step(dice: Random, step: Step) -> Step:
    if dice.random() < 0.3:
        step = replace(
            step,
            on_blocked=dice.choice(("go_on", "ask")),
            needs_artifact=dice.random() < 0.2,
            needs_output=dice.random() < 0.3,
        )
    if dice.random() < 0.1:
        retry = replace(step.retry, if_says=("half",), unless_says=("never",))
        step = replace(step, retry=retry)
    return replace(step, action=_varied(dice, step.action))


def _varied(dice: Random, action: Action) -> Action:
    match action:
        case Steps():
            return _varied_graph(dice, action)
        case Repeat():
            return _varied_loop(dice, replace(action, body=_varied(dice, action.body)))
        case CallAgent(agent="worker"):
            return replace(
                action,
                agent=dice.choice(("worker", "fixer", "coder_cli")),
                on_idle=dice.choice(("fail", "answer")),
                on_empty=dice.choice(("answer", "fail")),
            )
        case AskPerson() if dice.random() < 0.3:
            return replace(action, choices=("a", "b"))
        case RunScript() if dice.random() < 0.3:
            return replace(action, on_timeout="skip", by_stdin=dice.random() < 0.5)
        case _:
            return action


def _varied_graph(dice: Random, graph: Steps) -> Steps:
    given = None
    if dice.random() < 0.25:
        message = dice.choice(((), literal("inside"), (Ref(of="message"),)))
        given = WorkflowInputs(message=message, inputs={"n": (Ref(of="input", name="n"),)})
    return replace(
        graph,
        steps=_varied_steps(dice, graph.steps),
        parallel=dice.choice((None, None, 1, 2)),
        output=dice.choice(("last", "last", "sink", "list")),
        given=given,
    )


def _varied_loop(dice: Random, loop: Repeat) -> Repeat:
    if loop.each is not None:
        error = dice.choice(("stop", "continue", "fail"))
        output = dice.choice((loop.output, "list"))
        return replace(loop, each=replace(loop.each, on_item_error=error), output=output)
    gate = loop.gate
    if gate is not None:
        gate = replace(gate, grants=dice.random() < 0.3, after=dice.choice((0, 0, 1, 2)))
    limits = replace(
        loop.limits,
        usd=dice.choice((None, None, None, 0.03)),
        tokens=dice.choice((None, None, None, 40)),
        no_progress=dice.choice((None, None, 2)),
        ends_at=dice.choice((None, None, None, None, 1_700_000_020_000)),
    )
    return replace(
        loop,
        gate=gate,
        limits=limits,
        until=_asking(dice, _varied_check(dice, loop.until)),
        on_deadline=dice.choice(("stop", "stop", "after_step", "after_pass")),
        criteria=dice.random() < 0.2,
        checks=dice.choice(("all", "all", "until_decided")),
    )


def _asking(dice: Random, check: Check) -> Check:
    """A check, and sometimes a person who has the last word."""
    return AllOf(parts=(check, PersonCheck())) if dice.random() < 0.1 else check


def _varied_check(dice: Random, check: Check) -> Check:
    match check:
        case Regex() if dice.random() < 0.5:
            return replace(check, pattern="(?<=D)ONE", engine="javascript", invalid=False)
        case Signal() if dice.random() < 0.5:
            return replace(check, anywhere=True)
        case Contains() if dice.random() < 0.3:
            return ResultPath(path=("done",))
        case AllOf() if dice.random() < 0.5:
            return replace(check, order="until_decided")
        case Judge() if dice.random() < 0.3:
            return replace(check, prompt=(Ref(of="message"),))
        case _:
            return check
