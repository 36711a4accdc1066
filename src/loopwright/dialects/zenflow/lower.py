"""Lowering of a workflow to a plan, and the references in it.

Steps and agents that are named must exist: duplicate ids, unknown dependencies and circles, and
agents that cannot be judges are findings. Each expression is compiled when the workflow is read,
with the steps that it may read.

All findings are in one report. Every default and every included file is filled in, and the
agents, attempts, timeouts and loops of a workflow become those of the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from loopwright.dialects.zenflow.outline import (
    GraphEntry,
    LoopEntry,
    Path,
    StepEntry,
    ZenflowFileProblem,
    ZenflowFileRequest,
    ZenflowLoader,
    ZenflowOutline,
    ZenflowUnit,
)
from loopwright.dialects.zenflow.rules import structure
from loopwright.dialects.zenflow.surface import (
    NOT_ISOLATED,
    AgentSpec,
    LoopSpec,
    Options,
    StepSpec,
    ZenflowWorkflow,
)
from loopwright.dialects.zenflow.tools import lower_tool, tool_steps
from loopwright.model.access import FAMILIES, family_of
from loopwright.model.actions import Action, CallAgent, Cel, Each, Repeat, Step, Steps
from loopwright.model.checks import AnyOf, Cap, Check, Expr, Judge
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import (
    NO_LIMITS,
    NO_WORKSPACE_POLICY,
    RETRYABLE,
    AtCap,
    Limits,
    OnFailure,
    OutputMode,
    PreviousOutput,
    Retry,
    WorkspacePolicy,
)
from loopwright.model.record import ItemsExpr, ItemSource, JsonValue, LiteralItems, literal
from loopwright.syntax.document import (
    MAX_PROBLEMS,
    Diagnostic,
    Document,
    did_you_mean,
    first_problems,
    in_order,
    mapping,
)
from loopwright.syntax.notations import path_inside
from loopwright.syntax.step_references import (
    Expression,
    GraphWording,
    Wants,
    ended_before,
    expression_problems,
    graph_problems,
    near_or_known,
)
from loopwright.syntax.validation import validate

_WORDS = GraphWording(
    "dependsOn", needs="depends on", twice="duplicate-step", unknown="missing-dep"
)


def graphs(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that is wrong with who waits for whom."""
    inner = {name: graph for graph in tree.graphs[1:] for name in graph.by_id}

    def advice(step: StepEntry, need: str, others: list[str]) -> str | None:
        return _elsewhere(step, need, inner) or near_or_known(need, others)

    for graph in tree.graphs:
        yield from graph_problems(document, graph.steps, _WORDS, advice=advice)


def _elsewhere(step: StepEntry, need: str, inner: dict[str, GraphEntry]) -> str | None:
    """A hint for a step that exists, but on the other side of a loop."""
    around = step.graph.around
    if around is not None and _is_outside(around, need):
        return f"inside a loop, name steps of that loop; let {around.id} depend on {need}"
    holder = inner[need].around if need in inner else None
    if holder is not None and holder is not step:
        return f"it is inside the loop {holder.id}: depend on {holder.id}"
    return None


def _is_outside(around: StepEntry | None, need: str) -> bool:
    while around is not None:
        if need in around.graph.by_id:
            return True
        around = around.graph.around
    return False


EMPTY = '""'
_SCHEMA_HINT = "resultSchema: {type: object, required: [done], properties: {done: {type: boolean}}}"


