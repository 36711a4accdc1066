"""Entry point of `loopwright`: the table of commands, each imported when it is called."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NamedTuple, TextIO

import click

from loopwright.cli.terminal import CommonOptions, Terminal, put
from loopwright.cli.verb import (
    CONTEXT,
    PROGRAM,
    PROGRAMS,
    common_options,
    wants_json,
    wants_traces,
    write_examples,
)


class CommandEntry(NamedTuple):
    """A command before it is loaded."""

    module: str
    group: str
    summary: str


_RUNNING, _LOOKING, _DECIDING = "Run", "Inspect", "Decide and control"
_WRITING, _SHARING, _KEEPING = "Definitions", "Servers and accounts", "Installation"

COMMANDS: dict[str, CommandEntry] = {
    "loop": CommandEntry("run", _RUNNING, "repeat an agent until checks pass, without a file"),
    "run": CommandEntry("run", _RUNNING, "run a definition in any dialect"),
    "chat": CommandEntry("repl.verbs", _RUNNING, "talk with a chat model that uses tools here"),
    "repl": CommandEntry("repl.verbs", _RUNNING, "start and control loops at a prompt"),
    "demo": CommandEntry(
        "demo", _RUNNING, "repair a small project with failing tests; needs no key"
    ),
    "ls": CommandEntry("run_lists", _LOOKING, "list runs"),
    "show": CommandEntry("show", _LOOKING, "show one run: iterations, checks, cost, changes"),
    "watch": CommandEntry("run_logs", _LOOKING, "follow a run live"),
    "diff": CommandEntry("workspace_changes", _LOOKING, "show what a run changed in its workspace"),
    "logs": CommandEntry("run_logs", _LOOKING, "show what agents and checks printed and did"),
    "events": CommandEntry("run_logs", _LOOKING, "print the events of a run as JSON lines"),
    "spend": CommandEntry("run_lists", _LOOKING, "show what runs cost"),
    "bisect": CommandEntry("workspace_changes", _LOOKING, "find the iteration that broke a check"),
    "artifact": CommandEntry("artifact", _LOOKING, "list and fetch files of runs and sessions"),
    "project": CommandEntry("trackers", _LOOKING, "projects that loops belong to"),
    "sprint": CommandEntry("trackers", _LOOKING, "sprints of projects"),
    "todo": CommandEntry("trackers", _LOOKING, "todos of runs and sessions"),
    "notifications": CommandEntry("inbox", _LOOKING, "list notifications and mark them read"),
    "eval": CommandEntry("evaluation", _LOOKING, "evaluate runs against expected results"),
    "inbox": CommandEntry("inbox", _DECIDING, "list gates that wait for a person"),
    "approve": CommandEntry("inbox", _DECIDING, "approve a gate"),
    "reject": CommandEntry("inbox", _DECIDING, "reject a gate"),
    "continue": CommandEntry(
        "inbox", _DECIDING, "answer a gate with feedback for another iteration"
    ),
    "tell": CommandEntry("steer", _DECIDING, "send a message to the agents of a run"),
    "pause": CommandEntry("run_control", _DECIDING, "pause a run before its next iteration"),
    "resume": CommandEntry(
        "run_control", _DECIDING, "continue a run after a crash, a limit or a stop"
    ),
    "stop": CommandEntry("run_control", _DECIDING, "stop a run now"),
    "retry": CommandEntry("steer", _DECIDING, "retry the stage at which a loop of roles stopped"),
    "skip": CommandEntry("steer", _DECIDING, "skip that stage"),
    "edit": CommandEntry("steer", _DECIDING, "change the goal, limit or labels of a loop of roles"),
    "fork": CommandEntry("run_control", _DECIDING, "start a new run from an iteration of another"),
    "restore": CommandEntry("workspace_changes", _DECIDING, "restore the files of an iteration"),
    "apply": CommandEntry(
        "workspace_changes", _DECIDING, "merge the result of a worktree into your files"
    ),
    "discard": CommandEntry("workspace_changes", _DECIDING, "remove a worktree and its branch"),
    "init": CommandEntry("definition_files", _WRITING, "write a definition that runs at once"),
    "validate": CommandEntry("definition_files", _WRITING, "report the problems of definitions"),
    "import": CommandEntry(
        "definition_files", _WRITING, "check a folder of files of other systems"
    ),
    "convert": CommandEntry(
        "definition_files", _WRITING, "convert a definition of any dialect to a native one"
    ),
    "definitions": CommandEntry(
        "definitions", _WRITING, "list definitions that can be run by name"
    ),
    "stored": CommandEntry("definitions", _WRITING, "store definitions by name"),
    "promote": CommandEntry(
        "evaluation", _WRITING, "run the suites of a definition and record the result"
    ),
    "schema": CommandEntry("definition_files", _WRITING, "print the JSON Schema of a dialect"),
    "roles": CommandEntry("definitions", _WRITING, "list roles of agents"),
    "serve": CommandEntry("serve", _SHARING, "serve runs and gates over HTTP"),
    "mcp": CommandEntry("serve", _SHARING, "offer loops as tools to other agents"),
    "login": CommandEntry("accounts", _SHARING, "sign in at a remote server"),
    "logout": CommandEntry("accounts", _SHARING, "sign out"),
    "agent": CommandEntry("allowlists", _SHARING, "agents that editors of a server may use"),
    "workspace": CommandEntry("allowlists", _SHARING, "folders that editors of a server may use"),
    "user": CommandEntry("accounts", _SHARING, "accounts of a server"),
    "token": CommandEntry("accounts", _SHARING, "API tokens of a server"),
    "hook": CommandEntry("webhooks", _SHARING, "incoming webhooks that start runs"),
    "webhook": CommandEntry("webhooks", _SHARING, "outgoing webhooks"),
    "doctor": CommandEntry(
        "installation", _KEEPING, "check the installation and the data directory"
    ),
    "config": CommandEntry("installation", _KEEPING, "show settings and where they come from"),
    "backup": CommandEntry("installation", _KEEPING, "copy the data directory into a new file"),
    "prune": CommandEntry("installation", _KEEPING, "delete runs that ended long ago"),
    "completion": CommandEntry("completion", _KEEPING, "print a completion script for your shell"),
    "version": CommandEntry("installation", _KEEPING, "print the version"),
    "help": CommandEntry("installation", _KEEPING, "help for a command, or for all with --all"),
}

FIRST = ("loop", "run", "watch", "ls", "show", "diff", "inbox", "resume")
"""The commands that people start with, as help without --all lists them."""

EXAMPLES = [
    ("loopwright demo", "try it without a key"),
    (
        'loopwright loop "Make the tests pass" --agent claude --until-command "pytest -q" '
        "--budget usd=5",
        "repeat an agent until a command succeeds",
    ),
    ("loopwright init && loopwright run loop.yaml", "write a definition and run it"),
]


class CommandGroup(click.Group):
    """The group of all commands; knows their names and loads the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"loopwright.cli.{entry.module}")
        found: click.Command = module.VERBS[cmd_name]
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._format_start(formatter)
        with formatter.section("Commands to start with"):
            _write_summaries(formatter, FIRST)
        self.format_options(ctx, formatter)
        formatter.write_paragraph()
        formatter.write(f"All {len(COMMANDS)} commands: `loopwright help --all`.\n")
        formatter.write("More about a command: `loopwright COMMAND --help`.\n")

    def format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help with every command, in groups."""
        self._format_start(formatter)
        for group in dict.fromkeys(entry.group for entry in COMMANDS.values()):
            with formatter.section(group):
                _write_summaries(formatter, [n for n, e in COMMANDS.items() if e.group == group])
        self.format_options(ctx, formatter)
        formatter.write_paragraph()
        formatter.write("More about a command: `loopwright COMMAND --help`.\n")

    def _format_start(self, formatter: click.HelpFormatter) -> None:
        formatter.write("Run AI agents in loops until the work is verified as done. Each run is\n")
        formatter.write("recorded, stays within its limits and can be resumed.\n")
        write_examples(EXAMPLES, formatter)
        formatter.write_paragraph()
        formatter.write("Usage: loopwright COMMAND [ARGUMENTS] [OPTIONS]\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(self, ctx, formatter)


def _write_summaries(formatter: click.HelpFormatter, names: Iterable[str]) -> None:
    formatter.write_dl([(name, COMMANDS[name].summary) for name in names], col_max=14)


def _version(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        from loopwright import __version__  # noqa: PLC0415 - only when asked for

        put(f"{PROGRAM} {__version__}")
        ctx.exit()


cli = CommandGroup(
    name=PROGRAM,
    params=[
        *common_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_version,
            help="Print the version and exit.",
        ),
    ],
    context_settings=CONTEXT,
)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line and leave with its exit code."""
    words = list(sys.argv[1:] if args is None else args)
    _prepare_streams()
    code = _guarded(words)
    _flush()
    sys.exit(code)


