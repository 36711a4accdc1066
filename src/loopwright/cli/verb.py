"""What all commands share: common options, and help that shows examples first."""

import os
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from loopwright.cli.terminal import CommonOptions, Terminal
from loopwright.errors import LoopwrightError

Example = tuple[str, str]
"""A command line, and what it does."""

WORDS = "loopwright.words"
"""The key under which a context stores the command line, for errors about its values."""
PROGRAM = "loopwright"
PROGRAMS = (PROGRAM, "lw")
RUNS = "A run is named by its id, by the beginning or the end of one, or by `last`: the newest."
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """A flag counts wherever it was given, so a later "not given" does not take it back."""
    wanted = ctx.ensure_object(CommonOptions)
    if isinstance(value, str) and not value.strip():
        # Most likely a variable in a script was never set.
        kind = "an address" if param.name == "server" else "a folder"
        raise click.BadParameter(f"it is empty; name {kind}, or leave it out", ctx, param)
    if value and param.name:
        setattr(wanted, param.name, value)


def common_options() -> list[click.Parameter]:
    """The flags that every command takes."""
    return [
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="Print one JSON object on stdout and nothing else.",
        ),
        click.Option(
            ["--data-dir"],
            metavar="DIR",
            expose_value=False,
            callback=_keep,
            help="Data directory (default: LOOPWRIGHT_HOME, otherwise that of the platform).",
        ),
        click.Option(
            ["--no-color"], is_flag=True, expose_value=False, callback=_keep, help="Disable colour."
        ),
        click.Option(
            ["--quiet", "-q"],
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="Print only the result and errors.",
        ),
    ]


_SERVER: dict[str, Any] = {"param_decls": ["--server"], "metavar": "URL", "expose_value": False}
_SERVER["envvar"] = "LOOPWRIGHT_SERVER"


def server_options(*, watches: bool) -> list[click.Parameter]:
    """The flags of commands that can be sent to a remote server."""
    options: list[click.Parameter] = [
        click.Option(
            **_SERVER,
            callback=_keep,
            help="Use this server instead of the local data directory; the token is "
            "LOOPWRIGHT_TOKEN, in the file LOOPWRIGHT_TOKEN_FILE, or that of `loopwright login`.",
        )
    ]
    if watches:
        options.append(
            click.Option(
                ["--no-retry"],
                is_flag=True,
                expose_value=False,
                callback=_keep,
                help="With --server: exit with code 7 instead of reconnecting when the connection "
                "drops.",
            )
        )
    return options


def _refuse_server(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Refuse a command that changes what is on this machine: with a server, the caller means what
    is on that one.
    """
    if value is not None:
        command = ctx.command_path
        is_variable = ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT
        here = f"`env -u LOOPWRIGHT_SERVER {command} …`" if is_variable else "leave --server out"
        given = "LOOPWRIGHT_SERVER is set" if is_variable else "--server was given"
        raise LoopwrightError(
            f"`{command}` works only on the machine of the server, and {given}",
            code="usage",
            hint=f"run it on that machine; for the data directory of this machine: {here}",
        )


def here_option() -> click.Parameter:
    """The flag of commands that drive runs."""
    return click.Option(
        ["--here"],
        is_flag=True,
        envvar="LOOPWRIGHT_HERE",
        expose_value=False,
        callback=_keep,
        help="Run in this process, even if a server of this data directory is running.",
    )


class Verb(click.Command):
    """A command of this product."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - parameters of click
        examples: Sequence[Example] = (),
        remote: bool = False,
        watches: bool = False,
        drives: bool = False,
        only_here: bool = False,
        **kwargs: Any,  # noqa: ANN401 - the same
    ) -> None:
        more = [
            *([here_option()] if drives else ()),
            *(server_options(watches=watches) if remote else ()),
            *([click.Option(callback=_refuse_server, hidden=True, **_SERVER)] if only_here else ()),
            *common_options(),
        ]
        kwargs["params"] = [*(kwargs.get("params") or []), *more]
        kwargs.setdefault("context_settings", CONTEXT)
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # of an option without its value, click names no command
            raise

    def invoke(self, ctx: click.Context) -> object:
        from loopwright.operations.accounts.access import find_caller  # noqa: PLC0415 - help stays quick

        if find_caller() is not None:
            from loopwright.cli.inside_run import check_caller  # noqa: PLC0415 - only inside a run

            check_caller(ctx)
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if any(_names_run(param) for param in self.params):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(RUNS)
        write_examples(self.examples, formatter)


def group(name: str, say: str, commands: Sequence[click.Command]) -> click.Group:
    """Commands about one kind of object, under one name."""
    made = click.Group(
        name,
        help=say,
        context_settings=CONTEXT,
        params=common_options(),
        commands={str(one.name): one for one in commands},
    )
    made.no_args_is_help = True
    return made


def _names_run(param: click.Parameter) -> bool:
    """Whether an argument is a run, or a gate that a run can name."""
    named = (param.metavar or "").split("|")
    return isinstance(param, click.Argument) and ("RUN" in named or "ID" in named)


def write_examples(examples: Sequence[Example], formatter: click.HelpFormatter) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for line, meaning in examples:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")
            if meaning:
                formatter.write(f"{'':{formatter.current_indent + 4}}{meaning}\n")


def terminal_of(ctx: click.Context) -> Terminal:
    """The terminal of the running command."""
    return Terminal(ctx.ensure_object(CommonOptions))


def wants_json(args: Sequence[str]) -> bool:
    """Whether a command line requests JSON, checked before parsing: errors are JSON too."""
    before = args[: args.index("--")] if "--" in args else args
    return "--json" in before


def wants_traces() -> bool:
    return os.environ.get("LOOPWRIGHT_DEBUG", "") not in ("", "0")
