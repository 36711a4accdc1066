"""`convert`: any dialect to a native definition."""

from pathlib import Path

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright convert assistant.json", "on stdout"),
        ("loopwright convert workflow.yaml --to native -o flow.yaml", "into a file"),
    ],
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write it there.")
@click.option(
    "--to",
    type=click.Choice(["native"]),
    default="native",
    show_default=True,
    expose_value=False,  # there is one
    help="The language to write.",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.pass_context
def convert(
    ctx: click.Context, /, *, file: str, output: str | None, force: bool, dialect: str | None
) -> None:
    """Write a definition of any dialect as a native one that means the same.

    What is written has been read back and gave the same plan. What the native language has no
    words for is an error that names it.
    """
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
