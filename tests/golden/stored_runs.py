"""Runs of the whole engine, as a store keeps them: one or two of each dialect, on a fake clock.

The definitions are files of tests/corpus. The service, the driver and the actor are the real ones,
over a store in memory; a scripted performer answers, and people answer gates by script.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loopwright.kernel.event_parts import (
    AgentCall,
    Failure,
    LookupCall,
    ModelCall,
    ToolCall,
    ToolUse,
)
from loopwright.kernel.events import AnyEvent, RunStarted, Usage
from loopwright.model.actions import Decision
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.plan import Agent, Plan, decode_plan
from loopwright.operations.dialects import parse_definition
from loopwright.operations.gates import CallAnswer
from loopwright.operations.loops.loop_details import LoopEdit, edit
from loopwright.operations.messages import tell
from loopwright.operations.run_control import ResumeChanges, reopen
from loopwright.operations.run_request import RunStart
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess
from loopwright.ports.runs import ActivityEntry
from loopwright.testing import ScriptedPerformer
from tests.engine.world import Process, World, quiet
from tests.engine.world import run as in_loop

CORPUS = Path(__file__).parents[1] / "corpus"
MOST_STEPS = 200
SPENT = Usage(input_tokens=120, output_tokens=30, usd=0.02)

Answers = Callable[[EffectJob], Answer | None]
People = Callable[[str], tuple[Decision, str]]
"""The decision about the gate at a path."""


@dataclass(frozen=True)
class Recorded:
    """A plan as it is stored with a run, and the events of that run."""

    plan: Plan
    events: list[AnyEvent]


def stored(process: Process, run: str) -> Recorded:
    events = process.events(run)
    first = events[0]
    assert isinstance(first, RunStarted)
    return Recorded(decode_plan(process.log.blob(first.plan)), events)


def approves(path: str) -> tuple[Decision, str]:
    return "approve", ""


def in_order(*decisions: tuple[Decision, str]) -> People:
    """The n-th gate gets the n-th decision."""
    left = iter(decisions)
    return lambda path: next(left)


async def drive(process: Process, run: str, people: People = approves) -> None:
    """Answer gates and let time pass until the run ends."""
    for _ in range(MOST_STEPS):
        await quiet()
        gates = process.log.gates(run)
        if process.status(run) in ("completed", "failed", "cancelled", "exhausted"):
            return
        if gates:
            decision, text = people(gates[0].path)
            await process.service.answer(gates[0].gate, decision, text=text, by="ann")
        else:
            assert process.clock.next_in is not None, f"{run} waits for nothing"
            process.clock.advance(process.clock.next_in)
    raise AssertionError(f"{run} has not ended")


def plan_at(file: str, dialect: str, files: Mapping[str, bytes] | Path | None = None) -> Plan:
    path = CORPUS / file
    return parse_definition(path.read_bytes(), file=path.name, force=dialect, files=files).plan


async def begin(process: Process, plan: Plan, **more: object) -> str:
    start = RunStart(
        plan=plan,
        workspace=Path("/"),
        message="Make it work.",
        by="ann",
        run=f"run_{plan.dialect}",
        **more,  # type: ignore[arg-type]
    )
    return await process.service.start(start)


def driven(plan: Plan, answers: Answers, people: People = approves, **more: object) -> Recorded:
    """A run from its start to its end."""

    async def go() -> Recorded:
        process = World().process(answers)
        run = await begin(process, plan, **more)
        await drive(process, run, people)
        return stored(process, run)

    return in_loop(go())


def by_agent(table: Mapping[str, tuple[str, ...]], default: str = "worked") -> Answers:
    """The n-th iteration of an agent gets its n-th text, the last one again and again."""

    def answer(job: EffectJob) -> Answer:
        if isinstance(job.call, LookupCall):
            return EffectSuccess(output="plan.md", code=0)
        if not isinstance(job.call, AgentCall):
            return EffectSuccess(output="1 passed", code=0 if job.iteration > 1 else 1)
        texts = table.get(job.call.agent, (default,))
        text = texts[min(max(job.iteration, 1), len(texts)) - 1]
        if text.startswith("{"):
            return EffectSuccess(output=text, result=text, usage=SPENT)
        return EffectSuccess(output=text, usage=SPENT, session=f"session of {job.call.agent}")

    return answer


# -- the dialects ----------------------------------------------------------------------------------


def native() -> Recorded:
    """A loop of a writer and a reviewer; a person is asked when the writer is blocked."""
    answers = by_agent(
        {
            "writer": ("STATUS: BLOCKED\nno key", "a page"),
            "reviewer": ("NEEDS CHANGES", "APPROVED"),
        }
    )
    people = in_order(("approve", "go on without it"))
    return driven(plan_at("native/valid/stages.yaml", "native"), answers, people, labels=("docs",))


def rondoflow() -> Recorded:
    """An assistant whose iterations a person reviews."""
    people = in_order(("continue", "shorter"), ("approve", ""))
    plan = plan_at("rondoflow/valid/manual.yaml", "rondoflow")
    return driven(
        plan, lambda job: EffectSuccess(output=f"draft {job.iteration}", usage=SPENT), people
    )


def rondoflow_tests() -> Recorded:
    """An assistant that works until its tests pass."""
    return driven(plan_at("rondoflow/valid/tests.json", "rondoflow"), by_agent({}))


def zenflow() -> Recorded:
    """A loop of steps with a judge and an expression."""
    answers = by_agent(
        {
            "reviewer": ("The name is wrong.", "Still wrong.", "LGTM"),
            "judge": ('{"done":false,"reason":"not yet"}', '{"done":false,"reason":"almost"}'),
        }
    )
    return driven(plan_at("zenflow/valid/refine-with-both-checks.yaml", "zenflow"), answers)


def zenflow_told() -> Recorded:
    """A loop whose step a person writes to while it runs."""

    async def go() -> Recorded:
        answers = by_agent({"judge": ('{"done":false}', '{"done":true,"reason":"enough"}')})
        held = ScriptedPerformer(lambda job: None if job.effect == HELD else answers(job))
        process = World().process(performer=held)
        run = await begin(process, plan_at("zenflow/valid/loop-with-messages.yaml", "zenflow"))
        await quiet()
        await tell(process.service, run, "Count from one.", to="loop-stages.worker", by="ann")
        held.answer(run, HELD, "STAGE_1_DONE")
        await drive(process, run)
        return stored(process, run)

    return in_loop(go())


HELD = "loop-stages.0.worker/agent#1"


def archon() -> Recorded:
    """Loops inside of loops, with shell steps and shell checks."""

    def answer(job: EffectJob) -> Answer:
        if isinstance(job.call, AgentCall):
            return EffectSuccess(output="<promise>OK</promise>" if job.iteration > 1 else "trying")
        done = job.effect.startswith(("top/", "outer.0.after", "outer.1"))
        return EffectSuccess(output="listed", code=0 if done else 1)

    return driven(plan_at("archon/valid/nested.yaml", "archon"), answer)


def archon_reworked() -> Recorded:
    """An approval that is rejected, worked on and then given."""
    people = in_order(("reject", "The tone is wrong."), ("approve", ""))
    return driven(plan_at("archon/valid/approval-rework.yaml", "archon"), by_agent({}), people)


def aldo() -> Recorded:
    """Cycles of a chat model with tools and a ceiling on its turns."""

    def answer(job: EffectJob) -> Answer:
        if isinstance(job.call, ToolCall):
            return EffectSuccess(output="a file", code=0)
        assert isinstance(job.call, ModelCall | AgentCall)
        last = job.iteration > 2
        text = "That is enough." if last else "I look."
        calls = (
            () if last else (RequestedCall(id=f"c{job.iteration}", tool="fs.read", paths=("a",)),)
        )
        turn = ModelTurn(
            message=AssistantMessage(parts=(TextPart(text=text),)),
            calls=calls,
            model="fake",
            task=job.chat.task,
        )
        return EffectSuccess(output=text, result=encode_turn(turn), usage=SPENT)

    files = {"prompt.md": b"You are careful.\n"}
    return driven(plan_at("aldo/valid/iteration-with-ceilings.yaml", "aldo", files), answer)


def aldo_composite() -> Recorded:
    """A composite of several agents and files."""
    folder = CORPUS / "aldo/files/valid/parallel"
    plan = plan_at("aldo/files/valid/parallel/main.yaml", "aldo", folder)
    return driven(plan, lambda job: EffectSuccess(output=f"{job.step} worked", usage=SPENT))


def coqui() -> Recorded:
    """Three roles in turn: two rounds until the reviewer approves; edited on the way."""

    async def go() -> Recorded:
        answers = by_agent({"reviewer": ("Rejected", "APPROVED")})
        first = "implement/agent#1"
        held = ScriptedPerformer(
            lambda job: None if job.effect.endswith(f"0.{first}") else answers(job)
        )
        process = World().process(performer=held)
        run = await begin(process, plan_at("coqui/valid/harness.json", "coqui"))
        await quiet()
        change = LoopEdit(goal="Make it work well.", metadata={"ticket": "A-1"}, labels=("urgent",))
        await edit(process.service, run, change, by="ann")
        ((_, effect),) = held.held
        held.answer(run, effect, "changed two files")
        await drive(process, run)
        return stored(process, run)

    return in_loop(go())


def coqui_retried() -> Recorded:
    """A stage that fails, and that a person has tried again."""

    async def go() -> Recorded:
        answers = by_agent({"reviewer": ("APPROVED",)})
        failing = [True]

        def answer(job: EffectJob) -> Answer | None:
            if failing and isinstance(job.call, AgentCall) and job.call.agent == "reviewer":
                failing.clear()
                return EffectFailure(
                    error=Failure(type="agent", detail="out of words"), usage=SPENT
                )
            return answers(job)

        process = World().process(answer)
        run = await begin(process, plan_at("coqui/valid/artifact-required.json", "coqui"))
        await drive(process, run)
        again = ResumeChanges(stage="retry", note="Use fewer words.")
        await reopen(process.service, run, by="ann", changes=again)
        await drive(process, run)
        return stored(process, run)

    return in_loop(go())


# -- what only the runtime records -----------------------------------------------------------------


class _Reporting(ScriptedPerformer):
    """An agent that reports what it does while it works."""

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        job.activity.record(
            ActivityEntry(kind="command", tool="Bash", target="pytest -q", ok=False, code=1, ms=40)
        )
        job.activity.record(ActivityEntry(kind="edit", tool="Edit", target="a.py", ok=True))
        return super().perform(job)


def taken_over() -> Recorded:
    """A process dies during a call that has reported activity; the next one repeats the call."""

    async def go() -> Recorded:
        world = World()
        first = world.process(performer=_Reporting(lambda job: None))
        run = await begin(first, plan_at("native/valid/small.yaml", "native"))
        await quiet()
        await first.tick(60_000)
        world.kill(first)
        second = world.process(lambda job: _worked(job))
        second.service.recover()
        await quiet()
        await drive(second, run)
        return stored(second, run)

    return in_loop(go())


def _worked(job: EffectJob) -> Answer:
    if not isinstance(job.call, AgentCall):
        return EffectSuccess(output="ok", code=0)
    tools = (ToolUse(name="Bash", input="pytest -q"),)
    return EffectSuccess(output="fixed\nDONE", usage=SPENT, session="s1", tools=tools, mark=1)


def paused() -> Recorded:
    """A run that is paused, whose agent is changed, that is resumed and then stopped."""

    async def go() -> Recorded:
        held = ScriptedPerformer(lambda job: None)
        process = World().process(performer=held)
        run = await begin(process, plan_at("native/valid/graph.yaml", "native"))
        await quiet()
        await process.service.pause(run, by="ann")
        await quiet()
        name = next(iter(process.state(run).plan.agents))
        becomes = Agent(system="You are brief.")
        await process.service.change_agent(run, name, becomes, by="ann")
        await process.service.resume(run, by="ann")
        await quiet()
        await process.service.stop(run, by="ann")
        await quiet()
        return stored(process, run)

    return in_loop(go())


def approved_call() -> Recorded:
    """A model's call of a tool that a person approves with other arguments."""

    async def go() -> Recorded:
        process = World().process(_asks_once)
        plan = plan_at("native/valid/cycles.yaml", "native")
        agents = {
            name: Agent(spec="model:fake", approvals={"fs.write": "always"}) for name in plan.agents
        }
        run = await begin(process, _with_agents(plan, agents))
        await quiet()
        gate, *_ = process.log.gates(run)
        call = CallAnswer(arguments='{"path":"b","content":"x"}', remember=True)
        await process.service.answer(gate.gate, "approve", by="ann", call=call)
        await drive(process, run)
        return stored(process, run)

    return in_loop(go())


