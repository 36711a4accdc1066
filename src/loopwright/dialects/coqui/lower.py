"""Lowering of a loop definition to a plan: one loop, with one stage per role in each iteration.

Names of stages and agents are kept as written as far as a plan allows them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from loopwright.dialects.coqui.rules import declared, in_sequence, prepare, structure, with_numbers
from loopwright.dialects.coqui.surface import (
    DEFAULT_ITERATIONS,
    MAX_STEPS,
    CoquiDefinition,
    EvaluationBound,
    GoalBound,
    IterationBound,
    Manual,
    ParameterSpec,
    StageSpec,
    TimeBound,
    ToolBound,
    filled,
    moment_ms,
    template,
)
from loopwright.model.actions import CallAgent, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import Approval, Cap, Check, Goal
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Input, Plan
from loopwright.model.policy import NO_LIMITS, AtCap, Limits, OnDeadline, Retry, StageOutputs
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, Document, in_order
from loopwright.syntax.notations import span_ms
from loopwright.syntax.validation import validate

_OTHER = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 56  # leaves space for a number after it


def stage_ids(names: list[str]) -> list[str]:
    """An id for each stage: its name in lower case, with a number if it is used again."""
    made: list[str] = []
    for name in names:
        made.append(unique(name, made))
    return made


def unique(name: str, taken: Collection[str]) -> str:
    """A name that may be an id, and that is not taken."""
    base = _OTHER.sub("-", name.lower()).strip("-_")[:_LONGEST]
    base = base if base[:1].isalpha() else f"s{base}"
    names = (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3)))
    return next(one for one in names if one not in taken)


NAME = "coqui"
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
    written, dropped = prepare(document)
    known = declared(written.value)
    defaults = {name: one["default"] for name, one in known.items() if "default" in one}
    values = {**defaults, **{name: one for name, one in given.items() if name in known}}
    seen = replace(written, value=with_numbers(written.value, values))
    definition, problems = validate(CoquiDefinition, seen)
    problems += dropped
    if isinstance(document.value, dict):
        problems += structure(written)
    if definition is None or any(one.severity == "error" for one in problems):
        return None, in_order(problems)
    return _Lowering(_sorted(definition), values).plan(), in_order(problems)


def _sorted(definition: CoquiDefinition) -> CoquiDefinition:
    """The definition with its stages as they follow each other."""
    stages = definition.roles
    places = in_sequence([one.model_dump() for one in stages])
    return definition.model_copy(update={"roles": [stages[n] for n in places]})


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

    top: CoquiDefinition
    values: Mapping[str, object]
    agents: dict[str, Agent] = field(default_factory=dict)

    def plan(self) -> Plan:
        ids = stage_ids([filled(_called(one), self.values) for one in self.top.roles])
        steps: list[Step] = []
        for index, step_id in enumerate(ids):
            steps.append(self._stage(step_id, index, steps[-1].id if steps else None))
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
            broken_after=0,  # an evaluator without an answer has not approved
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

    def _stage(self, step_id: str, index: int, before: str | None) -> Step:
        spec, later = self.top.roles[index], self.top.roles[index + 1 :]
        role = filled(_role(spec), self.values)
        prompt = template(spec.prompt, self._declared())
        agent = self._agent(role, spec)
        return Step(
            id=step_id,
            action=CallAgent(agent=agent, prompt=prompt),
            needs=(before,) if before else (),
            retry=STAGE_RETRY,
            on_blocked="ask",
            needs_artifact=spec.artifact_required
            or any(one.requires_explicit_evidence for one in later[:1]),
            needs_output=any(one.requires_artifact_from == index for one in later),
        )

    def _agent(self, role: str, spec: StageSpec) -> str:
        """The agent of a stage; stages with the same requirements for a role share one. Without its
        own number of turns, it has that of the role.
        """
        options: dict[str, JsonValue] = {"skills": [*spec.skills]} if spec.skills else {}
        turns = _number(spec.max_iterations, 0)
        wanted = Agent(
            role=role,
            max_turns=min(turns, MAX_STEPS) or None,
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
                    stage=ids[gates[-1]] if gates else None,
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
                limits = Limits(wall_ms=span_ms(value.limit), ends_at=moment_ms(value.limit))
                return _Ends(limits=limits, on_deadline=_DEADLINES[value.enforce])
            case ToolBound(value=value):  # a warning has reported that nothing is measured
                return _Ends(most=_number(value.max_iterations, DEFAULT_ROUNDS))
            case Manual():
                return _Ends()
            case None:
                return _Ends(most=DEFAULT_ITERATIONS, at_cap="complete")

    def _block(self) -> LoopGate | None:
        attempts = self.top.max_rework_attempts
        if attempts is None:
            return None
        return LoopGate(after=_number(attempts, DEFAULT_ROUNDS))


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
    """A number; if it comes from a parameter without a value, it is unknown."""
    if isinstance(value, int):
        return value
    return unknown


def _input(spec: ParameterSpec) -> Input:
    default = None if spec.default is None else str(spec.default)
    return Input(
        description=spec.description, required=spec.required and default is None, default=default
    )
