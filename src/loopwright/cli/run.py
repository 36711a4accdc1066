"""`run`: a definition of any dialect."""

import sys

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.starting import launch, start_options
from loopwright.cli.verb import Verb

STDIN = "-"


@click.command(
    cls=Verb,
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
    shown = "(stdin)" if data is not None else file
    return launch(ctx, lambda wish: prepare_file(shown, wish, data=data, dialect=dialect), options)


def _stdin(ctx: click.Context) -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("- reads the definition from stdin, which is a terminal here", ctx)
    return sys.stdin.buffer.read()


VERBS = {"run": run}
