"""`login` and `logout`: a token for a server elsewhere, made with one's name and password."""

import ipaddress
import socket
import sys
from contextlib import suppress
from urllib.parse import quote, urlsplit

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.remote import Remote
from loopwright.cli.signed_in import Kept, all_kept, forget, is_token, keep, named_instead
from loopwright.cli.verb import Verb, door_of
from loopwright.errors import LoopwrightError, NotAllowed, NotFound, NotSignedIn, ServerFailed

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
    door = door_of(ctx)
    if url is None:
        _put_all(door)
        return
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    remote = Remote(url, door.say, token="")
    _check_line(remote.url)
    who = name or current_user()
    password = _password(ctx, door, who, from_stdin=password_stdin)
    all_kept()  # what is wrong with the file is told before anything is made
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
        _end_old(door, Remote(remote.url, door.say, token=before["token"]), before["id"])
    if instead := named_instead():
        door.say(f"warning: {instead} is set, and counts before what is kept here", tone="warn")
    until = made["expires_at"]
    told = {"server": remote.url, "name": who, "role": made["role"], "until": until}
    door.done(f"signed in at {remote.url} as {who} ({made['role']}) until {until}", told)


def _checked(remote: Remote, made: object) -> Kept:
    """A token, if that is what came."""
    named = ("token", "id", "role", "expires_at")
    if isinstance(made, dict) and all(is_token(made.get(name)) for name in named):
        return {name: made[name] for name in named}
    raise ServerFailed(f"{remote.url} answered with no token", code="not-loopwright")


def _kept(remote: Remote, kept: Kept) -> Kept | None:
    """Keep a token; one that cannot be kept counts no longer. The one of before."""
    try:
        return keep(remote.url, kept)
    except BaseException:
        with suppress(LoopwrightError):
            _end(remote, kept["id"])
        raise


def _end_old(door: Door, remote: Remote, token: str) -> None:
    try:
        _end(remote, token)
    except LoopwrightError as error:
        door.say(f"warning: the token of before still counts: {error.message}", tone="warn")


@click.command(cls=Verb)
@click.argument("url", metavar="URL")
@click.pass_context
def logout(ctx: click.Context, /, *, url: str) -> None:
    """Sign out: the token is revoked at the server and deleted here."""
    door = door_of(ctx)
    server = Remote(url, door.say, token="").url
    kept = all_kept().get(server)
    if kept is None:
        raise NotFound(f"you are not signed in at {server}", hint="`loopwright login` says where")
    try:
        ended = _end(Remote(server, door.say, token=kept["token"]), kept["id"])
    except LoopwrightError as error:
        forget(server)
        error.hint = f"the token is deleted here, but is valid there until {kept['until']}"
        raise
    forget(server)
    more = "" if ended else "; the token had ended already"
    door.done(f"signed out at {server}{more}", {"server": server, "ended": ended})


def _end(remote: Remote, token: str) -> bool:
    """End a token; False when it counts no more anyway."""
    try:
        remote.delete(f"/api/v1/tokens/{quote(token, safe='')}")
    except (NotFound, NotSignedIn):
        return False
    return True


def _put_all(door: Door) -> None:
    found = all_kept()
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


def _password(ctx: click.Context, door: Door, who: str, *, from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline() if sys.stdin is not None else ""
        return given.removesuffix("\n").removesuffix("\r")
    if not door.can_ask:
        raise click.UsageError("no terminal to ask for the password; use --password-stdin", ctx)
    return str(click.prompt(f"Password of {who}", hide_input=True, err=True))


VERBS = {"login": login, "logout": logout}
