"""`init`: a definition that works at once."""

import os
import shlex
from pathlib import Path

import click

from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[("loopwright init", "here"), ("loopwright init loops", "in a folder of its own")],
)
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path())
@click.option("--force", is_flag=True, help="Overwrite files of the same name.")
@click.pass_context
def init(ctx: click.Context, /, *, folder: str, force: bool) -> None:
    """Write a commented definition that runs without any key, with all it needs."""
    from loopwright.app.init_files import DEFINITION, write_files  # noqa: PLC0415 - quick help

    door = door_of(ctx)
    place = Path(folder)
    written = [os.path.normpath(file) for file in write_files(place, force=force)]
    command = f"loopwright run {shlex.quote(os.path.normpath(place / DEFINITION))}"
    if door.as_json:
        door.put_json({"files": written, "next": command})
        return
    for file in written:
        door.say(f"written: {file}")
    door.say("now run:")
    door.put(command)


VERBS = {"init": init}
