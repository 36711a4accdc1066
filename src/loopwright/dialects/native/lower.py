"""Lowering of a native definition to a plan: every default is filled in, every choice is made."""

from dataclasses import dataclass, field

import msgspec

from loopwright.dialects.native.checks import (
    COMMAND_MS,
    SCRIPT_MS,
    lower_check,
    lower_condition,
    template,
    templates,
)
from loopwright.dialects.native.fields import LOOSE
from loopwright.dialects.native.outline import outline
from loopwright.dialects.native.parts import (
    AgentSpec,
    BudgetSpec,
    GateStepSpec,
    InputSpec,
    LoopGateSpec,
    LoopLimitsSpec,
    RetrySpec,
    WorkspaceSpec,
)
from loopwright.dialects.native.references import agents, expressions, graphs, name_for, references
from loopwright.dialects.native.rules import structure
from loopwright.dialects.native.surface import (
    NAME,
    BodySpec,
    CycleSpec,
    ForEachSpec,
    GivenSpec,
    MemoryKind,
    MemorySpec,
    NativeDefinition,
    RepeatSpec,
    StepSpec,
)
from loopwright.dialects.native.templates import parse_ref
from loopwright.model.actions import (
    SCRIPT_FLAGS,
    Action,
    AskPerson,
    CallAgent,
    Each,
    LoopGate,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
    WorkflowInputs,
)
from loopwright.model.checks import Cap, Check, SpendCheck, leaves
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Coordinator, Input, Plan
from loopwright.model.policy import (
    NO_LIMITS,
    NO_WORKSPACE_POLICY,
    RETRYABLE,
    AtCap,
    ConversationHistory,
    Limits,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
    StageOutputs,
    WorkspacePolicy,
)
from loopwright.model.record import ItemsExpr, ItemsFrom, ItemSource, LiteralItems, Ref
from loopwright.syntax.document import Diagnostic, Document, first_problems, in_order
from loopwright.syntax.validation import validate

DEFAULT_RETRY = Retry(attempts=3)
"""A provider that asks to come back later does not end a run."""

STAGE_CHARS = StageOutputs().chars
LOG_CHARS = 8_000
"""The default length of the progress log in a prompt."""
HISTORY = ConversationHistory(window=128_000)
"""A conversation with default settings."""


def lower_agent(spec: AgentSpec) -> Agent:
    return Agent(
        spec=spec.use,
        system=spec.system,
        model=spec.model,
        tools=None if spec.tools is None else tuple(spec.tools),
        deny_tools=tuple(spec.deny_tools),
        permission=spec.permission,
        max_turns=spec.max_turns,
        max_usd=spec.max_usd,
        temperature=spec.temperature,
        env=spec.env,
        pass_env=tuple(spec.pass_env),
        idle_ms=spec.idle,
        wall_ms=spec.wall,
        approvals=dict(spec.approvals),
        options=spec.options,
        role=spec.role,
        access=spec.access,
        sandbox=spec.sandbox,
        loops=tuple(dict.fromkeys(spec.loops)),
    )


def lower_input(spec: InputSpec) -> Input:
    required = spec.default is None if spec.required is None else spec.required
    return Input(description=spec.description, required=required, default=spec.default)


def lower_workspace(spec: WorkspaceSpec | None, protect: list[str]) -> WorkspacePolicy:
    if spec is None and not protect:
        return NO_WORKSPACE_POLICY  # this very record is left out of an encoded plan
    snapshots = spec.snapshots if spec is not None else None
    worktree = spec is not None and spec.worktree
    return WorkspacePolicy(snapshots=snapshots, worktree=worktree, protect=tuple(protect))


def lower_limits(spec: BudgetSpec | None) -> Limits:
    if spec is None:
        return NO_LIMITS
    loop = spec if isinstance(spec, LoopLimitsSpec) else None
    return Limits(
        wall_ms=spec.time,
        ends_at=loop.until if loop else None,
        pass_wall_ms=loop.pass_time if loop else None,
        idle_ms=spec.idle,
        tokens=spec.tokens,
        usd=spec.usd,
        identical=loop.identical if loop else None,
    )


def lower_retry(spec: RetrySpec | None) -> Retry:
    if spec is None:
        return DEFAULT_RETRY
    return Retry(
        attempts=spec.attempts,
        base_ms=spec.delay or 1_000,
        cap_ms=spec.max_delay or 60_000,
        on=tuple(spec.on) if spec.on else RETRYABLE,
        if_says=tuple(spec.if_says),
        unless_says=tuple(spec.unless_says),
    )


