"""`login`, `logout`, `user` and `token`: accounts and their tokens.

`login` and `logout` are for a remote server, `user` and `token` for the local data directory.
"""

import ipaddress
import socket
import sys
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import click

from loopwright.cli.formats import put_rows
from loopwright.cli.remote_client import RemoteClient
from loopwright.cli.servers import (
    StoredToken,
    is_token,
    remove_token,
    store_token,
    stored_tokens,
    token_variable,
)
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.errors import LoopwrightError, NotAllowed, NotFound, NotSignedIn, ServerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.operations.accounts.access import TokenRecord
    from loopwright.operations.accounts.people import People

MOST_DAYS = 3_650


@click.command(
    cls=Verb,
    examples=[
        ("loopwright login https://loops.example.org --name ann", "asks for the password"),
        ("loopwright ls --server https://loops.example.org", "from then on"),
    ],
)
@click.argument("url", metavar="[URL]", required=False)
@click.option("--name", metavar="NAME", help="The name of the account; without it, yours here.")
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
    default=30,
    show_default=True,
    help="How long it counts.",
)
@click.option("--password-stdin", is_flag=True, help="Take the password from stdin.")
@click.pass_context
def login(
    ctx: click.Context, /, *, url: str | None, name: str | None, days: int, password_stdin: bool
) -> None:
    """Sign in at a server, for every command with --server. Without URL: where you are signed in.

    A token is made for this machine and kept in a file that only you can read; the password is
    not kept. `loopwright logout URL` ends it.
    """
    door = terminal_of(ctx)
    if url is None:
        _put_all(door)
        return
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    remote = RemoteClient(url, door.say, token="")
    _check_line(remote.url)
    who = name or current_user()
    password = _password(ctx, door, who, from_stdin=password_stdin)
    stored_tokens()  # what is wrong with the file is told before anything is made
    label = f"login from {socket.gethostname()}"[:80]
    try:
        with remote.session(who, password):
            made = _checked(remote, remote.post("/api/v1/tokens", {"label": label, "days": days}))
            kept = {"token": made["token"], "id": made["id"], "name": who}
            before = _kept(remote, kept | {"until": made["expires_at"]})
    except NotSignedIn as error:
        error.hint = "accounts are made by an admin: `loopwright user add NAME` at the server"
        raise
    if before is not None:
        _end_old(door, RemoteClient(remote.url, door.say, token=before["token"]), before["id"])
    if instead := token_variable():
        door.say(f"warning: {instead} is set, and counts before what is kept here", tone="warn")
    until = made["expires_at"]
    told = {"server": remote.url, "name": who, "role": made["role"], "until": until}
    door.done(f"signed in at {remote.url} as {who} ({made['role']}) until {until}", told)


def _checked(remote: RemoteClient, made: object) -> StoredToken:
    """A token, if that is what came."""
    named = ("token", "id", "role", "expires_at")
    if isinstance(made, dict) and all(is_token(made.get(name)) for name in named):
        return {name: made[name] for name in named}
    raise ServerFailed(f"{remote.url} answered with no token", code="not-loopwright")


def _kept(remote: RemoteClient, kept: StoredToken) -> StoredToken | None:
    """Keep a token; one that cannot be kept counts no longer. The one of before."""
    try:
        return store_token(remote.url, kept)
    except BaseException:
        with suppress(LoopwrightError):
            _end(remote, kept["id"])
        raise


def _end_old(door: Terminal, remote: RemoteClient, token: str) -> None:
    try:
        _end(remote, token)
    except LoopwrightError as error:
        door.say(f"warning: the token of before still counts: {error.message}", tone="warn")


@click.command(cls=Verb)
@click.argument("url", metavar="URL")
@click.pass_context
def logout(ctx: click.Context, /, *, url: str) -> None:
    """Sign out: the token is revoked at the server and deleted here."""
    door = terminal_of(ctx)
    server = RemoteClient(url, door.say, token="").url
    kept = stored_tokens().get(server)
    if kept is None:
        raise NotFound(f"you are not signed in at {server}", hint="`loopwright login` says where")
    try:
        ended = _end(RemoteClient(server, door.say, token=kept["token"]), kept["id"])
    except LoopwrightError as error:
        remove_token(server)
        error.hint = f"the token is deleted here, but is valid there until {kept['until']}"
        raise
    remove_token(server)
    more = "" if ended else "; the token had ended already"
    door.done(f"signed out at {server}{more}", {"server": server, "ended": ended})


