"""`logs`: what agents, checks and people said in a run."""

import sys
from typing import TYPE_CHECKING

import click

from loopwright.app.views.signs import without_signs
from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door
from loopwright.cli.sources import source
from loopwright.cli.texts import cleaned, one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright logs run_01", "everything that was said"),
        ("loopwright logs run_01 -f", "and what will be, until the run has ended"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.pass_context
def logs(ctx: click.Context, /, *, run: str, follow: bool) -> None:
    """What agents, checks and people said, pass by pass."""
    door = door_of(ctx)
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with source(door, run) as seen:
        entries = seen.entries(follow=follow)
        if door.as_json:
            door.put_json({"run": seen.run, "entries": list(entries)})
            return
        for entry in entries:
            _put(door, entry)


def _put(door: Door, entry: "dict[str, JsonValue]") -> None:
    signs = door.has_signs(sys.stdout)
    rule = "──" if signs else "--"
    place = f"{one_line(str(entry['path']))} " if entry["path"] else ""
    words = str(entry["title"])
    if entry["kind"] == "end" and not signs:
        words = without_signs(words)
    title = f"{rule} {place}{one_line(words)} {rule}"
    door.put(door.painted(title, "bold", sys.stdout))
    text = cleaned(str(entry["text"])).strip("\n")
    if text:
        door.put(f"{text}\n")


VERBS = {"logs": logs}
