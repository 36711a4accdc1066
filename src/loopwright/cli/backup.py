"""`backup`: a copy of everything that runs are made of, while they go on."""

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

    To use it, put it into a data directory as `loopwright.db`. Workspaces and artifacts are not
    part of it.
    """
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    with closing(open_log(door.settings)) as log:
        log.backup(file)
        runs = len(log.rows())
    size = file.stat().st_size
    if door.as_json:
        door.put_json({"file": str(file), "bytes": size, "runs": runs})
    else:
        door.say(f"{file}: {runs} runs, {size:,} bytes")


VERBS = {"backup": backup}
