"""`config`: settings, and where each comes from."""

from typing import TYPE_CHECKING

import click

from loopwright.cli.door import Door
from loopwright.cli.texts import one_line
from loopwright.cli.verb import CONTEXT, Verb, common_options, door_of

if TYPE_CHECKING:
    from loopwright.app.settings import Name, Resolved, Settings


def _resolved(door: Door) -> "Resolved":
    from loopwright.app.settings import load_settings  # noqa: PLC0415 - help stays quick

    resolved = load_settings(data_dir=door.wanted.data_dir)
    for warning in resolved.warnings:
        door.say(f"warning: {warning}", tone="warn")
    return resolved


@click.command(cls=Verb, examples=[("loopwright config show --origin", "and where each is from")])
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.pass_context
def show(ctx: click.Context, /, *, origin: bool) -> None:
    """The settings as they hold here and now."""
    door = door_of(ctx)
    _put(door, _resolved(door), origin=origin)


@click.command(cls=Verb)
@click.pass_context
def path(ctx: click.Context, /) -> None:
    """The files that settings are read from, the strongest first."""
    from loopwright.app.settings import PROJECT_FILE, Place  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    used = [str(file) for file in _resolved(door).files]
    user = str(Place().user_file)
    if door.as_json:
        door.put_json({"used": used, "user_file": user, "project_file": PROJECT_FILE})
        return
    for file in used:
        door.put(file)
    door.say(f"your own file is {user}; a project has {PROJECT_FILE} or [tool.loopwright]")


@click.command(
    cls=Verb,
    examples=[("loopwright config trust loopwright.toml", "after you have looked at it")],
)
@click.argument("file", metavar="FILE")
@click.pass_context
def trust(ctx: click.Context, /, *, file: str) -> None:
    """Use a settings file or a role of a project although an agent may have written it.

    Files that were created or changed while an agent worked in their folder are ignored until
    then. A later change by an agent is ignored again.
    """
    from pathlib import Path  # noqa: PLC0415 - help stays quick

    from loopwright.app.project_files import trust as accept  # noqa: PLC0415 - help stays quick
    from loopwright.app.settings import project_tables  # noqa: PLC0415 - help stays quick

    path = Path(file).absolute()
    if not path.is_file():
        raise click.UsageError(f"{file} is not a file", ctx)
    tables = [one for one in project_tables(path.parent) if one[0] == path]
    for found, part, table in tables:
        accept(found, table, part)
    if not tables:
        accept(path, path.read_bytes())
    door_of(ctx).done(f"{file} is accepted as it is now", {"file": str(path), "trusted": True})


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
        door = door_of(ctx)
        _put(door, _resolved(door), origin=True)


def _put(door: Door, resolved: "Resolved", *, origin: bool) -> None:
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
    told = {name: list(one.kinds) for name, one in settings.notify.items()}
    if door.as_json:
        shown: dict[str, object] = {
            "settings": values,
            "budget": limits,
            "prices": _prices(settings),
            "notify": told,
        }
        if origin:
            shown["origins"] = dict(resolved.origins)
        door.put_json(shown)
        return
    for name, value in values.items():
        source = f"   ({resolved.origins[name]})" if origin else ""
        door.put(f"{name} = {one_line(value or '')}{source}")
    for limit, amount in limits.items():
        if amount is not None and (settings.budget.has_limits or limit != "hard_stop"):
            door.put(f"budget.{limit} = {str(amount).lower()}")
    for subject, price in _prices(settings).items():
        amounts = ", ".join(f"{part} = {usd:g}" for part, usd in price.items())
        door.put(f"prices.{one_line(subject)}: {amounts}")
    for notifier, kinds in told.items():
        door.put(f"notify.{one_line(notifier)} is told of {', '.join(kinds)}")


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


VERBS = {"config": config}
