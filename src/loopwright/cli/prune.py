"""`prune`: forget runs that ended long ago."""

import click

from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of

DEFAULT_AGE = "30d"


@click.command(
    cls=Verb,
    examples=[
        ("loopwright prune --dry-run", "what would go"),
        ("loopwright prune --older 7d --keep 100", ""),
    ],
)
@click.option(
    "--older", metavar="AGE", default=DEFAULT_AGE, show_default=True, help="Ended that long ago."
)
@click.option(
    "--keep",
    type=click.IntRange(0, 1_000_000_000),
    default=0,
    metavar="N",
    help="Leave the newest N runs alone.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.pass_context
def prune(ctx: click.Context, /, *, older: str, keep: int, dry_run: bool) -> None:
    """Forget runs that have ended: their facts, texts and files. What is open always stays.

    It cannot be undone. `loopwright ls --all --json` shows what there is.
    """
    from loopwright.app.pruning import age_ms, prunable  # noqa: PLC0415 - help stays quick
    from loopwright.app.pruning import prune as forget  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    age = age_ms(older)
    with looking(door) as service:
        runs = [row.run for row in prunable(service, older_ms=age, keep=keep)]
        if not dry_run:
            shown = len(runs) > 1_000 and not door.as_json
            pruned = forget(
                service,
                door.settings,
                runs,
                (lambda done: door.say(f"{done} of {len(runs)}")) if shown else lambda _: None,
                by=current_user(),
            )
    if dry_run:
        told = {"would_forget": runs, "count": len(runs)}
        words = f"{len(runs)} would be forgotten"
    else:
        told = {"forgotten": list(pruned.runs), "count": len(pruned.runs)}
        told["contents"] = pruned.contents
        words = f"{len(pruned.runs)} forgotten"
    if door.as_json:
        door.put_json(told)
        return
    for run in runs if dry_run else pruned.runs:
        door.put(run)
    door.say(words)


VERBS = {"prune": prune}
