"""`help`, and the installation and its data directory: `config`, `version`, `doctor`, `backup` and
`prune`.

`config` shows the origin of each setting, `doctor` problems and how to fix them. `backup` works
while runs are in progress.
"""

import asyncio
import platform
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopwright import __version__
from loopwright.cli.formats import open_service
from loopwright.cli.terminal import Terminal, Tone, one_line
from loopwright.cli.verb import CONTEXT, PROGRAM, Verb, common_options, terminal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.operations.runs import Service
    from loopwright.operations.settings import Name, ResolvedSettings, Settings
    from loopwright.ports import Workspaces


def _resolved(terminal: Terminal) -> "ResolvedSettings":
    from loopwright.operations.settings import load_settings  # noqa: PLC0415 - help stays quick

    resolved = load_settings(data_dir=terminal.options.data_dir)
    for warning in resolved.warnings:
        terminal.say(f"warning: {warning}", tone="warn")
    return resolved


@click.command(cls=Verb, examples=[("loopwright config show --origin", "and where each is from")])
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.pass_context
def show(ctx: click.Context, /, *, origin: bool) -> None:
    """Show the settings that apply here."""
    terminal = terminal_of(ctx)
    _put(terminal, _resolved(terminal), origin=origin)


@click.command(cls=Verb)
@click.pass_context
def path(ctx: click.Context, /) -> None:
    """The files that settings are read from, the strongest first."""
    from loopwright.operations.settings import PROJECT_FILE, SettingsSources  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    used = [str(file) for file in _resolved(terminal).files]
    user = str(SettingsSources().user_file)
    if terminal.as_json:
        terminal.put_json({"used": used, "user_file": user, "project_file": PROJECT_FILE})
        return
    for file in used:
        terminal.put(file)
    terminal.say(f"your own file is {user}; a project has {PROJECT_FILE} or [tool.loopwright]")


@click.command(
    cls=Verb,
    examples=[("loopwright config trust loopwright.toml", "after you have reviewed it")],
)
@click.argument("file", metavar="FILE")
@click.pass_context
def trust(ctx: click.Context, /, *, file: str) -> None:
    """Use a settings file or a role of a project although an agent may have written it.

    Files that were created or changed while an agent worked in their folder are ignored until
    then. A later change by an agent is ignored again.
    """
    from pathlib import Path  # noqa: PLC0415 - help stays quick

    from loopwright.operations.settings import project_tables  # noqa: PLC0415 - help stays quick
    from loopwright.operations.settings_files import trust as accept  # noqa: PLC0415 - help stays quick

    path = Path(file).absolute()
    if not path.is_file():
        raise click.UsageError(f"{file} is not a file", ctx)
    tables = [one for one in project_tables(path.parent) if one[0] == path]
    for found, part, table in tables:
        accept(found, table, part)
    if not tables:
        accept(path, path.read_bytes())
    terminal_of(ctx).done(f"{file} is accepted as it is now", {"file": str(path), "trusted": True})


@click.group(
    context_settings=CONTEXT,
    invoke_without_command=True,
    params=common_options(),
    commands={"show": show, "path": path, "trust": trust},
)
@click.pass_context
def config(ctx: click.Context, /) -> None:
    """Settings: flag, then environment (LOOPWRIGHT_…), then loopwright.toml of the project, then
    [tool.loopwright] in pyproject.toml, then your own file, then the default.
    """
    if ctx.invoked_subcommand is None:
        from loopwright.cli.inside_run import check_caller  # noqa: PLC0415 - help stays quick

        check_caller(ctx)
        terminal = terminal_of(ctx)
        _put(terminal, _resolved(terminal), origin=True)


