"""`inbox`: what waits for a person."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from loopwright.app.views.place_words import place_words
from loopwright.cli.calls import arguments_line, changed_line, exposed_lines
from loopwright.cli.cells import duration, table
from loopwright.cli.door import Door
from loopwright.cli.looking import looking, terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright inbox", ""),
        ("loopwright approve gate_5f", "the beginning of an id is enough"),
    ],
)
@click.pass_context
def inbox(ctx: click.Context, /) -> None:
    """What waits for a person, oldest first."""
    door = door_of(ctx)
    if door.remote is not None:
        items = door.remote.gates()
    else:
        with looking(door) as service:
            from loopwright.app.views.listing import inbox_items  # noqa: PLC0415 - quick help

            items = inbox_items(service)
    if door.as_json:
        door.put_json({"gates": items})
    else:
        put_inbox(door, items)


def put_inbox(door: Door, items: "list[dict[str, JsonValue]]") -> None:
    """What waits for a person, as a table."""
    if not items:
        door.say("nothing waits for a person")
        return
    rows = [["GATE", "RUN", "AGE", "WHAT"]]
    for item in items:
        opened = datetime.fromisoformat(str(item["opened_at"])).timestamp()
        age = duration(int((time.time() - opened) * 1_000))
        changed = f" · {words}" if (words := changed_line(item)) else ""
        place = f" ({words})" if (words := place_words(str(item["path"]))) else ""
        what = one_line(f"{item['name']}{place}: {item['message']}{_given(item)}{changed}")
        rows.append([str(item["id"]), str(item["run"]), age, what])
    head, *lines = table(rows, terminal_width())
    door.put(door.painted(head, "dim", sys.stdout))
    for line in lines:
        door.put(line)
    for item in items:
        for line in exposed_lines(item):
            door.put(line)
    door.say("`loopwright show RUN` shows what it is about; approve, reject or continue decides")


def _given(item: "dict[str, JsonValue]") -> str:
    """What a tool would be given, on the same line."""
    call = item.get("call")
    return f" {arguments_line(call['arguments'])}" if isinstance(call, dict) else ""


VERBS = {"inbox": inbox}
