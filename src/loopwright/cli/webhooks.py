"""`hook` and `webhook`: incoming webhooks that start runs, and outgoing webhooks.

An outgoing webhook is sent when a gate opens or a run ends.
"""

from typing import TYPE_CHECKING

import click

from loopwright.cli.completion import complete_stored
from loopwright.cli.formats import put_rows
from loopwright.cli.verb import Verb, group, terminal_of

if TYPE_CHECKING:
    from loopwright.operations.use_cases.webhooks import WebhookKind

HOOKS = "/api/v1/hooks"
MOST_AT_ONCE = 100


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def hook_ls(ctx: click.Context, /) -> None:
    """Hooks, never their secrets."""
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        found = client.call_pages(webhooks.list_hooks, lambda page: page.hooks)
    if terminal.as_json:
        terminal.put_json({"hooks": found})
        return
    rows = [[one.name, one.stored, one.at_once, one.waiting, one.problem or ""] for one in found]
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
@click.option(
    "--message", default="", metavar="TEXT", help="Text to put before the text of each message."
)
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
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = webhooks.AddHook(
        name=name, stored=stored, message=message, at_once=at_once, allow_unknown_cost=allow
    )
    secret = terminal.call(webhooks.add_hook, wanted).secret
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
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    terminal.call(webhooks.remove_hook, webhooks.HookReference(name=name))
    terminal.done(f"{name} is deleted", {"name": name, "removed": True})


_HOOK_GROUP = group(
    "hook",
    "Incoming webhooks: signed messages that start runs at a server.",
    [hook_ls, hook_add, hook_rm],
)


KINDS = ("gate.opened", "run.finished")
NOT_DELIVERED = 7


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def webhook_ls(ctx: click.Context, /) -> None:
    """Outgoing webhooks, without their secrets."""
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        found = client.call_pages(webhooks.list_webhooks, lambda page: page.webhooks)
    if terminal.as_json:
        terminal.put_json({"webhooks": found})
        return
    rows = []
    for one in found:
        state = "active" if one.active else "off"
        rows.append([one.id, state, ",".join(one.kinds), one.problem or "-", one.url])
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
def webhook_add(ctx: click.Context, /, *, url: str, kinds: "tuple[WebhookKind, ...]") -> None:
    """Notify an address when a gate opens or a run ends, as Standard Webhooks specifies.

    The server of this data directory sends it. Addresses of this machine and of its network are
    refused; the setting webhooks_to_loopback allows this machine.
    """
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = webhooks.AddWebhook(url=url, kinds=kinds or webhooks.KINDS)
    made = terminal.call(webhooks.add_webhook, wanted)
    if terminal.as_json:
        terminal.put_json(made)
    else:
        terminal.say(f"{made.id} added; its secret:")
        terminal.put(made.secret)


@click.command("rm", cls=Verb, remote=True)
@click.argument("name", metavar="WEBHOOK")
@click.pass_context
def webhook_rm(ctx: click.Context, /, *, name: str) -> None:
    """Remove an outgoing webhook; messages that wait for it are dropped."""
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    terminal.call(webhooks.remove_webhook, webhooks.WebhookReference(webhook=name))
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
    from loopwright.operations.use_cases import webhooks  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    trial = terminal.call(webhooks.test_webhook, webhooks.WebhookReference(webhook=name))
    if terminal.as_json:
        terminal.put_json(trial)
    elif trial.delivered:
        terminal.say(f"delivered to {name} ({trial.status})", tone="good")
    else:
        terminal.tell(f"not delivered to {name}: {trial.problem}", tone="bad")
    return 0 if trial.delivered else NOT_DELIVERED


_WEBHOOK_GROUP = group(
    "webhook",
    "Outgoing webhooks: addresses that are notified when a gate opens or a run ends.",
    [webhook_ls, webhook_add, webhook_rm, webhook_test],
)


VERBS = {
    "hook": _HOOK_GROUP,
    "webhook": _WEBHOOK_GROUP,
}
