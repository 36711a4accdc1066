"""Plans by chance with chat models in them, and what such models and their tools say.

A plan is one of `chance`, in which calls of agents and programs have become conversations: a call
of a chat model with or without a form for its result, or a loop of cycles over a small window.
"""

from __future__ import annotations

import json
from random import Random

from msgspec.structs import replace

from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.kernel.event_parts import Failure, ModelCall, ToolCall
from loopwright.kernel.events import Usage
from loopwright.model.actions import Action, CallAgent, ModelCycle, Repeat, RunCommand, Step, Steps
from loopwright.model.chat import (
    AnyPart,
    AssistantMessage,
    CallPart,
    ModelTurn,
    RequestedCall,
    TextPart,
    encode_turn,
)
from loopwright.model.checks import AnyOf, Check, Contains, NoCalls, SpendCheck, ToolResultCheck
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, NoMemory
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess
from tests.faults.chance import random_plan

TASK = "make it work"
SCHEMA = {"required": ["done"]}
MOST_TURNS = 6
ONCE_ONLY = ("desk.write", "desk.exec")
"""Tools whose call is not made a second time when nobody saw the end of the first."""
TOOLS = ("desk.read", *ONCE_ONLY)
RULES = (
    {},
    {"desk.exec": "always"},
    {"desk.write": "protected_paths", "exec": "always"},
    {"write": "always", "read": "never"},
    {"sh.desk.exec": "always", "desk.read": "always", "desk.write": "protected_paths"},
)
FAILURES = ("overloaded", "rate_limited", "rate_limited", "overflow", "overflow", "agent")
LONG = "a line of a result that is too long to stand in a fact\n" * 60


# -- plans -----------------------------------------------------------------------------------------


def talking_plan(dice: Random) -> Plan:
    """A plan with at least one conversation."""
    plan = random_plan(dice)
    steps = tuple(_step(dice, step) for step in plan.steps)
    talk = Step(id="talk", action=_conversation(dice), retry=steps[0].retry)
    return replace(plan, steps=(*steps, talk), agents={**plan.agents, **_agents(dice)})


def _agents(dice: Random) -> dict[str, Agent]:
    return {
        name: Agent(
            spec="model:fake",
            max_turns=dice.randint(2, MOST_TURNS),
            max_usd=dice.choice((None, None, None, 0.04)),
            approvals=dice.choice(RULES),  # type: ignore[arg-type]
            options={"context_window": dice.choice((150, 600, 1_500, 100_000))},
        )
        for name in ("clerk", "coder")
    }


def edited(dice: Random, agent: Agent) -> Agent:
    """An agent after somebody has thought better of it; a model may become a program."""
    spec = dice.choice((agent.spec, agent.spec, None, "model:other"))
    return replace(agent, spec=spec, approvals=dice.choice(RULES))  # type: ignore[arg-type]


def _step(dice: Random, step: Step) -> Step:
    return replace(step, action=_talking(dice, step.action))


def _talking(dice: Random, action: Action) -> Action:
    match action:
        case Steps():
            return replace(action, steps=tuple(_step(dice, step) for step in action.steps))
        case Repeat(each=None, body=CallAgent() | RunCommand()) if dice.random() < 0.5:
            loop = _loop(dice)
            until = action.until if dice.random() < 0.5 else loop.until
            return replace(action, body=loop.body, memory=loop.memory, until=until)
        case Repeat():
            return replace(action, body=_talking(dice, action.body))
        case CallAgent() | RunCommand() if dice.random() < 0.5:
            return _conversation(dice)
        case _:
            return action


def _conversation(dice: Random) -> Action:
    if dice.random() < 0.5:
        return _loop(dice)
    return CallAgent(
        agent=dice.choice(("clerk", "coder")),
        schema=dice.choice((None, SCHEMA)),
        show_needs=dice.random() < 0.2,
        on_empty=dice.choice(("answer", "fail")),
    )


def _loop(dice: Random) -> Repeat:
    strategy = dice.choice(("rolling-window", "periodic-summary"))
    windowed = ConversationHistory(
        window=dice.choice((100, 300, 900)), strategy=strategy, summaries=2
    )
    return Repeat(
        body=ModelCycle(
            agent=dice.choice(("clerk", "coder")),
            nudge=dice.choice((None, "Go on.")),
            schema=dice.choice((None, None, SCHEMA)),
        ),
        max=dice.randint(1, MOST_TURNS),
        until=_until(dice),
        memory=windowed if dice.random() < 0.9 else NoMemory(),
        at_cap=dice.choice(("exhaust", "complete", "fail", "ask")),
    )