def _put(terminal: Terminal, resolved: "ResolvedSettings", *, origin: bool) -> None:
    settings = resolved.settings
    values: dict[Name, str | None] = {
        "home": str(settings.home),
        "durability": settings.durability,
        "agent": settings.agent,
        "color": settings.color,
        "four_eyes": settings.four_eyes,
        "webhooks_to_loopback": settings.webhooks_to_loopback,
        "sandbox": settings.sandbox,
        "allow_unsandboxed": settings.allow_unsandboxed,
        "workspaces": ", ".join(map(str, settings.workspaces)),
        "editor_variables": ", ".join(settings.editor_variables),
        "snapshots": settings.snapshots,
        "snapshot_max_file": str(settings.snapshot_max_file),
        "snapshot_max_total": str(settings.snapshot_max_total),
        "snapshot_max_files": str(settings.snapshot_max_files),
    }
    limits = {
        limit: getattr(settings.budget, limit)
        for limit in ("usd_per_day", "tokens_per_day", "usd_total", "tokens_total", "hard_stop")
    }
    printed = {name: list(one.kinds) for name, one in settings.notify.items()}
    if terminal.as_json:
        shown: dict[str, object] = {
            "settings": values,
            "budget": limits,
            "prices": _prices(settings),
            "notify": printed,
        }
        if origin:
            shown["origins"] = dict(resolved.origins)
        terminal.put_json(shown)
        return
    for name, value in values.items():
        source = f"   ({resolved.origins[name]})" if origin else ""
        terminal.put(f"{name} = {one_line(value or '')}{source}")
    for limit, amount in limits.items():
        if amount is not None and (settings.budget.has_limits or limit != "hard_stop"):
            terminal.put(f"budget.{limit} = {str(amount).lower()}")
    for subject, price in _prices(settings).items():
        amounts = ", ".join(f"{part} = {usd:g}" for part, usd in price.items())
        terminal.put(f"prices.{one_line(subject)}: {amounts}")
    for notifier, kinds in printed.items():
        terminal.put(f"notify.{one_line(notifier)} receives {', '.join(kinds)}")


def _prices(settings: "Settings") -> dict[str, dict[str, float]]:
    """The configured prices in USD, by model or agent; a part without a price is left out."""
    return {
        subject: {
            part: usd
            for part in ("input", "output", "cache_read", "call")
            if (usd := getattr(price, part))
        }
        for subject, price in settings.prices.items()
    }


@click.command(cls=Verb)
@click.pass_context
def version(ctx: click.Context, /) -> None:
    """Show the version of loopwright and of its main dependencies."""
    terminal = terminal_of(ctx)
    found = {
        "loopwright": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
    }
    if terminal.as_json:
        terminal.put_json(found)
    else:
        terminal.put(f"loopwright {__version__}")
        terminal.say(f"python {found['python']}, sqlite {found['sqlite']}, {found['platform']}")


_SIGNS = {"ok": ("✓", "+"), "none": ("·", "."), "warn": ("!", "!"), "fail": ("✗", "x")}
_TONES: dict[str, Tone] = {"ok": "good", "none": "dim", "warn": "warn", "fail": "bad"}


@click.command(
    cls=Verb,
    examples=[
        ("loopwright doctor", ""),
        ("loopwright doctor --deep", "also checks every recorded run for damage"),
        ("loopwright doctor --export-heads heads-monday", "keep this file on another machine"),
        ("loopwright doctor --deep --heads heads-monday", "nothing was removed since Monday"),
    ],
)
@click.option(
    "--deep",
    is_flag=True,
    help="Check every recorded run: events, hashes, contents, rows, gates, usage; the audit log.",
)
@click.option(
    "--heads",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare the runs with this exported list of hashes instead of the data directory's own.",
)
@click.option(
    "--export-heads",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the newest hash of every run to a new file, and check nothing.",
)
@click.option(
    "--rebuild-heads",
    is_flag=True,
    help="Record the database as it is now, and check nothing; after you restored a backup.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    *,
    deep: bool,
    heads: Path | None,
    export_heads: Path | None,
    rebuild_heads: bool,
) -> int:
    """Check the installation, the settings and the data directory. Exit code 1 if there is a
    problem. With --quiet, only problems are shown.
    """
    if export_heads is not None or rebuild_heads:
        if deep or heads or (export_heads and rebuild_heads):
            raise click.UsageError("--export-heads and --rebuild-heads take no other option", ctx)
        return _write_heads(terminal_of(ctx), export_heads)
    from loopwright.operations.doctor import PROBLEMS, examine  # noqa: PLC0415 - help stays quick
    from loopwright.operations.settings import load_settings  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    findings = examine(load_settings(data_dir=terminal.options.data_dir), deep=deep, heads=heads)
    failed = any(finding.state == "fail" for finding in findings)
    if terminal.as_json:
        terminal.put_json({"ok": not failed, "checks": [one.as_dict() for one in findings]})
        return 1 if failed else 0
    signs = terminal.has_signs(sys.stdout)
    wide = max(len(one.name) for one in findings)
    for one in findings:
        if terminal.quiet and one.state not in PROBLEMS:
            continue
        sign = _SIGNS[one.state][0 if signs else 1]
        line = f"{sign} {one.state:<4}  {one.name:<{wide}}  {one_line(one.why)}"
        terminal.put(terminal.painted(line, _TONES[one.state], sys.stdout))
        if one.fix:
            terminal.put(f"{'':{wide + 10}}fix: {one_line(one.fix)}")
    return 1 if failed else 0


