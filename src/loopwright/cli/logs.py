"""`logs`: what agents, checks and people said in a run."""

import sys
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door
from loopwright.cli.looking import looking
from loopwright.cli.texts import cleaned, one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.views.logbook import Entry


@click.command(
    cls=Verb,
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
    from loopwright.app.following import follow as following  # noqa: PLC0415 - help stays quick
    from loopwright.app.views.logbook import Logbook  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with looking(door) as service:
        run = service.find(run)
        first = service.facts(run)[0].fact
        book = Logbook(service.plan(first), service.read_text)
        facts = following(service, run) if follow else iter(service.facts(run))
        entries = (entry for entry in map(book.take, facts) if entry is not None)
        if door.as_json:
            door.put_json({"run": run, "entries": [entry.as_dict() for entry in entries]})
            return
        for entry in entries:
            _put(door, entry)


def _put(door: Door, entry: "Entry") -> None:
    rule = "──" if door.has_signs(sys.stdout) else "--"
    place = f"{entry.path} " if entry.path else ""
    title = f"{rule} {place}{one_line(entry.title)} {rule}"
    door.put(door.painted(title, "bold", sys.stdout))
    text = cleaned(entry.text).strip("\n")
    if text:
        door.put(f"{text}\n")


VERBS = {"logs": logs}