def _with_agents(plan: Plan, agents: dict[str, Agent]) -> Plan:
    return Plan(
        **{n: getattr(plan, n) for n in plan.__struct_fields__ if n != "agents"}, agents=agents
    )


def _asks_once(job: EffectJob) -> Answer:
    if isinstance(job.call, ToolCall):
        return EffectSuccess(output="written", code=0)
    if not isinstance(job.call, ModelCall):
        return EffectSuccess(output="ok", code=0)
    calls = () if job.iteration > 1 else (RequestedCall(id="c1", tool="fs.write", paths=("a",)),)
    message = AssistantMessage(parts=(TextPart(text="I write."),))
    turn = ModelTurn(message=message, calls=calls, model="fake", task=job.chat.task)
    return EffectSuccess(output="I write.", result=encode_turn(turn), usage=SPENT)


STORED_RUNS: dict[str, Callable[[], Recorded]] = {
    "aldo": aldo,
    "aldo_composite": aldo_composite,
    "approved_call": approved_call,
    "archon": archon,
    "archon_reworked": archon_reworked,
    "coqui": coqui,
    "coqui_retried": coqui_retried,
    "native": native,
    "paused": paused,
    "rondoflow": rondoflow,
    "rondoflow_tests": rondoflow_tests,
    "taken_over": taken_over,
    "zenflow": zenflow,
    "zenflow_told": zenflow_told,
}