def agents(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """Agents without a definition, judges that cannot judge."""
    for name, entry in tree.agents.items():
        for key in ("tools", "disallowedTools"):
            named = mapping(entry).get(key)
            for number, tool in enumerate(named if isinstance(named, list) else ()):
                yield from _tool(document, ("agents", name, key, number), tool)
    for step in tree.steps:
        agent = step.value.get("agent")
        if isinstance(agent, str) and agent not in tree.agents:
            hint = _known(agent, tree)
            message = f"no agent is called {agent[:60] or EMPTY}"
            yield document.error("missing-agent", message, at=(*step.path, "agent"), hint=hint)
    for loop in tree.loops:
        judge = loop.value.get("untilAgent")
        if isinstance(judge, str):
            yield from _judge(document, tree, loop, judge)


def _tool(document: Document, place: Path, tool: object) -> Iterator[Diagnostic]:
    """A name that means no tool: nothing is allowed or taken away by it."""
    if tool == "*":
        message = "* is not a wildcard: it is the name of a tool that does not exist"
        hint = "leave tools out to allow all of them"
        yield document.warning("wildcard-tool", message, at=place, hint=hint)
    elif isinstance(tool, str) and tool and "." not in tool and family_of(tool) is None:
        message = f"no tool is called {tool[:60]!r} here"
        known = [family.name for family in FAMILIES]
        listed = f"known: {', '.join(known)}, and SERVER.TOOL of an MCP server"
        hint = did_you_mean(tool, known) or listed
        yield document.warning("unknown-tool", message, at=place, hint=hint)


def _known(name: str, tree: ZenflowOutline) -> str:
    known = ", ".join(list(tree.agents)[:12])
    return did_you_mean(name, tree.agents) or (
        f"known: {known}" if known else "define it under agents"
    )


def _judge(
    document: Document, tree: ZenflowOutline, loop: LoopEntry, judge: str
) -> Iterator[Diagnostic]:
    place = (*loop.path, "untilAgent")
    if judge not in tree.agents:
        message = f"no agent is called {judge[:60] or EMPTY}"
        yield document.error("untilagent-bad-ref", message, at=place, hint=_known(judge, tree))
        return
    entry = tree.agents[judge]
    if isinstance(entry, dict):
        below, lack = _lack(entry.get("resultSchema"))
        if lack:
            message = f"{judge} cannot judge: {lack}"
            at = ("agents", judge, *below)
            yield document.error("judge-schema", message, at=at, hint=_SCHEMA_HINT)
    bodies = [one.value for one in loop.graph.steps] if loop.graph else [loop.step.value]
    if any(body.get("agent") == judge for body in bodies):
        message = f"{judge} judges its own work"
        hint = "let another agent judge"
        yield document.warning("self-judging", message, at=place, hint=hint)


def _lack(schema: object) -> tuple[Path, str | None]:
    """The place in an agent that lacks something a judge needs, and what."""
    if not isinstance(schema, dict):
        return (), "it has no resultSchema"
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return ("resultSchema",), "properties of its resultSchema must be a mapping"
    done = properties.get("done")
    if not isinstance(done, dict):
        return ("resultSchema", "properties"), "its result has no property done"
    if done.get("type") != "boolean":
        return ("resultSchema", "properties", "done"), "done must be of type boolean"
    required = schema.get("required")
    if not isinstance(required, list) or "done" not in required:
        return ("resultSchema",), "done must be required"
    return (), None


def expressions(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that is wrong with the expressions of a workflow."""
    for step in tree.steps:
        for one in _of_step(step):
            yield from expression_problems(document, one)


def _of_step(step: StepEntry) -> Iterator[Expression]:
    """The expressions of a step that say something."""
    written: list[tuple[Path, object, Wants, GraphEntry | None]] = [
        ((*step.path, "condition"), step.value.get("condition"), "bool", None)
    ]
    if step.loop is not None:
        path, value = step.loop.path, step.loop.value
        written.append(((*path, "forEach"), value.get("forEach"), "list", None))
        written.append(((*path, "until"), value.get("until"), "bool", step.loop.graph))
    for path, text, wants, inner in written:
        if isinstance(text, str) and text.strip():
            ids = _seen_from(step).union(inner.by_id if inner else ())
            yield Expression(
                path=path,
                text=text,
                wants=wants,
                ids=ids,
                late=_late(step),
                waiting="dependsOn",
            )


def _seen_from(step: StepEntry) -> frozenset[str]:
    """What a step can look at: all that ended before it, or before a loop around it."""
    seen: frozenset[str] = frozenset()
    place: StepEntry | None = step
    while place is not None:
        seen |= ended_before(place, place.graph.by_id)
        place = place.graph.around
    return seen


def _late(step: StepEntry) -> set[str]:
    """The steps that are there, whether they may have ended or not."""
    found: set[str] = set()
    place: StepEntry | None = step
    while place is not None:
        found |= place.graph.by_id.keys()
        place = place.graph.around
    return found - {step.id}


@dataclass(frozen=True, slots=True)
class CheckedUnit:
    """A unit after all rules."""

    flow: ZenflowWorkflow | None
    problems: list[Diagnostic]


def check(unit: ZenflowUnit) -> CheckedUnit:
    """The workflow of a unit, and all that is wrong with it."""
    flow, problems = validate(ZenflowWorkflow, unit.document)
    problems += unit.problems
    if isinstance(unit.document.value, dict):
        for rule in (structure, graphs, agents, expressions, tool_steps):
            problems += first_problems(rule(unit.document, unit.tree))
    return CheckedUnit(flow, in_order(problems))


DEFAULT_PARALLEL = 5
DEFAULT_TURNS = 50
DEFAULT_MAX_RETRIES = 2
"""A provider that asks to come back later does not end a run."""

ONCE = Retry()


def lower_retry(step: StepSpec, options: Options) -> Retry:
    """`retries` tries the whole step again; without it only a model call is, on its own account."""
    if step.retries:
        return Retry(attempts=step.retries + 1, on=("any",))
    if step.include is not None or (step.loop is not None and step.loop.steps is not None):
        return ONCE  # the steps inside have tries of their own
    calls = options.max_retries if step.max_retries is None else step.max_retries
    return Retry(attempts=(DEFAULT_MAX_RETRIES if calls is None else calls) + 1, on=RETRYABLE)


def at_most(*times: int | None) -> Limits:
    """The limits that say no more than a time."""
    wall_ms = shorter(*times)
    return NO_LIMITS if wall_ms is None else Limits(wall_ms=wall_ms)


def shorter(*times: int | None) -> int | None:
    """The shortest of some times; 0 is the same as none."""
    return min((one for one in times if one), default=None)


@dataclass(slots=True)
class ZenflowAgents:
    """The agents of a plan. Those of an included workflow have its step's path before their name,
    and a step with its own model calls a copy of its agent.
    """

    made: dict[str, Agent] = field(default_factory=dict)
    default: str = ""

    def define(self, flow: ZenflowWorkflow, texts: Mapping[Path, str], *, prefix: str) -> None:
        """Take over the agents of a workflow."""
        for name, spec in (flow.agents or {}).items():
            # Without a prompt the description is all that is known of the role.
            system = texts.get(("agents", name, "prompt")) or spec.description
            self.made[prefix + name] = _agent(spec, system)

    def call(self, name: str | None, model: str | None) -> str:
        """The name under which an agent is called; a step that names none gets a plain one."""
        name = self._plain() if name is None else name
        if model is None or self.made[name].model == model:
            return name
        copy = f"{name}@{model}"
        self.made[copy] = msgspec.structs.replace(self.made[name], model=model)
        return copy

    def _plain(self) -> str:
        if not self.default:
            self.default = "default"
            while self.default in self.made:
                self.default += "-agent"
            self.made[self.default] = Agent(max_turns=DEFAULT_TURNS, options=_ANY_COMMAND)
        return self.default


_ANY_COMMAND: dict[str, JsonValue] = {"commands": {"allow": ["*"]}}
"""What `bash` means: any command, in a sandbox in which only the workspace can be written."""


def _has_shell(spec: AgentSpec) -> bool:
    """Whether `bash` is among the tools of an agent, and not among those taken away."""
    has = "tools" not in spec.model_fields_set or _is_shell(spec.tools)
    return has and not _is_shell(spec.disallowed_tools or ())


def _is_shell(names: Iterable[str]) -> bool:
    return any((family := family_of(name)) is not None and family.name == "bash" for name in names)


def _agent(spec: AgentSpec, system: str) -> Agent:
    options = {} if spec.top_p is None else {"top_p": spec.top_p}
    return Agent(
        system=system,
        model=spec.model,
        tools=tuple(spec.tools) if "tools" in spec.model_fields_set else None,
        deny_tools=tuple(spec.disallowed_tools or ()),
        max_turns=spec.max_turns or DEFAULT_TURNS,
        temperature=spec.temperature,
        options={**options, **(_ANY_COMMAND if _has_shell(spec) else {})},
    )


def lower_loop(spec: LoopSpec, body: Action, *, judge: Check | None, pass_ms: int) -> Repeat:
    """The loop around a body. `pass_ms` is the time limit of an iteration if the loop does not set
    one.
    """
    output: OutputMode = "all" if spec.output_mode == "cumulative" else "last"
    pass_wall_ms = shorter(spec.iteration_timeout or pass_ms)
    limits = Limits(pass_wall_ms=pass_wall_ms) if pass_wall_ms else NO_LIMITS
    if spec.for_each is not None:
        each = _each(spec, spec.for_each)
        return Repeat(body=body, each=each, output=output, limits=limits)
    checks: list[Check] = [Expr(text=spec.until)] if spec.until is not None else []
    checks += [judge] if judge is not None else []
    # If only a number of iterations can end it, making them all is the goal.
    at_cap: AtCap = (spec.on_exhausted or "fail") if checks else "complete"
    return Repeat(
        body=body,
        max=spec.max_iterations,
        until=_any_of(checks),
        memory=PreviousOutput(by_step=True),
        at_cap=at_cap,
        output=output,
        delay_ms=spec.delay or 0,
        limits=limits,
        broken_after=0,  # a judge that failed has not stopped the loop
    )


def _any_of(checks: list[Check]) -> Check:
    """The expression is evaluated before the judge; if it is true, the judge is not called."""
    if len(checks) > 1:
        return AnyOf(parts=tuple(checks))
    return checks[0] if checks else Cap()


def _each(spec: LoopSpec, listed: str | list[JsonValue]) -> Each:
    items: ItemSource = (
        ItemsExpr(expr=listed) if isinstance(listed, str) else LiteralItems(values=tuple(listed))
    )
    return Each(
        items=items,
        parallel=spec.max_concurrency or None,
        on_item_error=spec.on_item_failure or "stop",
    )


NAME = "zenflow"
COORDINATOR = "coordinator"

Files = Mapping[str, bytes | ZenflowFileProblem]

_NO_FILES: Files = MappingProxyType({})
_ON_FAILURE: dict[str | None, OnFailure] = {"skip-dependents": "skip", "abort": "abort"}


def requested_files(document: Document, files: Files = _NO_FILES) -> list[ZenflowFileRequest]:
    """The files that this workflow asks for and that are not there yet."""
    loader = ZenflowLoader(files, document.file)
    loader.first(document)
    return list(loader.requests.values())


def lower(document: Document, files: Files = _NO_FILES) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    loader = ZenflowLoader(files, document.file)
    first = loader.first(document)
    checked = {unit: check(unit) for unit in (first, *loader.units.values())}
    problems = [one for found in checked.values() for one in found.problems] + loader.broken
    if any(one.severity == "error" for one in problems):
        return None, problems[:MAX_PROBLEMS]
    return _Lowering(checked).plan(first), problems[:MAX_PROBLEMS]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The workflow file that is being lowered, and its values from the including one."""

    unit: ZenflowUnit
    flow: ZenflowWorkflow
    options: Options
    prefix: str = ""
    step_ms: int = 0

    @property
    def purpose(self) -> str:
        """The message of a step without one; in the first file that is the run's message."""
        return (self.flow.description or self.flow.name) if self.prefix else ""

    def schema(self, agent: str) -> dict[str, JsonValue] | None:
        """What the result of an agent must fit."""
        return (self.flow.agents or {})[agent].result_schema


def _coordinator(flow: ZenflowWorkflow, tree: ZenflowOutline) -> Coordinator | None:
    """An agent of this name that no step works with and no loop is judged by coordinates."""
    if COORDINATOR not in (flow.agents or {}):
        return None
    used = {step.value.get("agent") for step in tree.steps}
    used |= {loop.value.get("untilAgent") for loop in tree.loops}
    return None if COORDINATOR in used else Coordinator(agent=COORDINATOR)


@dataclass(slots=True)
class _Lowering:
    """One workflow on its way, with all that it includes."""

    checked: dict[ZenflowUnit, CheckedUnit]
    agents: ZenflowAgents = field(default_factory=ZenflowAgents)

    def plan(self, unit: ZenflowUnit) -> Plan:
        scope = self._scope(unit)
        flow, options = scope.flow, scope.options
        # Every tool call needs approval; without an answer it is denied. Context files are beside
        # the workflow.
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
        """A worktree for the whole run, if any workflow of it requests isolation."""
        options = [one.flow.options for one in self.checked.values() if one.flow is not None]
        wanted = {one.isolation or "" for one in options if one is not None}
        return WorkspacePolicy(worktree=True) if wanted - {*NOT_ISOLATED} else NO_WORKSPACE_POLICY

    def _scope(self, unit: ZenflowUnit, *, prefix: str = "", step_ms: int = 0) -> _Scope:
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
