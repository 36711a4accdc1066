"""Effects: from a pending effect to a job for a performer, and from its answer to events.

A job has everything that a performer needs, read from the state of the run: calls of agents, turns
and summaries of a chat model's conversation, tools and checks, with the time limits, the sandbox
and the hidden files that apply to them.

An effect can ask a person a question while it is in progress. The question is a gate like any
other: it is in the log before anybody is notified, and its id follows from the question. So a run
that is resumed finds an answer that was given in the meantime.
"""

import asyncio
import errno
from collections.abc import Awaitable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from loopwright.engine.services import TextServices
from loopwright.errors import StorageError
from loopwright.kernel.effects import SHORTAGE
from loopwright.kernel.event_parts import (
    CALLED,
    AgentCall,
    AnyCall,
    CommandCall,
    Failure,
    MatchCall,
    ModelCall,
    ToolCall,
)
from loopwright.kernel.events import EffectDone, EffectFailed, GateOpened, Usage
from loopwright.kernel.frames import CycleBody, IterationOwner, LeafBody, Owner, RepeatBody
from loopwright.kernel.gates import tool_gate
from loopwright.kernel.limits import has_usd_limit
from loopwright.kernel.references import (
    NO_PROMPT,
    CallPrompt,
    fill,
    hidden_word,
    missing_value,
    request_text,
)
from loopwright.kernel.state import (
    PendingEffect,
    State,
    chain,
    enclosing_iteration,
    enclosing_step,
    limits_of,
)
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import CommandCheck, Goal, Judge, Leaf, ScriptCheck, leaves
from loopwright.model.ids import (
    SCRIPT_CALL,
    CheckPurpose,
    CoordinatorPurpose,
    ToolPurpose,
    last_id,
)
from loopwright.model.plan import Agent
from loopwright.model.record import Template
from loopwright.model.sandbox import SandboxLevel, command_level, strictest
from loopwright.ports import (
    NO_VALUES,
    Answer,
    ChatTurn,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    JobLimits,
    JobOrigin,
    Performer,
    ProgramConfinement,
    Question,
)
from loopwright.ports.runs import NO_JOB_LIMITS
from loopwright.prompts.calls import (
    compose,
    compose_coordinator,
    compose_reply,
)
from loopwright.prompts.conversation import Conversation, converse, summarise
from loopwright.prompts.judges import compose_judge


def hidden_from(state: State, owner: Owner) -> str | None:
    """The signal that is for the loop around a call, and not for observers."""
    if not state.plan_index.has_signals:
        return None
    inside = enclosing_iteration(owner)
    return hidden_word(inside) if inside is not None else None


def check_commands(state: State, owner: Owner) -> tuple[tuple[str, ...], ...]:
    """The commands that decide when the loops around a call are done, the innermost loop first."""
    if not state.plan_index.has_checks:
        return ()
    loops = (place.action for place in chain(owner) if isinstance(place, RepeatBody))
    found = (
        leaf for loop in loops for leaf in leaves(loop.until) if isinstance(leaf, CommandCheck)
    )
    return tuple(dict.fromkeys(leaf.argv for leaf in found))


def idle_limit(state: State, owner: Owner, agent: Agent | None) -> int | None:
    """The strictest limit on silence: the agent's own and those of the enclosing places."""
    own = agent.idle_ms if agent else None
    if not state.plan_index.has_idle:
        return own
    around = (limits_of(state, place).idle_ms for place in chain(owner))
    return min((ms for ms in (own, *around) if ms is not None), default=None)


