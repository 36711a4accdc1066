"""`ls`: runs, newest first."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from loopwright.cli.cells import STATUS_SIGNS, STATUS_TONES, bill, duration, status_cell, table
from loopwright.cli.door import Door
from loopwright.cli.looking import looking, terminal_width
from loopwright.cli.texts import one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue
    from loopwright.ports import RunStatus

STATUSES = tuple(STATUS_SIGNS)


def _complete(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(word) for word in STATUSES if word.startswith(incomplete)]


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright ls", "the newest runs"),
        ("loopwright ls --status waiting", "those that wait for a person"),
    ],
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(STATUSES),
    metavar="STATUS",
    shell_complete=_complete,
    help=f"Only these: {', '.join(STATUSES)}. May be given more than once.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="At most."
)
@click.option("--all", "everything", is_flag=True, help="No limit.")
@click.pass_context
def ls(
    ctx: click.Context, /, *, statuses: "tuple[RunStatus, ...]", limit: int, everything: bool
) -> None:
    """List runs, newest first."""
    door = door_of(ctx)
    most = None if everything else limit
    if door.remote is not None:
        items = door.remote.runs(statuses, most and most + 1)
    else:
        with looking(door) as service:
            from loopwright.app.views.listing import run_item  # noqa: PLC0415 - help stays quick

            rows = service.rows(statuses, most and most + 1)
            items = [run_item(service, row) for row in rows]
    more, items = len(items) > (most or len(items)), items[:most]
    if door.as_json:
        door.put_json({"runs": items})
    elif items:
        put_runs(door, items)
        if more:
            door.say("there are more: --all shows them, or --limit N")
    else:
        door.say("no runs yet; `loopwright init` writes a definition to begin with")


def put_runs(door: Door, items: "list[dict[str, JsonValue]]") -> None:
    """Runs as a table."""
    signs = door.has_signs(sys.stdout)
    rows = [["STATUS", "RUN", "PASSES", "SPENT", "AGE", "NAME"]]
    rows += [_row(item, signs=signs) for item in items]
    lines = table(rows, terminal_width())
    door.put(door.painted(lines[0], "dim", sys.stdout))
    for line, item in zip(lines[1:], items, strict=True):
        door.put(door.painted(line, STATUS_TONES[str(item["status"])], sys.stdout))


def _row(item: "dict[str, JsonValue]", *, signs: bool) -> list[str]:
    status = status_cell(str(item["status"]), signs=signs)
    if item["gates"]:
        status += f" ({item['gates']})"
    if item["damaged"]:
        status += " (damaged)"
    elif item["left_behind"]:
        status += " (left behind)"
    usage = item["usage"]
    assert isinstance(usage, dict)
    most = f"/{item['max']}" if item["max"] else ""
    started = datetime.fromisoformat(str(item["started_at"])).timestamp()
    return [
        status,
        str(item["run"]),
        f"{item['iterations']}{most}",
        bill(usage),
        duration(int((time.time() - started) * 1_000)),
        one_line(str(item["name"])) + _mark(item.get("worktree")),
    ]


def _mark(worktree: "JsonValue") -> str:
    """That a run has a worktree, as long as it has."""
    return " [worktree]" if isinstance(worktree, dict) and worktree["exists"] else ""


VERBS = {"ls": ls}
