"""`convert`: any dialect to a native definition."""

from pathlib import Path

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright convert assistant.json", "on stdout"),
        ("loopwright convert assistant.json -o fix.yaml", "into a file"),
    ],
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write it there.")
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.pass_context
def convert(
    ctx: click.Context, /, *, file: str, output: str | None, force: bool, dialect: str | None
) -> None:
    """Write a definition of any dialect as a native one that means the same."""
    from loopwright.app.converting import convert_file  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    target = Path(output) if output else None
    definition, text = convert_file(Path(file), dialect=dialect, target=target, force=force)
    for warning in definition.warnings:
        door.say(warning.render(), tone="warn")
    if door.as_json:
        door.put_json(
            {"file": file, "dialect": definition.dialect, "output": output, "definition": text}
        )
    elif target is None:
        door.put(text)
    else:
        door.say(f"{target} written; `loopwright run {target}` runs it")


VERBS = {"convert": convert}
