"""`inbox`, `notifications` and decisions at gates (`approve`, `reject`, `continue`)."""

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from loopwright.cli.completion import complete_gates, complete_runs
from loopwright.cli.formats import (
    arguments_line,
    changed_line,
    duration,
    exposed_lines,
    put_rows,
    table,
    terminal_width,
)
from loopwright.cli.terminal import Terminal, one_line
from loopwright.cli.verb import Example, Verb, group, terminal_of
from loopwright.views.formats import place_words
from loopwright.views.run_responses import InboxGate

if TYPE_CHECKING:
    from loopwright.client.client import Client
    from loopwright.client.transport import RunFeed
    from loopwright.model.actions import Decision
    from loopwright.operations.use_cases.gates import AnswerGate
    from loopwright.operations.use_cases.notifications import Level


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright inbox", ""),
        ("loopwright approve gate_5f", "the beginning of an id is enough"),
    ],
)
@click.pass_context
def inbox(ctx: click.Context, /) -> None:
    """List gates that wait for a person, oldest first."""
    terminal = terminal_of(ctx)
    with terminal.client() as client:
        items = client.open_gates()
    if terminal.as_json:
        terminal.put_json({"gates": items})
    else:
        put_inbox(terminal, items)


def put_inbox(terminal: Terminal, items: "list[InboxGate]") -> None:
    """What waits for a person, as a table."""
    if not items:
        terminal.say("nothing waits for a person")
        return
    rows = [["GATE", "RUN", "AGE", "WHAT"]]
    for item in items:
        opened = datetime.fromisoformat(item.opened_at).timestamp()
        age = duration(int((time.time() - opened) * 1_000))
        changed = f" · {words}" if (words := changed_line(item)) else ""
        place = f" ({words})" if (words := place_words(item.path)) else ""
        what = one_line(f"{item.name}{place}: {item.message}{_given(item)}{changed}")
        rows.append([item.id, item.run, age, what])
    head, *lines = table(rows, terminal_width())
    terminal.put(terminal.painted(head, "dim", sys.stdout))
    for line in lines:
        terminal.put(line)
    for item in items:
        for line in exposed_lines(item.id, item.marks, item.shown):
            terminal.put(line)
    terminal.say(
        "`loopwright show RUN` shows what it is about; approve, reject or continue decides"
    )


def _given(item: "InboxGate") -> str:
    """What a tool would be given, on the same line."""
    return f" {arguments_line(item.call.arguments)}" if item.call is not None else ""


_DRIVING = "If no process drives the run, this command drives it, as `loopwright run` does."


_ABOUT_CALLS: list[Callable[[Any], Any]] = [
    click.option(
        "--remember",
        is_flag=True,
        help="Of a tool call: do not ask about this tool again in this run.",
    ),
    click.option(
        "--arguments",
        metavar="JSON|@FILE",
        help="Of a tool call: what the tool is given instead, a JSON object.",
    ),
]


def _verb(
    name: "Decision", summary: str, *, examples: list[Example], needs_text: bool = False
) -> click.Command:
    def answer(
        ctx: click.Context,
        /,
        *,
        reference: str,
        text: str | None,
        no_drive: bool,
        arguments: str | None = None,
        remember: bool = False,
    ) -> int:
        decision = _WrittenDecision(name, text or "", arguments, remember)
        if no_drive:
            return _record(ctx, reference, decision)
        if needs_text and not decision.text.strip():
            if not _has_ended(terminal_of(ctx), reference):
                raise _text_needed(ctx)
            from loopwright.cli.run_control import resume  # noqa: PLC0415 - only when asked for

            return int(ctx.invoke(resume, run=reference))
        return _answer(terminal_of(ctx), reference, decision)

    decorate: list[Callable[[Any], Any]] = [
        click.pass_context,
        *(_ABOUT_CALLS if name == "approve" else ()),
        click.option("--no-drive", is_flag=True, help="Only record the answer; drive nothing."),
        click.argument("text", metavar="TEXT" if needs_text else "[TEXT]", required=False),
        click.argument("reference", metavar="ID", shell_complete=complete_gates),
        click.command(
            name,
            cls=Verb,
            drives=True,
            remote=True,
            watches=True,
            help=f"{summary}\n\n{_DRIVING}",
            examples=examples,
        ),
    ]
    made: Any = answer
    for one in decorate:
        made = one(made)
    command: click.Command = made
    return command


class _WrittenDecision(NamedTuple):
    """A decision as it was written on the command line."""

    decision: "Decision"
    text: str
    arguments: str | None
    remember: bool


def _answer(terminal: Terminal, reference: str, decision: _WrittenDecision) -> int:
    """Answer a gate, and follow the run."""
    from loopwright.cli.attach import feed_options, follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases.gates import ANSWERS  # noqa: PLC0415 - lists need less
    from loopwright.operations.use_cases.lists import ListGates, list_open  # noqa: PLC0415 - the same

    async def begin(client: "Client") -> "list[RunFeed]":
        [gate] = (await client.call(list_open, ListGates(match=reference))).gates
        feed = await client.open_feed(gate.run, None, feed_options(terminal))
        await client.call(ANSWERS[decision.decision], _request(gate.id, decision))
        return [feed]

    return follow_runs(terminal, begin, AttachOptions())


def _text_needed(ctx: click.Context) -> click.UsageError:
    return click.UsageError("continue needs TEXT: say what should be different", ctx)


def _request(gate: str, decision: _WrittenDecision) -> "AnswerGate":
    from loopwright.operations.gates import read_arguments  # noqa: PLC0415 - lists need less
    from loopwright.operations.use_cases.gates import AnswerGate  # noqa: PLC0415 - the same

    given = None if decision.arguments is None else json.loads(read_arguments(decision.arguments))
    return AnswerGate(gate=gate, text=decision.text, arguments=given, remember=decision.remember)


