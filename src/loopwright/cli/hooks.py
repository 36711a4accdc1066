"""`hook`: messages from elsewhere that start runs at a server of this home."""

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from loopwright.cli.cells import table
from loopwright.cli.door import Door
from loopwright.cli.looking import terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import CONTEXT, Verb, common_options, door_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.incoming import Hooks

MOST_AT_ONCE = 100


@contextmanager
def _hooks(door: Door) -> "Iterator[Hooks]":
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.definitions import Definitions  # noqa: PLC0415 - help stays quick
    from loopwright.app.incoming import Hooks  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        access = Access(log, SystemClock())
        yield Hooks(access, Definitions(log, access))


def _me() -> str:
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    return current_user()


@click.command("ls", cls=Verb)
@click.pass_context
def hook_ls(ctx: click.Context, /) -> None:
    """Hooks, never their secrets."""
    door = door_of(ctx)
    with _hooks(door) as hooks:
        found = hooks.all()
        waiting = {one.name: len(hooks.at("waiting", one.name)) for one in found}
    if door.as_json:
        listed = [
            {
                "name": one.name,
                "stored": one.definition,
                "at_once": one.at_once,
                "waiting": waiting[one.name],
                "problem": one.problem or None,
            }
            for one in found
        ]
        door.put_json({"hooks": listed})
        return
    rows = [["NAME", "RUNS", "AT ONCE", "WAITING", "PROBLEM"]]
    for one in found:
        counts = [str(one.at_once), str(waiting[one.name])]
        rows.append([one.name, one.definition, *counts, one_line(one.problem)])
    for line in table(rows, terminal_width()) if found else ():
        door.put(line)
    if not found:
        door.say("there are no hooks; `loopwright hook add NAME --run STORED` makes one")


@click.command(
    "add",
    cls=Verb,
    examples=[("loopwright hook add issues --run triage", "its secret is printed once, on stdout")],
)
@click.argument("name", metavar="NAME")
@click.option("--run", "stored", required=True, metavar="STORED", help="A stored definition.")
@click.option("--message", default="", metavar="TEXT", help="Said before the words that come in.")
@click.option(
    "--at-once",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=4,
    show_default=True,
    help="Runs of it at the same time; other messages wait.",
)
@click.pass_context
def hook_add(ctx: click.Context, /, *, name: str, stored: str, message: str, at_once: int) -> None:
    """Let messages that are posted to /api/v1/hooks/NAME start runs of a stored definition.

    Senders sign by the rules of Standard Webhooks, with the secret that is printed now.
    """
    door = door_of(ctx)
    with _hooks(door) as hooks:
        made = hooks.add(name, stored, by=_me(), message=message, at_once=at_once)
    if door.as_json:
        path = f"/api/v1/hooks/{name}"
        door.put_json({"name": name, "stored": stored, "secret": made.secret, "path": path})
    else:
        door.put(made.secret)


@click.command("rm", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def hook_rm(ctx: click.Context, /, *, name: str) -> None:
    """End a hook; messages of it that wait are let go."""
    door = door_of(ctx)
    with _hooks(door) as hooks:
        hooks.remove(name, by=_me())
    if door.as_json:
        door.put_json({"name": name, "removed": True})
    else:
        door.say(f"{name} is gone")


_GROUP = click.Group(
    "hook",
    help="Messages from elsewhere that start runs at a server of this home.",
    context_settings=CONTEXT,
    params=common_options(),
    commands={"ls": hook_ls, "add": hook_add, "rm": hook_rm},
)
_GROUP.no_args_is_help = True

VERBS = {"hook": _GROUP}
