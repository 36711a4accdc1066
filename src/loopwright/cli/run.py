"""`run` and `loop`: start a run of a definition, or of a loop without a file."""

import os
import re
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from loopwright.cli.completion import STORED, complete_dialects, complete_stored_runs
from loopwright.cli.start_options import (
    STDIN,
    STDIN_NAME,
    StartManner,
    piped_definition,
    put_detached,
    say_notes,
    start_options,
)
from loopwright.cli.terminal import Terminal, names_in, tools_in
from loopwright.cli.verb import Verb, terminal_of
from loopwright.errors import NotFound
from loopwright.model.sandbox import NO_MATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.run_output import AttachOptions
    from loopwright.client.client import Client
    from loopwright.client.transport import RunFeed
    from loopwright.model.plan import Plan
    from loopwright.model.sandbox import SandboxLevel
    from loopwright.operations.dialects import ParsedDefinition
    from loopwright.operations.loop_definition import LoopOptions
    from loopwright.operations.run_request import LocalStart, RunStart
    from loopwright.operations.run_start import DefinitionSource, StartChoices

NO_MESSAGE = "(dry run)"  # a dry run asks for nothing
MOST_SEARCHED = 200
"""The maximum number of workflow files that are searched for a name."""


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        ("loopwright run fix.yaml", "run it until it ends or needs a person"),
        ('loopwright run fix.yaml "Only the parser tests" --agent script:replies.yaml', ""),
        ('loopwright run harness "Add a cache to the API"', "a definition by its name"),
        ("loopwright run stored:triage", "one that `loopwright stored` keeps"),
        (
            "loopwright run fix.yaml --json --no-wait",
            "for scripts: one object, exit code 5 at a gate",
        ),
    ],
)
@click.argument("file", metavar="FILE", shell_complete=complete_stored_runs)
@click.argument("message", metavar="[MESSAGE]", required=False)
@click.option(
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialects,
    help="Skip dialect detection.",
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="Value of an input.")
@click.option(
    "--max",
    "most",
    metavar="N",
    type=click.IntRange(1, 1_000),
    help="Maximum number of iterations of the loop; overrides the definition.",
)
@click.option("--promoted", is_flag=True, help="Start only if exactly this text was promoted.")
@start_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    file: str,
    dialect: str | None,
    promoted: bool,
    most: int | None,
    **options: object,
) -> int:
    """Run a definition. MESSAGE is the task and replaces the goal of the definition.

    FILE may be the name of a definition that `loopwright definitions` lists, stored:NAME for one
    that `loopwright stored` keeps here or at the server, or - for stdin. Files that it names are
    looked for beside it, and sent with it to a remote server.
    """
    from loopwright.operations.run_start import DefinitionSource, named_source  # noqa: PLC0415 - quick help

    options |= {"max": most, "promoted": promoted}
    if file.startswith(STORED) and not os.path.lexists(file):
        if dialect is not None:
            raise click.UsageError("--dialect is not for stored definitions: theirs is known", ctx)
        return launch(ctx, None, {**options, "stored": file.removeprefix(STORED)})
    if file == STDIN:
        data = piped_definition(ctx)
        source = DefinitionSource(file=STDIN_NAME, data=data, dialect=dialect, files=Path.cwd())
    else:
        source = named_source(file, dialect)
    with _path_hints(source.file):
        return launch(ctx, source, options)


@contextmanager
def _path_hints(name: str) -> "Iterator[None]":
    """For a name that no definition has: say that it is a folder, or that of a workflow file."""
    try:
        yield
    except NotFound as error:
        if error.code == "unknown-definition":
            error.hint = _path_hint(name) or error.hint
        raise


def _path_hint(name: str) -> str:
    if Path(name).is_dir():
        return f"it is a folder; name a file in it, or check all: loopwright import {name}"
    named = re.compile(rf"^name:\s*[\"']?{re.escape(name)}[\"']?\s*$", re.MULTILINE)
    for file in sorted(Path(".archon/workflows").glob("**/*.y*ml"))[:MOST_SEARCHED]:
        with suppress(OSError):
            if file.stem == name or named.search(file.read_text("utf-8", errors="replace")):
                return f"name its file: loopwright run {file}"
    return ""


