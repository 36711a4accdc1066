"""Which commands a process inside a run can use (the others fail with code `inside-run`)."""

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from loopwright.cli.terminal import CommonOptions, Terminal
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.operations.accounts.access import (
    find_caller,
    has_run,
    inside_run_error,
    is_private,
    record_refusal,
)

if TYPE_CHECKING:
    from loopwright.operations.accounts.access import InsideRun
    from loopwright.operations.settings import Settings

WITHOUT_DATA = (
    *("completion", "convert", "definitions", "help", "import", "init", "roles", "schema"),
    *("validate", "version"),
)
"""Commands that use no data of runs, people or settings."""
START = ("loop", "run")
"""Commands that start a run below the run of the caller, with its budget."""
OWN_RUNS = ("diff", "events", "logs", "ls", "mcp", "pause", "resume", "show", "stop", "watch")
"""Commands for runs of the caller: the one it belongs to, and those started below it."""
EXPLICIT = ("--data-dir", "LOOPWRIGHT_HOME")
NOT_VISIBLE = (
    "let a person start it outside of the run, or name a private data directory with --data-dir "
    "DIR; runs in a private one do not count against the budget of this run"
)


def check_caller(ctx: click.Context) -> None:
    """Refuse a command that a process inside a run cannot use, and record the attempt."""
    inside = find_caller()
    if inside is None:
        return
    words = ctx.command_path.split()[1:]
    wanted = ctx.ensure_object(CommonOptions)
    if not words or words[0] in WITHOUT_DATA:
        return
    from loopwright.operations.settings import load_settings  # noqa: PLC0415 - only inside a run

    terminal = Terminal(wanted)
    try:
        resolved = load_settings(data_dir=wanted.data_dir)
    except LoopwrightError:
        raise _refusal(inside, words) from None
    settings, explicit = resolved.settings, resolved.origins["home"] in EXPLICIT
    if not settings.database.exists():
        _check_new(terminal, settings, inside, words, explicit=explicit)
        return
    from loopwright.operations.run_lists import open_data_log  # noqa: PLC0415 - only inside a run

    with closing(open_data_log(settings)) as log:
        if is_private(log, inside):
            return
        if wanted.server is not None or not _is_allowed(words):
            what, at = f"loopwright {' '.join(words)}", int(time.time() * 1_000)
            record_refusal(log, inside, what, at=at, via="cli")
            raise _refusal(inside, words)
        if inside.run and not has_run(log, inside.run):
            if not explicit:
                raise _hidden(inside)
            terminal.say(_private_words(settings, inside))


def _check_new(
    terminal: Terminal,
    settings: "Settings",
    inside: "InsideRun",
    words: list[str],
    *,
    explicit: bool,
) -> None:
    """There is no data yet. A new data directory must be named: one that is created because that of
    the run is hidden would have no budget, unnoticed.
    """
    if terminal.options.server is not None:
        raise _refusal(inside, words)
    if settings.home.is_dir() and not os.access(settings.home, os.W_OK):
        raise _hidden(inside)  # an empty folder covers it in the sandbox
    if not explicit:
        raise _hidden(inside) if _is_allowed(words) else _refusal(inside, words)
    terminal.say(_private_words(settings, inside))


def _is_allowed(words: list[str]) -> bool:
    return words[0] in START or words[0] in OWN_RUNS


def _refusal(inside: "InsideRun", words: list[str]) -> NotAllowed:
    return inside_run_error(inside, f"use `loopwright {' '.join(words)}`: it is for people")


def _hidden(inside: "InsideRun") -> NotAllowed:
    what = f"use the data directory of {inside.run or 'its run'}: it is not visible here"
    return inside_run_error(inside, what, hint=NOT_VISIBLE)


def _private_words(settings: "Settings", inside: "InsideRun") -> str:
    return (
        f"note: {settings.home} is not the data directory of {inside.run or 'this run'}, so its "
        "budget does not apply to what is started here"
    )
