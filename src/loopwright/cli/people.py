"""`user` and `token`: who may come in to a server of this home."""

import sys
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.access import Token
    from loopwright.app.people import People

ROLES = ("viewer", "editor", "admin")
_ROLE = click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True)


@contextmanager
def _people(door: Door) -> "Iterator[People]":
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.people import People  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        yield People(Access(log, SystemClock()))


def _me() -> str:
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    return current_user()


def _server(door: Door) -> str:
    """Where the server of this home is, or a word for it."""
    from loopwright.app.home_line import address_of  # noqa: PLC0415 - help stays quick

    return address_of(door.settings.home) or "SERVER"


# -- people ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb)
@click.pass_context
def user_ls(ctx: click.Context, /) -> None:
    """List the user accounts."""
    door = door_of(ctx)
    with _people(door) as people:
        found = people.all()
    if door.as_json:
        listed = [{"name": one.name, "role": one.role, "active": one.active} for one in found]
        door.put_json({"users": listed})
        return
    rows = [[one.name, one.role, "active" if one.active else "off"] for one in found]
    empty = "no accounts yet; `loopwright user add NAME --role admin` creates one"
    put_rows(door, ("NAME", "ROLE", "STATE"), rows, empty)


@click.command(
    "add", cls=Verb, examples=[("loopwright user add ann --role editor", "prints a one-time link")]
)
@click.argument("name", metavar="NAME")
@_ROLE
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.pass_context
def user_add(ctx: click.Context, /, *, name: str, role: str, password_stdin: bool) -> None:
    """Create an account. Without --password-stdin, a link is printed with which the user sets a
    password; it works once, within a day.
    """
    from loopwright.app.passwords import hashed  # noqa: PLC0415 - help stays quick
    from loopwright.app.people import as_role  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    given = sys.stdin.readline().rstrip("\n") if password_stdin else ""
    password = hashed(given) if given else None
    with _people(door) as people:
        people.add(name, as_role(role), by=_me(), password=password)
        code = None if password else people.link(as_role(role), by=_me(), person=name)
    link = None if code is None else f"/setup#{code}"
    told: dict[str, object] = {"name": name, "role": role, "link": link}
    where = f"{_server(door)}{link}"
    words = f"; link that sets the password (once, within a day): {where}" if link else ""
    door.done(f"created {name} with the role {role}{words}", told)


@click.command(
    "link", cls=Verb, examples=[("loopwright user link ann", "a new one-time link, for a day")]
)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_link(ctx: click.Context, /, *, name: str) -> None:
    """Print a link with which a user sets a new password; it works once, within a day."""
    door = door_of(ctx)
    with _people(door) as people:
        link = f"/setup#{people.link('viewer', by=_me(), person=name)}"
    door.done(
        f"link that sets the password of {name} (once, within a day): {_server(door)}{link}",
        {"name": name, "link": link},
    )


@click.command("role", cls=Verb)
@click.argument("name", metavar="NAME")
@click.argument("role", metavar="ROLE", type=click.Choice(ROLES))
@click.pass_context
def user_role(ctx: click.Context, /, *, name: str, role: str) -> None:
    """Change the role of a user; their sessions end."""
    from loopwright.app.people import as_role  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), role=as_role(role))
    door.done(f"{name} now has the role {role}", {"name": name, "role": role})


@click.command("off", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_off(ctx: click.Context, /, *, name: str) -> None:
    """Disable an account; its sessions and tokens stop working."""
    door = door_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), active=False)
    door.done(f"{name} is disabled", {"name": name, "active": False})


@click.command("on", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_on(ctx: click.Context, /, *, name: str) -> None:
    """Enable a disabled account."""
    door = door_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), active=True)
    door.done(f"{name} is enabled", {"name": name, "active": True})


@click.command("rm", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_rm(ctx: click.Context, /, *, name: str) -> None:
    """Delete an account with its sessions and tokens."""
    door = door_of(ctx)
    with _people(door) as people:
        people.remove(name, by=_me())
    door.done(f"{name} is deleted", {"name": name, "removed": True})


# -- tokens ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb)
@click.pass_context
def token_ls(ctx: click.Context, /) -> None:
    """List the tokens, without their texts."""
    door = door_of(ctx)
    with _people(door) as people:
        found = people.access.tokens()
        now = people.clock.now_ms()
    if door.as_json:
        door.put_json({"tokens": [_item(one, now) for one in found]})
        return
    rows = [list(_item(one, now).values()) for one in found]
    empty = "no tokens yet; `loopwright token create LABEL` creates one"
    put_rows(door, ("ID", "ROLE", "STATE", "UNTIL", "LABEL"), rows, empty)


def _item(token: "Token", now: int) -> dict[str, object]:
    until = token.expires_at
    state = "revoked" if token.revoked_at else ("expired" if until and until <= now else "good")
    day = datetime.fromtimestamp(until / 1_000).astimezone().date().isoformat() if until else "-"
    owner = f"{token.person}: " if token.person else (f"{token.root}/" if token.root else "")
    return {
        "id": token.id,
        "role": token.role,
        "state": state,
        "until": day,
        "label": f"{owner}{token.label}",
    }


@click.command(
    "create",
    cls=Verb,
    examples=[("loopwright token create ci --role editor --days 30", "printed once, on stdout")],
)
@click.argument("label", metavar="LABEL")
@_ROLE
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=90,
    show_default=True,
    help="Days until it expires.",
)
@click.option(
    "--user", metavar="NAME", help="User that it belongs to; it never has more rights than they."
)
@click.pass_context
def token_create(
    ctx: click.Context, /, *, label: str, role: str, days: int, user: str | None
) -> None:
    """Create a token for the server of this data directory. Its text is shown once, not stored."""
    from loopwright.app.people import as_role  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    with _people(door) as people:
        made = people.new_token(label, as_role(role), by=_me(), person=user or "", days=days)
    if door.as_json:
        door.put_json({"id": made.token.id, "token": made.text, "role": role, "days": days})
    else:
        door.put(made.text)


@click.command("revoke", cls=Verb)
@click.argument("token", metavar="ID")
@click.pass_context
def token_revoke(ctx: click.Context, /, *, token: str) -> None:
    """Revoke a token for good."""
    door = door_of(ctx)
    with _people(door) as people:
        ended = people.access.revoke(token, by=_me())
    door.done(f"{ended.id} ({ended.label}) is revoked", {"id": ended.id, "revoked": True})


VERBS = {
    "user": group(
        "user",
        "User accounts of the server of this data directory.",
        [user_ls, user_add, user_link, user_role, user_off, user_on, user_rm],
    ),
    "token": group(
        "token",
        "API tokens for the server of this data directory.",
        [token_ls, token_create, token_revoke],
    ),
}
