"""`chat`: talk with a chat model that works in the workspace; every turn is a fact of a run."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door
from loopwright.cli.starting import sandbox_option
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.cli.chat_session import ChatOptions
    from loopwright.model.sandbox import SandboxLevel

PROMPT = "you> "


class _Given(TypedDict):
    agent: str | None
    resume: str | None
    workspace: Path | None
    budget: str | None
    allow_unknown_cost: bool
    sandbox: "SandboxLevel | None"


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("loopwright chat --agent model:anthropic/claude-sonnet-4-5", "talk here"),
        ("loopwright chat --resume run_01", "continue it, also after a crash"),
        ('echo "What is in @README.md?" | loopwright chat --agent model:ollama/qwen3', ""),
    ],
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--agent", metavar="SPEC", help="The chat model: model:PROVIDER/NAME.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Go on with a chat that was left, by its id.",
)
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where it works. Default: here.",
)
@click.option("--budget", metavar="LIMITS", help="What the chat may use: usd=5,tokens=2M,time=2h.")
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Start although a limit in USD cannot be enforced, since the cost of the model is "
    "unknown.",
)
@sandbox_option
@click.pass_context
def chat(ctx: click.Context, /, *, file: str | None, **given: Unpack[_Given]) -> int:
    """Talk with a chat model that works in the workspace.

    A line is a message; `@path` in it shows a file of the workspace to the model. A line that
    begins with / is a command of the chat (`/help`) and never reaches the model. FILE is a
    definition whose agent is taken, with its prompt, tools and approvals. Leaving keeps the chat:
    it is a run that waits.
    """
    from loopwright.cli.chat_session import ChatOptions  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if door.as_json:
        raise click.UsageError("a chat is for people; `events` has it for programs", ctx)
    if given["resume"] and given["sandbox"]:
        raise click.UsageError("--sandbox is for a new chat: a resumed one keeps its level", ctx)
    options = ChatOptions(
        file=file,
        agent=given["agent"] or (None if file else door.settings.agent),
        resume=given["resume"],
        workspace=given["workspace"] or Path.cwd(),
        budget=given["budget"],
        allow_unknown_cost=given["allow_unknown_cost"],
        sandbox=given["sandbox"],
    )
    return asyncio.run(_chat(door, options))


async def _chat(door: Door, options: "ChatOptions") -> int:
    from loopwright.app.wiring import near  # noqa: PLC0415 - help stays quick
    from loopwright.cli.chat_session import ChatSession  # noqa: PLC0415 - help stays quick
    from loopwright.cli.lines import Lines  # noqa: PLC0415 - help stays quick

    async with near(door.settings, via="chat", say=door.say, alone=door.wanted.here) as here:
        lines = Lines(history=door.settings.home / "chat-history", complete=lambda _before: [])
        session = ChatSession(door, here, options, lines)
        await session.begin()
        if lines.at_terminal:
            door.say("/help lists the commands, /quit leaves", tone="dim")
        while (line := await lines.read(PROMPT if lines.at_terminal else "")) is not None:
            if not await session.take(line):
                break
        sys.stdout.flush()
        return session.leave()


VERBS = {"chat": chat}
