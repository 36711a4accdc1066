"""`schema`: the JSON Schema of a dialect."""

import json
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_dialects
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue


@click.command(
    cls=Verb,
    examples=[("loopwright schema > loop.schema.json", "for editors: see `loopwright init`")],
)
@click.argument("dialect", metavar="[DIALECT]", default="native", shell_complete=complete_dialects)
@click.pass_context
def schema(ctx: click.Context, /, *, dialect: str) -> None:
    """The JSON Schema of a dialect. Default: the native one."""
    from loopwright.app.dialects import dialect as find  # noqa: PLC0415 - help stays quick

    found: dict[str, JsonValue] = find(dialect).json_schema()
    door = door_of(ctx)
    if door.as_json:
        door.put_json(found)
    else:
        door.put(json.dumps(found, indent=2))


VERBS = {"schema": schema}
