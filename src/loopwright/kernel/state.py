"""The state of a run, folded from its events one at a time, each in (amortised) constant time.

The state is private to one fold: it is changed in place and never shared, which is what makes a
long loop linear. Folding the same events gives the same state. `agenda` lists the owners that
an event has touched; deciding looks only at those. It is an index, not memory: an owner that is
looked at twice returns nothing new.

`Mail` holds the messages of a run while a step can still read them. An inbox belongs to a step
and not to one of its iterations, so a message that is too late for one iteration is read in the
next. Mail does not point at frames; it uses paths.

A call of an agent that is a chat model has the body of a loop: one iteration for each turn, so
that the log contains every turn.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Literal, Protocol, TypeAlias

import msgspec

from loopwright.kernel.event_parts import AgentCall, AnyCall, ModelCall, SleepCall, Snapshot
from loopwright.kernel.events import (
    CancelRequested,
    EffectRequested,
    RunFinished,
    RunReopened,
    RunStarted,
    Usage,
)
from loopwright.kernel.frames import (
    Body,
    CheckNote,
    CycleBody,
    GateState,
    IterationOwner,
    KeptLoop,
    LeafBody,
    LoopConversation,
    Mail,
    Owner,
    RepeatBody,
    RunOwner,
    StepOwner,
    StepsBody,
    StepsIndex,
)
from loopwright.model.actions import Action, CallAgent, ModelCycle, Repeat, Steps
from loopwright.model.checks import NoCalls, Signal
from loopwright.model.ids import EffectPurpose, effect_id, read_effect_id
from loopwright.model.plan import (
    Agent,
    Plan,
    all_checks,
    all_limits,
    chat_agents,
    check_words,
    graphs_inside,
    only_repeat,
    root_steps,
)
from loopwright.model.policy import NO_LIMITS, ConversationHistory, Limits, Retry
from loopwright.model.record import JsonValue, Text

COORDINATOR = "coordinator"
"""The address of the coordinator, and how it signs."""
PERSON = "person"
ANY_AGENT = "*"
"""The address of whichever agent of the run reads next."""


Reader: TypeAlias = Literal["agent", "container", "other"]


class StepDirectory(msgspec.Struct):
    """All steps of a plan. An item's number is left open: `each[].deploy`."""

    kinds: dict[str, Reader] = {}
    by_last: dict[str, list[str]] = {}


MOST_TURNS = 50
WINDOW = 128_000
"""Tokens that any current model accepts, for a model whose window is not known."""


def conversation(agent: Agent, call: CallAgent) -> Repeat:
    """The loop that a call of a chat model is: turns until the model asks for nothing more."""
    window = agent.options.get("context_window")
    return Repeat(
        body=ModelCycle(agent=call.agent, prompt=call.prompt, schema=call.schema),
        max=agent.max_turns or MOST_TURNS,
        until=NoCalls(),
        memory=ConversationHistory(
            window=window if isinstance(window, int) and window > 0 else WINDOW
        ),
        at_cap="fail",
        limits=Limits(usd=agent.max_usd),
    )


class ExpressionNames(Protocol):
    """What an expression may speak of; steps are looked up only when they are spoken of."""

    step_ids: frozenset[str]
    variables: Mapping[str, JsonValue]

    def step(self, name: str) -> dict[str, JsonValue] | None:
        """A step that has ended."""


class ExpressionValue(msgspec.Struct, frozen=True):
    """The value of an expression, or why it has none; `missing` tells an absent name apart."""

    value: JsonValue = None
    problem: str = ""
    missing: bool = False


class KernelServices(Protocol):
    """Pure helpers that deciding needs and that other libraries do better.

    `read` is a function of its argument alone, because long texts are named by their content.
    """

    def read(self, text: Text | None) -> str:
        """The whole text."""

    def keep(self, text: str) -> Text:
        """The text as an event may carry it: itself when short, else a name for stored content."""

    def matches(self, pattern: str, text: str, *, ignore_case: bool) -> str | None:
        """What a pattern matched first, in linear time, or None."""

    def evaluate(
        self, text: str, scope: "ExpressionNames", *, wants: Literal["bool", "list"]
    ) -> "ExpressionValue":
        """The value of an expression over the names of a scope."""

    def schema_problem(self, schema: dict[str, JsonValue], value: JsonValue) -> str | None:
        """Why a value does not fit a JSON Schema, or None."""