def _end(remote: RemoteClient, token: str) -> bool:
    """End a token; False when it counts no more anyway."""
    try:
        remote.delete(f"/api/v1/tokens/{quote(token, safe='')}")
    except (NotFound, NotSignedIn):
        return False
    return True


def _put_all(door: Terminal) -> None:
    found = stored_tokens()
    if door.as_json:
        listed = [
            {"server": url, "name": k["name"], "until": k["until"]} for url, k in found.items()
        ]
        door.put_json({"servers": listed})
        return
    rows = [(url, one["name"], one["until"]) for url, one in found.items()]
    put_rows(door, ("SERVER", "NAME", "UNTIL"), rows, "you are signed in nowhere")


def _check_line(url: str) -> None:
    """A password is not sent over a line that others can read."""
    parts = urlsplit(url)
    host = str(parts.hostname)
    if parts.scheme == "https" or host == "localhost":
        return
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here:
        raise NotAllowed(
            f"a password is not sent to {url} without encryption",
            code="open-line",
            hint="use https://, or let an admin make a token: `loopwright token create`",
        )


def _password(ctx: click.Context, door: Terminal, who: str, *, from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline() if sys.stdin is not None else ""
        return given.removesuffix("\n").removesuffix("\r")
    if not door.can_ask:
        raise click.UsageError("no terminal to ask for the password; use --password-stdin", ctx)
    return str(click.prompt(f"Password of {who}", hide_input=True, err=True))


ROLES = ("viewer", "editor", "admin")
_ROLE = click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True)


@contextmanager
def _people(door: Terminal) -> "Iterator[People]":
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.people import People  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        yield People(Access(log, SystemClock()))


def _me() -> str:
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    return current_user()


def _server(door: Terminal) -> str:
    """Where the server of this home is, or a word for it."""
    from loopwright.operations.data_directory import address_of  # noqa: PLC0415 - help stays quick

    return address_of(door.settings.home) or "SERVER"


# -- people ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb)
@click.pass_context
def user_ls(ctx: click.Context, /) -> None:
    """List the user accounts."""
    door = terminal_of(ctx)
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
    from loopwright.operations.accounts.people import (  # noqa: PLC0415 - help stays quick
        as_role,
        hashed,
    )

    door = terminal_of(ctx)
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
    door = terminal_of(ctx)
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
    from loopwright.operations.accounts.people import as_role  # noqa: PLC0415 - help stays quick

    door = terminal_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), role=as_role(role))
    door.done(f"{name} now has the role {role}", {"name": name, "role": role})


@click.command("off", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_off(ctx: click.Context, /, *, name: str) -> None:
    """Disable an account; its sessions and tokens stop working."""
    door = terminal_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), active=False)
    door.done(f"{name} is disabled", {"name": name, "active": False})


@click.command("on", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_on(ctx: click.Context, /, *, name: str) -> None:
    """Enable a disabled account."""
    door = terminal_of(ctx)
    with _people(door) as people:
        people.change(name, by=_me(), active=True)
    door.done(f"{name} is enabled", {"name": name, "active": True})


@click.command("rm", cls=Verb)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_rm(ctx: click.Context, /, *, name: str) -> None:
    """Delete an account with its sessions and tokens."""
    door = terminal_of(ctx)
    with _people(door) as people:
        people.remove(name, by=_me())
    door.done(f"{name} is deleted", {"name": name, "removed": True})


# -- tokens ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb)
@click.pass_context
def token_ls(ctx: click.Context, /) -> None:
    """List the tokens, without their texts."""
    door = terminal_of(ctx)
    with _people(door) as people:
        found = people.access.tokens()
        now = people.clock.now_ms()
    if door.as_json:
        door.put_json({"tokens": [_item(one, now) for one in found]})
        return
    rows = [list(_item(one, now).values()) for one in found]
    empty = "no tokens yet; `loopwright token create LABEL` creates one"
    put_rows(door, ("ID", "ROLE", "STATE", "UNTIL", "LABEL"), rows, empty)


def _item(token: "TokenRecord", now: int) -> dict[str, object]:
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
    from loopwright.operations.accounts.people import as_role  # noqa: PLC0415 - help stays quick

    door = terminal_of(ctx)
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
    door = terminal_of(ctx)
    with _people(door) as people:
        ended = people.access.revoke(token, by=_me())
    door.done(f"{ended.id} ({ended.label}) is revoked", {"id": ended.id, "revoked": True})


VERBS = {
    "login": login,
    "logout": logout,
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
