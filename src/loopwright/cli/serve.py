"""`serve` and `mcp`: runs over HTTP, and loops as tools for other agents.

No other module imports this one, and it imports the server only when it is started.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, terminal_of

if TYPE_CHECKING:
    from loopwright.http.server import Started


@click.command(
    cls=Verb,
    examples=[
        ("loopwright serve", "on 127.0.0.1:3001; the first start prints a token"),
        ("loopwright serve --port 8080", ""),
        (
            "loopwright serve --host 0.0.0.0 --public-url https://loops.example.org",
            "behind a proxy with TLS, once there is an admin who can sign in",
        ),
    ],
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=3001,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--public-url", metavar="URL", help="URL of the proxy in front of the server, with https."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A further host name that requests may use. May be given more than once.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a proxy whose X-Forwarded-For header names the client. "
    "May be given more than once.",
)
@click.option("--tls-cert", metavar="FILE", help="TLS certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Key of the TLS certificate (PEM).")
@click.option(
    "--workspace",
    metavar="DIR",
    help="Workspace of runs that do not name one. Default: the current folder.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Limit of requests per second for each client, and of events per socket.",
)
@click.option(
    "--webhooks-to-loopback",
    is_flag=True,
    help="Allow outgoing webhooks to this machine, for tests; private networks stay refused.",
)
@click.option(
    "--log-requests", is_flag=True, help="Print a line of JSON on stderr for every request."
)
@click.pass_context
def serve(
    ctx: click.Context, /, *, tls_cert: str | None, tls_key: str | None, **given: object
) -> int:
    """Serve runs, gates and events over HTTP, and drive every run that no other process drives.

    Interrupted runs are resumed at once. A signal ends the server within ten seconds; runs that
    have not ended by then are resumed at the next start.
    """
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key belong together", ctx)
    terminal = terminal_of(ctx)
    from loopwright.http.context import RequestLimits, ServerOptions  # noqa: PLC0415 - help stays quick
    from loopwright.http.server import serve as serve_runs  # noqa: PLC0415 - help stays quick

    folder, rate = given.pop("workspace"), given.pop("rate")
    loopback = given.pop("webhooks_to_loopback")
    serving = ServerOptions(
        **cast("dict[str, Any]", given),
        tls_cert=Path(tls_cert) if tls_cert else None,
        tls_key=Path(tls_key) if tls_key else None,
        workspace=Path(str(folder)) if folder else Path.cwd(),
        limits=RequestLimits(requests_per_second=int(str(rate))),
    )
    settings = (
        replace(terminal.settings, webhooks_to_loopback="on") if loopback else terminal.settings
    )
    if settings.webhooks_to_loopback == "on":
        terminal.tell("webhooks may go to this machine itself (webhooks_to_loopback)", tone="warn")
    ended = serve_runs(settings, serving, lambda started: _print_start(terminal, started))
    terminal.say("ended; open runs are resumed at the next start")
    return ended


def _print_start(terminal: Terminal, started: "Started") -> None:
    if terminal.as_json:
        printed = {"url": started.url, "pid": started.pid, "token": started.token}
        printed["link"] = started.link
        terminal.put_json({**printed, "troubles": list(started.troubles)})
        return
    if started.token is not None:
        terminal.tell(f"token: {started.token}")
        terminal.tell("this token is shown once; it may do everything, so keep it as a secret")
    else:
        terminal.say("to create another token: loopwright token create LABEL --role admin")
    if started.link is not None:
        terminal.tell(f"first admin: {started.link}")
    for trouble in started.troubles:
        terminal.tell(trouble, tone="bad")
    terminal.tell(f"serving {started.url}")


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("claude mcp add loopwright -- loopwright mcp", "Claude Code may start loops from now on"),
        ("loopwright mcp --agent claude --allow-answers", "and may answer gates, too"),
    ],
)
@click.option("--agent", "agents", multiple=True, metavar="[NAME=]SPEC", help="Agent backend.")
@click.option("--workspace", metavar="DIR", help="Directory for loops. Default: the current one.")
@click.option("--session", default="", metavar="ID", help="Loops of a session share trackers.")
@click.option(
    "--allow-answers",
    is_flag=True,
    help="Offer gate_list and gate_answer: the client may then decide in your place.",
)
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    agents: tuple[str, ...],
    workspace: str | None,
    session: str,
    *,
    allow_answers: bool,
) -> int:
    """Serve loop_start, loop_list, loop_status, loop_control, loop_tell and loop_definitions over
    the Model Context Protocol, on stdin and stdout. It ends when the client
    disconnects; loops that are running then continue in the background.
    """
    from loopwright.operations.mcp.loop_tools import serve  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    if terminal.as_json:
        raise click.UsageError("stdout belongs to the protocol: leave out --json", ctx)
    left = asyncio.run(
        serve(
            terminal.settings,
            alone=terminal.options.here,
            cwd=Path(workspace).absolute() if workspace else Path.cwd(),
            agents=agents,
            session=session,
            answers=allow_answers,
        )
    )
    for run in left:
        terminal.say(f"{run} continues in the background")
    return 0


VERBS = {
    "serve": serve,
    "mcp": mcp,
}
