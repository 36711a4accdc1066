"""`prune`: forget runs that ended long ago."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.app.service import Service
    from loopwright.ports import Workspaces

DEFAULT_AGE = "30d"


@click.command(
    cls=Verb,
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
    from loopwright.app.pruning import age_ms, prunable  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    age = age_ms(older)
    with looking(door) as service:
        runs = [row.run for row in prunable(service, older_ms=age, keep=keep)]
        work = _would if dry_run else _forgotten
        told = work(door, service, runs, age)
    if door.as_json:
        door.put_json(told)
        return
    for run in told["would_forget"] if dry_run else told["forgotten"]:
        door.put(run)
    many = "" if told["uploads"] == 1 else "s"
    files = f", and {told['uploads']} uploaded file{many}" if told["uploads"] else ""
    runs_words = f"{told['count']} run{'' if told['count'] == 1 else 's'}"
    door.say(f"{runs_words} {'would be ' if dry_run else ''}deleted{files}")


def _would(door: Door, service: "Service", runs: list[str], age: int) -> dict[str, Any]:
    from loopwright.app.given import uploads_in  # noqa: PLC0415 - help stays quick
    from loopwright.app.pruning import old_uploads  # noqa: PLC0415 - help stays quick

    files = old_uploads(service, uploads_in(door.settings, service), older_ms=age, gone=runs)
    return {"would_forget": runs, "count": len(runs), "uploads": len(files)}


def _forgotten(door: Door, service: "Service", runs: list[str], age: int) -> dict[str, Any]:
    from loopwright.app.given import access_in, uploads_in  # noqa: PLC0415 - help stays quick
    from loopwright.app.pruning import old_uploads, prune_uploads  # noqa: PLC0415 - help stays quick
    from loopwright.app.pruning import prune as forget  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.app.wiring import workspaces_of  # noqa: PLC0415 - help stays quick

    shown = len(runs) > 1_000 and not door.as_json
    pruned = forget(
        service,
        door.settings,
        runs,
        (lambda done: door.say(f"{done} of {len(runs)}")) if shown else lambda _: None,
        by=current_user(),
    )
    asyncio.run(_forget_snapshots(workspaces_of(door.settings), pruned.runs))
    uploads = uploads_in(door.settings, service)
    files = old_uploads(service, uploads, older_ms=age)
    count = prune_uploads(uploads, access_in(service), files, by=current_user())
    told = {"forgotten": list(pruned.runs), "count": len(pruned.runs)}
    return {**told, "contents": pruned.contents, "uploads": count}


async def _forget_snapshots(workspaces: "Workspaces", runs: "Sequence[str]") -> None:
    for run in runs:
        await workspaces.forget(run)


VERBS = {"prune": prune}