def _has_ended(terminal: Terminal, reference: str) -> bool:
    """Whether a reference is a run that has ended, and not an open gate."""
    from loopwright.operations.use_cases.lists import ListRuns, list_runs  # noqa: PLC0415 - help stays quick
    from loopwright.ports import OPEN_STATUSES  # noqa: PLC0415 - the same

    if reference.startswith("gate_"):
        return False
    with terminal.client() as client:
        found = client.call(list_runs, ListRuns(match=reference)).runs[0]
    return found.status not in OPEN_STATUSES


def _record(ctx: click.Context, reference: str, decision: _WrittenDecision) -> int:
    """Answer a gate, and drive nothing."""

    if decision.decision == "continue" and not decision.text.strip():
        raise _text_needed(ctx)
    terminal = terminal_of(ctx)
    from loopwright.operations.use_cases.gates import ANSWERS  # noqa: PLC0415 - lists need less

    with terminal.client() as client:
        request = _request(client.find_gate(reference), decision)
        found = client.call(ANSWERS[decision.decision], request)
    if terminal.as_json:
        terminal.put_json(found)
    else:
        resume = f"loopwright resume {found.run}{terminal.server_suffix}"
        terminal.say(f"recorded; `{resume}` continues the run if no process drives it")
    return 0


ASKING = "action_required"
LEVELS = ("info", ASKING, "critical", "error")
MOST, AT_ONCE = 200, 50


@click.command(
    "ls",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright notifications ls --unread", "what you have not read"),
        ("loopwright notifications ls --waiting", "what still waits for an answer"),
    ],
)
@click.option("--unread", is_flag=True, help="Only what you have not read.")
@click.option("--waiting", is_flag=True, help="Only what still waits for an answer.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Only of one run.")
@click.option("--level", type=click.Choice(LEVELS), help="Only of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST),
    default=AT_ONCE,
    show_default=True,
    help="Maximum number of entries, newest first.",
)
@click.pass_context
def notifications_ls(
    ctx: click.Context,
    /,
    *,
    unread: bool,
    waiting: bool,
    run: str | None,
    level: "Level | None",
    limit: int,
) -> None:
    """List notifications, newest first; kept for thirty days, or until a run is deleted.

    They are recorded while the server of this data directory runs.
    """
    from loopwright.operations.use_cases import notifications  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        wanted = notifications.ListNotifications(
            unread=unread,
            waiting=waiting,
            run=None if run is None else client.find_run(run),
            level=level,
            limit=limit,
        )
        found = client.call(notifications.list_notifications, wanted).notifications
    if terminal.as_json:
        terminal.put_json({"notifications": found})
        return
    rows = []
    for one in found:
        is_settled = one.level == ASKING and not one.waiting  # answered, or its run was ended
        level_now = "settled" if is_settled else one.level
        rows.append(["-" if one.read else "*", one.at, level_now, one.id, one.title])
    put_rows(terminal, ("", "AT", "LEVEL", "ID", "TITLE"), rows, "no notifications")


@click.command(
    "read",
    cls=Verb,
    remote=True,
    examples=[("loopwright notifications read --all", "everything up to now")],
)
@click.argument("names", metavar="[NOTIFICATION…]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="The newest and all that are older.")
@click.pass_context
def notifications_read(ctx: click.Context, /, *, names: tuple[str, ...], everything: bool) -> None:
    """Mark notifications as read, for you alone."""
    if bool(names) == everything:
        raise click.UsageError("name notifications, or say --all", ctx)
    if len(names) > MOST:
        raise click.UsageError(f"at most {MOST} at a time", ctx)
    from loopwright.operations.use_cases import notifications  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        read = notifications.MarkNotificationsRead(ids=list(names))
        if everything:
            newest = client.call(
                notifications.list_notifications, notifications.ListNotifications(limit=1)
            )
            if newest.notifications:
                up_to = newest.notifications[0].id
                read = notifications.MarkNotificationsRead(up_to=up_to)
        is_needed = bool(read.ids or read.up_to)
        count = client.call(notifications.read_many, read).read if is_needed else 0
    terminal.done(f"{count} read", {"read": count})


_GROUP = group(
    "notifications",
    "What happened to runs, recorded by the server of this data directory.",
    [notifications_ls, notifications_read],
)


VERBS = {
    "inbox": inbox,
    "approve": _verb(
        "approve",
        "Accept what a gate asks about. ID is a gate, or a run with one open gate.",
        examples=[
            ("loopwright approve gate_5f", ""),
            ('loopwright approve run_01 "Good"', ""),
            ("loopwright approve gate_5f --remember", "a tool call, and this tool from now on"),
            ("loopwright approve gate_5f --arguments @fixed.json", "with other arguments"),
        ],
    ),
    "reject": _verb(
        "reject",
        "Refuse what a gate asks about, which fails the step. ID is a gate, or a run with one "
        "open gate. For a tool call, TEXT must give the reason; the model gets it and continues.",
        examples=[('loopwright reject gate_5f "Not what I meant"', "")],
    ),
    "continue": _verb(
        "continue",
        "Ask for another iteration and say in TEXT what should be different. Without TEXT, for a "
        "run that failed or that a limit ended: continue it, as `resume` does.",
        examples=[
            ('loopwright continue gate_5f "Shorter, and name the file"', ""),
            ("loopwright continue run_01", "a run that failed: the steps that did not complete"),
        ],
        needs_text=True,
    ),
    "notifications": _GROUP,
}
