"""Prepare the start of a run: from the options of a request to a plan that can be started.

Roles, library and templates are imported inside functions, because loading them takes long.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import msgspec

from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.actions import MAX_ITERATIONS, Repeat
from loopwright.model.plan import LoopRight, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import JsonValue, literal
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.agents.allowlist import with_entry_names
from loopwright.operations.agents.backends import Fallback, bind_agents, bind_inputs, check_message
from loopwright.operations.agents.permissions import (
    Rights,
    with_loop_tools,
    with_permission,
    with_rights,
)
from loopwright.operations.dialects import (
    ParsedDefinition,
    Source,
    check_startable,
    filled,
    parse_definition,
    read_definition,
)
from loopwright.operations.run_request import (
    RunStart,
    plain_checks,
    plain_limits,
    plain_plan,
    plain_repeat,
)
from loopwright.operations.run_variables import read_variables, with_variables
from loopwright.operations.runs import current_user
from loopwright.operations.workspace_rules import with_context_files, with_surroundings
from loopwright.syntax.document import Diagnostic, Document, clip, suggest

COMMAND_LINE = "(command line)"
MAX_NAME = 200
MAX_LABEL = 100
NAME_CHARS = 40
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_BUDGET_HINT = "write --budget usd=5,tokens=2M,time=2h,idle=10m"
_BUDGET = ("usd", "tokens", "time", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What `run` and `loop` have in common."""

    message: str | None = None
    agents: Sequence[str] = ()
    inputs: Sequence[str] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)  # inputs that are not texts only
    workspace: str | None = None
    budget: str | None = None
    parallel: int | None = None
    base_branch: str | None = None
    worktree: bool | None = None  # in a worktree or not, whatever the definition says
    name: str | None = None
    default_agent: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)  # agents by tier, alias or provider
    agent_names: Mapping[str, str] = field(default_factory=dict)  # specs of listed agents by name
    rights: Rights = field(default_factory=Rights)
    permission: str | None = None  # ask, edit or all, for every agent
    loop_tools: Sequence[LoopRight] = ()  # rights of the agents, beside those of the definition
    tools: Sequence[str] = ()  # the only ones, or with a plus sign further ones
    home: Path | None = None  # the data directory, where a person keeps roles and definitions
    env: Sequence[str] = ()  # NAME or NAME=VALUE, for every agent and command
    max: int | None = None  # passes of its only loop, instead of what the definition says
    allow_unknown_cost: bool = False
    labels: Sequence[str] = ()
    sandbox: SandboxLevel | None = None  # for this run, in the place of what is set
    unbound: bool = False  # nobody is called, so nothing needs to stand behind the agents


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """A loop without a file."""

    commands: Sequence[str] = ()
    patterns: Sequence[str] = ()
    signals: Sequence[str] = ()
    judges: Sequence[str] = ()
    manual: bool = False
    max: int = 10
    memory: str = "progress-log"
    criteria: bool = True
    wish: StartOptions = field(default_factory=StartOptions)


def prepare_file(
    file: str,
    wish: StartOptions,
    *,
    data: bytes | None = None,
    dialect: str | None = None,
    files: Source = None,
) -> tuple[RunStart, ParsedDefinition]:
    """A run of a definition: of a file, or of bytes that came another way, which may name these
    files.
    """
    path = Path(file)
    given = {**wish.values, **input_values(wish.inputs)}
    if data is not None:
        definition = parse_definition(data, file=file, force=dialect, files=files, given=given)
    elif dialect is None and is_name(path) and wish.home is not None:
        return prepare_named(file, wish)
    else:
        definition = read_definition(path, force=dialect, given=given)
    base = Path.cwd() if data is not None else path.absolute().parent
    return _prepare(definition, wish, base=base), definition


def is_name(path: Path) -> bool:
    """Whether something is no file but may be the name of a definition."""
    return not path.suffix and path.name == str(path) and not path.is_file()


