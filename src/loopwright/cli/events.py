"""`events`: the facts of a run, one JSON object per line."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door, as_json
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of
from loopwright.errors import LoopwrightError, StorageError

if TYPE_CHECKING:
    from loopwright.app.service import Service
    from loopwright.model.record import JsonValue

OWN = "own"
"""The value of `--dialect` without a name: the dialect of the definition."""


class _EventsVerb(Verb):
    """Takes the word after `--dialect` as its value only if that is a dialect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from loopwright.app.dialects import NAMES  # noqa: PLC0415 - help stays quick

        for number, word in enumerate(args):
            if word == "--dialect" and args[number + 1 : number + 2] not in [[n] for n in NAMES]:
                args[number] = f"--dialect={OWN}"
        return super().parse_args(ctx, args)


@click.command(
    cls=_EventsVerb,
    remote=True,
    watches=True,
    examples=[
        ("loopwright events run_01 | jq .kind", ""),
        ("loopwright events run_01 --after 40 --follow", "events after a number, live"),
        ("loopwright events run_01 --dialect", "as the system of its definition names them"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--after",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    metavar="SEQ",
    help="Skip up to this.",
)
@click.option("--follow", "-f", is_flag=True, help="Follow until the run has ended.")
@click.option(
    "--dialect",
    is_flag=False,
    flag_value=OWN,
    metavar="[NAME]",
    help="The events of the system that the definition was written for, not Loopwright's own. With "
    "NAME: only if that is its dialect.",
)
@click.pass_context
def events(
    ctx: click.Context, /, *, run: str, after: int, follow: bool, dialect: str | None
) -> None:
    """The events of a run as JSON lines (with --json: one object that contains them all)."""
    door, in_dialect = door_of(ctx), dialect is not None
    if follow and door.as_json:
        raise click.UsageError("--json is one object and --follow has no end: leave one out", ctx)
    if door.remote is not None:
        from loopwright.cli.afar import events_afar  # noqa: PLC0415 - only when asked for

        run = door.remote.run(run)
        if dialect not in (None, OWN):
            _check_dialect(str(door.remote.get(f"/api/v1/runs/{run}")["dialect"]), dialect)
        _put(door, run, events_afar(door, run, after, follow=follow, in_dialect=in_dialect))
        return
    with looking(door) as service:
        run = service.find(run)
        if dialect not in (None, OWN):
            _check_dialect(service.log.row(run).headline.dialect, dialect)
        if follow or in_dialect:
            _put(door, run, _told(service, run, after, follow=follow, in_dialect=in_dialect))
        else:
            _put(door, run, _recorded(door, service, run, after))


def _check_dialect(found: str, wanted: str | None) -> None:
    if found != wanted:
        raise LoopwrightError(
            f"the definition of this run is in the dialect {found}, not {wanted}",
            code="no-events",
            hint=f"leave {wanted} out, or write --dialect {found}",
        )


def _put(door: Door, run: str, told: "Iterable[dict[str, JsonValue]]") -> None:
    if door.as_json:
        door.put_json({"run": run, "events": list(told)})
        return
    for one in told:
        door.put(as_json(one))


def _recorded(
    door: Door, service: "Service", run: str, after: int
) -> "Iterator[dict[str, JsonValue]]":
    """Everything that is recorded; what was changed by hand is shown too, and said to be that."""
    from loopwright.app.views.wire import fact_on_wire  # noqa: PLC0415 - help stays quick

    try:
        facts = service.facts(run, after=after)
    except StorageError as error:
        facts = service.log.read(run, after=after, as_is=True) if error.code == "damaged" else []
        if not facts:
            raise
        door.tell(f"warning: {error.message}", tone="warn")
    return (fact_on_wire(run, one) for one in facts)


def _told(
    service: "Service", run: str, after: int, *, follow: bool, in_dialect: bool
) -> "Iterator[dict[str, JsonValue]]":
    from loopwright.app.following import follow as following  # noqa: PLC0415 - help stays quick
    from loopwright.app.views.telling import told  # noqa: PLC0415 - help stays quick
    from loopwright.app.views.wire import fact_on_wire  # noqa: PLC0415 - help stays quick

    # An event may stand for facts before it, so all of them are looked at.
    first = 0 if in_dialect else after
    facts = following(service, run, first) if follow else iter(service.facts(run, after=first))
    if in_dialect:
        return told(service, run, facts, after)
    return (fact_on_wire(run, one) for one in facts)


VERBS = {"events": events}