def _write_heads(terminal: Terminal, export_to: Path | None) -> int:
    from loopwright.operations.backup import (  # noqa: PLC0415 - help stays quick
        export_heads,
        rebuild_heads,
    )

    if export_to is not None:
        count, file = export_heads(terminal.settings, export_to), export_to
    else:
        count, file = rebuild_heads(terminal.settings)
    if terminal.as_json:
        terminal.put_json({"file": str(file), "runs": count})
    else:
        terminal.say(f"{file}: the newest hashes of {count} runs")
    return 0


@click.command(
    cls=Verb,
    examples=[("loopwright backup loopwright-monday.db", "a new file; runs continue meanwhile")],
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.pass_context
def backup(ctx: click.Context, /, *, file: Path) -> None:
    """Copy the log of all runs, people and tokens into a new file.

    Files that were given to runs and sessions go into a folder beside it, FILE.uploads. To use a
    copy, put the file into a data directory as `loopwright.db`, and the folder as `uploads`.
    Workspaces and folders that runs write into are not part of it.
    """
    from loopwright.operations.backup import copy_data_directory  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with closing(open_log(terminal.settings)) as log:
        copied = copy_data_directory(terminal.settings, log, file)
        runs = len(log.rows())
    size = file.stat().st_size
    folder = None if copied.folder is None else str(copied.folder)
    if terminal.as_json:
        printed = {"file": str(file), "bytes": size, "runs": runs, "uploads": folder}
        terminal.put_json({**printed, "files": copied.files, "missing": copied.missing})
        return
    terminal.say(f"{file}: {runs} runs, {size:,} bytes")
    if folder:
        terminal.say(f"{folder}: {copied.files} files that were given")
    if copied.missing:
        terminal.tell(f"{copied.missing} files that were given are not there any more", tone="warn")


DEFAULT_AGE = "30d"


@click.command(
    cls=Verb,
    only_here=True,
    examples=[
        ("loopwright prune --dry-run", "what would be deleted"),
        ("loopwright prune --older 7d --keep 100", ""),
    ],
)
@click.option(
    "--older",
    metavar="AGE",
    default=DEFAULT_AGE,
    show_default=True,
    help="Delete runs that ended at least this long ago.",
)
@click.option(
    "--keep",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    metavar="N",
    help="Keep the newest N runs.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.pass_context
def prune(ctx: click.Context, /, *, older: str, keep: int, dry_run: bool) -> None:
    """Delete runs that have ended, with their events, texts and files. Open runs are always kept.
    Uploaded files of the same age are deleted too, unless an open run uses them.

    This cannot be undone. `loopwright ls --all --json` lists all runs.
    """
    from loopwright.operations.backup import age_ms, prunable  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    age = age_ms(older)
    with open_service(terminal) as service:
        runs = [row.run for row in prunable(service, older_ms=age, keep=keep)]
        work = _would if dry_run else _forgotten
        printed = work(terminal, service, runs, age)
    if terminal.as_json:
        terminal.put_json(printed)
        return
    for run in printed["would_forget"] if dry_run else printed["forgotten"]:
        terminal.put(run)
    many = "" if printed["uploads"] == 1 else "s"
    files = f", and {printed['uploads']} uploaded file{many}" if printed["uploads"] else ""
    runs_words = f"{printed['count']} run{'' if printed['count'] == 1 else 's'}"
    terminal.say(f"{runs_words} {'would be ' if dry_run else ''}deleted{files}")


def _would(terminal: Terminal, service: "Service", runs: list[str], age: int) -> dict[str, Any]:
    from loopwright.operations.backup import old_uploads  # noqa: PLC0415 - help stays quick
    from loopwright.operations.trackers import uploads_in  # noqa: PLC0415 - help stays quick

    files = old_uploads(service, uploads_in(terminal.settings, service), older_ms=age, gone=runs)
    return {"would_forget": runs, "count": len(runs), "uploads": len(files)}


def _forgotten(terminal: Terminal, service: "Service", runs: list[str], age: int) -> dict[str, Any]:
    from loopwright.operations.accounts.access import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.operations.backup import old_uploads, prune_uploads  # noqa: PLC0415 - help stays quick
    from loopwright.operations.backup import prune as forget  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import workspaces_of  # noqa: PLC0415 - help stays quick
    from loopwright.operations.trackers import access_in, uploads_in  # noqa: PLC0415 - help stays quick

    shown = len(runs) > 1_000 and not terminal.as_json
    pruned = forget(
        service,
        terminal.settings,
        runs,
        (lambda done: terminal.say(f"{done} of {len(runs)}")) if shown else lambda _: None,
        by=current_user(),
    )
    asyncio.run(_forget_snapshots(workspaces_of(terminal.settings), pruned.runs))
    uploads = uploads_in(terminal.settings, service)
    files = old_uploads(service, uploads, older_ms=age)
    count = prune_uploads(uploads, access_in(service), files, by=current_user())
    printed = {"forgotten": list(pruned.runs), "count": len(pruned.runs)}
    return {**printed, "contents": pruned.contents, "uploads": count}


async def _forget_snapshots(workspaces: "Workspaces", runs: "Sequence[str]") -> None:
    for run in runs:
        await workspaces.forget(run)


@click.command(
    cls=Verb,
    examples=[
        ("loopwright help --all", "every command, in groups"),
        ("loopwright help resume", "the same as `loopwright resume --help`"),
    ],
)
@click.argument("words", metavar="[COMMAND]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="List every command, in groups.")
@click.pass_context
def show_help(ctx: click.Context, /, *, words: tuple[str, ...], everything: bool) -> None:
    """Print help for a command, or a list of commands."""
    from loopwright.cli.main import COMMANDS, FIRST, cli  # noqa: PLC0415 - it imports this module

    terminal = terminal_of(ctx)
    if terminal.as_json and not words:
        names = list(COMMANDS) if everything else FIRST
        found = [(name, COMMANDS[name]) for name in names]
        listed = [{"name": n, "group": e.group, "summary": e.summary} for n, e in found]
        terminal.put_json({"commands": listed})
        return
    with cli.make_context(PROGRAM, list(words) or ["help"], resilient_parsing=True) as top:
        command, place = _find(cli, top, words)
        if command is cli and everything:
            formatter = place.make_formatter()
            cli.format_all(place, formatter)
            terminal.put(formatter.getvalue().rstrip())
        elif terminal.as_json:
            terminal.put_json({"command": " ".join(words), "help": command.get_help(place)})
        else:
            terminal.put(command.get_help(place))


def _find(
    command: click.Command, place: click.Context, words: tuple[str, ...]
) -> tuple[click.Command, click.Context]:
    """The command with this name, and its context."""
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{place.command_path} has no command {word!r}", place)
        found = command.get_command(place, word)
        if found is None:
            raise click.NoSuchCommand(word, possibilities=command.list_commands(place), ctx=place)
        command, place = found, click.Context(found, info_name=word, parent=place)
    return command, place


VERBS = {
    "help": show_help,
    "config": config,
    "version": version,
    "doctor": doctor,
    "backup": backup,
    "prune": prune,
}
