"""From a workflow to the plan: every default filled in, every included file in its place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from loopwright.dialects.zenflow.checking import Checked, check
from loopwright.dialects.zenflow.fields import inside as path_inside
from loopwright.dialects.zenflow.files import FileProblem, Path, Wanted
from loopwright.dialects.zenflow.loops import lower_loop
from loopwright.dialects.zenflow.parts import DEFAULT_PARALLEL, Agents, at_most, lower_retry
from loopwright.dialects.zenflow.surface import (
    NOT_ISOLATED,
    LoopSpec,
    Options,
    StepSpec,
    Workflow,
)
from loopwright.dialects.zenflow.tool_steps import lower_tool
from loopwright.dialects.zenflow.tree import Tree
from loopwright.dialects.zenflow.units import Loader, Unit
from loopwright.model.actions import Action, CallAgent, Step, Steps
from loopwright.model.checks import Judge
from loopwright.model.expr import Cel
from loopwright.model.plan import Coordinator, Plan
from loopwright.model.policy import NO_WORKSPACE_POLICY, OnFailure, WorkspacePolicy
from loopwright.model.record import JsonValue
from loopwright.model.template import literal
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic
from loopwright.syntax.document import Document

NAME = "zenflow"
COORDINATOR = "coordinator"

Files = Mapping[str, bytes | FileProblem]

_NO_FILES: Files = MappingProxyType({})
_ON_FAILURE: dict[str | None, OnFailure] = {"skip-dependents": "skip", "abort": "abort"}


def wanted(document: Document, files: Files = _NO_FILES) -> list[Wanted]:
    """The files that this workflow asks for and that are not there yet."""
    loader = Loader(files, document.file)
    loader.first(document)
    return list(loader.wanted.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    loader = Loader(files, document.file)
    first = loader.first(document)
    checked = {unit: check(unit) for unit in (first, *loader.units.values())}
    problems = [one for found in checked.values() for one in found.problems] + loader.broken
    if any(one.severity == "error" for one in problems):
        return None, problems[:MAX_PROBLEMS]
    return _Lowering(checked).plan(first), problems[:MAX_PROBLEMS]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The workflow file that is being lowered, and what it has from the one that includes it."""

    unit: Unit
    flow: Workflow
    options: Options
    prefix: str = ""
    step_ms: int = 0

    @property
    def purpose(self) -> str:
        """What a step is told that says nothing; in the first file that is the run's message."""
        return (self.flow.description or self.flow.name) if self.prefix else ""

    def schema(self, agent: str) -> dict[str, JsonValue] | None:
        """What the result of an agent must fit."""
        return (self.flow.agents or {})[agent].result_schema


def _coordinator(flow: Workflow, tree: Tree) -> Coordinator | None:
    """An agent of this name that no step works with and no loop is judged by coordinates."""
    if COORDINATOR not in (flow.agents or {}):
        return None
    used = {step.value.get("agent") for step in tree.steps}
    used |= {loop.value.get("untilAgent") for loop in tree.loops}
    return None if COORDINATOR in used else Coordinator(agent=COORDINATOR)


