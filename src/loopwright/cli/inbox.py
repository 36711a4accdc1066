"""`inbox`: what waits for a person."""

import sys
import time
from datetime import datetime

import click

from loopwright.cli.cells import duration, table
from loopwright.cli.looking import looking, terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright inbox", ""),
        ("loopwright approve gate_5f", "the beginning of an id is enough"),
    ],
)
@click.pass_context
def inbox(ctx: click.Context, /) -> None:
    """What waits for a person, oldest first."""
    door = door_of(ctx)
    with looking(door) as service:
        from loopwright.app.views.listing import gate_item  # noqa: PLC0415 - help stays quick

        items = [gate_item(service, gate) for gate in service.gates()]
    if door.as_json:
        door.put_json({"gates": items})
        return
    if not items:
        door.say("nothing waits for a person")
        return
    rows = [["GATE", "RUN", "AGE", "WHAT"]]
    for item in items:
        opened = datetime.fromisoformat(str(item["opened_at"])).timestamp()
        age = duration(int((time.time() - opened) * 1_000))
        what = one_line(f"{item['name']} {item['path']}: {item['message']}")
        rows.append([str(item["id"]), str(item["run"]), age, what])
    head, *lines = table(rows, terminal_width())
    door.put(door.painted(head, "dim", sys.stdout))
    for line in lines:
        door.put(line)
    door.say("`loopwright show RUN` shows what it is about; approve, reject or continue decides")


VERBS = {"inbox": inbox}
