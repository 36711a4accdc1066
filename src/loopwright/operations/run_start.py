"""Prepare the start of a run: from the request of an interface to a run that can be started.

Every interface makes a `StartRun`, and `prepare_start` is the one place that reads the definition
and puts the choices of the request into its plan. `launch_run` creates the run after it is checked.

Roles, library and templates are imported inside functions, because loading them takes long.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, cast

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.model.actions import MAX_ITERATIONS, Repeat
from loopwright.model.plan import LoopRight, Plan
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import Role, current_user
from loopwright.operations.agents.backends import Fallback, bind_agents, bind_inputs, check_message
from loopwright.operations.agents.permissions import (
    PermissionMode,
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
from loopwright.operations.loop_definition import (
    COMMAND_LINE,
    LoopOptions,
    loop_definition,
    plain_definition,
    tightened,
)
from loopwright.operations.preflight import check_programs
from loopwright.operations.run_request import LocalStart, RunStart, StartRun
from loopwright.operations.run_variables import read_variables, with_variables
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.workspace_rules import (
    SnapshotChoice,
    stricter_level,
    with_context_files,
    with_surroundings,
)

MAX_NAME = 200
MAX_LABEL = 100


class AgentOptions(TypedDict, total=False):
    """What an interface has about agents and their rights."""

    agents: Sequence[str]  # SPEC or NAME=SPEC
    permission: PermissionMode | None
    tools: tuple[str, ...]
    loop_tools: tuple[LoopRight, ...]
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    ask: tuple[str, ...]
    file_tools_only: bool
    sandbox: SandboxLevel | None
    env: Sequence[str]  # NAME or NAME=VALUE


class StartChoices(AgentOptions, total=False):
    """What an interface has: the choices that were made."""

    stored: str
    message: str | None
    inputs: Sequence[str]  # NAME=VALUE
    values: Mapping[str, JsonValue]  # inputs that are not texts only
    workspace: str | None
    worktree: bool | None  # in a worktree or not, whatever the definition says
    protect: tuple[str, ...]
    no_snapshots: bool
    base_branch: str | None
    budget: str | None
    parallel: int | None
    max: int | None
    allow_unknown_cost: bool
    name: str | None
    labels: tuple[str, ...]
    promoted: bool


def start_request(given: StartChoices) -> LocalStart:
    """The request of a start, with the values of variables: the one place that builds it, except
    for requests that come as JSON.
    """
    default, named = agent_choices(given.get("agents", ()))
    return LocalStart(
        stored=given.get("stored"),
        message=given.get("message"),
        inputs={**given.get("values", {}), **input_values(given.get("inputs", ()))},
        agent=default,
        agents=named,
        workspace=given.get("workspace"),
        budget=given.get("budget"),
        parallel=given.get("parallel"),
        name=given.get("name"),
        max=given.get("max"),
        base_branch=given.get("base_branch"),
        worktree=given.get("worktree") is True,
        promoted=given.get("promoted", False),
        deny=given.get("deny", ()),
        ask=given.get("ask", ()),
        file_tools_only=given.get("file_tools_only", False),
        sandbox=given.get("sandbox"),
        labels=given.get("labels", ()),
        allow_unknown_cost=given.get("allow_unknown_cost", False),
        permission=given.get("permission"),
        tools=given.get("tools", ()),
        protect=given.get("protect", ()),
        snapshots=not given.get("no_snapshots", False),
        allow=given.get("allow", ()),
        env=read_variables(given.get("env", ()), os.environ),
        loop_tools=given.get("loop_tools", ()),
        in_workspace=given.get("worktree") is False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlace:
    """Where a start is prepared, and for whom."""

    settings: Settings
    workspace: Path = field(default_factory=Path.cwd)  # of requests that name none
    agent_names: Mapping[str, str] = field(default_factory=dict)  # specs of listed agents by name
    is_remote: bool = False  # the caller may restrict what the definition allows, and not widen it
    can_ask: bool = False  # a person can be asked about calls of tools
    needs_agents: bool = True  # false: no agent is called, so none needs a backend


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionSource:
    """Where the definition of a start comes from: a text, a file, or a name of the library."""

    file: str  # as messages name it
    data: bytes | None = None  # its text; None: it is read from the file or the library
    dialect: str | None = None
    files: Source = None  # those that the text may name
    author: Role | None = None  # who wrote it; None: the person who starts the run
    library: Path | None = None  # it is a name, which is looked up for this folder


def named_source(file: str, dialect: str | None = None) -> DefinitionSource:
    """A definition as a person names it: by its file, or by a name of the library."""
    library = Path.cwd() if dialect is None and is_name(Path(file)) else None
    return DefinitionSource(file=file, dialect=dialect, library=library)


def prepare_start(
    place: StartPlace, request: StartRun, source: DefinitionSource | LoopOptions
) -> tuple[RunStart, ParsedDefinition]:
    """A run of a definition, or of a loop that was written on the command line."""
    if isinstance(source, LoopOptions):
        found = plain_definition(request, source) or loop_definition(request, source)[0]
        return _prepare(place, request, found, base=Path.cwd()), found
    found, base = _read(place, request, source)
    start = _prepare(place, request, found, base=base)
    return replace(start, author=source.author), found


def _read(
    place: StartPlace, request: StartRun, source: DefinitionSource
) -> tuple[ParsedDefinition, Path]:
    """A definition, and the folder that paths of its agents count from."""
    here, path, given = Path.cwd(), Path(source.file), request.inputs
    if source.data is not None:
        text, force = source.data, source.dialect
        found = parse_definition(
            text, file=source.file, force=force, files=source.files, given=given
        )
        return found, here
    if source.library is not None:
        from loopwright.operations.library import DefinitionLibrary  # noqa: PLC0415 - only for a name

        library = DefinitionLibrary(place.settings.home, source.library)
        return library.read(source.file, given), here
    return read_definition(path, force=source.dialect, given=given), path.absolute().parent


def is_name(path: Path) -> bool:
    """Whether something is not a file but may be the name of a definition."""
    return not path.suffix and path.name == str(path) and not path.is_file()


def _prepare(
    place: StartPlace, request: StartRun, definition: ParsedDefinition, *, base: Path
) -> RunStart:
    if request.max is None:  # a number of iterations is for a loop
        check_startable(definition)
    workspace = Path(request.workspace) if request.workspace else place.workspace
    plan = with_surroundings(definition.plan, workspace, request.base_branch)
    plan = with_context_files(plan, workspace, base)
    if any(agent.role for agent in plan.agents.values()):
        plan = _with_roles(plan, definition, place.settings.home, workspace)
    inputs = bind_inputs(plan, request.inputs)
    message = filled(definition.dialect, check_message(plan, request.message), inputs)
    if request.max is not None:
        plan = with_most_iterations(plan, request.max)
    from_text = _specs_of_text(plan, request)
    if place.needs_agents:
        plan = _with_agents(plan, place, request, base)
    plan = _with_tools(plan, place, request)
    plan = _with_limits(plan, request)
    local = request if isinstance(request, LocalStart) else None
    return RunStart(
        plan=plan,
        workspace=workspace,
        message=message,
        inputs=inputs,
        by=current_user(),
        key=definition.key,
        variables=local.env if local is not None else {},
        allow_unknown_cost=request.allow_unknown_cost,
        labels=run_labels(request.labels),
        from_text=from_text,
        sandbox=_level(place, request.sandbox),
        snapshots=SnapshotChoice(off=not request.snapshots, protect=request.protect),
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


def _specs_of_text(plan: Plan, request: StartRun) -> frozenset[str]:
    """The agents whose spec is in the definition, and for which the request names no other."""
    if request.agent is not None:
        return frozenset()
    named = request.agents
    return frozenset(n for n, agent in plan.agents.items() if agent.spec and n not in named)


def _with_agents(plan: Plan, place: StartPlace, request: StartRun, base: Path) -> Plan:
    default, named = request.agent, request.agents
    if place.agent_names:
        from loopwright.operations.agents.allowlist import with_entry_names  # noqa: PLC0415 - at servers

        chosen = with_entry_names(choices(request.agent, request.agents), place.agent_names)
        default, named = agent_choices(chosen)
    settings = place.settings
    return bind_agents(
        plan,
        default=default,
        named=named,
        base=base,
        cwd=Path.cwd(),
        fallback=Fallback(settings.agent, settings.models),
    )


def _with_tools(plan: Plan, place: StartPlace, request: StartRun) -> Plan:
    """The plan with the permission and tools of its agents, and the variables that they get."""
    plan = with_permission(plan, request.permission, request.tools, strict=place.is_remote)
    if isinstance(request, LocalStart):
        plan = with_loop_tools(plan, request.loop_tools)
    rights = Rights(
        allow=request.allow,
        deny=request.deny,
        ask=request.ask,
        file_tools_only=request.file_tools_only,
        attended=place.can_ask,
        strict=place.is_remote,
    )
    plan = with_rights(plan, rights)
    return with_variables(plan, request.env) if isinstance(request, LocalStart) else plan


def _with_limits(plan: Plan, request: StartRun) -> Plan:
    """The plan with the budget of the run, its parallel agents, its checkout and its name."""
    if request.budget is not None:
        plan = msgspec.structs.replace(plan, limits=tightened(plan.limits, request.budget))
    if request.parallel is not None:
        plan = _side_by_side(plan, request.parallel)
    if request.worktree or (isinstance(request, LocalStart) and request.in_workspace):
        policy = msgspec.structs.replace(plan.workspace, worktree=request.worktree)
        plan = msgspec.structs.replace(plan, workspace=policy)
    if request.name is not None:
        if not request.name.strip() or len(request.name) > MAX_NAME:
            hint = f"a name has 1 to {MAX_NAME} characters"
            raise LoopwrightError("--name cannot be that", code="bad-name", hint=hint)
        plan = msgspec.structs.replace(plan, name=request.name)
    return plan


def _level(place: StartPlace, wanted: SandboxLevel | None) -> SandboxLevel | None:
    """The level of a run. A remote caller cannot choose a weaker one; whether it may be `off` is
    checked with its agents.
    """
    if not place.is_remote or wanted == "off":
        return wanted
    return stricter_level(place.settings.sandbox, wanted)


def run_labels(given: Sequence[str]) -> tuple[str, ...]:
    """The labels of a run, each once."""
    for one in given:
        if not one.strip() or len(one) > MAX_LABEL or not one.isprintable():
            hint = f"a label has 1 to {MAX_LABEL} printable characters"
            raise LoopwrightError(f"--label cannot be {one!r}", code="bad-label", hint=hint)
    return tuple(dict.fromkeys(one.strip() for one in given))


def _side_by_side(plan: Plan, most: int) -> Plan:
    """A number in the definition overrides the option, and the option overrides its default."""
    if plan.parallel is not None and plan.settings.get("parallel") != "default":
        return plan
    return msgspec.structs.replace(plan, parallel=most)


def with_most_iterations(plan: Plan, most: int) -> Plan:
    """A plan whose loop makes other iterations at most than its definition says."""
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


# -- launching -------------------------------------------------------------------------------------


async def check_start(service: Service, start: RunStart) -> RunStart:
    """Check everything that would fail in the first iteration: what may run here, the folder,
    and the programs of the agents and checks. Returns the start as it is allowed here.
    """
    start = service.admit(start)
    start.check_workspace()
    await check_programs(start)
    return start


async def launch_run(service: Service, start: RunStart, *, is_checked: bool = False) -> str:
    """Create a run, after it is checked. `is_checked`: the caller has checked it before, to show
    warnings or to create nothing else for a start that is refused.
    """
    return await service.start(start if is_checked else await check_start(service, start))
