"""`run` and `loop`: start a run of a definition, or of a loop without a file."""

import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from loopwright.cli.completion import STORED, complete_dialects, complete_stored_runs
from loopwright.cli.start_options import STDIN, STDIN_NAME, launch, piped_definition, start_options
from loopwright.cli.verb import Verb
from loopwright.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    from loopwright.operations.loop_definition import LoopOptions  # noqa: PLC0415 - quick help

    kinds = ("commands", "patterns", "signals", "judges", "manual", "memory")
    checks = {kind: options.pop(kind) for kind in kinds}
    checks |= {"max": options.pop("most"), "criteria": not options.pop("no_criteria")}
    # click has checked their kinds
    source = LoopOptions(**cast("dict[str, Any]", checks))
    return launch(ctx, source, options, checks="--until-command")


VERBS = {
    "run": run,
    "loop": loop,
}
