"""`webhook`: addresses that a server of this home tells when a gate opens or a run ends."""

from contextlib import closing, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.remote import Remote

BASE = "/api/v1/webhooks"
KINDS = ("gate.opened", "run.finished")
NOT_DELIVERED = 7
Told = dict[str, Any]


class Webhooks(Protocol):
    """Webhooks here or at a server, as programs read them."""

    def all(self) -> list[Told]: ...

    def add(self, url: str, kinds: list[str]) -> Told: ...

    def remove(self, name: str) -> None: ...

    def test(self, name: str) -> Told: ...


class _Afar:
    """Those of a server elsewhere."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote

    def all(self) -> list[Told]:
        found: list[Told] = self._remote.get(BASE)["webhooks"]
        return found

    def add(self, url: str, kinds: list[str]) -> Told:
        made: Told = self._remote.post(BASE, {"url": url, "kinds": [*kinds]})
        return made

    def remove(self, name: str) -> None:
        self._remote.delete(f"{BASE}/{quote(name, safe='')}")

    def test(self, name: str) -> Told:
        told: Told = self._remote.post(f"{BASE}/{quote(name, safe='')}/test")
        return told


class _Here:
    """Those of this home. The server's room is a sibling: it is loaded by its name."""

    def __init__(self, inner: Any, me: str) -> None:  # noqa: ANN401 - of a sibling
        self._inner, self._me = inner, me
        self._room = import_module("loopwright.server.webhooks")

    def all(self) -> list[Told]:
        return [self._room.webhook_item(one) for one in self._inner.all()]

    def add(self, url: str, kinds: list[str]) -> Told:
        hook = self._inner.add(url, kinds, by=self._me)
        return {**self._room.webhook_item(hook), "secret": hook.secret}

    def remove(self, name: str) -> None:
        self._inner.remove(name, by=self._me)

    def test(self, name: str) -> Told:
        send = import_module("loopwright.app.sending").send
        trial = self._inner.trial(name, send, by=self._me)()
        return {
            "id": trial.id,
            "status": trial.status,
            "delivered": trial.delivered,
            "problem": trial.problem,
        }


@contextmanager
def _webhooks(door: Door) -> "Iterator[Webhooks]":
    if door.remote is not None:
        yield _Afar(door.remote)
        return
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    room, clock = import_module("loopwright.server.webhooks"), SystemClock()
    loopback = door.settings.webhooks_to_loopback == "on"
    with closing(open_log(door.settings)) as log:
        access = Access(log, clock)
        yield _Here(room.Webhooks(log, log, access, clock, loopback=loopback), current_user())


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def webhook_ls(ctx: click.Context, /) -> None:
    """Addresses that are told, never their secrets."""
    door = door_of(ctx)
    with _webhooks(door) as webhooks:
        found = webhooks.all()
    if door.as_json:
        door.put_json({"webhooks": found})
        return
    rows = []
    for one in found:
        state = "active" if one["active"] else "off"
        rows.append([one["id"], state, ",".join(one["kinds"]), one["problem"] or "-", one["url"]])
    empty = "nobody is told; `loopwright webhook add URL` makes a webhook"
    put_rows(door, ("ID", "STATE", "KINDS", "PROBLEM", "URL"), rows, empty)


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
    door = door_of(ctx)
    with _webhooks(door) as webhooks:
        made = webhooks.add(url, list(kinds or KINDS))
    if door.as_json:
        door.put_json(made)
    else:
        door.say(f"{made['id']} added; its secret:")
        door.put(str(made["secret"]))


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="WEBHOOK")
@click.pass_context
def webhook_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an outgoing webhook; messages that wait for it are dropped."""
    door = door_of(ctx)
    with _webhooks(door) as webhooks:
        webhooks.remove(name)
    door.done(f"{name} is deleted", {"id": name, "removed": True})


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
    door = door_of(ctx)
    with _webhooks(door) as webhooks:
        told = webhooks.test(name)
    if door.as_json:
        door.put_json(told)
    elif told["delivered"]:
        door.say(f"delivered to {name} ({told['status']})", tone="good")
    else:
        door.tell(f"not delivered to {name}: {told['problem']}", tone="bad")
    return 0 if told["delivered"] else NOT_DELIVERED


_GROUP = group(
    "webhook",
    "Outgoing webhooks: addresses that are notified when a gate opens or a run ends.",
    [webhook_ls, webhook_add, webhook_rm, webhook_test],
)

VERBS = {"webhook": _GROUP}
