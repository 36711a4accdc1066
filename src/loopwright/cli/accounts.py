"""`login`, `logout`, `user` and `token`: accounts and their tokens.

`login` and `logout` are for a remote server, `user` and `token` for the local data directory or,
with `--server`, for a remote one.
"""

import ipaddress
import socket
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.client.servers import (
    Account,
    StoredToken,
    is_token,
    parse_address,
    remove_token,
    store_token,
    stored_tokens,
    token_variable,
)
from loopwright.errors import LoopwrightError, NotAllowed, NotFound, NotSignedIn, ServerFailed

if TYPE_CHECKING:
    from loopwright.client.client import CommandClient
    from loopwright.operations.api_types import TokenItem, TokenMade

MOST_DAYS = 3_650
UNKNOWN_ADDRESS = "SERVER"  # begins links that are made while no server runs


@click.command(
    cls=Verb,
    examples=[
        ("loopwright login https://loops.example.org --name ann", "asks for the password"),
        ("loopwright ls --server https://loops.example.org", "from then on"),
    ],
)
@click.argument("url", metavar="[URL]", required=False)
@click.option("--name", metavar="NAME", help="Account name. Default: your user name here.")
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
    default=30,
    show_default=True,
    help="Days until the token expires.",
)
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.pass_context
def login(
    ctx: click.Context, /, *, url: str | None, name: str | None, days: int, password_stdin: bool
) -> None:
    """Sign in at a server, for every command with --server. Without URL, list the servers where
    you are signed in.

    A token is created for this machine and stored in a file that only you can read; the password
    is not stored. `loopwright logout URL` ends it.
    """
    terminal = terminal_of(ctx)
    if url is None:
        _put_all(terminal)
        return
    from loopwright.operations.accounts.access import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    server = parse_address(url).url
    _check_line(server)
    who = name or current_user()
    password = _password(ctx, terminal, who, from_stdin=password_stdin)
    stored_tokens()  # errors of the file are reported before anything is created
    wanted = accounts.AddToken(label=f"login from {socket.gethostname()}"[:80], days=days)
    try:
        with _client(terminal, server, account=Account(who, password)) as client:
            made = client.call(accounts.add_token, wanted)
            until = _check_token(server, made)
            kept = {"token": made.token, "id": made.id, "name": who, "until": until}
            before = _store(client, server, kept)
    except NotSignedIn as error:
        error.hint = "accounts are made by an admin: `loopwright user add NAME` at the server"
        raise
    if before is not None:
        _revoke_old(terminal, server, before)
    if instead := token_variable():
        terminal.say(f"warning: {instead} is set, and counts before what is kept here", tone="warn")
    printed = {"server": server, "name": who, "role": made.role, "until": until}
    terminal.done(f"signed in at {server} as {who} ({made.role}) until {until}", printed)


def _client(
    terminal: Terminal, server: str, *, token: str = "", account: Account | None = None
) -> "CommandClient":
    """A client of a server, with a token or signed in with an account."""
    from loopwright.client.client import (  # noqa: PLC0415 - help stays quick
        CommandClient,
        RemoteServer,
        open_client,
    )

    address = RemoteServer(server, token=token, account=account)
    return CommandClient(open_client(address, say=terminal.say))


def _check_token(server: str, made: "TokenMade") -> str:
    """Until when a new token counts. Refuses what cannot be sent as a token."""
    until = made.expires_at
    if until is None or not all(map(is_token, (made.token, made.id, made.role, until))):
        raise ServerFailed(f"{server} answered with no token", code="not-loopwright")
    return until


def _store(client: "CommandClient", server: str, kept: StoredToken) -> StoredToken | None:
    """Store a token, or revoke it if it cannot be stored. Returns the token of before."""
    try:
        return store_token(server, kept)
    except BaseException:
        with suppress(LoopwrightError):
            _revoke(client, kept["id"])
        raise


def _revoke_old(terminal: Terminal, server: str, old: StoredToken) -> None:
    try:
        with _client(terminal, server, token=old["token"]) as client:
            _revoke(client, old["id"])
    except LoopwrightError as error:
        terminal.say(f"warning: the token of before still counts: {error.message}", tone="warn")