MEMORIES = ("progress-log", "previous-output", "session", "none")


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        (
            'loopwright loop "Make the tests pass" --agent command:./agent --until-command pytest',
            "repeat an agent until a command succeeds, at most 10 times",
        ),
        (
            'loopwright loop "Write a haiku" --agent command:./agent --manual --max 3',
            "a person reviews each iteration",
        ),
        (
            'loopwright loop "Write the report" --agent claude --until-judge "Claims have sources"',
            "an agent judges each iteration",
        ),
    ],
)
@click.argument("message", metavar="MESSAGE")
@click.option(
    "--until-command",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help="Done when this program succeeds. No shell is involved; in `a && b` the programs run in "
    "order. May be given more than once.",
)
@click.option(
    "--until-regex",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Done when the output matches.",
)
@click.option(
    "--until-signal",
    "signals",
    multiple=True,
    metavar="WORD",
    help="Done when the agent says this word alone on its last line.",
)
@click.option(
    "--until-judge",
    "judges",
    multiple=True,
    metavar="TEXT",
    help="Done when an agent decides that this is true: the same agent in a separate session, or "
    "another one with --agent judge=SPEC.",
)
@click.option(
    "--manual",
    is_flag=True,
    help="A person reviews each iteration that has passed the other checks.",
)
@click.option(
    "--max",
    "most",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Maximum number of iterations.",
)
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
    default=MEMORIES[0],
    show_default=True,
    metavar="KIND",
    help=f"What an iteration receives about earlier ones: {', '.join(MEMORIES)}.",
)
@click.option(
    "--no-criteria",
    is_flag=True,
    help="Do not add the completion criteria and the failed checks to the agent's prompt.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value that the prompt states below the message. May be given more than once.",
)
@start_options
@click.pass_context
def loop(ctx: click.Context, /, **options: object) -> int:
    """Repeat one agent until it is done. MESSAGE is the task.

    Several --until options (and --manual) must all hold in the same iteration. Without any of them
    the loop makes all its iterations. The prompt states these criteria and, after an
    iteration, which of them failed.
    """
    from loopwright.operations.loop_definition import LoopOptions  # noqa: PLC0415 - quick help

    kinds = ("commands", "patterns", "signals", "judges", "manual", "memory")
    checks = {kind: options.pop(kind) for kind in kinds}
    checks |= {"max": options.pop("most"), "criteria": not options.pop("no_criteria")}
    # click has checked their kinds
    source = LoopOptions(**cast("dict[str, Any]", checks))
    return launch(ctx, source, options, checks="--until-command")


# -- starting --------------------------------------------------------------------------------------


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
    start_options = cast("StartManner", shown)  # click has checked the kinds of all options
    if start_options["jsonl"] and terminal.as_json:
        raise click.UsageError("--json and --jsonl exclude each other", ctx)
    if start_options["jsonl"] and start_options["detach"]:
        message = "--detach prints no events; `loopwright watch RUN --jsonl` prints them"
        raise click.UsageError(message, ctx)
    if start_options["dry_run"]:
        options["message"] = options["message"] or NO_MESSAGE
    choices = cast("StartChoices", options)
    options |= {name: names_in(choices[name]) for name in ("allow", "deny", "ask")}
    choices["tools"] = tools_in(choices["tools"])
    request = start_request(choices)
    if terminal.server_url:
        from loopwright.cli.remote_start import start_remote  # noqa: PLC0415 - only when asked for

        return start_remote(terminal, request, source, start_options)
    start, definition = _prepare(terminal, request, source, start_options)
    return _start_prepared(terminal, request, start, definition, start_options, checks)


