"""From a pending effect to a job: everything that a performer needs, read off the state."""

from collections.abc import Set as AbstractSet

from loopwright.agents.coordinating import compose_coordinator, compose_reply
from loopwright.agents.judging import compose_judge
from loopwright.agents.prompt import NOTHING, Shown, compose
from loopwright.kernel.calls import (
    CALLED,
    AgentCall,
    AnyCall,
    CommandCall,
    MatchCall,
    ModelCall,
    ToolCall,
)
from loopwright.kernel.facts import Failure
from loopwright.kernel.frames import LeafBody, PassOwner
from loopwright.kernel.limits import has_usd_limit
from loopwright.kernel.state import (
    Pending,
    State,
    enclosing_step,
)
from loopwright.kernel.texts import fill, missing_value, request_text
from loopwright.model.actions import AskPerson, CallAgent, Rework, RunScript
from loopwright.model.checks import Goal, Judge, Leaf, Script, leaves
from loopwright.model.ids import last_id
from loopwright.model.plan import Agent
from loopwright.model.sandbox import SandboxLevel, command_level, strictest
from loopwright.model.template import Template
from loopwright.ports import NO_VALUES, Answer, Failed, Job
from loopwright.runtime.answering import defect
from loopwright.runtime.bounds import check_commands, hidden_from, idle_limit
from loopwright.runtime.senses import Texts
from loopwright.runtime.turns import turn_job

NONE_USED: AbstractSet[int] = frozenset()
UNKNOWN = Agent()


def prepared(state: State, pending: Pending, texts: Texts, token: str) -> Job | Answer:
    """The job of an effect, or the answer of one that cannot be asked."""
    try:
        return job_for(state, pending, texts, token)
    except Exception as error:  # a defect of ours must end the effect, not the driver
        return defect(error)


def job_for(state: State, pending: Pending, texts: Texts, token: str) -> Job | Answer:
    """The job of an effect. The same log gives the same job, however often it is asked for.
    What cannot be asked, for want of a value that it speaks of, has its answer at once.
    """
    owner, started = pending.owner, state.started
    assert started is not None
    unfit = None if state.plan.missing == "empty" else _unfit(state, pending, texts)
    if unfit is not None:
        return Failed(error=Failure(type="bad_input", detail=unfit))
    step = enclosing_step(owner)
    agent: Agent | None = None
    shown = NOTHING
    used = NONE_USED
    call = pending.call
    kind, plan = type(call), state.plan
    if type(call) is AgentCall:
        agent = plan.agents.get(call.agent, UNKNOWN)
        shown = _shown(state, pending, call, texts)
        if state.marks:
            used = _used(state, call.agent, agent)
    elif type(call) is ModelCall or type(call) is ToolCall:
        agent = plan.agents.get(call.agent, UNKNOWN)
        return turn_job(state, pending, agent, texts, token)
    path = _path(pending)
    is_coordinator = pending.purpose == "coordinator"
    return Job(
        run=started.run,
        effect=pending.effect,
        path=path,
        iteration=owner.iteration or (pending.attempt if is_coordinator else 1),
        attempt=1 if is_coordinator else pending.attempt,
        call=call,
        workspace=started.workspace,
        token=token,
        scope=started.session or started.run,
        depth=started.depth,
        step=last_id(step.path) if step else path,
        agent=agent,
        prompt=texts.read(call.text) if type(call) is MatchCall else shown.text,
        schema=shown.schema,
        session=shown.session,
        session_used=shown.session_used,
        files=shown.files,
        idle_ms=idle_limit(state, owner, agent),
        env=_values(state, pending, texts) if kind is CommandCall else NO_VALUES,
        pass_env=plan.pass_env,
        hidden=hidden_from(owner),
        fresh_bytecode=bool(plan.workspace.protect) and pending.purpose.startswith("check"),
        checks=check_commands(state, owner) if state.has_checks and agent is not None else (),
        wall_ms=agent.wall_ms if agent else None,
        used=used,
        budgeted=state.has_budget and agent is not None and has_usd_limit(state, owner),
        covered=not plan.uncovered or _is_covered(state, call),
        sandbox=plan.sandbox if kind is AgentCall else _sandbox(state, pending),
    )


def _sandbox(state: State, pending: Pending) -> SandboxLevel | None:
    """The level of the run. A script step gets values that agents wrote, so it is never without a
    sandbox: should a value run as code, the data directory is still out of its reach.
    """
    level = state.plan.sandbox
    if type(pending.call) is CommandCall:
        level = command_level(level, state.plan.settings)
    return strictest(level, "guard") if pending.purpose == "script" and level else level


def _is_covered(state: State, call: AnyCall) -> bool:
    return not isinstance(call, CALLED) or call.agent not in state.plan.uncovered


def _path(pending: Pending) -> str:
    """The place of a call; a step that has ended and answers is at its own, the coordinator at
    none.
    """
    call = pending.call
    if type(call) is AgentCall and call.role == "reply":
        return call.step
    return pending.owner.path


def _shown(state: State, pending: Pending, call: AgentCall, texts: Texts) -> Shown:
    """What the agent of an effect is shown: the worker its task, the judge what to judge."""
    owner = pending.owner
    if call.role == "coordinator":
        return compose_coordinator(state, texts)
    if call.role == "reply":
        return compose_reply(state, call.step, pending.effect, texts)
    if call.role != "worker":
        assert isinstance(owner, PassOwner)
        leaf = _check(owner, pending.purpose)
        assert isinstance(leaf, Judge | Goal)
        return compose_judge(state, owner, leaf, texts)
    body = owner.body
    if type(body) is LeafBody and type(body.action) is AskPerson:
        rework = body.action.on_reject
        prompt = rework.prompt if rework is not None else ()
        return Shown(text=request_text(state, owner, prompt, texts), schema=None, session=None)
    return compose(state, owner, texts)


def _check(owner: PassOwner, purpose: str) -> Leaf:
    return leaves(owner.parent.action.until)[int(purpose.removeprefix("check"))]


def _unfit(state: State, pending: Pending, texts: Texts) -> str | None:
    """Why something cannot be asked: a value of its text is not there."""
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
        case _:
            return ()


def _values(state: State, pending: Pending, texts: Texts) -> dict[str, str]:
    """What a script is given: templates filled now, so that no large value is ever in a fact."""
    env = _environment(pending)
    return {name: fill(state, pending.owner, template, texts) for name, template in env.items()}


def _environment(pending: Pending) -> dict[str, Template]:
    owner = pending.owner
    if not isinstance(pending.call, CommandCall):
        return {}
    if pending.purpose == "script" and isinstance(owner.body, LeafBody):
        action = owner.body.action
        return action.env if isinstance(action, RunScript) else {}
    if isinstance(owner, PassOwner) and pending.purpose.startswith("check"):
        leaf = _check(owner, pending.purpose)
        return leaf.env if isinstance(leaf, Script) else {}
    return {}


def _used(state: State, name: str, agent: Agent) -> AbstractSet[int]:
    """Bookmarks in what stands behind an agent; agents with the same spec share them."""
    agents = state.plan.agents
    same = [n for n in state.marks if n == name or (n in agents and agents[n].spec == agent.spec)]
    if len(same) == 1:
        return state.marks[same[0]]
    return frozenset().union(*(state.marks[n] for n in same))
