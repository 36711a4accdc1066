"""Shell completion: the `completion` command, and the completers for arguments and options.

They complete runs, gates, dialects and stored definitions. A completer that fails completes
nothing; it never prints an error.
"""

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from loopwright.cli.verb import PROGRAMS, Verb, terminal_of

if TYPE_CHECKING:
    from loopwright.operations.runs import Service

_MOST = 50
STORED = "stored:"
"""The prefix by which `run` recognises the name of a stored definition."""


def _looked_up(
    ctx: click.Context, find: "Callable[[Service], list[tuple[str, str]]]"
) -> list[tuple[str, str]]:
    from loopwright.cli.verb import terminal_of  # noqa: PLC0415 - the two name each other
    from loopwright.operations.data_directory import open_reader  # noqa: PLC0415 - help stays quick

    settings = terminal_of(ctx).settings
    if not settings.database.exists():
        return []
    service = open_reader(settings)
    try:
        return find(service)
    finally:
        service.log.close()


def _fitting(found: list[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=help_) for word, help_ in found if word.startswith(incomplete)
    ]


def complete_runs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Runs, newest first."""

    def find(service: "Service") -> list[tuple[str, str]]:
        rows = service.rows(limit=_MOST)
        return [(row.run, f"{row.headline.status} {row.headline.name}") for row in rows]

    try:
        return _fitting(_looked_up(ctx, find), incomplete)
    except Exception:
        return []


def complete_gates(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Open gates, and the runs that wait at them."""

    def find(service: "Service") -> list[tuple[str, str]]:
        gates = service.gates()[:_MOST]
        return [(g.gate, g.message) for g in gates] + [(g.run, g.message) for g in gates]

    try:
        return _fitting(_looked_up(ctx, find), incomplete)
    except Exception:
        return []


def complete_stored(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Stored definitions by name."""
    return _stored(ctx, "", incomplete)


def complete_stored_runs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The same if a file may be named too: offered after their prefix was typed."""
    return _stored(ctx, STORED, incomplete) if incomplete else []


def _stored(ctx: click.Context, prefix: str, incomplete: str) -> list[CompletionItem]:
    from loopwright.cli.verb import terminal_of  # noqa: PLC0415 - the two name each other
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick

    try:
        settings = terminal_of(ctx).settings
        if not settings.database.exists():
            return []
        with closing(open_log(settings)) as log:
            records = log.records("definition", limit=_MOST)
        return _fitting([(f"{prefix}{record.key}", "") for record in records], incomplete)
    except Exception:
        return []


def complete_dialects(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from loopwright.operations.dialects import NAMES  # noqa: PLC0415 - help stays quick

    return _fitting([(name, "") for name in NAMES], incomplete)


SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Verb,
    examples=[
        ('eval "$(loopwright completion bash)"', "in ~/.bashrc; the same for zsh in ~/.zshrc"),
        ("loopwright completion fish > ~/.config/fish/completions/loopwright.fish", ""),
    ],
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, /, *, shell: str) -> None:
    """Print a completion script. It completes commands, options, runs, gates and dialects."""
    terminal = terminal_of(ctx)
    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    root = ctx.find_root().command
    texts = [
        made(root, {}, program, f"_{program.upper()}_COMPLETE").source() for program in PROGRAMS
    ]
    script = "\n".join(texts)
    if terminal.as_json:
        terminal.put_json({"shell": shell, "script": script})
    else:
        terminal.put(script)


VERBS = {"completion": completion}
