"""Where `loopwright` begins: the commands by name, each loaded when it is called."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, TextIO

import click

from loopwright.cli.door import Door, Wanted, put
from loopwright.cli.verb import (
    CONTEXT,
    PROGRAM,
    PROGRAMS,
    common_options,
    wants_json,
    wants_traces,
    write_examples,
)


class Entry(NamedTuple):
    """A command before it is loaded."""

    module: str
    group: str
    summary: str


_RUNNING, _LOOKING = "Run", "Look"
_DECIDING, _WRITING, _REST = "Decide and control", "Definitions", "The rest"

COMMANDS: dict[str, Entry] = {
    "run": Entry("run", _RUNNING, "run a definition"),
    "loop": Entry("loop", _RUNNING, "run a loop without a file"),
    "chat": Entry("chat", _RUNNING, "talk with a chat model that works here"),
    "repl": Entry("repl", _RUNNING, "a prompt to start, watch and steer loops"),
    "ls": Entry("ls", _LOOKING, "list runs"),
    "show": Entry("show", _LOOKING, "one run in words"),
    "watch": Entry("watch", _LOOKING, "a run live, with text as agents write it"),
    "events": Entry("events", _LOOKING, "the events of a run as JSON lines"),
    "logs": Entry("logs", _LOOKING, "what agents and checks said"),
    "diff": Entry("workspace_history", _LOOKING, "what a run changed in its workspace"),
    "bisect": Entry("workspace_history", _LOOKING, "find the iteration that broke a check"),
    "spend": Entry("spend", _LOOKING, "what runs have cost"),
    "artifact": Entry("artifact", _LOOKING, "files of runs and sessions, made or given"),
    "project": Entry("trackers", _LOOKING, "projects that loops belong to"),
    "sprint": Entry("trackers", _LOOKING, "sprints of projects"),
    "todo": Entry("trackers", _LOOKING, "todos of runs and sessions"),
    "notifications": Entry("notifications", _LOOKING, "what happened while you were away"),
    "eval": Entry("evaluate", _LOOKING, "whether runs came to what was expected"),
    "inbox": Entry("inbox", _DECIDING, "what waits for a person"),
    "approve": Entry("answers", _DECIDING, "accept what a gate asks about"),
    "reject": Entry("answers", _DECIDING, "refuse it"),
    "continue": Entry("answers", _DECIDING, "ask for another iteration, with feedback"),
    "tell": Entry("tell", _DECIDING, "send a message to the agents of a run"),
    "pause": Entry("control", _DECIDING, "pause a run before its next iteration"),
    "resume": Entry("control", _DECIDING, "let it go on, also after a crash"),
    "retry": Entry("steer", _DECIDING, "try again the stage that a loop stopped at"),
    "skip": Entry("steer", _DECIDING, "leave that stage out"),
    "edit": Entry("steer", _DECIDING, "change goal, cap or labels of a loop under way"),
    "fork": Entry("fork", _DECIDING, "a new run from a finished place of another"),
    "restore": Entry("workspace_history", _DECIDING, "put files back as an iteration left them"),
    "stop": Entry("control", _DECIDING, "end a run now"),
    "apply": Entry("worktree", _DECIDING, "merge the result of a worktree into your files"),
    "discard": Entry("worktree", _DECIDING, "remove a worktree and its branch"),
    "definitions": Entry("definitions", _WRITING, "what can be run by its name"),
    "stored": Entry("stored", _WRITING, "definitions kept by name, for runs and hooks"),
    "validate": Entry("validate", _WRITING, "find what is wrong with definitions"),
    "import": Entry("import_definitions", _WRITING, "check a folder of files of other systems"),
    "convert": Entry("convert", _WRITING, "any dialect to a native definition"),
    "promote": Entry("promote", _WRITING, "try a definition with its suites, and record it"),
    "schema": Entry("schema", _WRITING, "the JSON Schema of a dialect"),
    "init": Entry("init", _WRITING, "write a definition that works at once"),
    "roles": Entry("roles", _WRITING, "roles that agents can have"),
    "serve": Entry("serve", _REST, "serve runs and gates over HTTP"),
    "login": Entry("login", _REST, "sign in at a server elsewhere"),
    "logout": Entry("login", _REST, "sign out there"),
    "agent": Entry("agent_list", _REST, "agents that editors of a server may use"),
    "workspace": Entry("workspace_list", _REST, "folders that editors of a server may work in"),
    "user": Entry("people", _REST, "people with accounts at a server"),
    "token": Entry("people", _REST, "tokens for programs that ask a server"),
    "hook": Entry("hooks", _REST, "messages from elsewhere that start runs"),
    "webhook": Entry("webhook", _REST, "addresses that are told what happens"),
    "backup": Entry("backup", _REST, "copy everything into a new file"),
    "mcp": Entry("mcp", _REST, "loops as tools for other agents"),
    "doctor": Entry("doctor", _REST, "see whether everything is in order"),
    "prune": Entry("prune", _REST, "forget runs that ended long ago"),
    "config": Entry("config", _REST, "settings and where they come from"),
    "completion": Entry("completion", _REST, "a completion script for your shell"),
    "version": Entry("version", _REST, "the version"),
}

EXAMPLES = [
    ("loopwright init && loopwright run loop.yaml", "try it, no key needed"),
    (
        'loopwright loop "Make it pass" --agent command:./agent --until-command pytest',
        "repeat an agent until a command succeeds",
    ),
    ("loopwright inbox", "see what waits for you, then approve, reject or continue"),
    ("loopwright resume all", "go on with everything that was interrupted"),
]


class Commands(click.Group):
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
        formatter.write("Runs agent loops durably: every iteration is recorded, every run can be\n")
        formatter.write("continued, every stop has a reason.\n")
        write_examples(EXAMPLES, formatter)
        formatter.write_paragraph()
        formatter.write("Usage: loopwright COMMAND [ARGUMENTS] [OPTIONS]\n")
        for group in dict.fromkeys(entry.group for entry in COMMANDS.values()):
            with formatter.section(group):
                formatter.write_dl(
                    [(name, e.summary) for name, e in COMMANDS.items() if e.group == group],
                    col_max=14,
                )
        self.format_options(ctx, formatter)
        formatter.write_paragraph()
        formatter.write("`loopwright COMMAND --help` tells more about a command.\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        click.Command.format_options(self, ctx, formatter)


def _version(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        from loopwright import __version__  # noqa: PLC0415 - only when asked for

        put(f"{PROGRAM} {__version__}")
        ctx.exit()


cli = Commands(
    name=PROGRAM,
    params=[
        *common_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_version,
            help="Show the version and leave.",
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
    """The exit code of a command line; whatever happens is told without a trace."""
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
        return _told(error, words)


def _invoke(words: list[str]) -> int:
    for program in PROGRAMS:
        variable = f"_{program.upper()}_COMPLETE"
        if variable in os.environ:
            cli.main(words, prog_name=program, complete_var=variable)
    # Not by click's own `main`, which would take a reader that has gone for an error.
    with cli.make_context(PROGRAM, [*words]) as ctx:
        code = cli.invoke(ctx)
    return code if isinstance(code, int) else 0


def _told(error: Exception, words: list[str]) -> int:
    if wants_traces():
        raise error
    from loopwright.cli.problems import problem_of  # noqa: PLC0415 - errors only

    problem = problem_of(error)
    as_json = wants_json(words)
    door = Door(Wanted(as_json=as_json, no_color="--no-color" in words))
    try:
        if as_json:
            door.put_json(problem.as_dict())
        else:
            _tell_lines(door, problem.as_lines())
    except BrokenPipeError:
        _reader_gone()
    except OSError:  # stdout takes nothing, which may be what is to be told: then say it beside
        with contextlib.suppress(OSError):
            _tell_lines(door, problem.as_lines())
        _reader_gone()
    return problem.exit


def _tell_lines(door: Door, lines: list[str]) -> None:
    for line in lines:
        door.tell(line, tone="bad")


def _reader_gone() -> int:
    """Whoever read our output has seen enough: leave without a word."""
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
