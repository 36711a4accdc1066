"""`spend`: what runs have cost."""

import sys
import time
from typing import TYPE_CHECKING

import click

from loopwright.cli.cells import bill, table, used_tokens
from loopwright.cli.door import Door
from loopwright.cli.looking import looking, terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.spend import By
    from loopwright.model.record import JsonValue


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright spend", "what each agent has cost"),
        ("loopwright spend --since 7d --by day", "the last seven days"),
    ],
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Only since then: a duration (7d), a date (2026-11-01), today or yesterday, UTC.",
)
@click.option(
    "--by",
    type=click.Choice(["agent", "definition", "label", "day"]),
    default="agent",
    show_default=True,
    metavar="WHAT",
    help="Group by agent, definition, label or day.",
)
@click.pass_context
def spend(ctx: click.Context, /, *, since: str | None, by: "By") -> None:
    """Show what runs have spent, and how much of the limits of all runs is used.

    Amounts are counted by day (UTC) when a call ends. Calls of unknown cost are only counted.
    """
    from loopwright.app.spend import since_ms  # noqa: PLC0415 - help stays quick
    from loopwright.app.spend import spend as spend_of  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if door.remote is not None:
        told = door.remote.get("/api/v1/spend", since=since, by=by)
    else:
        now = int(time.time() * 1_000)
        start = None if since is None else since_ms(since, now)
        with looking(door) as service:
            purse = door.settings.budget
            told = spend_of(service.log, by=by, since=start, purse=purse, now_ms=now)
    if door.as_json:
        door.put_json(told)
    else:
        _put(door, told)


def _put(door: Door, told: "dict[str, JsonValue]") -> None:
    from loopwright.app.spend import limit_text  # noqa: PLC0415 - help stays quick

    rows = [["COST", "TOKENS", "CALLS", "RUNS", str(told["by"]).upper()]]
    lines = [one for one in _list(told["lines"]) if isinstance(one, dict)]
    total = told["total"]
    assert isinstance(total, dict)
    rows += [_row(one, one_line(str(one["name"]))) for one in lines]
    rows.append(_row(total, "total"))
    heading, *others = table(rows, terminal_width())
    door.put(door.painted(heading, "dim", sys.stdout))
    for text in others[:-1]:
        door.put(text)
    door.put(door.painted(others[-1], "bold", sys.stdout))
    unused = int(str(told.get("runs_without_usage", 0)))  # an older server does not say
    if unused:
        were = "1 run without usage is" if unused == 1 else f"{unused:,} runs without usage are"
        door.say(f"{were} not listed", tone="dim")
    for limit in _list(told["limits"]):
        door.put(limit_text(limit))
    if told["left_out"]:
        door.say(f"{len(_list(told['left_out']))} damaged runs are not counted", tone="warn")


def _row(one: "dict[str, JsonValue]", name: str) -> list[str]:
    return [bill(one), used_tokens(one) or "unknown", str(one["calls"]), str(one["runs"]), name]


def _list(value: "JsonValue") -> "list[JsonValue]":
    assert isinstance(value, list)
    return value


VERBS = {"spend": spend}