_REPORTING = ("script", "model")  # agents that this process knows the cost of


class PendingEffect(msgspec.Struct, eq=False):
    """An effect that was requested and has no answer yet."""

    effect: str
    call: AnyCall
    purpose: EffectPurpose
    path: str  # the place as it was named when the effect was requested
    owner: Owner
    attempt: int
    requested_at: int
    spec: str = ""  # the backend of the agent when it was called
    repeats: int = 0  # how often it was begun again, since its process was gone
    gates: dict[str, GateState] | None = None  # asked while it was under way
    used: Usage | None = None  # so far, counted in the usage of the run

    @property
    def has_unknown_cost(self) -> bool:
        """Whether a program was called that has not reported anything yet."""
        kind = self.spec.partition(":")[0]
        return self.used is None and bool(kind) and kind not in _REPORTING


class Snapshots(msgspec.Struct):
    """The results of the snapshots of the workspace so far. Trees are named by their ids."""

    on: bool = False
    watch: tuple[str, ...] = ()  # words of check commands; files among them are watched
    count: int = 0  # snapshots requested
    first: str = ""
    last: str = ""
    baseline: str = ""  # what protected files are compared with
    taken: bool = False  # the one before anything else, since the run was started or reopened
    written: bool = False  # something may have written since the last one was requested
    problem: str = ""  # why the last one failed
    failed_since: int = 0  # the first iteration without a snapshot, while they fail; 0: none
    skip_last: bool = False  # the run was stopped again while its last one was being taken
    latest: Snapshot | None = None
    newest: Snapshot | None = None  # in the log, also where snapshots are off now
    asked: dict[str, str] = {}  # by place: the effect under way
    before: dict[str, tuple[str, int]] = {}  # by open iteration
    iterations: dict[str, Snapshot | None] = {}  # by open iteration


class WorkQueues(msgspec.Struct):
    """What deciding and the driver look at next; found again from the rest of the state."""

    agenda: deque[Owner] = msgspec.field(default_factory=deque)
    slots: OrderedDict[str, Owner] = msgspec.field(
        default_factory=OrderedDict
    )  # who waits for a slot
    timers: dict[str, int] = {}  # by effect
    stale: dict[str, GateState] = {}  # open, of effects that are answered
    lost: dict[str, PendingEffect] = {}  # begun again too often


class AgentUse(msgspec.Struct):
    """Calls of agents under way, and what a run remembers about its agents."""

    calls: int = 0
    served: dict[str, int] = {}  # by agent: which event called it last
    marks: dict[str, set[int]] = {}
    remembered: set[str] = set()  # tools that a person always allows


class RunControl(msgspec.Struct):
    """What people have asked of a run since it was started."""

    cancel: CancelRequested | None = None
    paused: bool = False
    passes: int | None = None  # the most iterations of the plan's loops, if it was changed
    metadata: dict[str, JsonValue] = {}
    labels: tuple[str, ...] = ()


class Reopenings(msgspec.Struct):
    """How often a run was reopened, and what its steps take up again."""

    count: int = 0
    last: RunReopened | None = None
    begun: dict[str, int] = {}  # how often each step of the plan has begun
    kept: dict[str, KeptLoop] = {}  # that did not complete, by step
    raised: int | None = None  # how many iterations loops that ended at their cap may make now


class LatestIteration(msgspec.Struct):
    """The newest iteration of a step of the plan, and the newest verdicts."""

    iteration: IterationOwner | None = None
    notes: list[CheckNote] = []
    notes_of: IterationOwner | None = None


class RunTimes(msgspec.Struct):
    """When a run was under way."""

    worked_ms: int = 0  # from each start to each end, up to the last one of them
    working_since: int = 0
    forked_at: int = 0  # when the newest fork in its history was made; 0 for a run that is none