def prepare_named(
    name: str, wish: StartOptions, *, cwd: Path | None = None
) -> tuple[RunStart, ParsedDefinition]:
    """A run of a definition that is known by its name here, or in another folder."""
    from loopwright.operations.library import DefinitionLibrary  # noqa: PLC0415 - only for a name

    assert wish.home is not None, "StartRun.home is required to find a definition by name"
    known = DefinitionLibrary(wish.home, cwd or Path.cwd())
    definition = known.read(name, {**wish.values, **input_values(wish.inputs)})
    return _prepare(definition, wish, base=Path.cwd()), definition


def prepare_loop(loop: LoopOptions) -> tuple[RunStart, ParsedDefinition]:
    """A run of a loop that was written on the command line."""
    definition = plain_definition(loop) or loop_definition(loop)[0]
    return _prepare(definition, loop.wish, base=Path.cwd()), definition


def plain_definition(loop: LoopOptions) -> ParsedDefinition | None:
    """The definition of a loop whose options need no validation; None for any other. It is the
    same as that of `loop_definition`, without the time that loading the validators takes.
    """
    wish = loop.wish
    if loop.judges or loop.patterns or loop.manual or wish.inputs:
        return None
    checks = plain_checks(loop.signals, loop.commands)
    limits = plain_limits(budget_values(wish.budget) if wish.budget is not None else {})
    if checks is None or limits is None:
        return None
    step = plain_repeat(loop.max, loop.memory, checks, criteria=loop.criteria)
    plan = plain_plan(_loop_name(loop), step, limits) if step is not None else None
    if plan is None:
        return None
    document = _LoopText()
    _write_loop(document, loop)
    value = msgspec.json.decode(document.data())
    digest = Document.plain(value, file=COMMAND_LINE).digest
    return ParsedDefinition(plan=plan, dialect=plan.dialect, digest=digest, file=COMMAND_LINE)


def loop_definition(loop: LoopOptions) -> tuple[ParsedDefinition, bytes]:
    """A loop from the command line by way of a native definition, and the text of that."""
    document = _LoopText()
    _write_loop(document, loop)
    data = document.data()
    try:
        return parse_definition(data, file=COMMAND_LINE, force="native"), data
    except DefinitionError as error:
        problems = [_in_range(one, loop) for one in document.told(error.problems)]
        raise DefinitionError(error.message, problems=problems) from error


def _prepare(definition: ParsedDefinition, wish: StartOptions, *, base: Path) -> RunStart:
    if wish.max is None:  # whoever gives a number of iterations wants a loop
        check_startable(definition)
    workspace = Path(wish.workspace) if wish.workspace else Path.cwd()
    plan = with_surroundings(definition.plan, workspace, wish.base_branch)
    plan = with_context_files(plan, workspace, base)
    if any(agent.role for agent in plan.agents.values()):
        plan = _with_roles(plan, definition, wish.home, workspace)
    inputs = bind_inputs(plan, {**wish.values, **input_values(wish.inputs)})
    message = filled(definition.dialect, check_message(plan, wish.message), inputs)
    if wish.max is not None:
        plan = with_most_passes(plan, wish.max)
    from_text = _specs_of_text(plan, wish)
    if not wish.unbound:
        plan = _bound(plan, wish, base)
    strict = wish.rights.strict
    plan = with_permission(plan, wish.permission, wish.tools, strict=strict)
    plan = with_loop_tools(plan, wish.loop_tools)
    plan = with_rights(plan, wish.rights)
    variables = read_variables(wish.env, os.environ)
    plan = with_variables(plan, wish.env, variables)
    if wish.budget is not None:
        plan = msgspec.structs.replace(plan, limits=tightened(plan.limits, wish.budget))
    if wish.parallel is not None:
        plan = _side_by_side(plan, wish.parallel)
    if wish.worktree is not None:
        policy = msgspec.structs.replace(plan.workspace, worktree=wish.worktree)
        plan = msgspec.structs.replace(plan, workspace=policy)
    if wish.name is not None:
        if not wish.name.strip() or len(wish.name) > MAX_NAME:
            hint = f"a name has 1 to {MAX_NAME} characters"
            raise LoopwrightError("--name cannot be that", code="bad-name", hint=hint)
        plan = msgspec.structs.replace(plan, name=wish.name)
    return RunStart(
        plan=plan,
        workspace=workspace,
        message=message,
        inputs=inputs,
        by=current_user(),
        key=definition.key,
        variables=variables,
        allow_unknown_cost=wish.allow_unknown_cost,
        labels=run_labels(wish.labels),
        from_text=from_text,
        sandbox=wish.sandbox,
        file="" if definition.file == COMMAND_LINE else definition.file,
    )


