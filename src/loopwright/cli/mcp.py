"""`mcp`: loops as tools for other agents."""

import asyncio
from pathlib import Path

import click

from loopwright.cli.verb import Verb, door_of


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("claude mcp add loopwright -- loopwright mcp", "Claude Code may start loops from now on"),
        ("loopwright mcp --agent claude --allow-answers", "and may answer gates, too"),
    ],
)
@click.option("--agent", "agents", multiple=True, metavar="[NAME=]SPEC", help="Behind the roles.")
@click.option("--workspace", metavar="DIR", help="Where loops work (else this folder).")
@click.option("--session", default="", metavar="ID", help="Loops of a session share trackers.")
@click.option(
    "--allow-answers",
    is_flag=True,
    help="Offer gate_list and gate_answer: whoever uses this may decide in your place.",
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
    from loopwright.app.mcp_door import serve  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if door.as_json:
        raise click.UsageError("stdout belongs to the protocol: leave out --json", ctx)
    left = asyncio.run(
        serve(
            door.settings,
            alone=door.wanted.here,
            cwd=Path(workspace).absolute() if workspace else Path.cwd(),
            agents=agents,
            session=session,
            answers=allow_answers,
        )
    )
    for run in left:
        door.say(f"{run} continues in the background")
    return 0


VERBS = {"mcp": mcp}
