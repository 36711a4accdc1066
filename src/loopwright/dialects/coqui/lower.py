"""From a loop definition to the plan: one loop whose passes are stages, each a call of a role."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from loopwright.dialects.coqui.naming import stage_ids, unique
from loopwright.dialects.coqui.parameters import filled, template
from loopwright.dialects.coqui.rules import declared, structure, with_numbers
from loopwright.dialects.coqui.surface import (
    MAX_STEPS,
    Definition,
    EvaluationBound,
    GoalBound,
    IterationBound,
    Manual,
    ParameterSpec,
    StageSpec,
    TimeBound,
)
from loopwright.model.actions import CallAgent, Gate, Repeat, Step, Steps
from loopwright.model.checks import Approval, Cap, Check, Goal
from loopwright.model.ids import MAIN
from loopwright.model.memory import StageOutputs
from loopwright.model.plan import Agent, Input, Plan
from loopwright.model.policy import NO_LIMITS, AtCap, Limits, OnDeadline, Retry
from loopwright.model.record import JsonValue
from loopwright.syntax import Diagnostic, Document, validate
from loopwright.syntax.diagnostic import in_order
from loopwright.syntax.moments import point_ms, span_ms

NAME = "coqui"
DEFAULT_STEPS = 48
DEFAULT_ROUNDS = 5
EVALUATOR = "evaluator"
NOBODY = "none"
STAGE_RETRY = Retry(attempts=3)
"""A provider that asks to come back later does not end a loop."""
STAGE_S = 3_600
"""So long a stage may take."""

Values: TypeAlias = Mapping[str, JsonValue]
_NOTHING: Values = MappingProxyType({})


def lower(document: Document, given: Values = _NOTHING) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings. `given` are parameters as far
    as they are known: numbers that come from one are decided by them.
    """
    known = declared(document.value)
    defaults = {name: one["default"] for name, one in known.items() if "default" in one}
    values = {**defaults, **{name: one for name, one in given.items() if name in known}}
    seen = replace(document, value=with_numbers(document.value, values))
    definition, problems = validate(Definition, seen)
    if isinstance(document.value, dict):
        problems += structure(document)
    if definition is None or any(one.severity == "error" for one in problems):
        return None, in_order(problems)
    return _Lowering(definition, values).plan(), in_order(problems)


@dataclass(slots=True)
class _Ends:
    """What ends a loop."""

    until: Check = field(default_factory=Cap)
    most: int | None = None
    at_cap: AtCap = "exhaust"
    limits: Limits = NO_LIMITS
    on_deadline: OnDeadline = "stop"


@dataclass(slots=True)
class _Lowering:
    """One definition on its way; collects the agents of its stages."""

    top: Definition
    values: Mapping[str, object]
    agents: dict[str, Agent] = field(default_factory=dict)

    def plan(self) -> Plan:
        ids = stage_ids([filled(_called(one), self.values) for one in self.top.roles])
        steps: list[Step] = []
        for step_id, spec in zip(ids, self.top.roles, strict=True):
            steps.append(self._stage(step_id, spec, steps[-1].id if steps else None))
        ends = self._ends(ids)
        loop = Repeat(
            body=Steps(steps=tuple(steps)),
            max=ends.most,
            until=ends.until,
            memory=StageOutputs(),
            gate=self._block(),
            at_cap=ends.at_cap,
            limits=ends.limits,
            on_deadline=ends.on_deadline,
            broken_after=0,  # an evaluator that cannot be asked has not said yes
        )
        return Plan(
            name=self.top.name,
            description=filled(self.top.description, self.values),
            steps=(Step(id=MAIN, action=loop, retry=STAGE_RETRY),),
            agents=self.agents,
            inputs={one.name: _input(one) for one in self.top.parameters},
            dialect=NAME,
        )

    def _declared(self) -> dict[str, object]:
        return {one.name: one for one in self.top.parameters}

    def _stage(self, step_id: str, spec: StageSpec, before: str | None) -> Step:
        role = filled(_role(spec), self.values)
        prompt = template(spec.prompt, self._declared())
        cap = min(_number(spec.max_iterations, DEFAULT_STEPS), MAX_STEPS)
        agent = self._agent(role, cap, spec)
        return Step(
            id=step_id,
            action=CallAgent(agent=agent, prompt=prompt),
            needs=(before,) if before else (),
            retry=STAGE_RETRY,
            on_blocked="ask",
            needs_artifact=spec.artifact_required,
        )

    def _agent(self, role: str, cap: int, spec: StageSpec) -> str:
        """The agent of a stage; stages that ask the same of a role share one."""
        options: dict[str, JsonValue] = {"skills": [*spec.skills]} if spec.skills else {}
        wanted = Agent(
            role=role,
            max_turns=cap,
            options=options,
            idle_ms=1_000 * _number(spec.max_silence, 0) or None,
            wall_ms=1_000 * _number(spec.max_seconds, STAGE_S),
        )
        known = [name for name, one in self.agents.items() if one == wanted]
        if known:
            return known[0]
        name = unique(role, self.agents)
        self.agents[name] = wanted
        return name

    def _ends(self, ids: list[str]) -> _Ends:
        condition, known = self.top.termination_condition, self._declared()
        match condition:
            case EvaluationBound(value=value):
                gates = [n for n, one in enumerate(self.top.roles) if one.gate]
                until = Approval(
                    stage=ids[gates[0]] if gates else None,
                    words=True,
                    criteria=template(value.criteria, known),
                )
                return _Ends(until, _number(value.max_review_rounds, DEFAULT_ROUNDS))
            case IterationBound(value=value):
                most = _number(value.max_iterations, DEFAULT_ROUNDS)
                return _Ends(most=most, at_cap="complete")
            case GoalBound(value=value):
                most = _number(value.max_iterations, DEFAULT_ROUNDS)
                role = filled(value.evaluator or EVALUATOR, self.values)
                if role == NOBODY:
                    return _Ends(most=most)
                agent = unique(role, self.agents)
                known_role = role if value.evaluator else None
                self.agents[agent] = Agent(role=known_role, access="readonly")
                prompt = template(value.goal_prompt or "", known)
                return _Ends(Goal(agent=agent, prompt=prompt), most)
            case TimeBound(value=value):
                limits = Limits(wall_ms=span_ms(value.limit), ends_at=point_ms(value.limit))
                return _Ends(limits=limits, on_deadline=_DEADLINES[value.enforce])
            case manual:  # a tool that measures is refused before
                assert isinstance(manual, Manual), manual
                return _Ends()

    def _block(self) -> Gate | None:
        attempts = self.top.max_rework_attempts
        if attempts is None:
            return None
        return Gate(after=_number(attempts, DEFAULT_ROUNDS))


_DEADLINES: dict[str, OnDeadline] = {
    "now": "stop",
    "stage": "after_step",
    "iteration": "after_pass",
}


def _role(spec: StageSpec) -> str:
    return spec.role or spec.name or ""


def _called(spec: StageSpec) -> str:
    return spec.name or spec.role or ""


def _number(value: object, unknown: int) -> int:
    """A number; one that comes from a parameter which nobody has given yet is not known."""
    if isinstance(value, int):
        return value
    return unknown


def _input(spec: ParameterSpec) -> Input:
    default = None if spec.default is None else str(spec.default)
    return Input(
        description=spec.description, required=spec.required and default is None, default=default
    )