def _with_roles(
    plan: Plan, definition: ParsedDefinition, home: Path | None, workspace: Path
) -> Plan:
    from loopwright.operations.agents.roles import bind_roles, find_roles  # noqa: PLC0415 - loads validators

    try:
        return bind_roles(plan, find_roles(home, workspace))
    except LoopwrightError as error:  # say in which file
        message = f"{Path(definition.file).name}: {error.message}"
        raise LoopwrightError(message, code=error.code, hint=error.hint) from error


def run_labels(given: Sequence[str]) -> tuple[str, ...]:
    """The labels of a run, each once."""
    for one in given:
        if not one.strip() or len(one) > MAX_LABEL or not one.isprintable():
            hint = f"a label has 1 to {MAX_LABEL} printable characters"
            raise LoopwrightError(f"--label cannot be {one!r}", code="bad-label", hint=hint)
    return tuple(dict.fromkeys(one.strip() for one in given))


def _specs_of_text(plan: Plan, wish: StartOptions) -> frozenset[str]:
    """The agents whose spec is in the definition, and that nobody has given another one."""
    default, named = agent_choices(wish.agents)
    if default is not None:
        return frozenset()
    return frozenset(n for n, agent in plan.agents.items() if agent.spec and n not in named)


def _bound(plan: Plan, wish: StartOptions, base: Path) -> Plan:
    default, named = agent_choices(with_entry_names(wish.agents, wish.agent_names))
    return bind_agents(
        plan,
        default=default,
        named=named,
        base=base,
        cwd=Path.cwd(),
        fallback=Fallback(wish.default_agent, wish.models),
    )


def _side_by_side(plan: Plan, most: int) -> Plan:
    """A number that the definition itself names beats the option, and that beats its default."""
    if plan.parallel is not None and plan.settings.get("parallel") != "default":
        return plan
    return msgspec.structs.replace(plan, parallel=most)


def with_most_passes(plan: Plan, most: int) -> Plan:
    """A plan whose loop makes other passes at most than its definition says."""
    if not 1 <= most <= MAX_ITERATIONS:
        raise LoopwrightError(
            f"--max must be a whole number from 1 to {MAX_ITERATIONS}, not {most}",
            code="out-of-range",
        )
    found = [n for n, step in enumerate(plan.steps) if isinstance(step.action, Repeat)]
    if len(found) != 1:
        hint = "give the number in the definition"
        message = "--max is for a definition that is one loop"
        raise LoopwrightError(message, code="unsupported-here", hint=hint)
    steps = list(plan.steps)
    step = steps[found[0]]
    loop = msgspec.structs.replace(cast("Repeat", step.action), max=most)
    steps[found[0]] = msgspec.structs.replace(step, action=loop)
    return msgspec.structs.replace(plan, steps=tuple(steps))


def _in_range(problem: Diagnostic, loop: LoopOptions) -> Diagnostic:
    """A number too long for any definition is told with the range of what it stands for."""
    if problem.file != "--max" or problem.code != "out-of-range":
        return problem
    message = f"max must be a whole number from 1 to {MAX_ITERATIONS}, not {clip(str(loop.max))}"
    return replace(problem, message=message)