def turn_job(
    state: State, pending: PendingEffect, agent: Agent, texts: TextServices, origin: JobOrigin
) -> EffectJob:
    """The job of a model call or of a tool call."""
    owner, call, started = pending.owner, pending.call, state.started
    assert started is not None
    assert isinstance(owner, IterationOwner), "a cycle is the body of a loop"
    step = enclosing_step(owner)
    limits = [limits_of(state, place) for place in chain(owner)]
    files: tuple[str, ...] = ()
    if isinstance(call, ToolCall):
        assert isinstance(pending.purpose, ToolPurpose)
        approved = _is_approved(owner, pending.purpose.call)
        chat = ChatTurn(arguments=texts.read(call.arguments), approved=approved)
    else:
        assert isinstance(call, ModelCall)
        talk: Conversation = (
            summarise(owner, texts)
            if call.role == "summary"
            else converse(state, owner, agent, texts)
        )
        files = talk.files
        chat = ChatTurn(
            system=talk.system,
            messages=talk.messages,
            offers=talk.tools,
            forced=talk.forced,
            task=talk.task,
        )
    return EffectJob(
        run=started.run,
        effect=pending.effect,
        path=owner.path,
        iteration=owner.iteration or 1,
        attempt=pending.attempt,
        call=call,
        workspace=started.workspace,
        origin=origin,
        step=last_id(step.path) if step else owner.path,
        agent=agent,
        prompt=CallPrompt(files=files),
        chat=chat,
        limits=JobLimits(
            idle_ms=idle_limit(state, owner, agent),
            wall_ms=agent.wall_ms,
            budgeted=any(one.usd is not None for one in limits),
            counted=any(one.tokens is not None for one in limits),
            covered=call.agent not in state.plan.uncovered,
        ),
        confinement=ProgramConfinement(
            hidden=hidden_from(state, owner.parent.owner), sandbox=state.plan.sandbox
        ),
    )


def _is_approved(owner: IterationOwner, call: int) -> bool:
    """Whether a person has approved this very call."""
    body = owner.body
    assert isinstance(body, CycleBody)
    gate = body.gates.get(call)
    return gate is not None and gate.decision == "approve"


MOST_AMOUNT = 10**15  # of tokens or USD


def answer_event(
    pending: PendingEffect, answer: Answer, texts: TextServices, at: int
) -> EffectDone | EffectFailed:
    """The answer of a performer, as stored in the log."""
    # The place is that of the request, even if it has another name since.
    owner = pending.owner
    path, iteration = pending.path if owner.path else "", owner.iteration
    if type(answer) is EffectSuccess:
        return EffectDone(
            at=at,
            path=path,
            iteration=iteration,
            effect=pending.effect,
            output=texts.keep(answer.output),
            result=None if answer.result is None else texts.keep(answer.result),
            usage=answer.usage,
            session=answer.session,
            code=answer.code,
            mark=answer.mark,
            note=answer.note,
            tools=answer.tools,
            snapshot=answer.snapshot,
        )
    return EffectFailed(
        at=at,
        path=path,
        iteration=iteration,
        effect=pending.effect,
        error=answer.error,
        output=texts.keep(answer.output),
        usage=answer.usage,
        session=answer.session,
        code=answer.code,
        mark=answer.mark,
        tools=answer.tools,
    )


def refused_answer(event: EffectDone | EffectFailed, error: StorageError) -> EffectFailed:
    """An answer that can never be stored."""
    return EffectFailed(
        at=event.at,
        path=event.path,
        iteration=event.iteration,
        effect=event.effect,
        error=Failure(type="internal", detail=f"the answer cannot be kept ({error.code})"),
        usage=None if event.usage is None else _storable_usage(event.usage),
    )


def _storable_usage(usage: Usage) -> Usage:
    """The usage of a rejected answer; amounts that cannot be stored are unknown."""
    storable = all(0 <= amount <= MOST_AMOUNT for amount in msgspec.structs.astuple(usage))
    return usage if storable else Usage(unpriced=1)


_SHORTAGES = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors",
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}


def defect(error: Exception) -> Answer:
    """A defect of ours, as the answer of the effect that caused it. A shortage of the machine does
    not count: the effect is repeated when it is over.
    """
    missing = _SHORTAGES.get(error.errno or 0) if isinstance(error, OSError) else None
    if missing is not None:
        return EffectFailure(error=Failure(type=SHORTAGE, detail=f"waiting for {missing}: {error}"))
    return EffectFailure(error=Failure(type="internal", detail=f"{type(error).__name__}: {error}"))


def begun(performer: Performer, job: EffectJob | Answer) -> Answer | Awaitable[Answer]:
    """Start a job; a job that already has its answer is not started."""
    if type(job) is not EffectJob:
        return job
    try:
        return performer.perform(job)
    except Exception as error:  # a defect of ours must end the effect, not the driver
        return defect(error)


def cancel(task: "asyncio.Future[None]") -> None:
    """End an effect whose answer is awaited."""
    task.cancel()


def nothing_to_end() -> None:
    """The end of an effect that has already answered."""


NONE_USED: AbstractSet[int] = frozenset()
UNKNOWN = Agent()


def origin_of(state: State, token: str) -> JobOrigin:
    """What all jobs of a run have in common; the same for as long as a process drives it."""
    started = state.started
    assert started is not None
    return JobOrigin(
        token=token,
        scope=started.session or started.run,
        depth=started.depth,
        pass_env=state.plan.pass_env,
    )


