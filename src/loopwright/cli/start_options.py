"""Options that `run`, `loop` and others share, and how they start a run.

Includes reading a definition from stdin, where its file is called `-`.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

import click

from loopwright.cli.terminal import Terminal, names_in, tools_in
from loopwright.cli.verb import terminal_of
from loopwright.model.sandbox import NO_MATCH, SANDBOX_LEVELS

if TYPE_CHECKING:
    from pathlib import Path

    from loopwright.cli.attach import AttachOptions
    from loopwright.model.plan import Plan
    from loopwright.model.record import JsonValue
    from loopwright.model.sandbox import SandboxLevel
    from loopwright.operations.background_runs import Detached
    from loopwright.operations.dialects import ParsedDefinition
    from loopwright.operations.loop_definition import LoopOptions
    from loopwright.operations.run_request import LocalStart, RunStart
    from loopwright.operations.run_start import DefinitionSource, StartChoices
    from loopwright.operations.wiring import Local

STDIN = "-"
STDIN_NAME = "(stdin)"


def piped_definition(ctx: click.Context) -> bytes:
    """The piped input, up to a size that shows that it is too much."""
    from loopwright.operations.dialects import MAX_BYTES  # noqa: PLC0415 - help stays quick

    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("- reads the definition from stdin, which is a terminal here", ctx)
    return sys.stdin.buffer.read(MAX_BYTES + 1)


_Function = TypeVar("_Function", bound=Callable[..., object])

# A dry run asks for nothing.
NO_MESSAGE = "(dry run)"


class StartManner(TypedDict):
    """The options that say how a start is shown."""

    exit_codes: str
    dry_run: bool
    detach: bool
    no_wait: bool
    jsonl: bool


sandbox_option = click.option(
    "--sandbox",
    type=click.Choice(SANDBOX_LEVELS),
    metavar="LEVEL",
    help="How agents and commands are confined: off, guard (they do not see Loopwright's data and "
    "settings), workspace (they write only there), readonly or none (no files). A stricter level "
    "of the definition or of a role applies instead. Default: the setting `sandbox`, else guard.",
)

_OPTIONS = [
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="SPEC",
        help="Agent backend: SPEC for all agents, NAME=SPEC for one (claude, codex, opencode, "
        "gemini, model:PROVIDER/NAME, acp:PROGRAM, command:PROGRAM, jsonl:PROGRAM, script:FILE). "
        "May be given more than once.",
    ),
    click.option("--workspace", metavar="DIR", help="Where agents work. Default: here."),
    click.option(
        "--worktree/--no-worktree",
        default=None,
        help="Work in a Git worktree of the workspace, on the branch loopwright/RUN. `apply RUN` "
        "merges the result back, `discard RUN` removes it. With --no-worktree: work in the "
        "workspace itself, whatever the definition says.",
    ),
    click.option(
        "--budget",
        metavar="LIMITS",
        help="What the run may use: usd=5,tokens=2M,time=2h. idle=10m: how long an agent may "
        "print nothing before its call fails.",
    ),
    click.option(
        "--base-branch",
        metavar="NAME",
        help="The branch that work goes back to, for definitions that ask for it. Default: the "
        "default one of the repository.",
    ),
    click.option(
        "--parallel",
        metavar="N",
        type=click.IntRange(1, 1_000),
        help="How many agents work at once, where the definition names no number.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="TOOL",
        help="A tool that chat models may use without being asked about, where the definition asks "
        "about every one; `all` is all. Away from a terminal the others are denied. "
        "`shell.exec:PROGRAM` allows a program. Refused by remote servers. May be given more "
        "than once.",
    ),
    click.option(
        "--deny",
        multiple=True,
        metavar="TOOL",
        help="A tool that chat models may not use. May be given more than once.",
    ),
    click.option(
        "--ask",
        multiple=True,
        metavar="TOOL",
        help="A tool of which every call waits for a person, here or by `approve`; `all` is all. "
        "May be given more than once.",
    ),
    click.option(
        "--file-tools-only",
        is_flag=True,
        help="Chat models have the file tools of the workspace and nothing else: no program is "
        "started, whatever else is allowed.",
    ),
    sandbox_option,
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Pass an environment variable to the agents and check commands: your own by its NAME, "
        "or NAME=VALUE. Values are not stored in the log: where an agent or a check prints one of "
        "at least 6 characters that is not a path, [NAME] is recorded. Can be repeated.",
    ),
    click.option(
        "--permission",
        type=click.Choice(["ask", "edit", "all"]),
        metavar="MODE",
        help="What coding agents may do: `ask`: only what a person allows; `edit`: edit files and "
        "run the check commands (default); `all`: everything.",
    ),
    click.option(
        "--tools",
        multiple=True,
        metavar="LIST",
        help="The only tools of the agents, in their own names: Read,Edit. With a plus sign, "
        "further tools that they may use: +Bash or '+Bash(npm test)'.",
    ),
    click.option(
        "--loop-tools",
        multiple=True,
        type=click.Choice(("start", "look")),
        metavar="RIGHT",
        help="Tools for loops that the agents are given, also inside a sandbox: start (child runs "
        "of this run, within its budget) and look (at this run and its child runs). May be given "
        "more than once.",
    ),
    click.option(
        "--protect",
        multiple=True,
        metavar="PATTERN",
        help="Files that agents may not change, such as 'tests/**'. An iteration that changes one "
        "does not pass. May be given more than once.",
    ),
    click.option(
        "--no-snapshots",
        is_flag=True,
        help="Take no snapshots of the workspace. `diff`, `restore` and `bisect` need them.",
    ),
    click.option("--name", metavar="NAME", help="What the run is called in lists."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="LABEL",
        help="A label for `ls --label` and `spend --by label`. May be given more than once.",
    ),
    click.option(
        "--allow-unknown-cost",
        is_flag=True,
        help="Start although a limit in USD cannot be enforced for an agent whose cost is unknown.",
    ),
    click.option(
        "--exit-codes",
        type=click.Choice(["loopwright", "dialect"]),
        default="loopwright",
        metavar="WHOSE",
        help="`dialect`: use the exit codes of the system that the definition was written for.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Run nothing: show the steps, every way in which the run can end, and the worst case.",
    ),
    click.option("--detach", is_flag=True, help="Start the run in the background and return."),
    click.option(
        "--no-wait", is_flag=True, help="Exit with code 5 at a gate instead of asking here."
    ),
    click.option(
        "--jsonl", is_flag=True, help="Print events as they occur, one JSON object per line."
    ),
]


def start_options(function: _Function) -> _Function:
    """Add the options that `run` and `loop` share."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def launch(
    ctx: click.Context,
    source: "DefinitionSource | LoopOptions | None",
    options: dict[str, object],
    *,
    checks: str = "check",
) -> int:
    """Start a run as the options say, and answer with the exit code. Without a source it is of a
    stored definition. `checks` is the option that check commands are given with, if there is one.
    """
    from loopwright.operations.run_start import start_request  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    shown = {name: options.pop(name) for name in StartManner.__annotations__}
    manner = cast("StartManner", shown)  # click has checked the kinds of all options
    if manner["jsonl"] and terminal.as_json:
        raise click.UsageError("--json and --jsonl exclude each other", ctx)
    if manner["dry_run"]:
        options["message"] = options["message"] or NO_MESSAGE
    options |= {name: names_in(_texts(options[name])) for name in ("allow", "deny", "ask")}
    options["tools"] = tools_in(_texts(options["tools"]))
    request = start_request(cast("StartChoices", options))
    if terminal.remote is not None:
        from loopwright.cli.remote_commands import start_remote_run  # noqa: PLC0415 - only when asked for

        return start_remote_run(terminal, request, source, manner)
    start, definition = _prepare(terminal, request, source, manner)
    return _start_prepared(terminal, request, start, definition, manner, checks)


