"""`version`."""

import platform
import sqlite3

import click

from loopwright import __version__
from loopwright.cli.verb import Verb, door_of


@click.command(cls=Verb)
@click.pass_context
def version(ctx: click.Context, /) -> None:
    """The version of loopwright, and of what it stands on."""
    door = door_of(ctx)
    found = {
        "loopwright": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
    }
    if door.as_json:
        door.put_json(found)
    else:
        door.put(f"loopwright {__version__}")
        door.say(f"python {found['python']}, sqlite {found['sqlite']}, {found['platform']}")


VERBS = {"version": version}