def _prepare(
    terminal: Terminal,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
    options: StartManner,
) -> "tuple[RunStart, ParsedDefinition]":
    """The definition and its start. It may name files: those of Loopwright itself are not read."""
    from loopwright.operations.run_start import StartPlace, prepare_start  # noqa: PLC0415 - quick help
    from loopwright.operations.workspace_rules import keep_files_private  # noqa: PLC0415 - help stays quick

    keep_files_private(terminal.settings)
    place = StartPlace(
        settings=terminal.settings,
        can_ask=terminal.can_ask and not (options["no_wait"] or options["detach"]),
        needs_agents=not options["dry_run"],
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
    options: StartManner,
    checks: str,
) -> int:
    """Show what is doubtful about a start, and start it."""
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick
    from loopwright.operations.agents.permissions import (  # noqa: PLC0415 - help stays quick
        limit_warnings,
        unsupported_options,
    )
    from loopwright.operations.cost_limits import token_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.preflight import preflight, shadow_warnings  # noqa: PLC0415 - quick help
    from loopwright.operations.run_variables import keep_variables  # noqa: PLC0415 - help stays quick
    from loopwright.operations.workspace_rules import (  # noqa: PLC0415 - quick help
        decide_snapshots,
        unmatched_patterns,
    )

    dry = options["dry_run"]
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
    for pattern in unmatched_patterns(plan.workspace.protect, start.workspace):
        terminal.say(
            f"warning: --protect {pattern} matches no file in {start.workspace}", tone="warn"
        )
    for missing in preflight(start, checks=checks):
        terminal.say(f"warning: {missing}", tone="warn")
    shown = AttachOptions(
        no_wait=options["no_wait"],
        jsonl=options["jsonl"],
        foreign_codes=options["exit_codes"] == "dialect",
    )
    with keep_variables(terminal.settings.home, start) as named:
        if options["detach"]:
            return _start_detached(terminal, named, definition)
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


def _rehearse(terminal: Terminal, start: "RunStart", request: "LocalStart", checks: str) -> int:
    """Show how a run could end."""
    from loopwright.cli.charts import put_dry_run  # noqa: PLC0415 - help stays quick
    from loopwright.operations.agents.permissions import limit_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.cost_limits import (  # noqa: PLC0415 - help stays quick
        CostRules,
        PriceBook,
        with_specs,
    )
    from loopwright.operations.dry_run.simulation import simulate  # noqa: PLC0415 - help stays quick
    from loopwright.operations.preflight import dry_run_warnings  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import check_worktree_programs  # noqa: PLC0415 - help stays quick

    rules = CostRules(book=PriceBook(terminal.settings.prices), budget=terminal.settings.budget)
    default, force = request.agent or terminal.settings.agent, bool(request.agent)
    plan = with_specs(start.plan, default, request.agents, force=force)
    for limited in limit_warnings(plan, start.workspace):
        terminal.say(f"warning: {limited}", tone="warn")
    warn_unconfined(terminal, plan)
    check_worktree_programs(terminal.settings, start)
    warnings = [*dry_run_warnings(start, checks=checks)]
    for missing in warnings:
        terminal.say(f"warning: {missing}", tone="warn")
    put_dry_run(terminal, simulate(start.plan).report(rules.enforcement(plan), warnings))
    return 0


def _start_here(terminal: Terminal, start: "RunStart", options: "AttachOptions") -> int:
    """Start a run and follow it until it ends or waits."""
    from loopwright.cli.attach import feed_options, follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases.local_runs import (  # noqa: PLC0415 - help stays quick
        PreparedStart,
        start_prepared,
    )

    async def begin(client: "Client") -> "list[RunFeed]":
        made = await client.call(start_prepared, PreparedStart(start=start))
        say_notes(terminal, made.notes)
        return [await client.open_feed(made.run, 0, feed_options(terminal))]

    return follow_runs(terminal, begin, options)


def _start_detached(terminal: Terminal, start: "RunStart", definition: "ParsedDefinition") -> int:
    """Create a run and let a process in the background drive it."""
    from loopwright.operations.background_runs import start_in_background  # noqa: PLC0415 - help stays quick
    from loopwright.operations.problems import rendered  # noqa: PLC0415 - help stays quick

    started = start_in_background(terminal.settings, start, alone=terminal.options.here)
    started.summary.warnings[:0] = rendered(definition.warnings)
    say_notes(terminal, started.notes)
    put_detached(terminal, started.summary, where=started.where)
    return 0


VERBS = {
    "run": run,
    "loop": loop,
}