class PlanIndex(msgspec.Struct):
    """What is looked up in the plan once; runs with the same plan share it."""

    root: Steps
    loop: Repeat | None = None  # the outermost loop, if there is exactly one
    chats: frozenset[str] = frozenset()  # agents that are chat models
    indexes: dict[int, StepsIndex] = {}
    directory: StepDirectory | None = None  # made when a message needs it
    has_budget: bool = False  # whether any place of the plan limits money or tokens
    has_caps: bool = False  # whether a graph inside limits how many agents are called at once
    has_checks: bool = False  # whether a check of the plan starts a program
    has_given: bool = False  # whether a graph inside is a workflow of its own
    has_idle: bool = False  # whether any place limits silence
    has_signals: bool = False  # whether a loop has a signal that only it sees
    has_wall: bool = False  # whether any place limits time


MOST_INDEXES = 64
_INDEXES: dict[int, tuple[Plan, PlanIndex]] = {}  # by identity: a plan is never changed


def index_plan(plan: Plan) -> PlanIndex:
    """What is limited anywhere in a plan; runs that are started with one plan look it up once."""
    known = _INDEXES.get(id(plan))
    if known is not None and known[0] is plan:
        return known[1]
    if len(_INDEXES) >= MOST_INDEXES:
        _INDEXES.clear()
    limits, graphs = all_limits(plan), list(graphs_inside(plan))
    chats = chat_agents(plan)
    capped = any(plan.agents[name].max_usd is not None for name in chats)
    index = PlanIndex(
        root=root_steps(plan),
        loop=only_repeat(plan),
        chats=chats,
        has_budget=capped or any(one.usd is not None or one.tokens is not None for one in limits),
        has_caps=any(graph.parallel is not None for graph in graphs),
        has_checks=bool(check_words(plan)),
        has_given=any(graph.given is not None for graph in graphs),
        has_signals=any(isinstance(leaf, Signal) and leaf.anywhere for leaf in all_checks(plan)),
        has_idle=any(one.idle_ms is not None for one in limits),
        has_wall=any(one.wall_ms is not None or one.pass_wall_ms is not None for one in limits),
    )
    _INDEXES[id(plan)] = plan, index
    return index


class State(msgspec.Struct, eq=False):
    """A run as its events describe it."""

    plan: Plan
    plan_index: PlanIndex = None  # type: ignore[assignment]  # looked up below
    root: RunOwner = msgspec.field(default_factory=RunOwner)
    owners: dict[str, Owner] = {}
    pending: dict[str, PendingEffect] = {}
    gates: dict[str, GateState] = {}
    queues: WorkQueues = msgspec.field(default_factory=WorkQueues)
    agents: AgentUse = msgspec.field(default_factory=AgentUse)
    started: RunStarted | None = None
    finished: RunFinished | None = None
    control: RunControl = msgspec.field(default_factory=RunControl)
    reopenings: Reopenings = msgspec.field(default_factory=Reopenings)
    latest: LatestIteration = msgspec.field(default_factory=LatestIteration)
    times: RunTimes = msgspec.field(default_factory=RunTimes)
    usage: Usage = msgspec.field(default_factory=Usage)
    mail: Mail = msgspec.field(default_factory=Mail)
    snapshots: Snapshots = msgspec.field(default_factory=Snapshots)
    version: int = 0
    ignored: int = 0
    now: int = 0

    def __post_init__(self) -> None:
        self.mail.active = self.plan.coordinator is not None
        if self.plan.workspace.snapshots:
            self.snapshots.on, self.snapshots.watch = True, check_words(self.plan)
        self.plan_index = index_plan(self.plan)

    @property
    def elapsed_ms(self) -> int:
        """How long the run was active: the time between an end and a resume does not count."""
        times = self.times
        return (
            times.worked_ms if self.finished else times.worked_ms + self.now - times.working_since
        )

    @property
    def run(self) -> str:
        return self.started.run if self.started else ""

    def touch(self, owner: Owner) -> None:
        """Note that deciding should look at this owner again."""
        if not owner.queued and not owner.closed:
            owner.queued = True
            self.queues.agenda.append(owner)