def _texts(value: object) -> tuple[str, ...]:
    assert isinstance(value, tuple)
    return value


def _prepare(
    terminal: Terminal,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
    manner: StartManner,
) -> "tuple[RunStart, ParsedDefinition]":
    """The definition and its start. It may name files: those of Loopwright itself are not read."""
    from loopwright.operations.run_start import StartPlace, prepare_start  # noqa: PLC0415 - quick help
    from loopwright.operations.workspace_rules import keep_files_private  # noqa: PLC0415 - help stays quick

    keep_files_private(terminal.settings)
    place = StartPlace(
        settings=terminal.settings,
        can_ask=terminal.can_ask and not (manner["no_wait"] or manner["detach"]),
        needs_agents=not manner["dry_run"],
    )
    if source is None:
        from loopwright.cli.definitions import definitions_here  # noqa: PLC0415 - only when asked for

        with definitions_here(terminal) as definitions:
            source = definitions.runnable(str(request.stored)).source()
    start, definition = prepare_start(place, request, source)
    if request.promoted:
        _check_promoted(terminal, definition, is_stored=request.stored is not None)
    return start, definition


def _check_promoted(terminal: Terminal, definition: "ParsedDefinition", *, is_stored: bool) -> None:
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - only when asked for
    from loopwright.operations.definitions import check_promoted  # noqa: PLC0415 - only when asked for

    with closing(open_log(terminal.settings)) as log:
        check_promoted(log, definition, is_stored=is_stored)


