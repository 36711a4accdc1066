"""Dry runs: what a definition would do, computed by the real kernel with stubs for effects.

A *scenario* says how agents, checks and people answer. Each scenario is simulated to its end in
memory; no program is called and nothing is stored.

The highest possible cost follows from the limits of the run, its steps and loops. An outer
limit covers everything inside. Without one the inner ceilings are added up, with a loop counted
as often as it may run. What has no limit has no ceiling.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.engine.services import TextServices, schema_problem
from loopwright.kernel.decide import settle
from loopwright.kernel.effects import after_failure
from loopwright.kernel.event_parts import (
    AgentCall,
    CommandCall,
    Failure,
    ModelCall,
    SleepCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    IterationStarted,
    RunStarted,
    Usage,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import CycleBody, IterationOwner, LeafBody
from loopwright.kernel.state import PendingEffect, State
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    FailStep,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.chat import encode_turn
from loopwright.model.ids import AGENT_CALL, CheckPurpose
from loopwright.model.plan import Plan
from loopwright.model.policy import NO_WORKSPACE_POLICY, Limits
from loopwright.model.record import JsonValue
from loopwright.operations.dry_run.stub_answers import (
    BUDGET_SCENARIO,
    STUB,
    WORST,
    Scenario,
    Stubs,
    assumed,
    sample,
    scenarios,
    stub_turn,
)
from loopwright.views.run_responses import GraphNode
from loopwright.views.run_view import graph

Amount: TypeAlias = Literal["usd", "tokens"]


@dataclass(frozen=True, slots=True)
class CostCeilings:
    """The most that may be spent; None where nothing limits it."""

    usd: float | None
    tokens: int | None


def ceilings(plan: Plan) -> CostCeilings:
    """What a run of a plan may spend at most."""
    usd, tokens = _plan(plan, "usd"), _plan(plan, "tokens")
    return CostCeilings(usd=usd, tokens=None if tokens is None else int(tokens))


def _plan(plan: Plan, amount: Amount) -> float | None:
    return _least(plan.limits, amount, _sum(_step(step, amount) for step in plan.steps))


def _step(step: Step, amount: Amount) -> float | None:
    return _least(step.limits, amount, _action(step.action, amount))


def _action(action: Action, amount: Amount) -> float | None:
    match action:
        case CallAgent() | ModelCycle():
            return None
        case Steps(steps=steps):
            return _sum(_step(step, amount) for step in steps)
        case Repeat(body=body):
            once, most = _action(body, amount), _iteration_count(action)
            inside = None if once is None or most is None else once * most
            return _least(action.limits, amount, inside)
        case RunCommand() | RunScript() | AskPerson() | Wait() | StopRun() | FailStep():
            return 0
        case _:
            assert_never(action)


def _iteration_count(loop: Repeat) -> int | None:
    return loop.max if loop.each is None else loop.each.max_items


def _least(limits: Limits, amount: Amount, inside: float | None) -> float | None:
    own: float | None = getattr(limits, amount)
    known = [one for one in (own, inside) if one is not None]
    return min(known) if known else None


def _sum(amounts: Iterable[float | None]) -> float | None:
    total = 0.0
    for one in amounts:
        if one is None:
            return None
        total += one
    return total


MOST_ANSWERS = 20_000
"""A longer dry run is reported as too long."""


class DryRunEnding(msgspec.Struct):
    """How a run could end."""

    story: str
    outcome: str
    reason: str
    iterations: int
    calls: dict[str, int]
    gates: int
    steps: dict[str, str]


class DryRunWorst(msgspec.Struct):
    """The most that a run could do and spend. `complete` is false for a run that could do more than
    was simulated; null is unlimited.
    """

    iterations: int
    calls: dict[str, int]
    complete: bool
    usd: float | None
    tokens: int | None
    wall_ms: int | None


class SnapshotPlan(msgspec.Struct):
    """Whether the files of the workspace are recorded, and which of them are protected."""

    taken: bool
    protect: list[str]


class DryRunReport(msgspec.Struct):
    """Possible results of a run, the same as `run --dry-run --json` prints."""

    name: str
    dialect: str
    graph: list[GraphNode]
    endings: list[DryRunEnding]
    worst: DryRunWorst
    snapshots: SnapshotPlan
    worktree: bool
    sandbox: str | None
    assumed: list[str]
    limits: list[str]  # which are enforced, and how
    warnings: list[str]  # programs that are missing where the run would start


@dataclass(slots=True, kw_only=True)
class ScenarioResult:
    """What a scenario led to."""

    scenario: str
    outcome: str = "unfinished"
    reason: str = ""
    iterations: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    gates: int = 0
    steps: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        return sum(self.calls.values()), self.iterations

    def item(self) -> DryRunEnding:
        return DryRunEnding(
            story=self.scenario,
            outcome=self.outcome,
            reason=self.reason,
            iterations=self.iterations,
            calls=dict(self.calls),
            gates=self.gates,
            steps=dict(self.steps),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Everything that a dry run tells."""

    plan: Plan
    endings: tuple[ScenarioResult, ...]
    worst: ScenarioResult
    assumed: tuple[str, ...]

    def report(self, limits: Iterable[str] = (), warnings: Iterable[str] = ()) -> DryRunReport:
        most, policy = ceilings(self.plan), self.plan.workspace
        return DryRunReport(
            name=self.plan.name,
            dialect=self.plan.dialect,
            graph=graph(self.plan),
            endings=[ending.item() for ending in self.endings],
            worst=DryRunWorst(
                iterations=self.worst.iterations,
                calls=dict(self.worst.calls),
                complete=self.worst.outcome != "unfinished",
                usd=most.usd,
                tokens=most.tokens,
                wall_ms=self.plan.limits.wall_ms,
            ),
            snapshots=SnapshotPlan(bool(policy.snapshots), list(policy.protect)),
            worktree=policy.worktree,
            sandbox=self.plan.sandbox,
            assumed=list(self.assumed),
            limits=list(limits),
            warnings=list(warnings),
        )


