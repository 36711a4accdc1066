"""`hook`: messages from elsewhere that start runs at a server of this home."""

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import click

from loopwright.cli.completing import complete_stored
from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.incoming import Hooks
    from loopwright.cli.remote import Remote
    from loopwright.model.record import JsonValue

HOOKS = "/api/v1/hooks"
MOST_AT_ONCE = 100


class _Desk(Protocol):
    """Where hooks are kept: here, or at a server elsewhere."""

    def listed(self) -> "list[dict[str, JsonValue]]": ...

    def add(self, name: str, stored: str, *, message: str, at_once: int, allow: bool) -> str:
        """Make one; its secret."""

    def remove(self, name: str) -> None: ...


@contextmanager
def _desk(door: Door) -> "Iterator[_Desk]":
    if door.remote is not None:
        yield _There(door.remote)
        return
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.definitions import Definitions  # noqa: PLC0415 - help stays quick
    from loopwright.app.incoming import Hooks  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        access = Access(log, SystemClock())
        yield _Here(Hooks(access, Definitions(log, access)), current_user())


class _Here:
    """The hooks of this home."""

    def __init__(self, hooks: "Hooks", me: str) -> None:
        self._hooks, self._me = hooks, me

    def listed(self) -> "list[dict[str, JsonValue]]":
        from loopwright.app.views.hooks import hook_items  # noqa: PLC0415 - help stays quick

        return hook_items(self._hooks)

    def add(self, name: str, stored: str, *, message: str, at_once: int, allow: bool) -> str:
        made = self._hooks.add(
            name,
            stored,
            by=self._me,
            message=message,
            at_once=at_once,
            allow_unknown_cost=allow,
        )
        return made.secret

    def remove(self, name: str) -> None:
        self._hooks.remove(name, by=self._me)


class _There:
    """The hooks of a server elsewhere."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote

    def listed(self) -> "list[dict[str, JsonValue]]":
        found: list[dict[str, JsonValue]] = self._remote.get(HOOKS)["hooks"]
        return found

    def add(self, name: str, stored: str, *, message: str, at_once: int, allow: bool) -> str:
        wanted: dict[str, JsonValue] = {"name": name, "stored": stored, "message": message}
        wanted |= {"allow_unknown_cost": True} if allow else {}
        return str(self._remote.post(HOOKS, {**wanted, "at_once": at_once})["secret"])

    def remove(self, name: str) -> None:
        self._remote.delete(f"{HOOKS}/{quote(name, safe='')}")


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def hook_ls(ctx: click.Context, /) -> None:
    """Hooks, never their secrets."""
    door = door_of(ctx)
    with _desk(door) as desk:
        found = desk.listed()
    if door.as_json:
        door.put_json({"hooks": found})
        return
    told = ("name", "stored", "at_once", "waiting")
    rows = [[*(one[name] for name in told), one["problem"] or ""] for one in found]
    empty = "there are no hooks; `loopwright hook add NAME --run STORED` makes one"
    put_rows(door, ("NAME", "RUNS", "AT ONCE", "WAITING", "PROBLEM"), rows, empty)


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[("loopwright hook add issues --run triage", "its secret is printed once, on stdout")],
)
@click.argument("name", metavar="NAME")
@click.option(
    "--run",
    "stored",
    required=True,
    metavar="STORED",
    shell_complete=complete_stored,
    help="A stored definition; `loopwright stored ls` lists them.",
)
@click.option("--message", default="", metavar="TEXT", help="Said before the words that come in.")
@click.option(
    "--at-once",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=4,
    show_default=True,
    help="Runs of it at the same time; other messages wait.",
)
@click.option(
    "--allow-unknown-cost",
    "allow",
    is_flag=True,
    help="Start runs although a limit in USD cannot be enforced for an agent whose cost is "
    "unknown.",
)
@click.pass_context
def hook_add(
    ctx: click.Context, /, *, name: str, stored: str, message: str, at_once: int, allow: bool
) -> None:
    """Let messages that are posted to /api/v1/hooks/NAME start runs of a stored definition.

    Senders sign by the rules of Standard Webhooks, with the secret that is printed now.
    """
    door = door_of(ctx)
    with _desk(door) as desk:
        secret = desk.add(name, stored, message=message, at_once=at_once, allow=allow)
    if door.as_json:
        path = f"{HOOKS}/{name}"
        door.put_json({"name": name, "stored": stored, "secret": secret, "path": path})
    else:
        door.put(secret)


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="NAME")
@click.pass_context
def hook_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an incoming webhook; its messages that wait are dropped."""
    door = door_of(ctx)
    with _desk(door) as desk:
        desk.remove(name)
    door.done(f"{name} is deleted", {"name": name, "removed": True})


_GROUP = group(
    "hook",
    "Incoming webhooks: signed messages that start runs at a server.",
    [hook_ls, hook_add, hook_rm],
)

VERBS = {"hook": _GROUP}