def _start_prepared(
    terminal: Terminal,
    request: "LocalStart",
    start: "RunStart",
    definition: "ParsedDefinition",
    manner: StartManner,
    checks: str,
) -> int:
    """Show what is doubtful about a start, and start it."""
    from loopwright.cli.attach import AttachOptions  # noqa: PLC0415 - help stays quick
    from loopwright.operations.agents.permissions import (  # noqa: PLC0415 - help stays quick
        limit_warnings,
        unsupported_options,
    )
    from loopwright.operations.cost_limits import token_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.dialects import exit_codes  # noqa: PLC0415 - help stays quick
    from loopwright.operations.preflight import preflight, shadow_warnings  # noqa: PLC0415 - quick help
    from loopwright.operations.run_variables import keep_variables  # noqa: PLC0415 - help stays quick
    from loopwright.operations.workspace_rules import decide_snapshots  # noqa: PLC0415 - quick help

    dry = manner["dry_run"]
    for warning in definition.warnings:
        terminal.say(warning.render(), tone="warn")
    unused = () if dry else unsupported_options(definition.plan, start.plan)
    limits = limit_warnings(start.plan, start.workspace, definition.file)
    for limited in (*limits, *unused, *shadow_warnings(start, checks=checks)):
        terminal.say(f"warning: {limited}", tone="warn")
    default = terminal.settings.snapshots == "on"
    plan, note = decide_snapshots(start.plan, start.workspace, start.snapshots, default=default)
    plan = _sandboxed(terminal, plan, start.sandbox, dry=dry)
    if dry:
        return _rehearse(terminal, replace(start, plan=plan), request, checks)
    if note and not note.startswith(NO_MATCH):  # a warning below says so
        terminal.say(f"note: {note}")
    for words in token_warnings(start.plan):
        terminal.say(f"warning: {words}", tone="warn")
    for missing in (*_unmatched(plan, start.workspace), *preflight(start, checks=checks)):
        terminal.say(f"warning: {missing}", tone="warn")
    codes = exit_codes(definition.dialect) if manner["exit_codes"] == "dialect" else {}
    shown = AttachOptions(no_wait=manner["no_wait"], jsonl=manner["jsonl"], codes=codes)
    with keep_variables(terminal.settings.home, start) as named:
        if manner["detach"]:
            return _start_detached(terminal, named)
        return _start_here(terminal, named, shown)


