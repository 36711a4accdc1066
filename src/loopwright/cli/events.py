"""`events`: the facts of a run, one JSON object per line."""

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import as_json
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright events run_01 | jq .kind", ""),
        ("loopwright events run_01 --after 40 --follow", "go on from a number, live"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Skip up to this.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
@click.pass_context
def events(ctx: click.Context, /, *, run: str, after: int, follow: bool) -> None:
    """The facts of a run as JSON lines (with --json: one object that holds them all)."""
    from loopwright.app.following import follow as following  # noqa: PLC0415 - help stays quick
    from loopwright.app.views.wire import fact_on_wire  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    with looking(door) as service:
        run = service.find(run)
        facts = following(service, run, after) if follow else iter(service.facts(run, after=after))
        if door.as_json:
            door.put_json({"run": run, "events": [fact_on_wire(run, one) for one in facts]})
            return
        for one in facts:
            door.put(as_json(fact_on_wire(run, one)))


VERBS = {"events": events}