def is_full(state: State, owner: Owner) -> bool:
    """Whether as many agents are called at once as the plan allows, or a graph around a place."""
    if state.plan.parallel is not None and state.agents.calls >= state.plan.parallel:
        return True
    if not state.plan_index.has_caps:
        return False
    return any(graph.calls >= most for graph, most in capped_graphs(state, owner))


def capped_graphs(state: State, owner: Owner) -> Iterator[tuple[StepsBody, int]]:
    """The graphs around a place that say how many agents may be called at once, and how many."""
    place = owner
    while place.parent is not None:
        body = place.parent
        most = body.index.action.parallel if isinstance(body, StepsBody) else None
        if isinstance(body, StepsBody) and most is not None:
            yield body, most
        place = body.owner


def count_call(state: State, owner: Owner, more: int) -> None:
    """Count a call that begins, or that has ended, wherever that is limited."""
    state.agents.calls += more
    if state.plan_index.has_caps:
        for graph, _ in capped_graphs(state, owner):
            graph.calls += more


def has_to_wait(state: State, owner: Owner) -> bool:
    """Whether a call at a place must wait for its turn; then it is noted, once, for when one of
    the calls under way is answered.
    """
    if state.plan.parallel is None and not state.plan_index.has_caps:
        return False
    if not is_full(state, owner):
        return False
    state.queues.slots.setdefault(owner.inside, owner)
    return True


def index_of(state: State, action: Steps) -> StepsIndex:
    """The layout of a graph, made once for each graph of the plan."""
    found = state.plan_index.indexes.get(id(action))
    if found is None:
        at = {step.id: n for n, step in enumerate(action.steps)}
        dependents: list[list[int]] = [[] for _ in action.steps]
        for n, step in enumerate(action.steps):
            for need in step.needs:
                dependents[at[need]].append(n)
        missing = [len(step.needs) for step in action.steps]
        found = StepsIndex(action=action, at=at, dependents=dependents, missing=missing)
        state.plan_index.indexes[id(action)] = found
    return found


def steps_body(state: State, owner: Owner, action: Steps) -> StepsBody:
    """The frame for a graph that begins now."""
    index = index_of(state, action)
    ready = deque(n for n, missing in enumerate(index.missing) if missing == 0)
    return StepsBody(owner=owner, index=index, missing=list(index.missing), ready=ready)


def make_body(state: State, owner: Owner, action: Action, step: StepOwner) -> Body:
    """The frame for an action that begins now in a step, or in an iteration inside of one."""
    if type(action) is Steps:
        return steps_body(state, owner, action)
    if type(action) is Repeat:
        talk = LoopConversation(answers_call=action.is_one_call)
        return RepeatBody(owner=owner, action=action, step=step, talk=talk)
    if type(action) is CallAgent and action.agent in state.plan_index.chats:
        turns = conversation(state.plan.agents[action.agent], action)
        talk = LoopConversation(answers_call=True)
        return RepeatBody(owner=owner, action=turns, step=step, call=action, talk=talk)
    retry = step.step.retry
    if step.step.action is not action and "any" in retry.on:
        retry = Retry()  # the whole step is tried again, not the call inside
    if type(action) is ModelCycle:
        return CycleBody(owner=owner, action=action, retry=retry)
    return LeafBody(owner=owner, action=action, retry=retry, limits=step.step.limits)


def enclosing_step(owner: Owner) -> StepOwner | None:
    """The nearest step around a place: its retry policy and limits hold inside."""
    place: Owner | None = owner
    while place is not None and type(place) is not StepOwner:
        place = place.parent.owner if place.parent is not None else None
    return place


def enclosing_iteration(owner: Owner) -> IterationOwner | None:
    """The innermost iteration around a place."""
    place: Owner | None = owner
    while place is not None and type(place) is not IterationOwner:
        place = place.parent.owner if place.parent is not None else None
    return place


def session_key(owner: Owner, inside: IterationOwner, spec: str) -> str:
    """What names a session in all iterations of a loop: the place inside the iteration, and the
    program there.
    """
    place = owner.path.removeprefix(inside.path)
    return f"{place} {spec}" if place else spec


