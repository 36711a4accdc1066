"""`run`: a definition of any dialect."""

import os
import re
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from loopwright.cli.completing import STORED, complete_dialects, complete_stored_runs
from loopwright.cli.piped import SHOWN, STDIN, piped_definition
from loopwright.cli.starting import launch, start_options
from loopwright.cli.verb import Verb, door_of
from loopwright.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.dialects import Definition
    from loopwright.app.preparing import Wish
    from loopwright.app.run_request import Start
    from loopwright.cli.afar import Start as StartAfar


MOST_SEARCHED = 200
"""So many workflow files are searched for a name."""


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
    looked for beside it, and sent with it to a server elsewhere.
    """
    from loopwright.app.preparing import prepare_file  # noqa: PLC0415 - help stays quick

    if file.startswith(STORED) and not os.path.lexists(file):
        if dialect is not None:
            raise click.UsageError("--dialect is not for stored definitions: theirs is known", ctx)
        more = {**options, "max": most, "promoted": promoted}
        return _run_stored(ctx, file.removeprefix(STORED), more)
    data = piped_definition(ctx) if file == STDIN else None
    shown = SHOWN if data is not None else file
    folder = Path.cwd() if data is not None else Path(file).absolute().parent
    if door_of(ctx).remote is not None:
        if data is None:
            with _path_hints(file):
                data, dialect = _read(ctx, file, dialect)
        afar = _afar(ctx, shown, folder)
        return afar.run(data, dialect, {**options, "max": most, "promoted": promoted})

    def prepare(wish: "Wish") -> "tuple[Start, Definition]":
        told = replace(wish, max=most)
        with _path_hints(shown):
            start, definition = prepare_file(shown, told, data=data, dialect=dialect, files=folder)
        if promoted:
            _check_promoted(ctx, definition, is_stored=False)
        return start, definition

    return launch(ctx, prepare, options)


def _run_stored(ctx: click.Context, name: str, options: dict[str, object]) -> int:
    from loopwright.app.preparing import prepare_file  # noqa: PLC0415 - help stays quick
    from loopwright.cli.stored import definitions_here  # noqa: PLC0415 - only when asked for

    if door_of(ctx).remote is not None:
        return _afar(ctx, name, None).run_stored(options)
    most, promoted = cast("int | None", options.pop("max")), bool(options.pop("promoted"))

    def prepare(wish: "Wish") -> "tuple[Start, Definition]":
        with definitions_here(door_of(ctx)) as definitions:
            stored = definitions.runnable(name)
        data, told = stored.text.encode(errors="surrogatepass"), replace(wish, max=most)
        start, definition = prepare_file(stored.name, told, data=data, dialect=stored.dialect)
        if promoted:
            _check_promoted(ctx, definition, is_stored=True)
        return start, definition

    return launch(ctx, prepare, options)


def _check_promoted(ctx: click.Context, definition: "Definition", *, is_stored: bool) -> None:
    from loopwright.app.opening import open_log  # noqa: PLC0415 - only when asked for
    from loopwright.app.promoting import check_promoted  # noqa: PLC0415 - only when asked for

    with closing(open_log(door_of(ctx).settings)) as log:
        check_promoted(log, definition, is_stored=is_stored)


def _afar(ctx: click.Context, shown: str, folder: Path | None) -> "StartAfar":
    from loopwright.cli.afar import Start  # noqa: PLC0415 - only when asked for

    return Start(ctx, door_of(ctx), shown, folder)


def _read(ctx: click.Context, file: str, dialect: str | None) -> tuple[bytes, str | None]:
    """A file, or what is known by a name here, and its dialect where that is said or known."""
    from loopwright.app.dialects import OF_LOOPS, definition_bytes  # noqa: PLC0415 - quick help
    from loopwright.app.library import Library  # noqa: PLC0415 - help stays quick
    from loopwright.app.preparing import is_name  # noqa: PLC0415 - help stays quick

    if dialect is None and is_name(Path(file)):
        return Library(door_of(ctx).settings.home, Path.cwd()).get(file).data, OF_LOOPS
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


VERBS = {"run": run}
