"""`init`: a definition that works at once."""

import os
import shlex

import click

from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright init", "loop.yaml, here"),
        ("loopwright init loops", "in a folder of its own"),
        ("loopwright init loops/haiku.yaml", "under a name of its own"),
    ],
)
@click.argument("place", metavar="[DIR|FILE]", default=".", type=click.Path())
@click.option("--force", is_flag=True, help="Overwrite files of the same name.")
@click.pass_context
def init(ctx: click.Context, /, *, place: str, force: bool) -> None:
    """Write a commented definition that runs without any key, with all it needs.

    A name that ends in .yaml or .yml is the file to write, any other is a folder.
    """
    from loopwright.app.init_files import names_for, write_files  # noqa: PLC0415 - quick help

    door = door_of(ctx)
    files = write_files(names_for(place), force=force)
    written = [os.path.normpath(file) for file in files]
    command = f"loopwright run {shlex.quote(written[0])}"
    if door.as_json:
        door.put_json({"files": written, "next": command})
        return
    for file in written:
        door.say(f"written: {file}")
    door.say("now run:")
    door.put(command)


VERBS = {"init": init}
