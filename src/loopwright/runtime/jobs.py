"""From a pending effect to a job: everything that a performer needs, read off the state."""

from collections.abc import Set as AbstractSet

from loopwright.agents.prompt import NOTHING, compose
from loopwright.kernel.calls import AgentCall
from loopwright.kernel.frames import LeafBody, Owner
from loopwright.kernel.state import Pending, State, chain, enclosing_step, limits_of
from loopwright.model.ids import last_id
from loopwright.model.plan import Agent
from loopwright.ports import Job
from loopwright.runtime.senses import Texts


def job_for(state: State, pending: Pending, texts: Texts, token: str) -> Job:
    """The job of an effect. The same log gives the same job, however often it is asked for."""
    owner, started = pending.owner, state.started
    assert started is not None
    step = enclosing_step(owner)
    agent: Agent | None = None
    shown = NOTHING
    used: AbstractSet[int] = frozenset()
    if isinstance(pending.call, AgentCall) and isinstance(owner.body, LeafBody):
        agent = state.plan.agents.get(pending.call.agent, Agent())
        shown = compose(state, owner, texts)
        used = _used(state, pending.call.agent, agent)
    return Job(
        run=started.run,
        effect=pending.effect,
        path=owner.path,
        iteration=owner.iteration or 1,
        attempt=pending.attempt,
        call=pending.call,
        workspace=started.workspace,
        token=token,
        step=last_id(step.path) if step else "",
        agent=agent,
        prompt=shown.text,
        schema=shown.schema,
        session=shown.session,
        idle_ms=_idle_limit(state, owner, agent),
        wall_ms=agent.wall_ms if agent else None,
        used=used,
    )


def _used(state: State, name: str, agent: Agent) -> AbstractSet[int]:
    """Bookmarks in what stands behind an agent; agents with the same spec share them."""
    agents = state.plan.agents
    same = [n for n in state.marks if n == name or (n in agents and agents[n].spec == agent.spec)]
    if len(same) == 1:
        return state.marks[same[0]]
    return frozenset().union(*(state.marks[n] for n in same))


def _idle_limit(state: State, owner: Owner, agent: Agent | None) -> int | None:
    """The tightest limit on silence among the agent's own and those of the places around."""
    own = agent.idle_ms if agent else None
    if not state.has_idle:
        return own
    around = (limits_of(state, place).idle_ms for place in chain(owner))
    return min((ms for ms in (own, *around) if ms is not None), default=None)