def lower_memory(spec: MemorySpec | None, usual: MemoryKind) -> Memory:
    """The memory; `usual` is the default for a loop of this kind."""
    match spec.kind if spec else usual:
        case "progress-log":
            total = LOG_CHARS if spec is None or spec.total is None else spec.total
            return ProgressLog(chars=(spec and spec.chars) or 300, total=total)
        case "previous-output":
            return PreviousOutput(by_step=spec is not None and spec.by_step)
        case "stages":
            return StageOutputs(chars=(spec and spec.chars) or STAGE_CHARS)
        case "session":
            return SameSession()
        case "history":
            return _history(spec)
        case _:
            return NoMemory()


def _history(spec: MemorySpec | None) -> ConversationHistory:
    memory = spec.model_dump(include=set(ConversationHistory.__struct_fields__)) if spec else {}
    given = {name: value for name, value in memory.items() if value is not None}
    return msgspec.structs.replace(HISTORY, **given)


DEFAULT_AGENT = "agent"
"""Name of the agent if a definition names none; `--agent` chooses it."""


def lower(document: Document) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    converted = isinstance(document.value, dict) and "converted_from" in document.value
    context = LOOSE if converted else None
    definition, problems = validate(NativeDefinition, document, context=context)
    if isinstance(document.value, dict):
        made = outline(document)
        for rule in (structure, graphs, agents, references, expressions):
            problems += first_problems(rule(document, made))
    if definition is None or any(one.severity == "error" for one in problems):
        return None, in_order(problems)
    return _Lowering(definition).plan(), in_order(problems)


@dataclass(slots=True)
class _Lowering:
    """One definition on its way; collects the agents that are named on the spot."""

    top: NativeDefinition
    inline: dict[str, Agent] = field(default_factory=dict)

    def plan(self) -> Plan:
        top = self.top
        if top.steps is not None and top.repeat is None:
            steps = [self._step(one) for one in top.steps]
        else:
            # Limits of the whole run are not limits of the repeated steps.
            plain = top.model_copy(update={"parallel": None, "speaker": None, "returns": None})
            action = self._looped(plain, top.repeat)
            steps = [Step(id=MAIN, action=action, retry=DEFAULT_RETRY)]
        coordinator = self._coordinator()
        defined = {name: lower_agent(spec) for name, spec in top.agents.items()}
        return Plan(
            name=top.name,
            steps=tuple(steps),
            agents=defined | self.inline,
            inputs={name: lower_input(one) for name, one in top.inputs.items()},
            message=template(top.goal),
            description=top.description,
            limits=lower_limits(top.budget),
            on_failure=top.on_failure or "cascade",
            parallel=top.parallel,
            outcome=top.outcome,
            output=top.speaker or "last",
            returns=top.returns,
            missing=top.missing,
            pass_env=tuple(top.pass_env),
            exclusive=top.exclusive,
            sandbox=top.sandbox,
            workspace=lower_workspace(top.workspace, top.protect),
            coordinator=coordinator,
            settings=top.settings,
            dialect=top.converted_from or NAME,
        )

    def _coordinator(self) -> Coordinator | None:
        spec = self.top.coordinator
        if spec is None:
            return None
        prompt, narrates = template(spec.prompt), spec.narrates
        return Coordinator(agent=self._agent(spec.agent), prompt=prompt, narrates=narrates)

    def _step(self, spec: StepSpec) -> Step:
        return Step(
            id=spec.id,
            action=self._action(spec),
            needs=tuple(spec.needs),
            when=lower_condition(spec.when) if spec.when else None,
            when_error=spec.when_error,
            join=spec.join,
            retry=lower_retry(spec.retry),
            limits=lower_limits(spec.limits),
            on_error=spec.on_error,
            on_blocked=spec.on_blocked,
            needs_artifact=spec.needs_artifact,
            needs_output=spec.needs_output,
        )

    def _action(self, spec: StepSpec) -> Action:
        if spec.gate is not None:
            return self._question(spec.gate)
        if spec.wait is not None:
            return Wait(ms=spec.wait)
        if spec.stop is not None:
            return StopRun(reason=template(spec.stop))
        return self._looped(spec, spec.repeat)

    def _question(self, spec: GateStepSpec) -> AskPerson:
        rework, again = None, spec.on_reject
        if again is not None:
            agent, prompt = self._agent(again.agent), template(again.prompt)
            rework = Rework(agent=agent, prompt=prompt, attempts=again.attempts)
        return AskPerson(
            message=template(spec.message),
            answers=tuple(spec.answers or ("approve", "reject")),
            capture=spec.capture,
            on_reject=rework,
            reject=spec.reject,
        )

    def _looped(self, spec: BodySpec, repeat: RepeatSpec | None) -> Action:
        """The body, in a loop if there is one; keys of the loop itself take precedence."""
        if repeat is None:
            return self._once(spec)
        own = {name: getattr(repeat, name) for name in BodySpec.model_fields}
        given = {name: value for name, value in own.items() if value is not None}
        body = self._once(spec.model_copy(update=given))
        until = lower_check(repeat.until, self._agent) if repeat.until else Cap()
        return _repeat(repeat, body, until)

    def _once(self, spec: BodySpec) -> Action:
        if spec.steps is not None:
            steps = tuple(self._step(one) for one in spec.steps)
            on_failure = spec.on_failure or "cascade"
            return Steps(
                steps=steps,
                on_failure=on_failure,
                parallel=spec.parallel,
                output=spec.speaker or "last",
                returns=spec.returns,
                given=_given(spec.given),
            )
        if spec.cycle is not None:
            return self._cycle(spec.cycle)
        if spec.run is not None:
            timeout_ms = spec.timeout or COMMAND_MS
            return RunCommand(argv=tuple(spec.run), timeout_ms=timeout_ms, env=spec.env or {})
        if spec.script is not None:
            return RunScript(
                text=spec.script,
                interpreter=spec.interpreter or "bash",
                flags=SCRIPT_FLAGS if spec.flags is None else tuple(spec.flags),
                by_stdin=spec.by_stdin or False,
                timeout_ms=spec.timeout or SCRIPT_MS,
                env=templates(spec.env),
            )
        prompt = self.top.prompt if spec.prompt is None else spec.prompt
        return CallAgent(
            agent=self._agent(spec.agent),
            prompt=template(prompt or ""),
            schema=spec.result_schema,
            session=spec.session or "fresh",
            context_files=tuple(spec.files or ()),
            show_needs=spec.show_needs or False,
            on_idle=spec.on_idle or "fail",
            on_empty=spec.on_empty or "answer",
        )

    def _cycle(self, spec: CycleSpec) -> ModelCycle:
        prompt = self.top.prompt if spec.prompt is None else spec.prompt
        return ModelCycle(
            agent=self._agent(spec.agent),
            prompt=template(prompt or ""),
            nudge=spec.nudge,
            schema=spec.result_schema,
            one_call=spec.one_call,
        )

    def _agent(self, named: str | None) -> str:
        """The name of the agent that is meant; one given by its spec gets a name here."""
        defined = self.top.agents
        named = named or self.top.agent
        if named is None:
            if defined:
                return next(iter(defined))
            self.inline[DEFAULT_AGENT] = Agent()
            return DEFAULT_AGENT
        if named in defined:
            return named
        known = next((name for name, one in self.inline.items() if one.spec == named), None)
        if known:
            return known
        base = name_for(named)
        taken = {*defined, *self.inline}
        names = (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3)))
        name = next(one for one in names if one not in taken)
        self.inline[name] = Agent(spec=named)
        return name