def job_for(
    state: State, pending: PendingEffect, texts: TextServices, origin: JobOrigin
) -> EffectJob | Answer:
    """The job of an effect. The same log always gives the same job. An effect that cannot be
    requested, because a value in it is missing, has its answer at once.
    """
    owner, started = pending.owner, state.started
    assert started is not None
    unfit = None if state.plan.missing == "empty" else _unfit(state, pending, texts)
    if unfit is not None:
        return EffectFailure(error=Failure(type="bad_input", detail=unfit))
    step = enclosing_step(owner)
    agent: Agent | None = None
    prompt = NO_PROMPT
    used = NONE_USED
    call, plan = pending.call, state.plan
    if type(call) is AgentCall:
        agent = plan.agents.get(call.agent, UNKNOWN)
        prompt = _shown(state, pending, call, texts)
        if state.agents.marks:
            used = _used(state, call.agent, agent)
    elif type(call) is ModelCall or type(call) is ToolCall:
        agent = plan.agents.get(call.agent, UNKNOWN)
        return turn_job(state, pending, agent, texts, origin)
    elif type(call) is MatchCall:
        prompt = CallPrompt(text=texts.read(call.text))
    path = _path(pending)
    is_coordinator = type(pending.purpose) is CoordinatorPurpose
    return EffectJob(
        run=started.run,
        effect=pending.effect,
        path=path,
        iteration=owner.iteration or (pending.attempt if is_coordinator else 1),
        attempt=1 if is_coordinator else pending.attempt,
        call=call,
        workspace=started.workspace,
        origin=origin,
        step=last_id(step.path) if step else path,
        agent=agent,
        prompt=prompt,
        limits=_limits(state, pending, agent),
        confinement=_confinement(state, pending, texts),
        used=used,
    )


def _limits(state: State, pending: PendingEffect, agent: Agent | None) -> JobLimits:
    index = state.plan_index
    is_limited = agent is not None and (agent.idle_ms is not None or agent.wall_ms is not None)
    if not (is_limited or index.has_idle or index.has_budget or state.plan.uncovered):
        return NO_JOB_LIMITS  # the usual case: one record for all calls
    return JobLimits(
        idle_ms=idle_limit(state, pending.owner, agent),
        wall_ms=agent.wall_ms if agent else None,
        budgeted=agent is not None and has_usd_limit(state, pending.owner),
        covered=_is_covered(state, pending.call),
    )


def _confinement(state: State, pending: PendingEffect, texts: TextServices) -> ProgramConfinement:
    plan, owner, kind = state.plan, pending.owner, type(pending.call)
    is_agent = kind is AgentCall
    if is_agent and not (state.plan_index.has_checks or state.plan_index.has_signals):
        return ProgramConfinement(sandbox=plan.sandbox)  # the usual case
    return ProgramConfinement(
        sandbox=plan.sandbox if is_agent else _sandbox(state, pending),
        env=_values(state, pending, texts) if kind is CommandCall else NO_VALUES,
        checks=check_commands(state, owner) if is_agent else (),
        fresh_bytecode=bool(plan.workspace.protect) and type(pending.purpose) is CheckPurpose,
        hidden=hidden_from(state, owner),
    )


def _sandbox(state: State, pending: PendingEffect) -> SandboxLevel | None:
    """The level of the run. A script step receives values that agents wrote, so it always has a
    sandbox: should a value run as code, the data directory remains out of its reach.
    """
    level = state.plan.sandbox
    if type(pending.call) is CommandCall:
        level = command_level(level, state.plan.settings)
    return strictest(level, "guard") if pending.purpose == SCRIPT_CALL and level else level


def _is_covered(state: State, call: AnyCall) -> bool:
    return not isinstance(call, CALLED) or call.agent not in state.plan.uncovered


def _path(pending: PendingEffect) -> str:
    """The place of a call; a step that has ended and answers is at its own place, the coordinator
    at none.
    """
    call = pending.call
    if type(call) is AgentCall and call.role == "reply":
        return call.step
    return pending.owner.path


