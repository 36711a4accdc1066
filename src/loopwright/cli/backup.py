"""`backup`: a copy of everything that a home has, while runs go on."""

from contextlib import closing
from pathlib import Path

import click

from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[("loopwright backup loopwright-monday.db", "a new file; runs go on meanwhile")],
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def backup(ctx: click.Context, /, *, file: Path) -> None:
    """Copy the log of all runs, people and tokens into a new file.

    Files that were given to runs and sessions go into a folder beside it, FILE.uploads. To use a
    copy, put the file into a data directory as `loopwright.db`, and the folder as `uploads`.
    Workspaces and folders that runs write into are not part of it.
    """
    from loopwright.app.copying import copy_home  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    with closing(open_log(door.settings)) as log:
        copied = copy_home(door.settings, log, file)
        runs = len(log.rows())
    size = file.stat().st_size
    folder = None if copied.folder is None else str(copied.folder)
    if door.as_json:
        told = {"file": str(file), "bytes": size, "runs": runs, "uploads": folder}
        door.put_json({**told, "files": copied.files, "missing": copied.missing})
        return
    door.say(f"{file}: {runs} runs, {size:,} bytes")
    if folder:
        door.say(f"{folder}: {copied.files} files that were given")
    if copied.missing:
        door.tell(f"{copied.missing} files that were given are not there any more", tone="warn")


VERBS = {"backup": backup}
