"""`hook` and `webhook`: incoming webhooks that start runs, and outgoing webhooks.

An outgoing webhook is sent when a gate opens or a run ends.
"""

from contextlib import closing, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import click
from msgspec.structs import asdict

from loopwright.cli.completion import complete_stored
from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.remote_client import RemoteClient
    from loopwright.model.record import JsonValue
    from loopwright.operations.webhooks.incoming_hooks import Hooks

HOOKS = "/api/v1/hooks"
MOST_AT_ONCE = 100


class _HookClient(Protocol):
    """The storage of webhooks: the data directory, or a server."""

    def listed(self) -> "list[dict[str, JsonValue]]": ...

    def add(self, name: str, stored: str, *, message: str, at_once: int, allow: bool) -> str:
        """Make one; its secret."""

    def remove(self, name: str) -> None: ...


@contextmanager
def _open_hooks(terminal: Terminal) -> "Iterator[_HookClient]":
    if terminal.remote is not None:
        yield _RemoteHooks(terminal.remote)
        return
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.definitions import Definitions  # noqa: PLC0415 - help stays quick
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.operations.webhooks.incoming_hooks import Hooks  # noqa: PLC0415 - help stays quick

    with closing(open_log(terminal.settings)) as log:
        access = Access(log, SystemClock())
        yield _LocalHooks(Hooks(access, Definitions(log, access)), current_user())


class _LocalHooks:
    """The hooks of this home."""

    def __init__(self, hooks: "Hooks", me: str) -> None:
        self._hooks, self._me = hooks, me

    def listed(self) -> "list[dict[str, JsonValue]]":
        from loopwright.operations.webhooks.incoming_hooks import hook_item  # noqa: PLC0415 - help stays quick

        return [asdict(hook_item(self._hooks, one)) for one in self._hooks.all()]

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


