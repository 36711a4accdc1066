"""What the children of the kill walk drive: definite plans with definite answers and people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import AnyEvent, GateOpened, IterationStarted, RunPaused
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Decision,
    Each,
    LoopGate,
    Repeat,
    Rework,
    RunScript,
    Step,
    Steps,
    Wait,
)
from loopwright.model.checks import AllOf, CommandCheck, Expr, Judge, ScriptCheck
from loopwright.model.plan import Plan
from loopwright.model.policy import Retry
from loopwright.model.record import ItemsExpr, LiteralItems, Ref
from loopwright.operations.dialects import parse_definition
from loopwright.operations.runs import Service
from loopwright.ports import Answer, EffectJob, EffectSuccess
from loopwright.testing.fakes import PerformerScript, always, failed
from tests.faults.chatting import (
    FILES,
    TIDYING,
    WORKING,
    Chat,
    decide_apart,
    judge_files,
)

CHECK = CommandCheck(argv=("check",))
WORKER = CallAgent(agent="worker")
LONG = "an output that is too long to stand in a fact\n" * 40

Person = Callable[[Service, str], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A plan, what performers answer (`slow`: after so many seconds), and what a person does
    whenever something is new, or from another process when a run is at rest (`apart`). `chat`
    makes the performer of chat models instead; `files` is the workspace before the first life, and
    `judge` looks at what has become of it.
    """

    plan: Plan
    person: Person
    script: PerformerScript = field(default_factory=always)
    apart: bool = False
    chat: Callable[[Path], Chat] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    judge: Callable[[Path, Sequence[AnyEvent]], Iterable[str]] = lambda home, events: ()
    slow: Callable[[EffectJob], float] | None = None
    durability: Literal["full", "normal"] = "normal"


async def answer_gates(service: Service, run: str) -> None:
    """Each gate of a run at rest is answered: an iteration goes on, a step is approved."""
    assert service.driver is not None
    if service.driver.is_driving(run):
        return
    for gate in service.log.gates(run):
        events = [numbered.event for numbered in service.events(run)]
        [opened] = [f for f in events if isinstance(f, GateOpened) and f.gate == gate.gate]
        decision = "continue" if "continue" in opened.answers else "approve"
        await service.answer(gate.gate, decision, text="go on", by="child", digest=gate.digest)


# -- one thing after the other ---------------------------------------------------------------------


def _sequential_answers(job: EffectJob) -> Answer:
    if isinstance(job.call, AgentCall):
        if job.effect == "prepare/agent#1":
            return failed("overloaded")
        return EffectSuccess(output=LONG if job.iteration == 2 else f"worked on {job.path}")
    return EffectSuccess(code=0 if job.iteration == 3 else 1, output="2 failed")


SEQUENTIAL = Scenario(
    plan=Plan(
        name="sequential",
        steps=(
            Step(id="prepare", action=WORKER, retry=Retry(attempts=2, base_ms=3)),
            Step(
                id="fix",
                needs=("prepare",),
                action=Repeat(body=WORKER, max=4, until=CHECK, gate=LoopGate()),
            ),
        ),
    ),
    script=_sequential_answers,
    person=answer_gates,
)


# -- several things at once ------------------------------------------------------------------------


def _parallel_answers(job: EffectJob) -> Answer:
    if isinstance(job.call, AgentCall):
        if job.effect.endswith("each[1].draft/agent#1"):
            return failed("rate_limited")
        return EffectSuccess(output=f"worked on {job.path}")
    return EffectSuccess(code=0, output="fine")


PARALLEL = Scenario(
    plan=Plan(
        name="parallel",
        steps=(
            Step(
                id="each",
                action=Repeat(
                    each=Each(items=LiteralItems(values=("a", "b", "c", "d"))),
                    body=Steps(
                        steps=(
                            Step(id="draft", action=WORKER, retry=Retry(attempts=2, base_ms=3)),
                            Step(id="pause", action=Wait(ms=2)),
                            Step(
                                id="check",
                                needs=("draft", "pause"),
                                action=Repeat(body=WORKER, max=2, until=CHECK),
                            ),
                        )
                    ),
                ),
            ),
            Step(id="end", needs=("each",), action=WORKER),
        ),
    ),
    script=_parallel_answers,
    person=answer_gates,
    slow=lambda job: 0.001 * (sum(map(ord, job.effect)) % 5),
)


# -- people who interfere --------------------------------------------------------------------------


async def _pause_resume_answer_stop(service: Service, run: str) -> None:
    """Pause in the first iteration, resume, answer the gates, stop in the third pass."""
    events = [numbered.event for numbered in service.events(run)]
    passes = sum(isinstance(event, IterationStarted) for event in events)
    if service.state(run).control.paused:
        await service.resume(run, by="child")
    elif passes and not any(isinstance(event, RunPaused) for event in events):
        await service.pause(run, by="child")
    elif passes >= 3:
        await service.stop(run, by="child")
    else:
        await answer_gates(service, run)


INTERFERED = Scenario(
    plan=Plan(
        name="interfered",
        steps=(
            Step(id="ask", action=AskPerson()),
            Step(
                id="work",
                needs=("ask",),
                action=Repeat(body=WORKER, max=9, until=CHECK, gate=LoopGate()),
            ),
        ),
    ),
    script=lambda job: EffectSuccess(output="worked", code=1),
    person=_pause_resume_answer_stop,
    slow=lambda job: 0.002,
)

# -- a workflow as people write it -----------------------------------------------------------------