def simulate(plan: Plan) -> DryRun:
    """Play every scenario that this plan can have."""
    return summarise_results(
        plan, [play_scenario(plan, scenario) for scenario in all_scenarios(plan)]
    )


def all_scenarios(plan: Plan) -> list[Scenario]:
    """The scenarios of a dry run, for callers that simulate them one by one."""
    return [*WORST, *scenarios(plan)]


def summarise_results(plan: Plan, endings: Sequence[ScenarioResult]) -> DryRun:
    """What all scenarios led to, in their order."""
    worst = max(endings[: len(WORST)], key=lambda ending: ending.size)
    # In a loop of one iteration a budget ends nothing that the limit of iterations does not end.
    others = tuple(
        one
        for one in endings[len(WORST) :]
        if one.scenario != BUDGET_SCENARIO or one.reason != "max_iterations"
    )
    return DryRun(plan=plan, endings=others, worst=worst, assumed=tuple(assumed(plan)))


# -- simulation of a scenario ----------------------------------------------------------------------


def play_scenario(plan: Plan, scenario: Scenario) -> ScenarioResult:
    """What one scenario leads to."""
    stubs = Stubs(conditions=scenario.conditions, long_lists=scenario.long_lists)
    apart = msgspec.structs.replace(plan, workspace=NO_WORKSPACE_POLICY)  # there are no files
    return _Simulation(stubs.plan(apart), scenario).play()