def chain(owner: Owner) -> list[Owner | RepeatBody]:
    """Every place and loop around an owner, itself first."""
    found: list[Owner | RepeatBody] = []
    place = owner
    while place.parent is not None:
        found.append(place)
        if isinstance(place.parent, RepeatBody):
            found.append(place.parent)
        place = place.parent.owner
    found.append(place)
    return found


def limits_of(state: State, place: Owner | RepeatBody) -> Limits:
    """The limits that were written at a place itself."""
    match place:
        case RunOwner():
            return state.plan.limits
        case StepOwner():
            return place.step.limits
        case RepeatBody():
            return place.action.limits
        case _:
            return NO_LIMITS


def add_pending(state: State, event: EffectRequested, owner: Owner) -> PendingEffect:
    """Enter a request into the table of what is pending."""
    name = read_effect_id(event.effect)
    entry = PendingEffect(
        effect=event.effect,
        call=event.call,
        purpose=name.purpose,
        path=name.path,
        owner=owner,
        attempt=name.number,
        requested_at=event.at,
    )
    state.pending[event.effect] = entry
    if type(event.call) is AgentCall or type(event.call) is ModelCall:
        if event.call.role != "coordinator":  # it only listens, so it needs no slot
            count_call(state, owner, 1)
            state.agents.served[event.call.agent] = state.version
        agent = state.plan.agents.get(event.call.agent)
        entry.spec = (agent.spec or "") if agent is not None else ""
    elif isinstance(event.call, SleepCall):
        state.queues.timers[event.effect] = event.call.until
    return entry


def head(text: Text | None, size: int) -> str:
    """The first characters of a text, without reading a stored one."""
    if text is None:
        return ""
    return text[:size] if isinstance(text, str) else text.head[:size]


def opening(state: State) -> RunReopened:
    """The options of the newest reopening of the run."""
    assert state.reopenings.last is not None, "only a reopened run has frames that were kept"
    return state.reopenings.last


def places_inside(body: Body) -> list["StepOwner | IterationOwner"]:
    """The steps or iterations of a body that are under way, in their order."""
    if type(body) is StepsBody:
        return list(body.active.values())
    if type(body) is RepeatBody:
        return [body.active[number] for number in sorted(body.active)]
    return []


def release_frames(owner: Owner) -> None:
    """Remove the references from a place that has ended to the frames inside it.

    Frames refer to the place around them, and the place to them. Without these references the
    frames are freed at once, with the texts that they hold, instead of by the garbage collector.
    """
    body = owner.body
    owner.body = None  # type: ignore[assignment]  # nothing looks into a place that has ended
    owner.closed = True
    if type(owner) is IterationOwner:
        owner.gate = owner.answered_gate = None
    elif type(owner) is StepOwner:
        owner.gate = None
    if type(body) is not LeafBody:
        release_inside(body)


def release_inside(body: Body) -> None:
    """Remove the references to the frames of a body that is given up."""
    if isinstance(body, StepsBody):
        for step in [*body.active.values(), *body.unfinished.values()]:
            release_frames(step)
        body.active, body.unfinished = {}, {}
    elif isinstance(body, RepeatBody):
        for one in [*body.active.values(), *(kept.owner for kept in body.unfinished.values())]:
            release_frames(one)
        body.active, body.unfinished = {}, {}


def cap(body: RepeatBody) -> int | None:
    """The most iterations that a loop may make, with those that a person granted."""
    return None if body.action.max is None else body.action.max + body.progress.extra


def request_effect(
    state: State, owner: Owner, purpose: EffectPurpose, number: int, call: AnyCall
) -> EffectRequested:
    """The event that asks for an effect at a place."""
    return EffectRequested(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        effect=effect_id(owner.inside, purpose, number),
        call=call,
    )


def iterations_made(body: Body) -> int:
    """Iterations of a loop, with those under way; 0 for anything else, also for the turns that a
    chat model takes to answer one call.
    """
    if not isinstance(body, RepeatBody) or body.talk.answers_call:
        return 0
    return body.finished + len(body.active)
