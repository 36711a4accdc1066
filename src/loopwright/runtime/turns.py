"""Jobs of a chat model's conversation: its turns, its summaries, and the tools that it asks for."""

from loopwright.agents.conversation import Conversation, converse, summarise
from loopwright.kernel.calls import CALLED, ModelCall, ToolCall
from loopwright.kernel.frames import CycleBody, PassOwner
from loopwright.kernel.state import Pending, State, chain, enclosing_step, limits_of
from loopwright.model.ids import last_id
from loopwright.model.plan import Agent
from loopwright.ports import Job
from loopwright.runtime.bounds import hidden_from, idle_limit
from loopwright.runtime.senses import Texts


def turn_job(state: State, pending: Pending, agent: Agent, texts: Texts, token: str) -> Job:
    """The job of a model call or of a tool call."""
    owner, call, started = pending.owner, pending.call, state.started
    assert started is not None
    assert isinstance(owner, PassOwner), "a cycle is the body of a loop"
    step = enclosing_step(owner)
    limits = [limits_of(state, place) for place in chain(owner)]
    job = Job(
        run=started.run,
        effect=pending.effect,
        path=owner.path,
        iteration=owner.iteration or 1,
        attempt=pending.attempt,
        call=call,
        workspace=started.workspace,
        token=token,
        scope=started.session or started.run,
        step=last_id(step.path) if step else owner.path,
        agent=agent,
        idle_ms=idle_limit(state, owner, agent),
        hidden=hidden_from(owner.parent.owner),
        wall_ms=agent.wall_ms,
        budgeted=any(one.usd is not None for one in limits),
        covered=call.agent not in state.plan.uncovered if isinstance(call, CALLED) else True,
        sandbox=state.plan.sandbox,
        counted=any(one.tokens is not None for one in limits),
    )
    if isinstance(call, ToolCall):
        job.arguments = texts.read(call.arguments)
        job.approved = _is_approved(owner, pending.purpose)
        return job
    assert isinstance(call, ModelCall)
    talk: Conversation = (
        summarise(owner, texts) if call.role == "summary" else converse(state, owner, agent, texts)
    )
    job.system, job.messages = talk.system, talk.messages
    job.offers, job.files, job.forced = talk.tools, talk.files, talk.forced
    job.task = talk.task
    return job


def _is_approved(owner: PassOwner, purpose: str) -> bool:
    """Whether a person has let this very call through."""
    body = owner.body
    assert isinstance(body, CycleBody)
    gate = body.gates.get(int(purpose.removeprefix("tool")))
    return gate is not None and gate.decision == "approve"
