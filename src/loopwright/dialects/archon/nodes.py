"""From nodes to steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.agents import Agents
from loopwright.dialects.archon.calls import list_ref
from loopwright.dialects.archon.environment import Environment, EnvNames
from loopwright.dialects.archon.fields import is_file_name
from loopwright.dialects.archon.files import Files, FoundText
from loopwright.dialects.archon.references import env_names
from loopwright.dialects.archon.shell import rewrite
from loopwright.dialects.archon.surface import (
    MAX_ITEMS,
    ApprovalSpec,
    GroupSpec,
    LoopControl,
    LoopSpec,
    NodeSpec,
    RetrySpec,
    Workflow,
)
from loopwright.dialects.archon.units import Unit
from loopwright.dialects.archon.variables import template
from loopwright.dialects.archon.when import condition
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    Gate,
    Given,
    Origin,
    Repeat,
    Rework,
    RunScript,
    Step,
    Steps,
    Stop,
)
from loopwright.model.checks import AnyOf, Check, ResultField, Script, Signal
from loopwright.model.expr import Condition
from loopwright.model.policy import NO_LIMITS, FailureKind, Limits, Retry, SessionMode
from loopwright.model.record import JsonValue
from loopwright.model.template import Items, ItemsFrom, Ref, Template, literal

Path: TypeAlias = tuple[str | int, ...]

IDLE_MS = 1_800_000
SCRIPT_MS = 120_000
_AGENT_TRIES = RetrySpec(max_attempts=2)
_ONCE = Retry(attempts=1)
# The wait doubles without a bound of its own: the longest of the longest tries.
_LONGEST_WAIT_MS = 960_000
_TRANSIENT: tuple[FailureKind, ...] = (
    "rate_limited",
    "overloaded",
    "exit",
    "idle_timeout",
    "wall_timeout",
)


# What else is worth another try, and what never is, by the words of the failure.
_TRANSIENT_WORDS = (
    "timeout",
    "timed out",
    "econnrefused",
    "econnreset",
    "etimedout",
    "rate limit",
    "too many requests",
    "429",
    "502",
    "503",
    "network error",
    "socket hang up",
    "exited with code",
    "crash",
    "crashed",
)
_FATAL_WORDS = (
    "unauthorized",
    "forbidden",
    "invalid token",
    "authentication failed",
    "permission denied",
    "401",
    "403",
    "credit balance",
    "out of credits",
    "auth error",
)


@dataclass(slots=True)
class Uses:
    """What a plan needs of its surroundings."""

    settings: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)

    def note(self, templates: Iterable[Template]) -> None:
        """Remember what these texts need."""
        for ref in [part for one in templates for part in one if isinstance(part, Ref)]:
            if ref.of == "setting":
                self.settings.add(ref.name or "")
            elif ref.of == "input":
                self.inputs.add(ref.name or "")


@dataclass(slots=True, kw_only=True)
class Lowering:
    """Makes steps of nodes and remembers what they need."""

    agents: Agents
    names: EnvNames
    files: Files
    unit: Unit
    uses: Uses = field(default_factory=Uses)

    def steps(
        self, nodes: Sequence[NodeSpec], path: Path, group: NodeSpec | None = None
    ) -> tuple[Step, ...]:
        """The steps of a graph."""
        return tuple(self._step(node, (*path, number), group) for number, node in enumerate(nodes))

    def _step(self, node: NodeSpec, path: Path, group: NodeSpec | None) -> Step:
        place = self.unit.document.at(path)
        return Step(
            id=node.id,
            action=self._action(node, path, group),
            needs=tuple(dict.fromkeys(node.depends_on)),
            when=None if node.when is None else self._condition(node.when),
            when_error="fail" if node.when is None else "skip",
            join=node.trigger_rule,
            retry=_retry(node),
            limits=_limits(node),
            origin=Origin(line=place.line, column=place.column),
        )

    def _action(self, node: NodeSpec, path: Path, group: NodeSpec | None) -> Action:
        if node.workflow is not None:
            return self._workflow(node, self.unit.below[path])
        if node.loop is not None:
            return self._loop(node, node.loop, group)
        if node.loop_group is not None:
            return self._group(node, node.loop_group, path)
        if node.bash is not None:
            text, env = self._shell(node.bash)
            return RunScript(text=text, timeout_ms=_ms(node.timeout, SCRIPT_MS), env=env)
        if node.script is not None:
            return self._script(node, node.script)
        if node.approval is not None:
            return self._approval(node, node.approval, group)
        if node.cancel is not None:
            return Stop(reason=self._text(node.cancel))
        return CallAgent(
            agent=self.agents.of(node, group),
            prompt=self._prompt(node.prompt, node.command),
            schema=node.output_format,
            session=_session(node, group),
        )

    def _condition(self, text: str) -> Condition:
        known = {node.id for node in self.unit.made.nodes}
        return condition(text, self.names.item, known=known)

    # -- texts -------------------------------------------------------------------------------------

    def _text(self, text: str, item: str | None = None) -> Template:
        made = template(text, item or self.names.item)
        self.uses.note([made])
        return made

    def _prompt(self, prompt: str | None, command: str | None) -> Template:
        return self._text(prompt or self._file(named.command(command or "")))

    def _file(self, name: named.Named) -> str:
        found = named.find(name, self.files)
        assert isinstance(found, FoundText)
        return found.text

    def _shell(self, text: str) -> tuple[str, dict[str, Template]]:
        env = Environment(self.names, text)
        made = rewrite(text, env).text
        templates = env.templates()
        self.uses.note(templates.values())
        return made, templates

    def _script(self, node: NodeSpec, text: str) -> RunScript:
        runtime = node.runtime or "uv"
        if is_file_name(text):
            text = self._file(named.script(text, runtime))
        needs = [f"--with={one}" for one in node.deps or ()]
        env = Environment(self.names, text).templates()
        self.uses.note(env.values())
        timeout = _ms(node.timeout, SCRIPT_MS)
        return RunScript(
            text=text,
            interpreter=runtime,
            flags=("run", *needs, "-"),
            by_stdin=True,
            timeout_ms=timeout,
            env=env,
        )

    # -- other workflows ---------------------------------------------------------------------------

    def _workflow(self, node: NodeSpec, below: Unit) -> Action:
        """The nodes of another workflow, once or for each item of a list."""
        assert below.flow is not None
        inside = Lowering(
            agents=self.agents.below(below.flow),
            names=env_names(below.made),
            files=self.files,
            unit=below,
            uses=self.uses,
        )
        fan = node.fan_out
        body = Steps(
            steps=inside.steps(below.flow.nodes, ("nodes",)),
            on_failure="skip",
            output="sink",
            given=self._given(node, below.flow, fan.as_ if fan else None),
        )
        if fan is None:
            return body
        listed = list_ref(fan.items, self.names.item) if isinstance(fan.items, str) else None
        each = Each(
            items=ItemsFrom(ref=listed) if listed else Items(values=tuple(fan.items)),
            parallel=fan.max_parallel,
            max_items=MAX_ITEMS,
            on_item_error="continue" if fan.join == "all_done" else "fail",
        )
        return Repeat(body=body, each=each, output="list")

    def _given(self, node: NodeSpec, flow: Workflow, item: str | None) -> Given:
        """What the other workflow is told: every input that it has gets a value here."""
        text = node.arguments or node.input
        inputs = {name: _plain(spec.default) for name, spec in flow.inputs.items()}
        for name, value in (node.inputs or {}).items():
            inputs[name] = self._text(value, item) if isinstance(value, str) else _plain(value)
        alone: Template = (Ref(of="item"),) if item else ()
        return Given(message=self._text(text, item) if text else alone, inputs=inputs)

    # -- people ------------------------------------------------------------------------------------

    def _approval(self, node: NodeSpec, spec: ApprovalSpec, group: NodeSpec | None) -> AskPerson:
        rework = None
        if spec.on_reject is not None:
            rework = Rework(
                agent=self.agents.of(node, group),
                prompt=self._text(spec.on_reject.prompt),
                attempts=spec.on_reject.max_attempts,
            )
        return AskPerson(
            message=self._text(spec.message),
            capture=spec.capture_response,
            on_reject=rework,
            reject="cancel",
        )

    def _gate(self, spec: LoopControl) -> Gate | None:
        if not spec.interactive:
            return None
        return Gate(
            message=self._text(spec.gate_message or ""),
            answers=("approve", "reject", "continue"),
            first_always=not spec.signal_completes,
            approve_continues=True,
            grants=True,
            reject="cancel",
        )

    # -- loops -------------------------------------------------------------------------------------

    def _loop(self, node: NodeSpec, spec: LoopSpec, group: NodeSpec | None) -> Repeat:
        session: SessionMode = "fresh" if spec.fresh_context else "thread"
        call = CallAgent(
            agent=self.agents.of(node, group),
            prompt=self._prompt(spec.prompt, spec.command),
            schema=node.output_format if spec.until_field is not None else None,
            session=session,
            on_idle="answer",
            on_empty="fail",
        )
        return self._repeat(spec, call, spec.until_field)

    def _group(self, node: NodeSpec, spec: GroupSpec, path: Path) -> Repeat:
        steps = self.steps(spec.nodes, (*path, "loop_group", "nodes"), node)
        # A node that fails ends the group at once.
        return self._repeat(spec, Steps(steps=steps, on_failure="abort", output="sink"), None)

    def _repeat(self, spec: LoopControl, body: Action, field_name: str | None) -> Repeat:
        checks: list[Check] = []
        if spec.until is not None:
            checks.append(Signal(word=spec.until.strip(), anywhere=True))
        if spec.until_bash is not None:
            text, env = self._shell(spec.until_bash)
            checks.append(Script(text=text, timeout_ms=SCRIPT_MS, env=env, on_timeout="error"))
        if field_name is not None:
            checks.append(ResultField(field=field_name))
        return Repeat(
            body=body,
            max=spec.max_iterations,
            until=checks[0] if len(checks) == 1 else AnyOf(parts=tuple(checks)),
            gate=self._gate(spec),
            at_cap="fail",
            broken_after=1,  # a check that cannot be asked says nothing, so the loop fails
        )


def _plain(value: JsonValue) -> Template:
    """A value that is taken as it is."""
    if value is None:
        return ()
    return literal(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _session(node: NodeSpec, group: NodeSpec | None) -> SessionMode:
    """In a group, a session goes on from pass to pass."""
    control = group.loop_group if group is not None else None
    threads = control is not None and not control.fresh_context and node.context != "fresh"
    return "thread" if threads else "fresh"


def _ms(given: float | None, default: int) -> int:
    return default if given is None else max(1, round(given))


def _limits(node: NodeSpec) -> Limits:
    if node.approval is not None or node.cancel is not None:
        return NO_LIMITS
    if node.workflow is not None:  # its nodes have limits of their own, silence is one of them
        return Limits(usd=node.max_budget_usd)
    runs_script = node.bash is not None or node.script is not None
    in_loop = node.loop is not None or node.loop_group is not None
    default = None if runs_script else IDLE_MS
    return Limits(
        idle_ms=default if node.idle_timeout is None else _ms(node.idle_timeout, IDLE_MS),
        usd=node.max_budget_usd if in_loop else None,
    )


def _retry(node: NodeSpec) -> Retry:
    calls = node.prompt is not None or node.command is not None
    spec = node.retry or (_AGENT_TRIES if calls else None)
    if spec is None or not (calls or node.bash is not None or node.script is not None):
        return _ONCE
    return Retry(
        attempts=spec.max_attempts + 1,
        base_ms=spec.delay_ms,
        cap_ms=_LONGEST_WAIT_MS,
        on=("any",) if spec.on_error == "all" else _TRANSIENT,
        if_says=_TRANSIENT_WORDS,
        unless_says=_FATAL_WORDS,
    )
