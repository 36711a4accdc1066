"""`roles`: what an agent can be told to be, and how far each of them reaches."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.cells import table
from loopwright.cli.looking import terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.roles import Role


@click.command(
    cls=Verb,
    examples=[
        ("loopwright roles", ""),
        ("loopwright roles reviewer", "what it is told"),
    ],
)
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--workspace", metavar="DIR", help="The project whose roles count (else this folder)."
)
@click.pass_context
def roles(ctx: click.Context, /, name: str | None, workspace: str | None) -> int:
    """The roles that agents can have: built-in, of the data directory (roles/*.md) and of the
    project (.loopwright/roles/*.md and workspace/roles/*.md). A file that cannot be used is listed
    with what is wrong.
    """
    from loopwright.app.roles import find_role, find_roles  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    found = find_roles(door.settings.home, Path(workspace) if workspace else Path.cwd())
    if name is not None:
        role = find_role(name, found)
        if door.as_json:
            door.put_json(asdict(role))
        else:
            door.put(role.instructions)
        return 0
    bad = [role for role in found.values() if role.problem]
    if door.as_json:
        door.put_json({"roles": [asdict(role) for role in found.values()]})
    else:
        rows = [["NAME", "ACCESS", "TURNS", "FROM", "WHAT"]]
        rows += [_row(role) for role in found.values()]
        head, *lines = table(rows, terminal_width())
        door.put(door.painted(head, "dim", sys.stdout))
        for line in lines:
            door.put(line)
    for role in found.values():
        for warning in role.warnings:
            door.tell(f"{role.file}: {warning}", tone="warn")
    for role in bad:
        door.tell(f"{role.file}: {role.problem}", tone="bad")
    return 1 if bad else 0


def _row(role: "Role") -> list[str]:
    turns = str(role.max_turns) if role.max_turns is not None else "-"
    what = one_line(role.description) if role.problem is None else "cannot be used, see below"
    return [role.name, role.access or "-", turns, role.place, what]


VERBS = {"roles": roles}