@click.command(cls=Verb)
@click.argument("url", metavar="URL")
@click.pass_context
def logout(ctx: click.Context, /, *, url: str) -> None:
    """Sign out: the token is revoked at the server and deleted here."""
    terminal = terminal_of(ctx)
    server = parse_address(url).url
    kept = stored_tokens().get(server)
    if kept is None:
        raise NotFound(f"you are not signed in at {server}", hint="`loopwright login` says where")
    try:
        with _client(terminal, server, token=kept["token"]) as client:
            ended = _revoke(client, kept["id"])
    except LoopwrightError as error:
        remove_token(server)
        error.hint = f"the token is deleted here, but is valid there until {kept['until']}"
        raise
    remove_token(server)
    more = "" if ended else "; the token had ended already"
    terminal.done(f"signed out at {server}{more}", {"server": server, "ended": ended})


def _revoke(client: "CommandClient", token: str) -> bool:
    """Revoke a token; False if it was not valid any more."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    try:
        client.call(accounts.revoke_token, accounts.TokenReference(token=token))
    except (NotFound, NotSignedIn):
        return False
    return True


def _put_all(terminal: Terminal) -> None:
    found = stored_tokens()
    if terminal.as_json:
        listed = [
            {"server": url, "name": k["name"], "until": k["until"]} for url, k in found.items()
        ]
        terminal.put_json({"servers": listed})
        return
    rows = [(url, one["name"], one["until"]) for url, one in found.items()]
    put_rows(terminal, ("SERVER", "NAME", "UNTIL"), rows, "you are signed in nowhere")


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


def _password(ctx: click.Context, terminal: Terminal, who: str, *, from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline() if sys.stdin is not None else ""
        return given.removesuffix("\n").removesuffix("\r")
    if not terminal.can_ask:
        raise click.UsageError("no terminal to ask for the password; use --password-stdin", ctx)
    return str(click.prompt(f"Password of {who}", hide_input=True, err=True))


ROLES = ("viewer", "editor", "admin")
_ROLE = click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True)


# -- people ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def user_ls(ctx: click.Context, /) -> None:
    """List the user accounts."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        found = client.call_pages(accounts.list_users, lambda page: page.users)
    if terminal.as_json:
        listed = [{"name": one.name, "role": one.role, "active": one.active} for one in found]
        terminal.put_json({"users": listed})
        return
    rows = [[one.name, one.role, "active" if one.active else "off"] for one in found]
    empty = "no accounts yet; `loopwright user add NAME --role admin` creates one"
    put_rows(terminal, ("NAME", "ROLE", "STATE"), rows, empty)


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[("loopwright user add ann --role editor", "prints a one-time link")],
)
@click.argument("name", metavar="NAME")
@_ROLE
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.pass_context
def user_add(ctx: click.Context, /, *, name: str, role: str, password_stdin: bool) -> None:
    """Create an account. Without --password-stdin, a link is printed with which the user sets a
    password; it works once, within a day.
    """
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    password = sys.stdin.readline().rstrip("\n") if password_stdin else ""
    with terminal.client() as client:
        client.call(
            accounts.add_user, accounts.AddUser(name=name, role=role, password=password or None)
        )
        link = (
            None if password else client.call(accounts.link, accounts.UserReference(name=name)).link
        )
    printed: dict[str, object] = {"name": name, "role": role, "link": _shown_link(terminal, link)}
    words = f"; link that sets the password (once, within a day): {link}" if link else ""
    terminal.done(f"created {name} with the role {role}{words}", printed)
    _explain_address(terminal, link)


@click.command(
    "link",
    cls=Verb,
    remote=True,
    examples=[("loopwright user link ann", "a new one-time link, for a day")],
)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_link(ctx: click.Context, /, *, name: str) -> None:
    """Print a link with which a user sets a new password; it works once, within a day."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    link = terminal.call(accounts.link, accounts.UserReference(name=name)).link
    terminal.done(
        f"link that sets the password of {name} (once, within a day): {link}",
        {"name": name, "link": _shown_link(terminal, link)},
    )
    _explain_address(terminal, link)


def _shown_link(terminal: Terminal, link: str | None) -> str | None:
    """The link in JSON: of the local server only its path, since its address may be unknown."""
    if link is None or terminal.options.server is not None:
        return link
    return f"/setup{link[link.index('#') :]}"


def _explain_address(terminal: Terminal, link: str | None) -> None:
    """Say which address a link needs that was made while no server runs."""
    if link is not None and link.startswith(f"{UNKNOWN_ADDRESS}/") and not terminal.as_json:
        terminal.say(
            f"no server is running: replace {UNKNOWN_ADDRESS} with the address of your server, "
            "e.g. http://127.0.0.1:3001"
        )


@click.command("role", cls=Verb, remote=True)
@click.argument("name", metavar="NAME")
@click.argument("role", metavar="ROLE", type=click.Choice(ROLES))
@click.pass_context
def user_role(ctx: click.Context, /, *, name: str, role: str) -> None:
    """Change the role of a user; their sessions end."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    terminal.call(accounts.change_user, accounts.ChangeUser(name=name, role=role))
    terminal.done(f"{name} now has the role {role}", {"name": name, "role": role})