class _RemoteHooks:
    """The incoming webhooks of a remote server."""

    def __init__(self, remote: "RemoteClient") -> None:
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
    terminal = terminal_of(ctx)
    with _open_hooks(terminal) as tracker_scope:
        found = tracker_scope.listed()
    if terminal.as_json:
        terminal.put_json({"hooks": found})
        return
    printed = ("name", "stored", "at_once", "waiting")
    rows = [[*(one[name] for name in printed), one["problem"] or ""] for one in found]
    empty = "there are no hooks; `loopwright hook add NAME --run STORED` makes one"
    put_rows(terminal, ("NAME", "RUNS", "AT ONCE", "WAITING", "PROBLEM"), rows, empty)


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
    terminal = terminal_of(ctx)
    with _open_hooks(terminal) as tracker_scope:
        secret = tracker_scope.add(name, stored, message=message, at_once=at_once, allow=allow)
    if terminal.as_json:
        path = f"{HOOKS}/{name}"
        terminal.put_json({"name": name, "stored": stored, "secret": secret, "path": path})
    else:
        terminal.put(secret)


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="NAME")
@click.pass_context
def hook_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an incoming webhook; its messages that wait are dropped."""
    terminal = terminal_of(ctx)
    with _open_hooks(terminal) as tracker_scope:
        tracker_scope.remove(name)
    terminal.done(f"{name} is deleted", {"name": name, "removed": True})


_HOOK_GROUP = group(
    "hook",
    "Incoming webhooks: signed messages that start runs at a server.",
    [hook_ls, hook_add, hook_rm],
)


WEBHOOKS_PATH = "/api/v1/webhooks"
KINDS = ("gate.opened", "run.finished")
NOT_DELIVERED = 7
JsonObject = dict[str, Any]


class WebhookClient(Protocol):
    """Webhooks here or at a server, as programs read them."""

    def all(self) -> list[JsonObject]: ...

    def add(self, url: str, kinds: list[str]) -> JsonObject: ...

    def remove(self, name: str) -> None: ...

    def test(self, name: str) -> JsonObject: ...


class _RemoteWebhooks:
    """The outgoing webhooks of a remote server."""

    def __init__(self, remote: "RemoteClient") -> None:
        self._remote = remote

    def all(self) -> list[JsonObject]:
        found: list[JsonObject] = self._remote.get(WEBHOOKS_PATH)["webhooks"]
        return found

    def add(self, url: str, kinds: list[str]) -> JsonObject:
        made: JsonObject = self._remote.post(WEBHOOKS_PATH, {"url": url, "kinds": [*kinds]})
        return made

    def remove(self, name: str) -> None:
        self._remote.delete(f"{WEBHOOKS_PATH}/{quote(name, safe='')}")

    def test(self, name: str) -> JsonObject:
        printed: JsonObject = self._remote.post(f"{WEBHOOKS_PATH}/{quote(name, safe='')}/test")
        return printed


class _LocalWebhooks:
    """Those of this data directory. The server package is imported by name."""

    def __init__(self, inner: Any, me: str) -> None:  # noqa: ANN401 - of a sibling
        self._inner, self._me = inner, me
        self._room = import_module("loopwright.operations.webhooks.outgoing_hooks")

    def all(self) -> list[JsonObject]:
        return [asdict(self._room.webhook_item(one)) for one in self._inner.all()]

    def add(self, url: str, kinds: list[str]) -> JsonObject:
        hook = self._inner.add(url, kinds, by=self._me)
        return {**asdict(self._room.webhook_item(hook)), "secret": hook.secret}

    def remove(self, name: str) -> None:
        self._inner.remove(name, by=self._me)

    def test(self, name: str) -> JsonObject:
        send = import_module("loopwright.operations.outgoing_requests").send
        trial = self._inner.trial(name, send, by=self._me)()
        return {
            "id": trial.id,
            "status": trial.status,
            "delivered": trial.delivered,
            "problem": trial.problem,
        }


@contextmanager
def _webhooks(terminal: Terminal) -> "Iterator[WebhookClient]":
    if terminal.remote is not None:
        yield _RemoteWebhooks(terminal.remote)
        return
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    room, clock = import_module("loopwright.operations.webhooks.outgoing_hooks"), SystemClock()
    loopback = terminal.settings.webhooks_to_loopback == "on"
    with closing(open_log(terminal.settings)) as log:
        access = Access(log, clock)
        yield _LocalWebhooks(
            room.OutgoingWebhooks(log, log, access, clock, loopback=loopback), current_user()
        )


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def webhook_ls(ctx: click.Context, /) -> None:
    """Outgoing webhooks, without their secrets."""
    terminal = terminal_of(ctx)
    with _webhooks(terminal) as webhooks:
        found = webhooks.all()
    if terminal.as_json:
        terminal.put_json({"webhooks": found})
        return
    rows = []
    for one in found:
        state = "active" if one["active"] else "off"
        rows.append([one["id"], state, ",".join(one["kinds"]), one["problem"] or "-", one["url"]])
    empty = "no outgoing webhooks; `loopwright webhook add URL` adds one"
    put_rows(terminal, ("ID", "STATE", "KINDS", "PROBLEM", "URL"), rows, empty)


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright webhook add https://example.org/loops", "its secret is printed once"),
        ("loopwright webhook add https://example.org/ends --kind run.finished", ""),
    ],
)
@click.argument("url", metavar="URL")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="Events to send; default: all. May be given more than once.",
)
@click.pass_context
def webhook_add(ctx: click.Context, /, *, url: str, kinds: tuple[str, ...]) -> None:
    """Notify an address when a gate opens or a run ends, as Standard Webhooks specifies.

    The server of this data directory sends it. Addresses of this machine and of its network are
    refused; the setting webhooks_to_loopback allows this machine.
    """
    terminal = terminal_of(ctx)
    with _webhooks(terminal) as webhooks:
        made = webhooks.add(url, list(kinds or KINDS))
    if terminal.as_json:
        terminal.put_json(made)
    else:
        terminal.say(f"{made['id']} added; its secret:")
        terminal.put(str(made["secret"]))


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="WEBHOOK")
@click.pass_context
def webhook_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an outgoing webhook; messages that wait for it are dropped."""
    terminal = terminal_of(ctx)
    with _webhooks(terminal) as webhooks:
        webhooks.remove(name)
    terminal.done(f"{name} is deleted", {"id": name, "removed": True})


@click.command(
    "test",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright webhook test hook_0123456789abcdef", "exit code 7: it was not delivered")
    ],
)
@click.argument("name", metavar="WEBHOOK")
@click.pass_context
def webhook_test(ctx: click.Context, /, *, name: str) -> int:
    """Send one message of the kind webhook.test and show the answer."""
    terminal = terminal_of(ctx)
    with _webhooks(terminal) as webhooks:
        printed = webhooks.test(name)
    if terminal.as_json:
        terminal.put_json(printed)
    elif printed["delivered"]:
        terminal.say(f"delivered to {name} ({printed['status']})", tone="good")
    else:
        terminal.tell(f"not delivered to {name}: {printed['problem']}", tone="bad")
    return 0 if printed["delivered"] else NOT_DELIVERED


_WEBHOOK_GROUP = group(
    "webhook",
    "Outgoing webhooks: addresses that are notified when a gate opens or a run ends.",
    [webhook_ls, webhook_add, webhook_rm, webhook_test],
)


VERBS = {
    "hook": _HOOK_GROUP,
    "webhook": _WEBHOOK_GROUP,
}
