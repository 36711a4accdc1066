"""`run` and `loop`: start a run of a definition, or of a loop without a file."""

import os
import re
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import click

from loopwright.cli.completion import STORED, complete_dialects, complete_stored_runs
from loopwright.cli.start_options import STDIN, STDIN_NAME, launch, piped_definition, start_options
from loopwright.cli.verb import Verb, terminal_of
from loopwright.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.remote_commands import RemoteStart as StartAfar
    from loopwright.operations.dialects import ParsedDefinition
    from loopwright.operations.run_request import RunStart
    from loopwright.operations.run_start import StartOptions

MOST_SEARCHED = 200
"""The maximum number of workflow files that are searched for a name."""


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        ("loopwright run fix.yaml", "drive it here until it rests"),
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
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input by name.")
@click.option(
    "--max",
    "most",
    metavar="N",
    type=click.IntRange(1, 1_000),
    help="The most iterations of its loop, instead of what the definition says.",
)
@click.option("--promoted", is_flag=True, help="Only if it was promoted as it is now.")
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
    """Run a definition. MESSAGE says what is to be done and takes the place of its goal.

    FILE may be the name of a definition that `loopwright definitions` lists, stored:NAME for one
    that `loopwright stored` keeps here or at the server, or - for stdin. Files that it names are
    looked for beside it, and sent with it to a remote server.
    """
    from loopwright.operations.run_start import prepare_file  # noqa: PLC0415 - help stays quick

    if file.startswith(STORED) and not os.path.lexists(file):
        if dialect is not None:
            raise click.UsageError("--dialect is not for stored definitions: theirs is known", ctx)
        more = {**options, "max": most, "promoted": promoted}
        return _run_stored(ctx, file.removeprefix(STORED), more)
    data = piped_definition(ctx) if file == STDIN else None
    shown = STDIN_NAME if data is not None else file
    folder = Path.cwd() if data is not None else Path(file).absolute().parent
    if terminal_of(ctx).remote is not None:
        if data is None:
            with _path_hints(file):
                data, dialect = _read(ctx, file, dialect)
        afar = _remote_start(ctx, shown, folder)
        return afar.run(data, dialect, {**options, "max": most, "promoted": promoted})

    def prepare(wish: "StartOptions") -> "tuple[RunStart, ParsedDefinition]":
        told = replace(wish, max=most)
        with _path_hints(shown):
            start, definition = prepare_file(shown, told, data=data, dialect=dialect, files=folder)
        if promoted:
            _check_promoted(ctx, definition, is_stored=False)
        return start, definition

    return launch(ctx, prepare, options)


def _run_stored(ctx: click.Context, name: str, options: dict[str, object]) -> int:
    from loopwright.cli.definitions import definitions_here  # noqa: PLC0415 - only when asked for
    from loopwright.operations.run_start import prepare_file  # noqa: PLC0415 - help stays quick

    if terminal_of(ctx).remote is not None:
        return _remote_start(ctx, name, None).run_stored(options)
    most, promoted = cast("int | None", options.pop("max")), bool(options.pop("promoted"))

    def prepare(wish: "StartOptions") -> "tuple[RunStart, ParsedDefinition]":
        with definitions_here(terminal_of(ctx)) as definitions:
            stored = definitions.runnable(name)
        data, told = stored.text.encode(errors="surrogatepass"), replace(wish, max=most)
        start, definition = prepare_file(stored.name, told, data=data, dialect=stored.dialect)
        if promoted:
            _check_promoted(ctx, definition, is_stored=True)
        return start, definition

    return launch(ctx, prepare, options)


def _check_promoted(ctx: click.Context, definition: "ParsedDefinition", *, is_stored: bool) -> None:
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - only when asked for
    from loopwright.operations.definitions import check_promoted  # noqa: PLC0415 - only when asked for

    with closing(open_log(terminal_of(ctx).settings)) as log:
        check_promoted(log, definition, is_stored=is_stored)


def _remote_start(ctx: click.Context, shown: str, folder: Path | None) -> "StartAfar":
    from loopwright.cli.remote_commands import RemoteStart  # noqa: PLC0415 - only when asked for

    return RemoteStart(ctx, terminal_of(ctx), shown, folder)


def _read(ctx: click.Context, file: str, dialect: str | None) -> tuple[bytes, str | None]:
    """A file, or a definition by name, and its dialect if it is given or known."""
    from loopwright.operations.dialects import OF_LOOPS, definition_bytes  # noqa: PLC0415 - quick help
    from loopwright.operations.library import DefinitionLibrary  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_start import is_name  # noqa: PLC0415 - help stays quick

    if dialect is None and is_name(Path(file)):
        return DefinitionLibrary(terminal_of(ctx).settings.home, Path.cwd()).get(
            file
        ).data, OF_LOOPS
    return definition_bytes(Path(file)), dialect


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


class _LoopOptions(TypedDict):
    """Those of the options that say how the loop goes."""

    commands: tuple[str, ...]
    patterns: tuple[str, ...]
    signals: tuple[str, ...]
    judges: tuple[str, ...]
    manual: bool
    max: int
    memory: str
    criteria: bool


class _TextOptions(TypedDict):
    """Inputs in the definition that they refer to."""

    message: str | None
    name: str | None
    budget: str | None
    inputs: tuple[str, ...]


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
            'loopwright loop "Write the report" --agent claude --until-judge "No claim is bare"',
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
    help="Done when an agent says that this holds. It is the same agent in a session of its own, "
    "or another: --agent judge=SPEC.",
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
    help="The most iterations.",
)
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
    default=MEMORIES[0],
    show_default=True,
    metavar="KIND",
    help=f"What an iteration knows of those before it: {', '.join(MEMORIES)}.",
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
    """Repeat one agent until it is done. MESSAGE says what is to be done.

    Several --until options (and --manual) must all hold in the same iteration. Without any of them
    the loop makes all its iterations. The prompt states these criteria and, after an
    iteration, which of them failed.
    """
    kinds = ("commands", "patterns", "signals", "judges", "manual")
    checks = {key: options.pop(key) for key in kinds}
    checks |= {"max": options.pop("most"), "memory": options.pop("memory")}
    checks["criteria"] = not options.pop("no_criteria")
    shape = cast("_LoopOptions", checks)  # click has checked their kinds

    if terminal_of(ctx).remote is not None:
        return _start_remote_loop(ctx, shape, options)

    def prepare(wish: "StartOptions") -> "tuple[RunStart, ParsedDefinition]":
        from loopwright.operations.run_start import LoopOptions, prepare_loop  # noqa: PLC0415 - quick help

        return prepare_loop(LoopOptions(wish=wish, **shape))

    return launch(ctx, prepare, options, checks="--until-command")


def _start_remote_loop(ctx: click.Context, shape: _LoopOptions, options: dict[str, object]) -> int:
    """On the named server: the definition of the options is sent to it."""
    from loopwright.cli.remote_commands import RemoteStart  # noqa: PLC0415 - only when asked for
    from loopwright.operations.run_start import (  # noqa: PLC0415 - help stays quick
        COMMAND_LINE,
        LoopOptions,
        StartOptions,
        loop_definition,
    )

    given = cast("_TextOptions", options)  # click has checked their kinds
    wish = StartOptions(
        message=given["message"],
        name=given["name"],
        budget=given["budget"],
        inputs=given["inputs"],
    )
    _, data = loop_definition(LoopOptions(wish=wish, **shape))
    afar = RemoteStart(ctx, terminal_of(ctx), COMMAND_LINE)
    return afar.run(data, "native", {**options, "max": None, "promoted": False})


VERBS = {
    "run": run,
    "loop": loop,
}