def _sandboxed(
    terminal: Terminal, plan: "Plan", chosen: "SandboxLevel | None", *, dry: bool
) -> "Plan":
    """The plan with its sandbox level; refused before anything is created if that cannot be."""
    from loopwright.operations.workspace_rules import rules_of  # noqa: PLC0415 - help stays quick

    rules = rules_of(terminal.settings)
    plan = rules.decide(plan, chosen)
    if not dry:
        rules.check(plan)
        warn_unconfined(terminal, plan)
    return plan


def warn_unconfined(terminal: Terminal, plan: "Plan") -> None:
    """Say in one line that agents run without a sandbox, if they do."""
    from loopwright.operations.workspace_rules import unconfined_note  # noqa: PLC0415 - help stays quick

    note = unconfined_note(plan)
    if note is not None:
        terminal.say(f"warning: {note}", tone="warn")


def _unmatched(plan: "Plan", workspace: "Path") -> "list[str]":
    """Patterns of protected files that match nothing, as warnings."""
    from loopwright.operations.workspace_rules import unmatched_patterns  # noqa: PLC0415 - quick help

    found = unmatched_patterns(plan.workspace.protect, workspace)
    return [f"--protect {one} matches no file in {workspace}" for one in found]


def _rehearse(terminal: Terminal, start: "RunStart", request: "LocalStart", checks: str) -> int:
    """Show how a run could end."""
    from loopwright.cli.charts import put_dry_run  # noqa: PLC0415 - help stays quick
    from loopwright.operations.agents.permissions import limit_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.cost_limits import (  # noqa: PLC0415 - help stays quick
        CostRules,
        PriceBook,
        with_specs,
    )
    from loopwright.operations.dry_run.simulation import rehearse  # noqa: PLC0415 - help stays quick
    from loopwright.operations.preflight import dry_run_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import check_worktree_programs  # noqa: PLC0415 - help stays quick

    rules = CostRules(book=PriceBook(terminal.settings.prices), purse=terminal.settings.budget)
    default, force = request.agent or terminal.settings.agent, bool(request.agent)
    plan = with_specs(start.plan, default, request.agents, force=force)
    for limited in limit_warnings(plan, start.workspace):
        terminal.say(f"warning: {limited}", tone="warn")
    warn_unconfined(terminal, plan)
    check_worktree_programs(terminal.settings, start)
    warnings: list[JsonValue] = [*dry_run_warnings(start, checks=checks)]
    for missing in warnings:
        terminal.say(f"warning: {missing}", tone="warn")
    shown = rehearse(start.plan).as_dict()
    limits: list[JsonValue] = [*rules.enforcement(plan)]
    put_dry_run(terminal, {**shown, "limits": limits, "warnings": warnings})
    return 0


def _start_here(terminal: Terminal, start: "RunStart", manner: "AttachOptions") -> int:
    """Start a run and drive it until it rests."""
    from loopwright.cli.attach import RunCursor, drive  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_start import launch_run  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_workspaces import start_notes  # noqa: PLC0415 - help stays quick

    async def begin(here: "Local") -> list[RunCursor]:
        run = await launch_run(here.service, start, is_checked=True)  # `launch` has checked it
        for note in start_notes(here.service, run):
            terminal.say(note, tone="warn" if note.startswith("warning") else "plain")
        return [RunCursor(run, seen=0)]

    return drive(terminal, begin, manner)


def _start_detached(terminal: Terminal, start: "RunStart") -> int:
    """Create a run and let a process in the background drive it."""
    from loopwright.operations.background_runs import start_in_background  # noqa: PLC0415 - help stays quick

    put_detached(
        terminal, start_in_background(terminal.settings, start, alone=terminal.options.here)
    )
    return 0


def put_detached(terminal: Terminal, started: "Detached") -> None:
    """A run that another process drives."""
    for note in started.notes:
        terminal.say(note, tone="warn" if note.startswith("warning") else "plain")
    if terminal.as_json:
        terminal.put_json(started.summary)
    else:
        terminal.put(started.run)
        who = "on the local server, process" if started.served else "in process"
        terminal.say(f"running {who} {started.pid}; `loopwright watch {started.run}` shows it")
