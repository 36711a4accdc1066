"""What is watched of conversations in a simulation: what a model is shown, tools whose call must
not be made twice, and that exactly those calls are held that the rules speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loopwright.kernel.bodies.conversation import SUBMIT
from loopwright.kernel.event_parts import ModelCall, ToolCall
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    EffectDone,
    EffectRequested,
    GateAnswered,
    GateOpened,
    TurnTaken,
)
from loopwright.model.chat import RequestedCall, UserMessage, decode_turn
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import Text
from loopwright.ports import EffectJob
from loopwright.prompts.conversation import is_paired
from tests.faults.talking import TASK


def overheard(job: EffectJob, *, begun_before: bool, own_request: bool) -> Iterator[str]:
    """What is wrong with a job of a conversation when it is begun."""
    if isinstance(job.call, ModelCall) and job.call.role == "turn":
        yield from _shown(job)
    elif isinstance(job.call, ToolCall):
        if begun_before and not job.again:
            yield f"{job.effect} is begun again as if for the first time"
        if own_request and not begun_before and job.again:
            yield f"{job.effect} is said to have been begun before"


def _shown(job: EffectJob) -> Iterator[str]:
    """Each call has its result, and the task stands before all that was said since, with which a
    model goes on; that of a worker who has become a model may be nothing at all, since its prompts
    speak of things that are not there.
    """
    assert isinstance(job.call, ModelCall)
    first, last = job.chat.messages[0], job.chat.messages[-1]
    if not is_paired([one for one in job.chat.messages if one != UserMessage(text="")]):
        yield f"{job.effect} is shown calls without results, or results without calls"
    task = "" if job.call.agent == "worker" else TASK
    told = [one.text for one in job.chat.messages if isinstance(one, UserMessage)]
    if not isinstance(first, UserMessage) or not any(task in one for one in told):
        yield f"{job.effect} is not shown its task"
    asked = isinstance(last, UserMessage) and TASK in last.text
    if asked and len(job.chat.messages) > 1 and not job.chat.task:
        yield f"{job.effect} is shown its task after what was said since"


def holdings(plan: Plan, events: Sequence[AnyEvent], read: Callable[[Text], str]) -> Iterator[str]:
    """A turn is noted as the model gave it, and what its rules speak of is held, nothing else."""
    agents = dict(plan.agents)
    asked: dict[str, str] = {}
    said: dict[str, Text | None] = {}
    tools: dict[str, str] = {}  # by gate
    taken: dict[str, TurnTaken] = {}
    remembered: set[str] = set()
    for event in events:
        match event:
            case AgentChanged():
                agents[event.agent] = event.becomes
            case EffectRequested(call=ModelCall(agent=agent)):
                asked[event.effect] = agent
            case EffectDone():
                said[event.effect] = event.result
            case GateOpened(call=int() as number):
                tools[event.gate] = taken[event.path].calls[number - 1].tool
            case GateAnswered(remember=True, decision="approve"):
                remembered.add(tools[event.gate])
            case TurnTaken():
                taken[event.path] = event
                result = said[event.effect]
                wanted = decode_turn(read(result)).calls if result is not None else ()
                agent = agents.get(asked[event.effect], Agent())
                yield from _held(event, wanted, agent, remembered)
            case _:
                pass


def _held(
    event: TurnTaken, wanted: Sequence[RequestedCall], agent: Agent, remembered: set[str]
) -> Iterator[str]:
    notes = [(note.id, note.tool, note.problem) for note in event.calls]
    if notes != [(call.id, call.tool, call.problem) for call in wanted]:
        yield f"the turn at {event.path} is noted as {notes}"
        return
    for note, call in zip(event.calls, wanted, strict=True):
        free = call.problem or call.tool == SUBMIT or call.tool in remembered
        if bool(note.held) != (not free and _is_asked_about(call, agent)):
            yield f"{note.id} at {event.path} is held for {note.held!r}"


def _is_asked_about(call: RequestedCall, agent: Agent) -> bool:
    """The same rules as the engine's, in the words of their documentation."""
    found = {
        rule
        for name, rule in agent.approvals.items()
        if {name, call.tool} & {name.partition(".")[2], call.tool.partition(".")[2]}
        or name == call.tool
    }
    touchy = call.protected or call.paths is None
    return "always" in found or ("protected_paths" in found and touchy)