def _until(dice: Random) -> Check:
    rules = (
        NoCalls(),
        Contains(text="DONE"),
        ToolResultCheck(tool="exec", exit_code=0),
        AnyOf(parts=(NoCalls(), SpendCheck(usd=0.03))),
    )
    return dice.choice(rules)


# -- what models and tools say ---------------------------------------------------------------------


def talks(job: EffectJob) -> bool:
    return isinstance(job.call, ModelCall | ToolCall)


def talking_answer(dice: Random, job: EffectJob) -> Answer:
    """A turn, a summary, or what came of a tool."""
    if isinstance(job.call, ToolCall):
        return _tool(dice, job, job.call)
    assert isinstance(job.call, ModelCall)
    usage = dice.choice((None, Usage(20, 5, 0.01), Usage(400, 30, 0.02)))
    if dice.random() < 0.12:
        kind = dice.choice(FAILURES)
        error = Failure(
            type=kind,
            retry_after_ms=dice.choice((None, None, 2_000)),
            resets_at=dice.choice((None, 1_700_000_000_000)) if kind == "rate_limited" else None,
        )
        return EffectFailure(error=error, usage=usage)
    if job.call.role == "summary":
        return EffectSuccess(output=dice.choice(("it went so", "", LONG)), usage=usage)
    return _turn(dice, job, usage)


def _turn(dice: Random, job: EffectJob, usage: Usage | None) -> Answer:
    text = dice.choice(("", *["let me see"] * 3, "DONE", LONG, LONG))
    wants_result = any(spec.name == SUBMIT for spec in job.chat.offers)
    calls = [
        _wanted(dice, f"{job.effect}:{n}") for n in range(dice.choice((0, 1, 1, 1, 2, 2, 3, 4)))
    ]
    if wants_result and (job.chat.forced or dice.random() < 0.4):
        for n in range(dice.choice((1, 1, 2))):
            calls.insert(dice.randint(0, len(calls)), _handed_in(dice, f"{job.effect}:s{n}"))
    if wants_result and not calls:
        return EffectFailure(error=Failure(type="bad_result"), output=text, usage=usage)
    said: tuple[AnyPart, ...] = (TextPart(text=text),) if text else ()
    parts = (*said, *(CallPart(id=one.id, tool=one.tool) for one in calls))
    turn = ModelTurn(
        message=AssistantMessage(parts=parts), calls=tuple(calls), model="fake", task=job.chat.task
    )
    return EffectSuccess(output=text, result=encode_turn(turn), usage=usage)


def _wanted(dice: Random, id: str) -> RequestedCall:
    if dice.random() < 0.15:
        return RequestedCall(
            id=id, tool=dice.choice(("desk.reed", *TOOLS)), problem="not like this"
        )
    paths, protected = dice.choice(((("a",), False), (("a",), True), (None, False)))
    words = dice.choice(("short", LONG))
    touchy = protected or paths is None
    return RequestedCall(
        id=id,
        tool=dice.choice(TOOLS),
        arguments={"words": words, "touchy": touchy},
        paths=paths,
        protected=protected,
    )


def _handed_in(dice: Random, id: str) -> RequestedCall:
    problem = dice.choice(("", "", "", "done is missing"))
    result = {"done": True, "by": id}
    return RequestedCall(id=id, tool=SUBMIT, arguments=result, problem=problem, paths=())


def _tool(dice: Random, job: EffectJob, call: ToolCall) -> Answer:
    if job.again and call.tool in ONCE_ONLY:
        return EffectFailure(error=Failure(type="interrupted", detail="nobody saw its end"))
    if dice.random() < 0.2:
        kind = dice.choice(("tool", "not_found", "wall_timeout"))
        return EffectFailure(error=Failure(type=kind, detail=kind), output=dice.choice(("", LONG)))
    return EffectSuccess(output=dice.choice(("ok", "", LONG)), code=dice.choice((None, 0, 1)))


# -- people ----------------------------------------------------------------------------------------


def edited_arguments(dice: Random) -> str | None:
    """What a person wants instead, sometimes."""
    words = dice.choice(("mine", LONG))
    return dice.choice((None, None, json.dumps({"words": words, "touchy": True, "edited": True})))