class _Simulation:
    """One scenario in memory."""

    def __init__(self, plan: Plan, scenario: Scenario) -> None:
        self.scenario = scenario
        self.ending = ScenarioResult(scenario=scenario.name)
        self.state = State(plan)
        self._stored: dict[str, bytes] = {}
        self._texts = TextServices(self._stored.__getitem__, schema_problem)
        self._now = 0
        self._sleeps: list[tuple[int, int, str]] = []  # when each is over, in which order begun
        self._order = count()
        self._reason = ""  # the reason of the newest check

    def play(self) -> ScenarioResult:
        self._append(RunStarted(at=0, run="run_rehearsal", plan="", name=self.state.plan.name))
        for _ in range(MOST_ANSWERS):
            event = self._next()
            if event is None or self.state.finished is not None:
                break
            self._append(event)
        return self._ended()

    def _append(self, event: AnyEvent) -> None:
        apply(self.state, event)
        for new in settle(self.state, self._texts, self._now):
            is_iteration = isinstance(new, IterationStarted) and (new.iteration or 0) > 0
            self.ending.iterations += is_iteration
            if isinstance(new, EffectRequested) and isinstance(new.call, SleepCall):
                heappush(self._sleeps, (new.call.until, next(self._order), new.effect))
        self._stored.update(self._texts.take_fresh())

    def _next(self) -> AnyEvent | None:
        state = self.state
        working = self._working()
        if working is not None and not self.scenario.late:
            return self._answer(working)
        if state.gates and not self.scenario.late:
            return self._decide()
        while self._sleeps:
            due, _, effect = heappop(self._sleeps)
            if effect in state.queues.timers:
                self._now = max(self._now, due)
                return self._done(state.pending[effect])
        return self._answer(working) if working is not None else None

    def _working(self) -> PendingEffect | None:
        """The first that is at work, of what may be a long list of those that sleep."""
        pending = self.state.pending
        if len(pending) == len(self.state.queues.timers):
            return None
        return next((p for p in pending.values() if not isinstance(p.call, SleepCall)), None)

    def _decide(self) -> AnyEvent:
        gate = next(iter(self.state.gates.values()))
        wanted = [one for one in self.scenario.person if one in gate.answers]
        if self.ending.gates >= _MOST_GATES:  # a person who always asks for more never ends
            wanted = [one for one in ("approve", "reject") if one in gate.answers]
        self.ending.gates += 1
        return GateAnswered(
            at=self._now,
            path=gate.path,
            iteration=gate.owner.iteration,
            gate=gate.gate,
            decision=(wanted or list(gate.answers))[0],
        )

    def _answer(self, pending: PendingEffect) -> AnyEvent:
        scenario, call = self.scenario, pending.call
        if isinstance(call, AgentCall | ModelCall):
            self.ending.calls[call.agent] += 1
        if isinstance(call, ToolCall):
            return self._done(pending, code=0)
        if isinstance(pending.purpose, CheckPurpose):
            return self._check(pending)
        step = scenario.fails
        if step is not None and step in _names(pending.owner.path):
            return self._failed(pending, "agent", "stub")
        if scenario.tries and self._tried_again(pending):
            return self._failed(pending, "overloaded", "stub")
        if isinstance(call, ModelCall):
            return self._turn(pending, call)
        return self._done(pending, code=0)

    def _turn(self, pending: PendingEffect, call: ModelCall) -> AnyEvent:
        """What a chat model says; until its loop may end, it asks for a tool."""
        body = pending.owner.body
        assert isinstance(body, CycleBody)
        agent = self.state.plan.agents.get(call.agent)
        text = f"stub {self.ending.iterations}"
        turn = stub_turn(agent, text, body.action.schema, ends=self._is_check_passed(pending))
        return self._answer_event(pending, text, result=encode_turn(turn))

    def _tried_again(self, pending: PendingEffect) -> bool:
        """Whether a failure now would be followed by another try."""
        body = pending.owner.body
        if not isinstance(body, LeafBody | CycleBody):
            return False
        failure = Failure("overloaded", "stub")
        return after_failure(body.retry, pending.attempt, failure) is not None

    def _check(self, pending: PendingEffect) -> AnyEvent:
        scenario = self.scenario
        if isinstance(pending.call, AgentCall):
            verdict: JsonValue = {"done": self._is_check_passed(pending), "reason": "stub"}
            if scenario.broken:
                return self._failed(pending, "agent", "stub")
            return self._done(pending, result=verdict)
        assert isinstance(pending.call, CommandCall)
        stubbed = pending.call.argv[0] == STUB
        if scenario.broken and not stubbed:
            return self._failed(pending, "not_found", "stub")
        self._reason = pending.call.argv[1] if stubbed else ""
        return self._done(pending, code=0 if self._is_check_passed(pending) else 1)

    def _is_check_passed(self, pending: PendingEffect) -> bool:
        owner, scenario = pending.owner, self.scenario
        if scenario.at_last and isinstance(owner, IterationOwner):
            return owner.iteration == owner.parent.action.max
        return scenario.checks and not scenario.broken

    def _done(
        self, pending: PendingEffect, *, code: int | None = None, result: JsonValue = None
    ) -> AnyEvent:
        schema = _schema(pending)
        value = sample(schema) if schema is not None and result is None else result
        text = None if value is None else msgspec.json.encode(value).decode()
        output = f"stub {len(self.ending.calls)}.{self.ending.iterations}"
        return self._answer_event(pending, output, result=text, code=code)

    def _answer_event(
        self, pending: PendingEffect, output: str, *, result: str | None, code: int | None = None
    ) -> AnyEvent:
        usage = Usage(input_tokens=10**9, usd=1e6) if self.scenario.dear else None
        return EffectDone(
            at=self._now,
            path=pending.owner.path,
            iteration=pending.owner.iteration,
            effect=pending.effect,
            output=output,
            result=None if result is None else self._texts.keep(result),
            code=code,
            usage=usage if isinstance(pending.call, AgentCall | ModelCall) else None,
        )

    def _failed(self, pending: PendingEffect, kind: str, detail: str) -> AnyEvent:
        return EffectFailed(
            at=self._now,
            path=pending.owner.path,
            iteration=pending.owner.iteration,
            effect=pending.effect,
            error=Failure(kind, detail),
        )

    def _ended(self) -> ScenarioResult:
        finished = self.state.finished
        if finished is not None:
            stands_for = self._reason if finished.reason == "command" else ""
            self.ending.outcome = finished.outcome
            self.ending.reason = stands_for or finished.reason
        results = self.state.root.body.results
        self.ending.steps = {name: results[name].status for name in results}
        return self.ending


_MOST_GATES = 100


def _schema(pending: PendingEffect) -> JsonValue:
    body = pending.owner.body
    action = body.action if isinstance(body, LeafBody) else None
    return (
        action.schema if isinstance(action, CallAgent) and pending.purpose == AGENT_CALL else None
    )


def _names(path: str) -> set[str]:
    """The ids of the steps around a place."""
    return {part.partition("~")[0].partition("[")[0] for part in path.split(".")}