@dataclass(slots=True)
class _Lowering:
    """One workflow on its way, with all that it includes."""

    checked: dict[Unit, Checked]
    agents: Agents = field(default_factory=Agents)

    def plan(self, unit: Unit) -> Plan:
        scope = self._scope(unit)
        flow, options = scope.flow, scope.options
        # A person is asked about every tool; if nobody answers, it is denied. Files of the
        # context stand beside the workflow.
        settings = {"tools": "ask", "context_files": "definition"}
        if not options.max_concurrency:
            settings["parallel"] = "default"
        if options.scheduler not in (None, "dependency-first"):
            settings["scheduler"] = str(options.scheduler)
        steps = self._steps(scope, flow.steps or [], ("steps",))
        return Plan(
            name=flow.name,
            steps=steps,
            agents=self.agents.made,
            message=literal(flow.description or flow.name),
            description=flow.description or "",
            limits=at_most(options.timeout),
            on_failure=_ON_FAILURE.get(options.on_step_failure, "cascade"),
            parallel=options.max_concurrency or DEFAULT_PARALLEL,
            outcome="partial",
            coordinator=_coordinator(flow, scope.unit.tree),
            settings=settings,
            workspace=self._workspace(),
            dialect=NAME,
        )

    def _workspace(self) -> WorkspacePolicy:
        """A worktree for the whole run, where any workflow of it wants to be isolated."""
        options = [one.flow.options for one in self.checked.values() if one.flow is not None]
        wanted = {one.isolation or "" for one in options if one is not None}
        return WorkspacePolicy(worktree=True) if wanted - {*NOT_ISOLATED} else NO_WORKSPACE_POLICY

    def _scope(self, unit: Unit, *, prefix: str = "", step_ms: int = 0) -> _Scope:
        found = self.checked[unit]
        assert found.flow is not None, "a workflow without a problem was read"
        self.agents.define(found.flow, unit.texts, prefix=prefix)
        options = found.flow.options or Options()
        own_ms = options.step_timeout or step_ms
        return _Scope(unit, found.flow, options, prefix, own_ms)

    # -- steps -------------------------------------------------------------------------------------

    def _steps(
        self, scope: _Scope, specs: list[StepSpec], at: Path, *, inside: str = ""
    ) -> tuple[Step, ...]:
        """The steps of a graph; `inside` are the ids of the loops around it."""
        return tuple(
            self._step(scope, spec, (*at, number), inside=inside)
            for number, spec in enumerate(specs)
        )

    def _step(self, scope: _Scope, spec: StepSpec, at: Path, *, inside: str) -> Step:
        limits = at_most(spec.timeout)
        if spec.include is not None:
            action: Action = self._included(scope, spec, at, inside=inside)
            below = self.checked[scope.unit.included[at]].flow
            inner_ms = below.options.timeout if below and below.options else None
            limits = at_most(spec.timeout, inner_ms)
        elif spec.tool is not None:
            limits = at_most(spec.timeout or scope.step_ms)
            action = lower_tool(spec.tool, spec.tool_input or {}, limits.wall_ms)
        elif spec.loop is not None:
            action = self._loop(scope, spec, spec.loop, at, inside=inside)
        else:
            action = self._call(scope, spec, at)
            limits = at_most(spec.timeout or scope.step_ms)
        return Step(
            id=spec.id,
            action=action,
            needs=tuple(dict.fromkeys(spec.depends_on or ())),
            when=None if spec.condition is None else Cel(text=spec.condition, missing="false"),
            join="finished_ok",
            retry=lower_retry(spec, scope.options),
            limits=limits,
        )

    def _call(self, scope: _Scope, spec: StepSpec, at: Path) -> CallAgent:
        name = None if spec.agent is None else scope.prefix + spec.agent
        return CallAgent(
            agent=self.agents.call(name, spec.model),
            prompt=literal(scope.unit.texts.get((*at, "instructions")) or scope.purpose),
            schema=None if spec.agent is None else scope.schema(spec.agent),
            context_files=tuple(
                path
                for written in spec.context_files or ()
                if (path := path_inside(scope.unit.folder, written)) is not None
            ),
            show_needs=True,
        )

    def _included(self, scope: _Scope, spec: StepSpec, at: Path, *, inside: str) -> Steps:
        prefix = f"{scope.prefix}{inside}{spec.id}."
        below = self._scope(scope.unit.included[at], prefix=prefix, step_ms=scope.step_ms)
        return Steps(
            steps=self._steps(below, below.flow.steps or [], ("steps",)),
            on_failure=_ON_FAILURE.get(below.options.on_step_failure, "cascade"),
            parallel=below.options.max_concurrency or None,
        )

    def _loop(
        self, scope: _Scope, spec: StepSpec, loop: LoopSpec, at: Path, *, inside: str
    ) -> Action:
        judge = None
        if loop.until_agent is not None:
            schema = scope.schema(loop.until_agent)
            judge = Judge(agent=scope.prefix + loop.until_agent, schema=schema)
        body: Action
        if loop.steps is None:
            body, pass_ms = self._call(scope, spec, at), scope.step_ms
        else:
            inner = f"{inside}{spec.id}."
            steps = self._steps(scope, loop.steps, (*at, "loop", "steps"), inside=inner)
            body, pass_ms = Steps(steps=steps), 0
        return lower_loop(loop, body, judge=judge, pass_ms=pass_ms)