def _shown(
    state: State, pending: PendingEffect, call: AgentCall, texts: TextServices
) -> CallPrompt:
    """What the agent of an effect is shown: its task, or for a judge the result to judge."""
    owner = pending.owner
    if call.role == "coordinator":
        return compose_coordinator(state, texts)
    if call.role == "reply":
        return compose_reply(state, call.step, pending.effect, texts)
    if call.role != "worker":
        assert isinstance(owner, IterationOwner)
        assert isinstance(pending.purpose, CheckPurpose)
        leaf = _check(owner, pending.purpose)
        assert isinstance(leaf, Judge | Goal)
        return compose_judge(state, owner, leaf, texts)
    body = owner.body
    if type(body) is LeafBody and type(body.action) is AskPerson:
        rework = body.action.on_reject
        prompt = rework.prompt if rework is not None else ()
        return CallPrompt(text=request_text(state, owner, prompt, texts))
    return compose(state, owner, texts)


def _check(owner: IterationOwner, purpose: CheckPurpose) -> Leaf:
    return leaves(owner.parent.action.until)[purpose.index]


def _unfit(state: State, pending: PendingEffect, texts: TextServices) -> str | None:
    """Why an effect cannot be requested: a value in its text is missing."""
    owner = pending.owner
    if isinstance(pending.call, AgentCall):
        prompt = _prompt(owner.body) if isinstance(owner.body, LeafBody) else ()
        return missing_value(state, owner, prompt, texts) if prompt else None
    templates = _environment(pending).values()
    found = (missing_value(state, owner, template, texts) for template in templates)
    return next((why for why in found if why is not None), None)


def _prompt(body: LeafBody) -> Template:
    match body.action:
        case CallAgent(prompt=prompt) | AskPerson(on_reject=Rework(prompt=prompt)):
            return prompt
        case AskPerson() | RunCommand() | RunScript() | Wait() | StopRun() | FailStep():
            return ()
        case ModelCycle() | Steps() | Repeat():  # no single call
            return ()
        case _:
            assert_never(body.action)


def _values(state: State, pending: PendingEffect, texts: TextServices) -> dict[str, str]:
    """The environment of a script: templates are filled now, so that no large value is ever in an
    event.
    """
    env = _environment(pending)
    return {name: fill(state, pending.owner, template, texts) for name, template in env.items()}


def _environment(pending: PendingEffect) -> dict[str, Template]:
    owner = pending.owner
    if not isinstance(pending.call, CommandCall):
        return {}
    if pending.purpose == SCRIPT_CALL and isinstance(owner.body, LeafBody):
        action = owner.body.action
        return action.env if isinstance(action, RunScript) else {}
    if isinstance(owner, IterationOwner) and isinstance(pending.purpose, CheckPurpose):
        leaf = _check(owner, pending.purpose)
        return leaf.env if isinstance(leaf, ScriptCheck) else {}
    return {}


def _used(state: State, name: str, agent: Agent) -> AbstractSet[int]:
    """Bookmarks of the backend of an agent; agents with the same spec share them."""
    agents = state.plan.agents
    same = [
        n for n in state.agents.marks if n == name or (n in agents and agents[n].spec == agent.spec)
    ]
    if len(same) == 1:
        return state.agents.marks[same[0]]
    return frozenset().union(*(state.agents.marks[n] for n in same))


@dataclass(slots=True)
class EffectQuestions:
    """The questions of one run that wait for a decision."""

    waiting: dict[str, tuple[str, "asyncio.Future[bool]"]] = field(default_factory=dict)

    def known(self, state: State, name: str, effect: str) -> bool | None:
        """The decision about a question, or None while there is none."""
        pending = state.pending.get(effect)
        if pending is None:
            return False
        gate = (pending.gates or {}).get(name)
        if gate is None or gate.open:
            return None
        return gate.decision == "approve"

    def wait(self, name: str, effect: str) -> "asyncio.Future[bool]":
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting[name] = (effect, future)
        return future

    def tell(self, state: State) -> None:
        """Pass on every decision that has arrived."""
        for name, (effect, future) in list(self.waiting.items()):
            decided = self.known(state, name, effect)
            if future.done() or decided is not None:
                del self.waiting[name]
            if not future.done() and decided is not None:
                future.set_result(decided)


def question_event(run: str, pending: PendingEffect, question: Question, at: int) -> GateOpened:
    """The event that opens the gate."""
    name, digest = tool_gate(run, pending.effect, question.message, question.about, question.number)
    return GateOpened(
        at=at,
        path=pending.owner.inside,
        iteration=pending.owner.iteration,
        gate=name,
        digest=digest,
        message=question.message,
        answers=("approve", "reject"),
        about="tool",
        output=question.about or None,
        effect=pending.effect,
    )