def _repeat(spec: RepeatSpec, body: Action, until: Check) -> Repeat:
    # If only the number of iterations can end the loop, making them all is the goal.
    counted = until == Cap() and not spec.for_each and not spec.gate
    default_cap: AtCap = "complete" if counted else "exhaust"
    return Repeat(
        body=body,
        max=spec.max,
        each=_each(spec.for_each) if spec.for_each else None,
        until=until,
        memory=lower_memory(spec.memory, "history" if isinstance(body, ModelCycle) else "none"),
        gate=_gate(spec.gate) if spec.gate else None,
        at_cap=spec.at_cap or default_cap,
        output=spec.output,
        delay_ms=spec.delay or 0,
        limits=lower_limits(spec.limits),
        broken_after=spec.broken_after,
        check_first=spec.check_first,
        on_deadline=spec.on_deadline,
        criteria=spec.criteria and states_criteria(until, gated=spec.gate is not None),
        checks=spec.checks,
    )


def states_criteria(until: Check, *, gated: bool) -> bool:
    """Whether a loop has anything to say about when its work is done."""
    return gated or not all(isinstance(leaf, Cap | SpendCheck) for leaf in leaves(until))


def _gate(spec: LoopGateSpec) -> LoopGate:
    return LoopGate(
        message=template(spec.message),
        answers=tuple(spec.answers or ("approve", "reject", "continue")),
        first_always=spec.first_always,
        approve_continues=spec.approve_continues,
        grants=spec.grants,
        reject=spec.reject,
        after=spec.after,
    )


def _given(spec: GivenSpec | None) -> WorkflowInputs | None:
    if spec is None:
        return None
    return WorkflowInputs(message=template(spec.message or ""), inputs=templates(spec.inputs))


def _each(spec: ForEachSpec) -> Each:
    return Each(
        items=_items(spec),
        parallel=spec.parallel,
        max_items=spec.max_items,
        on_item_error=spec.on_item_error,
        failed_key=spec.failed_key or "",
    )


def _items(spec: ForEachSpec) -> ItemSource:
    if spec.items is not None:
        return LiteralItems(values=tuple(spec.items))
    if spec.expr is not None:
        return ItemsExpr(expr=spec.expr)
    return ItemsFrom(ref=parse_ref(spec.source or "") or Ref(of="item"))
