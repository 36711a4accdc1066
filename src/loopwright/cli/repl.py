"""`repl`: a prompt at which loops are started, watched, answered and steered."""

import asyncio

import click

from loopwright.cli.door import Door
from loopwright.cli.outcomes import worst
from loopwright.cli.verb import Verb, door_of

PROMPT = "loopwright> "
GREETING = "/help lists the commands, Tab completes, /quit leaves"


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("loopwright repl", "a prompt with history and completion"),
        ("loopwright repl --agent claude", "a backend for agents that a file only names"),
        ("echo /inbox | loopwright repl", "commands may come through a pipe"),
    ],
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="The agent of loops that are started here, or NAME=SPEC.",
)
@click.pass_context
def repl(ctx: click.Context, /, *, agents: tuple[str, ...]) -> int:
    """Start, watch, answer and steer loops at a prompt. Loops that are started here run here.

    With commands from a pipe it waits for what they started, and leaves with the exit code of the
    worst command that failed (2 for one that there is not); how loops end does not count. At a
    terminal it leaves with 0.
    """
    door = door_of(ctx)
    if door.as_json:
        raise click.UsageError("a prompt is for people; every other command takes --json", ctx)
    return asyncio.run(_repl(door, agents))


async def _repl(door: Door, agents: tuple[str, ...]) -> int:
    from loopwright.app.wiring import near  # noqa: PLC0415 - help stays quick
    from loopwright.cli.lines import Lines  # noqa: PLC0415 - help stays quick
    from loopwright.cli.repl_commands import complete, obey  # noqa: PLC0415 - help stays quick
    from loopwright.cli.repl_session import Session  # noqa: PLC0415 - help stays quick

    async with near(door.settings, say=door.say, alone=door.wanted.here) as here:
        with Session(door, here, agents) as session:
            lines = Lines(
                history=door.settings.home / "history",
                complete=lambda before: complete(session, before),
            )
            if lines.at_terminal:
                door.say(GREETING, tone="dim")
            with lines.above():
                while (line := await lines.read(PROMPT)) is not None:
                    if not await obey(session, line):
                        break
                await session.leave(wait=not lines.at_terminal)
    return 0 if lines.at_terminal else worst(session.failures)


VERBS = {"repl": repl}
