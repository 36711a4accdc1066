"""`ls` and `spend`: runs, newest first, and their costs."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import msgspec
from click.shell_completion import CompletionItem

from loopwright.cli.formats import (
    STATUS_SIGNS,
    STATUS_TONES,
    duration,
    status_cell,
    table,
    terminal_width,
    used_tokens,
)
from loopwright.cli.terminal import Terminal, one_line
from loopwright.cli.verb import Verb, terminal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwright.operations.api_types import RunPage, SpendAmount, SpendReport
    from loopwright.operations.run_lists import By
    from loopwright.ports import RunStatus
    from loopwright.views.run_responses import ChangedTree, RunItem, RunTotal, WorktreeView

STATUSES = tuple(STATUS_SIGNS)
MOST_NAMED = 10


class _ListFlags(TypedDict):
    """Which runs are listed."""

    statuses: "tuple[RunStatus, ...]"
    since: str | None
    name: str | None
    labels: tuple[str, ...]
    chats: bool


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
        ("loopwright ls --since 7d --label nightly", "the last seven days, with a label"),
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
@click.option(
    "--since",
    metavar="WHEN",
    help="Started since then: a duration (7d), a date (2026-11-01), today or yesterday (UTC).",
)
@click.option("--name", metavar="NAME", help="A part of the name, or a pattern with `*`.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="Only runs with this label. May be given more than once.",
)
@click.option("--chats", is_flag=True, help="List chats instead of runs.")
@click.pass_context
def ls(ctx: click.Context, /, *, limit: int, everything: bool, **given: Unpack[_ListFlags]) -> int:
    """List runs, newest first, with a total of all that fit. Chats are listed with --chats.

    Exit code 1 when runs are missing that were recorded: the list is not complete.
    """
    terminal = terminal_of(ctx)
    most = None if everything else limit
    page = _listed(terminal, given, most)
    if terminal.as_json:
        terminal.put_json({"runs": page.runs, "total": page.total})
    else:
        _put_list(terminal, page, given)
    return _report_missing(terminal, page.total)


def _report_missing(terminal: Terminal, total: "RunTotal | None") -> int:
    missing = total.missing if total is not None else []
    if not missing:
        return 0
    runs = ", ".join(missing[:MOST_NAMED])
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    terminal.tell(
        f"error: runs were recorded and are missing from the database: {runs}{more} "
        "(`loopwright doctor --deep` says what is damaged; put back a backup)",
        tone="bad",
    )
    return 1


def _put_list(terminal: Terminal, page: "RunPage", given: _ListFlags) -> None:
    if page.runs:
        put_runs(terminal, page.runs)
        if page.next is not None:
            terminal.say("there are more: --all shows them, or --limit N")
        if page.total is not None:
            interrupted = sum(item.left_behind for item in page.runs)
            terminal.say(_total_line(page.total, interrupted, chats=given["chats"]))
            if interrupted and terminal.options.server is None:
                terminal.say("`loopwright resume all` continues what was interrupted")
    elif given["chats"]:
        terminal.say("no chats; `loopwright chat` begins one")
    elif given["statuses"] or given["since"] or given["name"] or given["labels"]:
        terminal.say("no run fits")
    else:
        terminal.say("no runs yet; `loopwright init` writes a definition to begin with")


def _listed(terminal: Terminal, given: _ListFlags, most: int | None) -> "RunPage":
    """The runs that fit, at most `most`, with the total of all that do."""
    from loopwright.operations.use_cases.lists import MOST_RUNS, ListRuns, list_runs  # noqa: PLC0415 - help stays quick

    wanted = ListRuns(
        status=given["statuses"],
        limit=MOST_RUNS if most is None else min(most, MOST_RUNS),
        since=given["since"],
        name=given["name"],
        label=given["labels"],
        chats=given["chats"],
    )
    with terminal.client() as client:
        found = page = client.call(list_runs, wanted)
        while page.next is not None and (most is None or len(found.runs) < most):
            left = MOST_RUNS if most is None else min(most - len(found.runs), MOST_RUNS)
            wanted = msgspec.structs.replace(wanted, cursor=page.next, limit=left)
            page = client.call(list_runs, wanted)
            found.runs += page.runs
    found.next = page.next
    return found


def _total_line(total: "RunTotal", interrupted: int, *, chats: bool) -> str:
    count, what = total.runs, "chat" if chats else "run"
    cost, used = total.usage.cost, used_tokens(total.usage)
    running = total.running - interrupted
    parts = [
        f"{count} {what}{'' if count == 1 else 's'}",
        f"{running} running" if running > 0 else "",
        f"{interrupted} interrupted" if interrupted else "",
        {"unknown": "cost unknown", "–": "nothing spent"}.get(cost, cost),
        f"{used} tokens" if used else "",
    ]
    return " · ".join(part for part in parts if part)


def put_runs(terminal: Terminal, items: "Sequence[RunItem]") -> None:
    """Runs as a table."""
    signs = terminal.has_signs(sys.stdout)
    head = ["STATUS", "RUN", "ITERATIONS", "CHANGED", "SPENT", "AGE", "NAME"]
    rows = [head, *(_run_row(item, signs=signs) for item in items)]
    if not any(item.changed for item in items):  # none of them has snapshots
        rows = [[*row[:3], *row[4:]] for row in rows]
    lines = table(rows, terminal_width())
    terminal.put(terminal.painted(lines[0], "dim", sys.stdout))
    for line, item in zip(lines[1:], items, strict=True):
        terminal.put(terminal.painted(line, STATUS_TONES[item.status], sys.stdout))


def _run_row(item: "RunItem", *, signs: bool) -> list[str]:
    status = status_cell(item.status, signs=signs)
    if item.gates:
        status += f" ({item.gates})"
    if item.damaged:
        status += " (damaged)"
    elif item.left_behind:
        status += " (left behind)"
    elif item.waits_for:
        status += f" ({item.waits_for})"
    most = f"/{item.max}" if item.max else ""
    started = datetime.fromisoformat(item.started_at).timestamp()
    return [
        status,
        item.run,
        f"{item.iterations}{most}",
        _changed(item.changed),
        item.usage.cost,
        duration(int((time.time() - started) * 1_000)),
        one_line(item.name) + _mark(item.worktree),
    ]


def _changed(tree: "ChangedTree | None") -> str:
    """The number of changed files and lines: `3 (+12 −4)`; a dash for a run without snapshots."""
    if tree is None:
        return "–"
    lines = f" (+{tree.insertions} −{tree.deletions})" if tree.files else ""
    return f"{tree.files}{lines}"


def _mark(worktree: "WorktreeView | None") -> str:
    """That a run has a worktree, as long as it has."""
    if worktree is None or not worktree.exists:
        return ""
    return " [worktree, applied]" if worktree.applied else " [worktree]"


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright spend", "what each agent has cost"),
        ("loopwright spend --since 7d --by day", "the last seven days"),
    ],
)
@click.option(
    "--since",
    metavar="WHEN",
    help="Only since then: a duration (7d), a date (2026-11-01), today or yesterday, UTC.",
)
@click.option(
    "--by",
    type=click.Choice(["agent", "definition", "label", "day"]),
    default="agent",
    show_default=True,
    metavar="WHAT",
    help="Group by agent, definition, label or day.",
)
@click.pass_context
def spend(ctx: click.Context, /, *, since: str | None, by: "By") -> None:
    """Show what runs have spent, and how much of the limits of all runs is used.

    Amounts are counted by day (UTC) when a call ends. Calls of unknown cost are only counted.
    """
    from loopwright.operations.use_cases.lists import ReadSpend, show_spend  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    report = terminal.call(show_spend, ReadSpend(by=by, since=since))
    if terminal.as_json:
        terminal.put_json(report)
    else:
        _put(terminal, report)


def _put(terminal: Terminal, report: "SpendReport") -> None:
    from loopwright.operations.run_lists import limit_text  # noqa: PLC0415 - help stays quick

    rows = [["COST", "TOKENS", "CALLS", "RUNS", report.by.upper()]]
    rows += [_spend_row(one, one_line(one.name)) for one in report.lines]
    rows.append(_spend_row(report.total, "total"))
    heading, *others = table(rows, terminal_width())
    terminal.put(terminal.painted(heading, "dim", sys.stdout))
    for text in others[:-1]:
        terminal.put(text)
    terminal.put(terminal.painted(others[-1], "bold", sys.stdout))
    unused = report.runs_without_usage
    if unused:
        were = "1 run without usage is" if unused == 1 else f"{unused:,} runs without usage are"
        terminal.say(f"{were} not listed", tone="dim")
    for limit in report.limits:
        terminal.put(limit_text(limit))
    if report.left_out:
        terminal.say(f"{len(report.left_out)} damaged runs are not counted", tone="warn")


def _spend_row(one: "SpendAmount", name: str) -> list[str]:
    return [one.cost, used_tokens(one) or "unknown", str(one.calls), str(one.runs), name]


VERBS = {
    "ls": ls,
    "spend": spend,
}
