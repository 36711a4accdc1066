"""From a native definition to the plan: every default filled in, every choice made."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from loopwright.dialects.native.fields import LOOSE
from loopwright.dialects.native.lower_checks import (
    COMMAND_MS,
    SCRIPT_MS,
    lower_check,
    lower_condition,
    template,
    templates,
)
from loopwright.dialects.native.lower_parts import (
    DEFAULT_RETRY,
    lower_agent,
    lower_input,
    lower_limits,
    lower_memory,
    lower_retry,
    lower_workspace,
)
from loopwright.dialects.native.names import agents, graphs
from loopwright.dialects.native.outline import outline
from loopwright.dialects.native.parts import GateStepSpec, LoopGateSpec
from loopwright.dialects.native.recognise import NAME
from loopwright.dialects.native.references import expressions, references
from loopwright.dialects.native.rules import structure
from loopwright.dialects.native.specs import name_for
from loopwright.dialects.native.surface import (
    BodySpec,
    CycleSpec,
    Definition,
    ForEachSpec,
    GivenSpec,
    RepeatSpec,
    StepSpec,
)
from loopwright.dialects.native.templates import parse_ref
from loopwright.model.actions import (
    SCRIPT_FLAGS,
    Action,
    AskPerson,
    CallAgent,
    Cycle,
    Each,
    Gate,
    Given,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    Stop,
    Wait,
)
from loopwright.model.checks import Cap, Check, Spend, leaves
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import AtCap
from loopwright.model.template import Items, ItemsExpr, ItemsFrom, ItemSource, Ref
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic, in_order
from loopwright.syntax.document import Document
from loopwright.syntax.validation import validate

DEFAULT_AGENT = "agent"
"""Name of the agent when a definition names none; whoever starts the run says what it is."""


def lower(document: Document) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan, or all that is wrong; a plan may come with warnings."""
    converted = isinstance(document.value, dict) and "converted_from" in document.value
    context = LOOSE if converted else None
    definition, problems = validate(Definition, document, context=context)
    if isinstance(document.value, dict):
        made = outline(document)
        for rule in (structure, graphs, agents, references, expressions):
            problems += _first(rule(document, made))
    if definition is None or any(one.severity == "error" for one in problems):
        return None, in_order(problems)
    return _Lowering(definition).plan(), in_order(problems)


def _first(found: Iterator[Diagnostic]) -> Iterator[Diagnostic]:
    """As many as a person will read; finding near misses for thousands would take its time."""
    errors = 0
    for one in found:
        yield one
        errors += one.severity == "error"
        if errors == MAX_PROBLEMS:
            return


@dataclass(slots=True)
class _Lowering:
    """One definition on its way; collects the agents that are named on the spot."""

    top: Definition
    inline: dict[str, Agent] = field(default_factory=dict)

    def plan(self) -> Plan:
        top = self.top
        if top.steps is not None and top.repeat is None:
            steps = [self._step(one) for one in top.steps]
        else:
            # What limits the whole run is no limit of the steps that are repeated.
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
            return Stop(reason=template(spec.stop))
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
        """What is done, in a loop if there is one; what the loop says itself comes first."""
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

    def _cycle(self, spec: CycleSpec) -> Cycle:
        prompt = self.top.prompt if spec.prompt is None else spec.prompt
        return Cycle(
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
    # Where nothing but the number of passes can end the loop, making them all is the goal.
    counted = until == Cap() and not spec.for_each and not spec.gate
    default_cap: AtCap = "complete" if counted else "exhaust"
    return Repeat(
        body=body,
        max=spec.max,
        each=_each(spec.for_each) if spec.for_each else None,
        until=until,
        memory=lower_memory(spec.memory, "history" if isinstance(body, Cycle) else "none"),
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
    return gated or not all(isinstance(leaf, Cap | Spend) for leaf in leaves(until))


def _gate(spec: LoopGateSpec) -> Gate:
    return Gate(
        message=template(spec.message),
        answers=tuple(spec.answers or ("approve", "reject", "continue")),
        first_always=spec.first_always,
        approve_continues=spec.approve_continues,
        grants=spec.grants,
        reject=spec.reject,
        after=spec.after,
    )


def _given(spec: GivenSpec | None) -> Given | None:
    if spec is None:
        return None
    return Given(message=template(spec.message or ""), inputs=templates(spec.inputs))


def _each(spec: ForEachSpec) -> Each:
    return Each(
        items=_items(spec),
        parallel=spec.parallel,
        max_items=spec.max_items,
        on_item_error=spec.on_item_error,
    )


def _items(spec: ForEachSpec) -> ItemSource:
    if spec.items is not None:
        return Items(values=tuple(spec.items))
    if spec.expr is not None:
        return ItemsExpr(expr=spec.expr)
    return ItemsFrom(ref=parse_ref(spec.source or "") or Ref(of="item"))
