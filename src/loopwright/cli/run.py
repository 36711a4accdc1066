"""`run`: a definition of any dialect."""

import sys
from pathlib import Path

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.starting import launch, start_options
from loopwright.cli.verb import Verb, door_of

STDIN = "-"


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright run fix.yaml", "drive it here until it rests"),
        ('loopwright run fix.yaml "Only the parser tests" --agent script:replies.yaml', ""),
        (
            "loopwright run fix.yaml --json --no-wait",
            "for scripts: one object, exit code 5 at a gate",
        ),
    ],
)
@click.argument("file", metavar="FILE")
@click.argument("message", metavar="[MESSAGE]", required=False)
@click.option(
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input by name.")
@start_options
@click.pass_context
def run(ctx: click.Context, /, *, file: str, dialect: str | None, **options: object) -> int:
    """Run a definition. MESSAGE says what is to be done and takes the place of its goal.

    FILE may be - for stdin.
    """
    from loopwright.app.preparing import prepare_file  # noqa: PLC0415 - help stays quick

    data = _stdin(ctx) if file == STDIN else None
    if door_of(ctx).remote is not None:
        return _run_afar(ctx, _bytes(file) if data is None else data, dialect, options)
    shown = "(stdin)" if data is not None else file
    return launch(ctx, lambda wish: prepare_file(shown, wish, data=data, dialect=dialect), options)


def _run_afar(
    ctx: click.Context, data: bytes, dialect: str | None, options: dict[str, object]
) -> int:
    from loopwright.cli.afar import Start  # noqa: PLC0415 - only when asked for

    return Start(ctx, door_of(ctx)).run(data, dialect, options)


def _bytes(file: str) -> bytes:
    from loopwright.app.dialects import definition_bytes  # noqa: PLC0415 - help stays quick

    return definition_bytes(Path(file))


def _stdin(ctx: click.Context) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("- reads the definition from stdin, which is a terminal here", ctx)
    return sys.stdin.buffer.read()


VERBS = {"run": run}
