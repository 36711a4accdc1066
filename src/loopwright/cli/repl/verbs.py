"""`chat` and `repl`: prompts to talk with a chat model, and to start and control loops.

Each turn of a chat is an event of a run. The sessions are imported only when a prompt starts,
because they import all of the application.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.start_options import sandbox_option
from loopwright.cli.terminal import Terminal, worst_exit_code
from loopwright.cli.verb import Verb, terminal_of

if TYPE_CHECKING:
    from loopwright.cli.repl.chat_session import ChatOptions
    from loopwright.model.sandbox import SandboxLevel

CHAT_PROMPT = "you> "


class _ChatFlags(TypedDict):
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
        ("loopwright chat --agent model:anthropic/claude-sonnet-4-5", "chat in this terminal"),
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
    help="Continue an earlier chat, by its id.",
)
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for the agent. Default: the current one.",
)
@click.option("--budget", metavar="LIMITS", help="Limits of the chat: usd=5,tokens=2M,time=2h.")
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Start although a limit in USD cannot be enforced, since the cost of the model is "
    "unknown.",
)
@sandbox_option
@click.pass_context
def chat(ctx: click.Context, /, *, file: str | None, **given: Unpack[_ChatFlags]) -> int:
    """Chat with a model that works in the workspace.

    A line is a message; `@path` in it shows a file of the workspace to the model. A line that
    begins with / is a command of the chat (`/help`) and never reaches the model. FILE is a
    definition whose agent is used, with its prompt, tools and approvals. The chat is a run: after
    you leave, it waits and can be resumed.
    """
    from loopwright.cli.repl.chat_session import ChatOptions  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    if terminal.as_json:
        raise click.UsageError("a chat is for people; `events` has it for programs", ctx)
    if given["resume"] and given["sandbox"]:
        raise click.UsageError("--sandbox is for a new chat: a resumed one keeps its level", ctx)
    options = ChatOptions(
        file=file,
        agent=given["agent"] or (None if file else terminal.settings.agent),
        resume=given["resume"],
        workspace=given["workspace"] or Path.cwd(),
        budget=given["budget"],
        allow_unknown_cost=given["allow_unknown_cost"],
        sandbox=given["sandbox"],
    )
    return asyncio.run(_chat(terminal, options))


async def _chat(terminal: Terminal, options: "ChatOptions") -> int:
    from loopwright.cli.repl.chat_session import ChatSession  # noqa: PLC0415 - help stays quick
    from loopwright.cli.repl.line_input import LineInput  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import near  # noqa: PLC0415 - help stays quick

    async with near(
        terminal.settings, via="chat", say=terminal.say, alone=terminal.options.here
    ) as here:
        lines = LineInput(
            history=terminal.settings.home / "chat-history", complete=lambda _before: []
        )
        session = ChatSession(terminal, here, options, lines)
        await session.begin()
        if lines.at_terminal:
            terminal.say("/help lists the commands, /quit leaves", tone="dim")
        while (line := await lines.read(CHAT_PROMPT if lines.at_terminal else "")) is not None:
            if not await session.take(line):
                break
        sys.stdout.flush()
        return session.leave()


REPL_PROMPT = "loopwright> "
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

    With commands from a pipe it waits for the runs that they started, and exits with the code of
    the worst command that failed (2 for an unknown command); results of loops do not count. At a
    terminal it exits with code 0.
    """
    terminal = terminal_of(ctx)
    if terminal.as_json:
        raise click.UsageError("a prompt is for people; every other command takes --json", ctx)
    return asyncio.run(_repl(terminal, agents))


async def _repl(terminal: Terminal, agents: tuple[str, ...]) -> int:
    from loopwright.cli.repl.commands import complete, obey  # noqa: PLC0415 - help stays quick
    from loopwright.cli.repl.line_input import LineInput  # noqa: PLC0415 - help stays quick
    from loopwright.cli.repl.session import ReplSession  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import near  # noqa: PLC0415 - help stays quick

    async with near(terminal.settings, say=terminal.say, alone=terminal.options.here) as here:
        with ReplSession(terminal, here, agents) as session:
            lines = LineInput(
                history=terminal.settings.home / "history",
                complete=lambda before: complete(session, before),
            )
            if lines.at_terminal:
                terminal.say(GREETING, tone="dim")
            with lines.above():
                while (line := await lines.read(REPL_PROMPT)) is not None:
                    if not await obey(session, line):
                        break
                await session.leave(wait=not lines.at_terminal)
    return 0 if lines.at_terminal else worst_exit_code(session.failures)


VERBS = {
    "chat": chat,
    "repl": repl,
}
