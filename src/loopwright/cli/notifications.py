"""`notifications`: what people should know of their runs, kept by a server of this home."""

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door
from loopwright.cli.looking import looking, put_rows
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.service import Service
    from loopwright.cli.remote import Remote

BASE = "/api/v1/notifications"
ASKING = "action_required"
LEVELS = ("info", ASKING, "critical", "error")
MOST, AT_ONCE = 200, 50
Told = dict[str, Any]


class Wanted(NamedTuple):
    """Which of them."""

    limit: int = AT_ONCE
    unread: bool = False
    run: str | None = None
    level: str | None = None
    waiting: bool = False


class Notifications(Protocol):
    """Notifications here or at a server, as programs read them."""

    def some(self, wanted: Wanted) -> list[Told]: ...

    def read(self, names: list[str]) -> int: ...

    def read_up_to(self, name: str) -> int: ...


class _Afar:
    """Those of a server elsewhere, for whoever has the token."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote

    def some(self, wanted: Wanted) -> list[Told]:
        run = None if wanted.run is None else self._remote.run(wanted.run)
        query = {"limit": wanted.limit, "run": run, "level": wanted.level}
        flags = {name: "true" for name in ("unread", "waiting") if getattr(wanted, name)}
        found: list[Told] = self._remote.get(BASE, **query, **flags)["notifications"]
        return found

    def read(self, names: list[str]) -> int:
        return int(self._remote.post(f"{BASE}/read", {"ids": [*names]})["read"])

    def read_up_to(self, name: str) -> int:
        return int(self._remote.post(f"{BASE}/read", {"up_to": name})["read"])


class _Here:
    """Those of this home, for whoever works here. The server's room is loaded by its name."""

    def __init__(self, service: "Service", me: str) -> None:
        self._service, self._me = service, me
        room = import_module("loopwright.server.notices")
        self._inner = room.Notices(service.log, service.log, service.clock)

    def some(self, wanted: Wanted) -> list[Told]:
        run = None if wanted.run is None else self._service.find(wanted.run)

        def fits(one: Any) -> bool:  # noqa: ANN401 - of a sibling
            return (
                not (wanted.unread and self._me in one.read_by)
                and run in (None, one.run)
                and wanted.level in (None, one.level)
                and (not wanted.waiting or self._inner.waits(one))
            )

        found = self._inner.page("", wanted.limit, fits)[: wanted.limit]
        return [self._inner.item(one, self._me) for one in found]

    def read(self, names: list[str]) -> int:
        return int(self._inner.read(names, self._me))

    def read_up_to(self, name: str) -> int:
        return int(self._inner.read_up_to(name, self._me))


@contextmanager
def _notifications(door: Door) -> "Iterator[Notifications]":
    if door.remote is not None:
        yield _Afar(door.remote)
        return
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    with looking(door) as service:
        yield _Here(service, current_user())


@click.command(
    "ls",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright notifications ls --unread", "what you have not read"),
        ("loopwright notifications ls --waiting", "what still waits for an answer"),
    ],
)
@click.option("--unread", is_flag=True, help="Only what you have not read.")
@click.option("--waiting", is_flag=True, help="Only what still waits for an answer.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Only of one run.")
@click.option("--level", type=click.Choice(LEVELS), help="Only of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST),
    default=AT_ONCE,
    show_default=True,
    help="At most so many, the newest.",
)
@click.pass_context
def notifications_ls(
    ctx: click.Context,
    /,
    *,
    unread: bool,
    waiting: bool,
    run: str | None,
    level: str | None,
    limit: int,
) -> None:
    """What happened to runs, newest first; kept for thirty days, or until a run is deleted.

    They are recorded while the server of this data directory runs.
    """
    door = door_of(ctx)
    with _notifications(door) as notifications:
        found = notifications.some(Wanted(limit, unread, run, level, waiting))
    if door.as_json:
        door.put_json({"notifications": found})
        return
    rows = []
    for one in found:
        mark = "-" if one["read"] else "*"
        # Answered, or its run was ended; a server of an older version does not tell.
        settled = one["level"] == ASKING and not one.get("waiting", True)
        level_now = "settled" if settled else one["level"]
        rows.append([mark, one["at"], level_now, one["id"], one["title"]])
    put_rows(door, ("", "AT", "LEVEL", "ID", "TITLE"), rows, "no notifications")


@click.command(
    "read",
    cls=Verb,
    remote=True,
    examples=[("loopwright notifications read --all", "everything up to now")],
)
@click.argument("names", metavar="[NOTIFICATION…]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="The newest and all that are older.")
@click.pass_context
def notifications_read(ctx: click.Context, /, *, names: tuple[str, ...], everything: bool) -> None:
    """Mark notifications as read, for you alone."""
    if bool(names) == everything:
        raise click.UsageError("name notifications, or say --all", ctx)
    if len(names) > MOST:
        raise click.UsageError(f"at most {MOST} at a time", ctx)
    door = door_of(ctx)
    with _notifications(door) as notifications:
        if everything:
            newest = notifications.some(Wanted(limit=1))
            count = notifications.read_up_to(newest[0]["id"]) if newest else 0
        else:
            count = notifications.read(list(names))
    door.done(f"{count} read", {"read": count})


_GROUP = group(
    "notifications",
    "What happened to runs, recorded by the server of this data directory.",
    [notifications_ls, notifications_read],
)

VERBS = {"notifications": _GROUP}