def _switch(verb: str, help_text: str, *, active: bool) -> click.Command:
    """The command that enables or disables an account."""

    @click.command(verb, cls=Verb, remote=True, help=help_text)
    @click.argument("name", metavar="NAME")
    @click.pass_context
    def switch(ctx: click.Context, /, *, name: str) -> None:
        from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

        terminal = terminal_of(ctx)
        terminal.call(accounts.change_user, accounts.ChangeUser(name=name, active=active))
        state = "enabled" if active else "disabled"
        terminal.done(f"{name} is {state}", {"name": name, "active": active})

    return switch


user_off = _switch("off", "Disable an account; its sessions and tokens stop working.", active=False)
user_on = _switch("on", "Enable a disabled account.", active=True)


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="NAME")
@click.pass_context
def user_rm(ctx: click.Context, /, *, name: str) -> None:
    """Delete an account with its sessions and tokens."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    terminal.call(accounts.remove_user, accounts.UserReference(name=name))
    terminal.done(f"{name} is deleted", {"name": name, "removed": True})


# -- tokens ----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def token_ls(ctx: click.Context, /) -> None:
    """List the tokens, without their texts."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        listed = client.call_pages(accounts.list_tokens, lambda page: page.tokens)
    found = [_token_fields(one) for one in listed]
    if terminal.as_json:
        terminal.put_json({"tokens": found})
        return
    rows = [list(one.values()) for one in found]
    empty = "no tokens yet; `loopwright token create LABEL` creates one"
    put_rows(terminal, ("ID", "ROLE", "STATE", "UNTIL", "LABEL"), rows, empty)


def _token_fields(token: "TokenItem") -> dict[str, str]:
    """A token as the list shows it, with its user or the token that made it before its label."""
    until = None if token.expires_at is None else datetime.fromisoformat(token.expires_at)
    state = "good"
    if token.revoked_at is not None:
        state = "revoked"
    elif until is not None and until <= datetime.now().astimezone():
        state = "expired"
    owner = f"{token.person}: " if token.person else (f"{token.parent}/" if token.parent else "")
    day = until.astimezone().date().isoformat() if until is not None else "-"
    label = f"{owner}{token.label}"
    return {"id": token.id, "role": token.role, "state": state, "until": day, "label": label}


@click.command(
    "create",
    cls=Verb,
    remote=True,
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
    """Create a token. Its text is shown once, not stored."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    if user is None:
        made = terminal.call(
            accounts.add_token, accounts.AddToken(label=label, role=role, days=days)
        )
    elif terminal.options.server is not None:
        raise LoopwrightError(
            "a remote server creates tokens only for the person who asks",
            code="usage",
            hint="leave out --user, or run the command on the machine of the server",
        )
    else:
        wanted = accounts.AddTokenForUser(label=label, role=role, days=days, user=user)
        made = terminal.call(accounts.add_for_user, wanted)
    if terminal.as_json:
        terminal.put_json({"id": made.id, "token": made.token, "role": role, "days": days})
    else:
        terminal.put(made.token)


@click.command("revoke", cls=Verb, remote=True)
@click.argument("token", metavar="ID")
@click.pass_context
def token_revoke(ctx: click.Context, /, *, token: str) -> None:
    """Revoke a token permanently."""
    from loopwright.operations.use_cases import accounts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    ended = terminal.call(accounts.revoke_token, accounts.TokenReference(token=token))
    words = f"{ended.id} ({ended.label}) is revoked"
    terminal.done(words, {"id": ended.id, "revoked": True})


VERBS = {
    "login": login,
    "logout": logout,
    "user": group(
        "user",
        "User accounts of a server: of this data directory, or with --server of a remote one.",
        [user_ls, user_add, user_link, user_role, user_off, user_on, user_rm],
    ),
    "token": group(
        "token",
        "API tokens of a server: of this data directory, or with --server of a remote one.",
        [token_ls, token_create, token_revoke],
    ),
}