def _loop_name(loop: LoopOptions) -> str:
    return loop.wish.name or _name_of(loop.wish.message or "")


def _name_of(message: str) -> str:
    """A name for a loop without a file: how its message begins."""
    line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    short = line if len(line) <= NAME_CHARS else line[:NAME_CHARS].rsplit(" ", 1)[0] + "…"
    return short or "loop"


# -- agents and inputs ---------------------------------------------------------------------------


def agent_choices(given: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """`SPEC` is for every agent, `NAME=SPEC` for one. A spec may hold an equals sign itself."""
    default: str | None = None
    named: dict[str, str] = {}
    for choice in given:
        name, equals, spec = choice.partition("=")
        if equals and ":" not in name and " " not in name:
            named[name.strip()] = spec
        else:
            default = choice
    return default, named


def choices(default: str | None, named: Mapping[str, str]) -> tuple[str, ...]:
    """The same as they are given one by one."""
    return (*([default] if default else []), *(f"{name}={spec}" for name, spec in named.items()))


def _input_names(given: Sequence[str]) -> Iterator[str]:
    return (one.partition("=")[0] for one in dict.fromkeys(given) if one.partition("=")[0])


def input_values(given: Sequence[str]) -> dict[str, JsonValue]:
    """`NAME=VALUE`, each name once."""
    values: dict[str, JsonValue] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise LoopwrightError(
                f"--input {one!r} has no value", code="bad-input", hint="write --input NAME=VALUE"
            )
        if name in values:
            raise LoopwrightError(f"--input {name} is given twice", code="bad-input")
        values[name] = value
    return values


# -- budgets -------------------------------------------------------------------------------------


def tightened(limits: Limits, text: str) -> Limits:
    """The limits of the plan, with what `--budget` says in the place of what the file says."""
    given = budget_values(text)
    wanted = plain_limits(given) or _read_limits(given)
    return msgspec.structs.replace(
        limits,
        usd=limits.usd if wanted.usd is None else wanted.usd,
        tokens=limits.tokens if wanted.tokens is None else wanted.tokens,
        wall_ms=limits.wall_ms if wanted.wall_ms is None else wanted.wall_ms,
        idle_ms=limits.idle_ms if wanted.idle_ms is None else wanted.idle_ms,
    )


def _read_limits(given: dict[str, JsonValue]) -> Limits:
    document = {"name": "budget", "goal": "-", "agents": {"a": {}}, "agent": "a", "budget": given}
    try:
        read = parse_definition(msgspec.json.encode(document), file="--budget", force="native")
    except DefinitionError as error:
        raise _bad_budget(_first_words(error)) from error
    return read.plan.limits


def budget_values(text: str) -> dict[str, JsonValue]:
    """`usd=5,tokens=2M,time=2h,idle=10m` as a native definition has it."""
    values: dict[str, JsonValue] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise _bad_budget(f"{part.strip()!r} is not NAME=VALUE")
        if name not in _BUDGET:
            near = suggest(name, _BUDGET)
            raise _bad_budget(f"unknown limit {name!r}{f' (did you mean {near}?)' if near else ''}")
        if name in values:
            raise _bad_budget(f"{name} is given twice")
        values[name] = _number(name, value)
    return values


def _number(name: str, text: str) -> JsonValue:
    """The number that a text is, else the text."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        message = f"--budget: {name} must be finite, not {clip(text)}"
        raise LoopwrightError(message, code="not-finite", hint=_BUDGET_HINT)
    # A longer one is out of every range, and as a fraction it is told with the right one.
    return int(text) if _WHOLE.fullmatch(text) else number


def _bad_budget(message: str) -> LoopwrightError:
    return LoopwrightError(f"--budget: {message}", code="bad-budget", hint=_BUDGET_HINT)


def _first_words(error: DefinitionError) -> str:
    first = next((p for p in error.problems if isinstance(p, Diagnostic)), None)
    return first.message if first else error.message


# -- a loop as a definition ----------------------------------------------------------------------


class _LoopText:
    """A native definition as JSON text, one line for each option, so that a problem in a line is
    told as a problem of its option.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def line(self, text: str, option: str = COMMAND_LINE) -> None:
        self._lines.append((text, option))

    def field(self, name: str, value: JsonValue, option: str, *, after: str = ",") -> None:
        written = msgspec.json.encode(value).decode()
        self.line(f'"{name}": {written}{after}', option)

    def data(self) -> bytes:
        return "\n".join(text for text, _ in self._lines).encode()

    def told(self, problems: Sequence[object]) -> list[Diagnostic]:
        return [
            Diagnostic(
                file=self._option(problem.line),
                line=1,
                column=1,
                code=problem.code,
                message=problem.message,
                hint=problem.hint,
                severity=problem.severity,
            )
            for problem in problems
            if isinstance(problem, Diagnostic)
        ]

    def _option(self, line: int) -> str:
        return self._lines[line - 1][1] if line <= len(self._lines) else COMMAND_LINE


def _write_loop(text: _LoopText, loop: LoopOptions) -> None:
    text.line("{")
    text.field("name", _loop_name(loop), "--name")
    if loop.wish.budget is not None:
        text.field("budget", budget_values(loop.wish.budget), "--budget")
    # What stands behind it is bound afterwards, like every agent given on the command line.
    judge = ', "judge": {}' if loop.judges else ""
    text.line(f'"agents": {{"worker": {{}}{judge}}}, "agent": "worker",', "--agent")
    names = list(_input_names(loop.wish.inputs))
    if names:
        text.field("inputs", {name: {} for name in names}, "--input")
        told = "\n".join(f"- {name}: {{{{input.{name}}}}}" for name in names)
        text.field("prompt", f"{{{{message}}}}\n\n{told}", "--input")
    text.line('"repeat": {')
    text.field("max", loop.max, "--max")
    if not loop.criteria:
        text.line('"criteria": false,', "--no-criteria")
    checks = _checks(loop)
    text.field("memory", loop.memory, "--memory", after="," if checks else "")
    for number, (check, option) in enumerate(checks):
        start = '"until": ' + ('{"all": [' if len(checks) > 1 else "") if number == 0 else ""
        end = "," if number + 1 < len(checks) else ("]}" if len(checks) > 1 else "")
        text.line(f"{start}{msgspec.json.encode(check).decode()}{end}", option)
    text.line("}}")


def _checks(loop: LoopOptions) -> list[tuple[JsonValue, str]]:
    """The checks in the order of what they cost: judges come late, a person last."""
    found: list[tuple[JsonValue, str]] = []
    found += [({"signal": word}, "--until-signal") for word in loop.signals]
    found += [({"regex": pattern}, "--until-regex") for pattern in loop.patterns]
    found += [({"command": command}, "--until-command") for command in loop.commands]
    found += [(_judge(criterion), "--until-judge") for criterion in loop.judges]
    if loop.manual:
        found.append(({"person": True}, "--manual"))
    return found


def _judge(criterion: str) -> JsonValue:
    """A judge that holds the work against a criterion, which is taken as it is written."""
    if not criterion.strip():
        raise LoopwrightError(
            "--until-judge: the criterion is empty",
            code="bad-value",
            hint='say what must hold: --until-judge "every claim has a source"',
        )
    words = (
        "Judge whether the work below meets this criterion. Look at the work, not at what is "
        f"claimed.\n\n## Criterion\n\n{criterion}"
    )
    from loopwright.dialects.native.templates import write  # noqa: PLC0415 - loads validators

    return {"judge": {"agent": "judge", "prompt": write(literal(words))}}