def _guarded(words: list[str]) -> int:
    """The exit code of a command line; errors are reported without a traceback."""
    try:
        return _invoke(words)
    except click.exceptions.NoArgsIsHelpError as error:
        put(error.format_message())
        return 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:
        return _print_error(error, words)


def _invoke(words: list[str]) -> int:
    for program in PROGRAMS:
        variable = f"_{program.upper()}_COMPLETE"
        if variable in os.environ:
            cli.main(words, prog_name=program, complete_var=variable)
    # Not by click's own `main`, which would take a reader that has gone for an error.
    with cli.make_context(PROGRAM, [*words]) as ctx:
        code = cli.invoke(ctx)
    return code if isinstance(code, int) else 0


def _print_error(error: Exception, words: list[str]) -> int:
    if wants_traces():
        raise error
    from loopwright.cli.problems import problem_of  # noqa: PLC0415 - errors only

    problem = problem_of(error)
    as_json = wants_json(words)
    terminal = Terminal(CommonOptions(as_json=as_json, no_color="--no-color" in words))
    try:
        if as_json:
            terminal.put_json(problem.as_dict())
        else:
            _print_lines(terminal, problem.as_lines())
    except BrokenPipeError:
        _reader_gone()
    except OSError:  # stdout cannot be written, which may be the error: then report it on stderr
        with contextlib.suppress(OSError):
            _print_lines(terminal, problem.as_lines())
        _reader_gone()
    return problem.exit


def _print_lines(terminal: Terminal, lines: list[str]) -> None:
    for line in lines:
        terminal.tell(line, tone="bad")


def _reader_gone() -> int:
    """The reader of our output has closed it: exit silently."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return 0


def _prepare_streams() -> None:
    """No text may fail because a terminal cannot draw it, or because there is none."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - kept open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - kept open until the process ends
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _flush() -> None:
    streams: tuple[TextIO, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        try:
            stream.flush()
        except (OSError, ValueError):
            _reader_gone()