_FLOW = """
name: workflow
agents: {w: {description: Works.}}
options: {maxConcurrency: 1}
steps:
  - {id: plan, agent: w, instructions: Plan it.}
  - id: dev
    dependsOn: [plan]
    loop:
      maxIterations: 3
      until: "steps.review.content.contains('dev.1')"
      steps:
        - {id: code, agent: w, instructions: Write it.}
        - {id: review, agent: w, instructions: Review it., dependsOn: [code]}
  - id: ship
    dependsOn: [dev]
    loop: {forEach: [eu, us], maxConcurrency: 1, steps: [{id: go, agent: w, instructions: Ship.}]}
"""

_ROLES = """{
  "name": "roles", "description": "Roles in turn",
  "roles": [
    {"role": "plan", "prompt": "Plan it."},
    {"role": "coder", "prompt": "Do it."},
    {"role": "reviewer", "prompt": "Read it."}
  ],
  "termination_condition": {"type": "evaluation_bound", "value": "It works"}
}"""


def _role_answers(job: EffectJob) -> Answer:
    """Each stage says something else; the second review approves."""
    review = "APPROVED" if job.iteration == 2 else "Needs changes."
    return EffectSuccess(output=review if "reviewer" in job.path else f"{job.path} {LONG}")


ROLES = Scenario(
    plan=parse_definition(_ROLES.encode(), file="roles.json", force="coqui").plan,
    script=_role_answers,
    person=answer_gates,
)

WORKFLOW = Scenario(
    plan=parse_definition(_FLOW.encode(), file="flow.yaml", force="zenflow").plan,
    script=lambda job: EffectSuccess(
        output=f"{LONG if job.path == 'plan' else ''}worked on {job.path}"
    ),
    person=answer_gates,
)


# -- scripts, judges, work after a rejection, a whole step again ----------------------------------


async def _reject_the_first(service: Service, run: str) -> None:
    """What is asked first is rejected once; everything else goes on."""
    assert service.driver is not None
    if service.driver.is_driving(run):
        return
    for gate in service.log.gates(run):
        events = [numbered.event for numbered in service.events(run)]
        [opened] = [f for f in events if isinstance(f, GateOpened) and f.gate == gate.gate]
        asked = sum(isinstance(f, GateOpened) and f.path == opened.path for f in events)
        first = opened.path == "ask" and asked == 1
        decision: Decision = "approve" if "continue" not in opened.answers else "continue"
        await service.answer(gate.gate, "reject" if first else decision, text="not so", by="child")


def _judged_answers(job: EffectJob) -> Answer:
    """A judge that is not understood at first and says yes in the second iteration; a step that
    fails as a whole in its first try.
    """
    if isinstance(job.call, AgentCall) and job.call.role == "judge":
        if job.effect.endswith("draft.0/check1#1"):
            return failed("bad_result")
        said = '{"done":true}' if job.iteration == 2 else '{"done":false,"reason":"not yet"}'
        return EffectSuccess(output="judged", result=said)
    if isinstance(job.call, AgentCall):
        if job.effect.startswith("deliver.ship/"):
            return failed("agent")
        return EffectSuccess(output=f"worked on {job.path}", result='{"items":["a","b"]}')
    return EffectSuccess(code=0, output=LONG if job.effect.startswith("gather") else "fine")


JUDGED = Scenario(
    plan=Plan(
        name="judged",
        outcome="partial",
        parallel=1,
        steps=(
            Step(
                id="gather",
                action=RunScript(text="list", env={"WHAT": (Ref(of="message"),)}),
            ),
            Step(
                id="ask",
                needs=("gather",),
                when=Cel(text="steps.gather.status == 'completed'"),
                action=AskPerson(on_reject=Rework(agent="fixer", attempts=2)),
            ),
            Step(
                id="draft",
                needs=("ask",),
                action=Repeat(
                    body=WORKER,
                    max=3,
                    until=AllOf(
                        parts=(ScriptCheck(text="check"), Judge(agent="judge"), Expr(text="true"))
                    ),
                    gate=LoopGate(first_always=True),
                ),
            ),
            Step(
                id="deliver",
                needs=("draft",),
                retry=Retry(attempts=2, on=("any",)),
                action=Steps(
                    steps=(
                        Step(id="pack", action=RunScript(text="pack")),
                        Step(id="ship", needs=("pack",), action=WORKER),
                    )
                ),
            ),
            Step(
                id="each",
                needs=("draft", "deliver"),
                action=Repeat(
                    each=Each(items=ItemsExpr(expr="steps.draft.result.items"), parallel=1),
                    body=AskPerson(capture=True),
                ),
            ),
            Step(
                id="never",
                needs=("each",),
                when=Compare(ref=Ref(of="output", name="each"), op="==", value="no"),
                action=WORKER,
            ),
        ),
    ),
    script=_judged_answers,
    person=_reject_the_first,
)

# -- chat models with real tools -------------------------------------------------------------------

WORKING_CHAT = Scenario(
    plan=WORKING, person=decide_apart, apart=True, chat=Chat, files=FILES, judge=judge_files
)
TIDYING_CHAT = Scenario(
    plan=TIDYING, person=decide_apart, apart=True, chat=Chat, files=FILES, judge=judge_files
)

SCENARIOS = {
    "working": WORKING_CHAT,
    "tidying": TIDYING_CHAT,
    "workflow": WORKFLOW,
    "roles": ROLES,
    "sequential": SEQUENTIAL,
    "parallel": PARALLEL,
    "interfered": INTERFERED,
    "judged": JUDGED,
}
