"""Options that `run`, `loop` and others share.

Includes reading a definition from stdin, where its file is called `-`.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from loopwright.cli.terminal import Terminal
from loopwright.model.sandbox import SANDBOX_LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.views.run_responses import RunSummary

STDIN = "-"
STDIN_NAME = "(stdin)"


def piped_definition(ctx: click.Context) -> bytes:
    """The piped input, up to a size that shows that it is too much."""
    from loopwright.operations.dialects import MAX_BYTES  # noqa: PLC0415 - help stays quick

    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("- reads the definition from stdin, which is a terminal here", ctx)
    return sys.stdin.buffer.read(MAX_BYTES + 1)


_Function = TypeVar("_Function", bound=Callable[..., object])


class StartManner(TypedDict):
    """The options that say how a start is shown."""

    exit_codes: str
    dry_run: bool
    detach: bool
    no_wait: bool
    jsonl: bool


sandbox_option = click.option(
    "--sandbox",
    type=click.Choice(SANDBOX_LEVELS),
    metavar="LEVEL",
    help="How agents and commands are confined: off, guard (they do not see Loopwright's data and "
    "settings), workspace (they write only there), readonly or none (no files). A stricter level "
    "of the definition or of a role applies instead. Default: the setting `sandbox`, else guard.",
)

_OPTIONS = [
    click.option(
        "--agent",
        "agents",
        multiple=True,
        metavar="SPEC",
        help="Agent backend: SPEC for all agents, NAME=SPEC for one (claude, codex, opencode, "
        "gemini, model:PROVIDER/NAME, acp:PROGRAM, command:PROGRAM, jsonl:PROGRAM, script:FILE). "
        "May be given more than once.",
    ),
    click.option(
        "--workspace",
        metavar="DIR",
        help="Directory for agents. Default: the current one.",
    ),
    click.option(
        "--worktree/--no-worktree",
        default=None,
        help="Work in a Git worktree of the workspace, on the branch loopwright/RUN. `apply RUN` "
        "merges the result back, `discard RUN` removes it. With --no-worktree: work in the "
        "workspace itself, whatever the definition says.",
    ),
    click.option(
        "--budget",
        metavar="LIMITS",
        help="Limits of the run: usd=5,tokens=2M,time=2h. idle=10m: how long an agent may "
        "print nothing before its call fails.",
    ),
    click.option(
        "--base-branch",
        metavar="NAME",
        help="The branch that work goes back to, for definitions that ask for it. Default: the "
        "default one of the repository.",
    ),
    click.option(
        "--parallel",
        metavar="N",
        type=click.IntRange(1, 1_000),
        help="Maximum number of agents at the same time, if the definition does not set one.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="TOOL",
        help="A tool that chat models may use without approval, if the definition requires "
        "approval for each tool; `all` for every tool. Without a terminal, the others are denied. "
        "`shell.exec:PROGRAM` allows a program. Refused by remote servers. May be given more "
        "than once.",
    ),
    click.option(
        "--deny",
        multiple=True,
        metavar="TOOL",
        help="A tool that chat models may not use. May be given more than once.",
    ),
    click.option(
        "--ask",
        multiple=True,
        metavar="TOOL",
        help="A tool whose every call needs the approval of a person, at the terminal or with "
        "`approve`; `all` for every tool. "
        "May be given more than once.",
    ),
    click.option(
        "--file-tools-only",
        is_flag=True,
        help="Chat models have the file tools of the workspace and nothing else: no program is "
        "started, whatever else is allowed.",
    ),
    sandbox_option,
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Pass an environment variable to the agents and check commands: your own by its NAME, "
        "or NAME=VALUE. Values are not stored in the log: where an agent or a check prints one of "
        "at least 6 characters that is not a path, [NAME] is recorded. Can be repeated.",
    ),
    click.option(
        "--permission",
        type=click.Choice(["ask", "edit", "all"]),
        metavar="MODE",
        help="What coding agents may do: `ask`: only what a person allows; `edit`: edit files and "
        "run the check commands (default); `all`: everything.",
    ),
    click.option(
        "--tools",
        multiple=True,
        metavar="LIST",
        help="The only tools of the agents, in their own names: Read,Edit. With a plus sign, "
        "further tools that they may use: +Bash or '+Bash(npm test)'.",
    ),
    click.option(
        "--loop-tools",
        multiple=True,
        type=click.Choice(("start", "look")),
        metavar="RIGHT",
        help="Tools for loops that the agents are given, also inside a sandbox: start (child runs "
        "of this run, within its budget) and look (at this run and its child runs). May be given "
        "more than once.",
    ),
    click.option(
        "--protect",
        multiple=True,
        metavar="PATTERN",
        help="Files that agents may not change, such as 'tests/**'. An iteration that changes one "
        "does not pass. May be given more than once.",
    ),
    click.option(
        "--no-snapshots",
        is_flag=True,
        help="Take no snapshots of the workspace. `diff`, `restore` and `bisect` need them.",
    ),
    click.option("--name", metavar="NAME", help="Name of the run in lists."),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="LABEL",
        help="A label for `ls --label` and `spend --by label`. May be given more than once.",
    ),
    click.option(
        "--allow-unknown-cost",
        is_flag=True,
        help="Start although a limit in USD cannot be enforced for an agent whose cost is unknown.",
    ),
    click.option(
        "--exit-codes",
        type=click.Choice(["loopwright", "dialect"]),
        default="loopwright",
        metavar="WHOSE",
        help="`dialect`: use the exit codes of the system that the definition was written for.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Run nothing: show the steps, every way in which the run can end, and the worst case.",
    ),
    click.option("--detach", is_flag=True, help="Start the run in the background and return."),
    click.option(
        "--no-wait", is_flag=True, help="Exit with code 5 at a gate instead of asking here."
    ),
    click.option(
        "--jsonl", is_flag=True, help="Print events as they occur, one JSON object per line."
    ),
]


def start_options(function: _Function) -> _Function:
    """Add the options that `run` and `loop` share."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def put_detached(terminal: Terminal, run: "RunSummary", *, where: str) -> None:
    """A run that another process drives, and how it is watched."""
    if terminal.as_json:
        terminal.put_json(run)
        return
    terminal.put(run.run)
    command = f"loopwright watch {run.run}{terminal.server_suffix}"
    terminal.say(f"running {where}; `{command}` shows it")


def say_notes(terminal: Terminal, notes: "Sequence[str]") -> None:
    """What people should know about a run that was just created or resumed."""
    for note in notes:
        terminal.say(note, tone="warn" if note.startswith("warning") else "plain")
