"""Lowering of the nodes of a workflow to the steps of a plan."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from loopwright.dialects.archon import files as named
from loopwright.dialects.archon.calls import ArchonAgents, ArchonUnit, list_ref, literal_list
from loopwright.dialects.archon.files import Files, FoundText, MissingFile
from loopwright.dialects.archon.guards import guarded, is_guarded, parallel_of
from loopwright.dialects.archon.outline import named_files, own_ids
from loopwright.dialects.archon.references import (
    SCHEMA_KINDS,
    env_names,
    find_unset,
    set_defaults,
)
from loopwright.dialects.archon.shell.substitution import rewrite, rewrite_code
from loopwright.dialects.archon.surface import (
    MAX_ITEMS,
    ApprovalSpec,
    ArchonWorkflow,
    FanOutSpec,
    GroupSpec,
    LoopControl,
    LoopSpec,
    NodeSpec,
    RetrySpec,
    WaitSpec,
    is_file_name,
)
from loopwright.dialects.archon.variables import (
    INPUTS,
    OWN,
    Environment,
    EnvNames,
    condition,
    template,
    upper_name,
)
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Condition,
    Each,
    FailStep,
    LoopGate,
    Origin,
    Repeat,
    Rework,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
    WorkflowInputs,
)
from loopwright.model.checks import AnyOf, Check, ResultField, ScriptCheck, Signal
from loopwright.model.policy import NO_LIMITS, FailureKind, Limits, Retry, SessionMode
from loopwright.model.record import (
    ItemsFrom,
    ItemSource,
    JsonValue,
    Lit,
    LiteralItems,
    Ref,
    Template,
    literal,
)
from loopwright.syntax.notations import point_ms

Path: TypeAlias = tuple[str | int, ...]

IDLE_MS = 1_800_000
SCRIPT_MS = 120_000
LONGEST_WAIT_MS = 31_536_000_000
# A moment is known in advance, so a script that is started again waits for the same one.
_WAIT_UNTIL = """\
start=$(date +%s%3N)
end=$(date -u -d "$LW_UNTIL" +%s) || { echo "this is not a moment: $LW_UNTIL" >&2; exit 1; }
while now=$(date -u +%s); [ "$now" -lt "$end" ]; do sleep $((end - now > 60 ? 60 : end - now)); done
echo "{\\"status\\": \\"satisfied\\", \\"waited_ms\\": $(( $(date +%s%3N) - start ))}"
"""
_AGENT_TRIES = RetrySpec(max_attempts=2)
_ONCE = Retry(attempts=1)
# The delay doubles without a limit of its own: the longest delay for the maximum number of
# attempts.
_LONGEST_WAIT_MS = 960_000
_TRANSIENT: tuple[FailureKind, ...] = (
    "rate_limited",
    "overloaded",
    "exit",
    "idle_timeout",
    "wall_timeout",
)


# Other failures to retry, and those never to retry, by texts in the failure.
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
class ArchonLowering:
    """Makes steps of nodes and remembers what they need."""

    agents: ArchonAgents
    names: EnvNames
    files: Files
    unit: ArchonUnit
    uses: Uses = field(default_factory=Uses)
    _own: set[str] = field(default_factory=set)  # the ids of the node that is lowered

    def steps(
        self, nodes: Sequence[NodeSpec], path: Path, group: NodeSpec | None = None
    ) -> tuple[Step, ...]:
        """The steps of a graph."""
        return tuple(self._step(node, (*path, number), group) for number, node in enumerate(nodes))

    def _step(self, node: NodeSpec, path: Path, group: NodeSpec | None) -> Step:
        place = self.unit.document.at(path)
        outer = self._own
        self._own = next((own_ids(one) for one in self.unit.made.nodes if one.path == path), outer)
        action = self._action(node, path, group)
        self._own = outer
        retry, limits = _retry(node), _limits(node, self.unit.below.get(path))
        if is_guarded(node):
            self.uses.settings.add("artifacts")
            action = guarded(node, action, retry, limits)
            retry, limits = _ONCE, NO_LIMITS
        return Step(
            id=node.id,
            action=action,
            needs=tuple(dict.fromkeys(node.depends_on)),
            when=None if node.when is None else self._condition(node.when),
            when_error="fail" if node.when is None else "skip",
            join=node.trigger_rule,
            retry=retry,
            limits=limits,
            origin=Origin(line=place.line, column=place.column),
        )

    def _absence(self, path: Path) -> MissingFile | None:
        """Which file of a node does not exist."""
        made = self.unit.made
        names = [
            name for one in made.nodes if one.path == path for _, name in named_files(one, made)
        ]
        found = (named.find(name, self.files) for name in names)
        return next((one for one in found if isinstance(one, MissingFile)), None)

    def _action(self, node: NodeSpec, path: Path, group: NodeSpec | None) -> Action:
        absent = self._absence(path)
        if absent is not None:
            return self._failing(node, absent)
        if node.workflow is not None or node.include is not None:
            return self._workflow(node, self.unit.below[path])
        if node.wait is not None:
            return self._wait(node.wait)
        if node.loop is not None:
            return self._loop(node, node.loop, group)
        if node.loop_group is not None:
            return self._group(node, node.loop_group, path)
        if node.bash is not None:
            text, env = self._shell(node.bash)
            return RunScript(
                text=text,
                timeout_ms=_ms(node.timeout, SCRIPT_MS),
                env=env,
                on_timeout=node.on_timeout or "fail",
                schema=node.output_format,
            )
        if node.script is not None:
            return self._script(node, node.script)
        if node.approval is not None:
            return self._approval(node, node.approval, group)
        if node.cancel is not None:
            return StopRun(reason=self._text(node.cancel))
        return CallAgent(
            agent=self.agents.of(node, group),
            prompt=self._bound(node, self._prompt(node.prompt, node.command)),
            schema=node.output_format,
            session=_session(node, group),
        )

    def _failing(self, node: NodeSpec, absent: MissingFile) -> Action:
        """A node whose file is not there fails; of a fan-out, each of its items does."""
        fails = FailStep(reason=f"{absent.message}; {absent.hint}; then start the workflow again")
        if node.fan_out is None:
            return fails
        return self._fanned(node, node.fan_out, Steps(steps=(Step(id=node.id, action=fails),)))

    def _condition(self, text: str) -> Condition:
        known = {node.id for node in self.unit.made.nodes}
        return condition(text, self.names.item, known=known)

    # -- texts -------------------------------------------------------------------------------------

    def _text(self, text: str, item: str | None = None) -> Template:
        known = {node.id for node in self.unit.made.nodes} - self._own
        made = self._preferring_results(template(text, item or self.names.item, known))
        self.uses.note([made])
        return made

    def _preferring_results(self, made: Template) -> Template:
        """A text in which the output of an agent with `output_format` is its structured result."""
        formatted = {
            node.id
            for node in self.unit.made.nodes
            if "output_format" in node.value and node.kind in SCHEMA_KINDS
        }
        return tuple(_preferring_result(part, formatted) for part in made)

    def _values(self, env: Environment) -> dict[str, Template]:
        """The values of a script."""
        found = env.templates().items()
        return {name: self._preferring_results(value) for name, value in found}

    def _prompt(self, prompt: str | None, command: str | None) -> Template:
        beside = self.unit.made.beside
        return self._text(prompt or self._file(named.command(command or "", beside)))

    def _bound(self, node: NodeSpec, text: Template) -> Template:
        """A text with the values that its node binds to inputs."""
        bound = self._bindings(node)
        parts = (bound.get(_input_name(one) or "", (one,)) for one in text)
        return tuple(part for some in parts for part in some)

    def _bindings(self, node: NodeSpec) -> dict[str, Template]:
        return {name: self._binding(one) for name, one in (node.with_ or {}).items()}

    def _binding(self, value: JsonValue, item: str | None = None) -> Template:
        """A value of `with`: a literal, or the reference in `from`."""
        named_ = isinstance(value, dict) and "from" in value
        source = value["from"] if isinstance(value, dict) and named_ else value
        made = self._text(source, item) if isinstance(source, str) else _plain(source)
        if not isinstance(value, dict) or not named_ or "if_skipped" not in value:
            return made
        instead = _json_text(value["if_skipped"])
        return tuple(_with_fallback(part, instead) for part in made)

    def _file(self, name: named.NamedFile) -> str:
        found = named.find(name, self.files)
        assert isinstance(found, FoundText)
        return found.text

    def _shell(self, text: str) -> tuple[str, dict[str, Template]]:
        env = Environment(self.names, text)
        made = set_defaults(text, find_unset(text)) + rewrite(text, env).text
        templates = self._values(env)
        self.uses.note(templates.values())
        return made, templates

    def _script(self, node: NodeSpec, text: str) -> RunScript:
        runtime = node.runtime or "uv"
        is_file = is_file_name(text)
        if is_file:
            text = self._file(named.script(text, runtime, self.unit.made.beside))
        env = Environment(self.names, text)
        if not is_file:
            text = rewrite_code(text, runtime, env).text
        values = self._values(env)
        for name, value in self._bindings(node).items():
            values[f"{INPUTS}{upper_name(name)}"] = value
        self.uses.note(values.values())
        needs = [f"--with={one}" for one in (node.deps or () if runtime == "uv" else ())]
        return RunScript(
            text=text,
            interpreter=runtime,
            flags=("run", *needs, "-"),
            by_stdin=True,
            timeout_ms=_ms(node.timeout, SCRIPT_MS),
            env=values,
            on_timeout=node.on_timeout or "fail",
            schema=node.output_format,
        )

    def _wait(self, spec: WaitSpec) -> Action:
        if spec.duration_ms is not None:
            ms = _ms(spec.duration_ms, 1)
            return Wait(ms=ms, output=_waited("satisfied", ms))
        if spec.until is not None:
            moment = point_ms(spec.until)
            until = self._text(spec.until) if moment is None else literal(f"@{moment // 1000}")
            env = {f"{OWN}UNTIL": until}
            return RunScript(text=_WAIT_UNTIL, timeout_ms=LONGEST_WAIT_MS, env=env)
        if spec.event is None:
            message = self._text(spec.attention or "")
            approved = _waited("satisfied")
            return AskPerson(message=message, approved=approved, timed=True, reject="cancel")
        text = f"Approve when the event {spec.event} has happened."
        if spec.deadline_ms is not None:
            text += f" The run continues by itself after {spec.deadline_ms / 1000:g} s."
        return AskPerson(
            message=literal(text),
            approved=_waited("satisfied", event=spec.event),
            timed=True,
            expired=None if spec.deadline_ms is None else _waited("expired", spec.deadline_ms),
            reject="cancel",
        )

    # -- other workflows ---------------------------------------------------------------------------

    def _workflow(self, node: NodeSpec, below: ArchonUnit) -> Action:
        """The nodes of another workflow, once or for each item of a list."""
        assert below.flow is not None
        inside = ArchonLowering(
            agents=self.agents.below(below.flow),
            names=env_names(below.made),
            files=self.files,
            unit=below,
            uses=self.uses,
        )
        fan = node.fan_out
        body = Steps(
            steps=inside.steps(below.flow.nodes, ("nodes",)),
            parallel=parallel_of(below.flow.nodes),
            on_failure="skip",
            output="sink",
            returns=below.flow.returns,
            given=self._given(node, below.flow, fan),
        )
        return body if fan is None else self._fanned(node, fan, body)

    def _fanned(self, node: NodeSpec, fan: FanOutSpec, body: Action) -> Repeat:
        """A body for each item of a list."""
        items: ItemSource = LiteralItems(values=tuple(fan.items))
        if isinstance(fan.items, str):
            listed = list_ref(fan.items, self.names.item)
            values = literal_list(fan.items) if listed is None else None
            items = ItemsFrom(ref=listed) if listed else LiteralItems(values=tuple(values or ()))
        each = Each(
            items=items,
            parallel=1 if node.isolation == "worktree" else fan.max_parallel,
            max_items=MAX_ITEMS,
            on_item_error="continue" if fan.join == "all_done" else "fail",
            failed_key="archon_failed",
        )
        return Repeat(body=body, each=each, output="list")

    def _given(
        self, node: NodeSpec, flow: ArchonWorkflow, fan: FanOutSpec | None
    ) -> WorkflowInputs:
        """The inputs of the other workflow: every input that it has gets a value here."""
        item = fan.as_ if fan else None
        text = node.arguments or node.input
        inputs = {name: _plain(spec.default) for name, spec in flow.inputs.items()}
        if fan is not None and (fan.as_ in flow.inputs or not flow.inputs):
            inputs[fan.as_] = (Ref(of="item"),)
        for name, value in (node.with_ or node.inputs or {}).items():
            inputs[name] = self._binding(value, item)
        alone: Template = (Ref(of="item"),) if item else ()
        return WorkflowInputs(message=self._text(text, item) if text else alone, inputs=inputs)

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
            message=(*self._text(spec.message), *literal(_choices_text(spec))),
            capture=spec.capture_response,
            choices=tuple(one for one, _ in _choices(spec)),
            on_reject=rework,
            reject="cancel",
        )

    def _gate(self, spec: LoopControl) -> LoopGate | None:
        if not spec.interactive:
            return None
        return LoopGate(
            message=self._text(spec.gate_message or ""),
            answers=("approve", "reject", "continue"),
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
        )
        return self._repeat(node, spec, call, spec.until_field)

    def _group(self, node: NodeSpec, spec: GroupSpec, path: Path) -> Repeat:
        steps = self.steps(spec.nodes, (*path, "loop_group", "nodes"), node)
        # A node that fails ends the group at once.
        parallel = parallel_of(spec.nodes)
        body = Steps(steps=steps, parallel=parallel, on_failure="abort", output="sink")
        return self._repeat(node, spec, body, None)

    def _repeat(
        self, node: NodeSpec, spec: LoopControl, body: Action, field_name: str | None
    ) -> Repeat:
        checks: list[Check] = []
        if spec.until is not None:
            checks.append(Signal(word=spec.until.strip(), anywhere=True))
        if spec.until_bash is not None:
            text, env = self._shell(spec.until_bash)
            wait_ms = max(IDLE_MS, _ms(node.idle_timeout, IDLE_MS))
            # Every exit code but 0 means "not yet", and so does a check that takes too long.
            checks.append(ScriptCheck(text=text, timeout_ms=wait_ms, env=env, on_missing="fail"))
        if field_name is not None:
            checks.append(ResultField(field=field_name))
        return Repeat(
            body=body,
            max=spec.max_iterations,
            until=checks[0] if len(checks) == 1 else AnyOf(parts=tuple(checks)),
            gate=self._gate(spec),
            at_cap="fail",
            broken_after=1,  # a check that cannot be evaluated has no verdict, so the loop fails
        )


def _with_fallback(part: Lit | Ref, text: str) -> Lit | Ref:
    """A reference to a node, with the text that replaces it when the node is skipped."""
    if isinstance(part, Ref) and part.of in ("output", "result"):
        return msgspec.structs.replace(part, if_skipped=text)
    return part


def _preferring_result(part: Lit | Ref, formatted: Collection[str]) -> Lit | Ref:
    if isinstance(part, Ref) and part.of in ("output", "previous_output"):
        return msgspec.structs.replace(part, structured=part.name in formatted)
    return part


def _json_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _choices(spec: ApprovalSpec) -> list[tuple[str, str]]:
    """The decisions of a gate with their labels."""
    given = spec.decisions or []
    return [(one, "") if isinstance(one, str) else (one.id, one.label or "") for one in given]


def _choices_text(spec: ApprovalSpec) -> str:
    """How a person makes each decision."""
    lines = [f"- {one}{f': {label}' if label else ''}" for one, label in _choices(spec)]
    if not lines:
        return ""
    return "\n\nApprove with one of these words, then a comment if you like:\n" + "\n".join(lines)


def _input_name(part: Lit | Ref) -> str | None:
    return part.name if isinstance(part, Ref) and part.of == "input" else None


def _plain(value: JsonValue) -> Template:
    """A value that is taken as it is."""
    if value is None:
        return ()
    return literal(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _session(node: NodeSpec, group: NodeSpec | None) -> SessionMode:
    """In a group, a session continues from iteration to iteration."""
    control = group.loop_group if group is not None else None
    threads = control is not None and not control.fresh_context and node.context != "fresh"
    return "thread" if threads else "fresh"


def _waited(status: str, ms: float | None = None, event: str | None = None) -> str:
    """The result of a wait."""
    made = {"status": status, "waited_ms": None if ms is None else round(ms), "event": event}
    return msgspec.json.encode(
        {name: one for name, one in made.items() if one is not None}
    ).decode()


def _ms(given: float | None, default: int) -> int:
    return default if given is None else max(1, round(given))


def _limits(node: NodeSpec, below: ArchonUnit | None) -> Limits:
    if node.wait is not None and node.wait.event and node.wait.deadline_ms is not None:
        return Limits(wall_ms=_ms(node.wait.deadline_ms, 1))
    if node.approval is not None or node.cancel is not None or node.wait is not None:
        return NO_LIMITS
    if node.workflow is not None or node.include is not None:  # its nodes have their own limits
        flow = below.flow if below is not None and node.workflow is not None else None
        own = flow.budget.max_spend_usd if flow is not None and flow.budget is not None else None
        usd = [one for one in (node.max_budget_usd, own) if one is not None]
        return Limits(usd=min(usd, default=None))
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
