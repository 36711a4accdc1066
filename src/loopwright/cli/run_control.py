"""`pause`, `resume`, `stop` and `fork`: control one run or all, and branch off a new one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.start_options import put_detached, sandbox_option, say_notes
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, terminal_of
from loopwright.client.client import CommandClient
from loopwright.operations.run_control import ended_error, stopping_error
from loopwright.operations.use_cases.lists import ListRuns, list_runs
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.runs import pause as pause_run
from loopwright.operations.use_cases.runs import resume as resume_run
from loopwright.operations.use_cases.runs import stop as stop_run
from loopwright.ports import OPEN_STATUSES, RunStatus
from loopwright.views.run_responses import RunItem

if TYPE_CHECKING:
    from loopwright.client.client import Client
    from loopwright.client.transport import RunFeed
    from loopwright.model.sandbox import SandboxLevel
    from loopwright.operations.run_control import ResumeChanges

ALL = "all"
MOST_ITERATIONS = 1_000


class _ResumeFlags(TypedDict):
    """The changes when a run is resumed."""

    agents: tuple[str, ...]
    budget: str | None
    passes: int | None
    time: str | None
    restart: bool
    allow_unknown_cost: bool
    accept_changes: bool
    env: tuple[str, ...]
    sandbox: "SandboxLevel | None"


@click.command(
    cls=Verb,
    remote=True,
    examples=[("loopwright pause run_01", ""), ("loopwright pause all", "all active runs")],
)
@click.argument("run", metavar="RUN|all", shell_complete=complete_runs)
@click.pass_context
def pause(ctx: click.Context, /, *, run: str) -> None:
    """Pause a run before its next iteration. Running calls are completed."""
    terminal = terminal_of(ctx)
    with terminal.client() as client:
        items = _named_runs(client, run, ("running", "waiting"))
        changed = [one.run for one in items if one.status != "paused"]
        for one in changed:
            client.call(pause_run, RunReference(run=one))
    _report(terminal, "paused", [one.run for one in items], changed=changed)


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright stop run_01", "its agent is ended immediately"),
        ("loopwright stop all", ""),
    ],
)
@click.argument("run", metavar="RUN|all", shell_complete=complete_runs)
@click.pass_context
def stop(ctx: click.Context, /, *, run: str) -> None:
    """End a run now. It ends as cancelled; `loopwright resume` continues it.

    The changes of its agent are recorded first, for at most 4 seconds; a second `stop` ends the
    run without recording them.
    """
    terminal = terminal_of(ctx)
    with terminal.client(drives=True) as client:
        items = _named_runs(client, run, OPEN_STATUSES)
        if run != ALL and items[0].status not in OPEN_STATUSES:
            raise ended_error(items[0].run, items[0].status, items[0].reason)
        answers = client.call_all(stop_run, [RunReference(run=one.run) for one in items])
    for answer in answers:
        if answer.stop == "stopping":
            raise stopping_error(answer.run, answer.processes)
    stopped = [one.run for one in answers]
    _report(terminal, "stopped", stopped, changed=stopped)


def _named_runs(
    client: CommandClient, reference: str, statuses: Sequence[RunStatus]
) -> list[RunItem]:
    """The run that a person named, or with `all` every run with one of these statuses."""
    if reference != ALL:
        return client.call(list_runs, ListRuns(match=reference)).runs
    found: list[RunItem] = []
    cursor: str | None = None
    while True:
        page = client.call(list_runs, ListRuns(status=tuple(statuses), cursor=cursor))
        found += page.runs
        cursor = page.next
        if cursor is None:
            return found


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        ("loopwright resume run_01", "after a failure, a stop, a pause or a crash"),
        ("loopwright resume run_01 --budget usd=10", "its budget was used up; 10 is the new total"),
        ("loopwright resume run_01 --max 6", "it has made all its iterations; 6 is the new total"),
        ("loopwright resume run_01 --restart", "begin with iteration 1"),
        ("loopwright resume run_01 --detach", "in the background"),
        ("loopwright resume all", "every run that is paused or was interrupted"),
    ],
)
@click.argument("run", metavar="RUN|all", shell_complete=complete_runs)
@click.option("--no-wait", is_flag=True, help="Exit with code 5 at a gate instead of asking here.")
@click.option("--jsonl", is_flag=True, help="Print events as they occur, one JSON object per line.")
@click.option("--detach", is_flag=True, help="Resume the run in the background and return.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="For a run that has ended: agent backend from now on; SPEC for all, NAME=SPEC for one.",
)
@click.option(
    "--budget",
    metavar="LIMITS",
    help="For a run that has ended: limits of the whole run, including what it has spent; "
    "idle=10m for the silence of an agent.",
)
@click.option(
    "--max",
    "passes",
    metavar="N",
    type=click.IntRange(1, MOST_ITERATIONS),
    help="For a run that has ended: iterations that its loop may make in total.",
)
@click.option(
    "--time",
    metavar="DURATION",
    help="For a run that has ended: time limit from now on, for example 2h.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="For a run that has ended: begin with the first step and iteration 1.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="For a run that has ended: accept protected files as they are now.",
)
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Resume although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="For a run that has ended: a variable that it was started with, whose value is no "
    "longer stored or has changed.",
)
@sandbox_option
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    *,
    run: str,
    no_wait: bool,
    jsonl: bool,
    detach: bool,
    **given: Unpack[_ResumeFlags],
) -> int:
    """Resume a run and follow it until it finishes or needs input.

    A run that failed, that was stopped or that a limit ended continues at the iteration that did
    not finish, with its progress log, its sessions and what it has spent. Steps, items and
    iterations that completed are kept, and calls that have an answer are not repeated. Time limits
    start again.
    """
    from loopwright.cli.attach import follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_control import ResumeChanges  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    if jsonl and (terminal.as_json or run == ALL):
        raise click.UsageError("--jsonl is for one run and excludes --json", ctx)
    if detach and (jsonl or no_wait or run == ALL):
        raise click.UsageError("--detach is for one run and excludes --jsonl and --no-wait", ctx)
    changes = ResumeChanges(**given)
    if changes and run == ALL:
        message = "options that change a run, such as --agent, --max or --env, are for one run"
        raise click.UsageError(message, ctx)
    if detach:
        return _resume_detached(terminal, run, changes)
    paused: list[RunItem] = []
    if run == ALL and terminal.server_url:  # which itself takes up what a crash left behind
        with terminal.client() as found:
            paused = _named_runs(found, ALL, ("paused",))

    async def begin(client: "Client") -> "list[RunFeed]":
        if run == ALL and not terminal.server_url:
            return await _resume_all(terminal, client)
        runs = [one.run for one in paused] if run == ALL else [run]
        feeds = [await _resume_one(terminal, client, one, changes) for one in runs]
        if run == ALL:
            terminal.say(f"{len(feeds)} resumed")
        return feeds

    options = AttachOptions(no_wait=no_wait, jsonl=jsonl, several=run == ALL)
    return follow_runs(terminal, begin, options)


async def _resume_one(
    terminal: Terminal, client: "Client", reference: str, changes: "ResumeChanges"
) -> "RunFeed":
    """Resume a run; its feed begins with what happens then."""
    from loopwright.cli.attach import feed_options  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases.runs import resume_request  # noqa: PLC0415 - the same

    run = await client.find_run(reference)
    feed = await client.open_feed(run, None, feed_options(terminal))
    resumed = await client.call(resume_run, resume_request(run, changes))
    say_notes(terminal, [f"warning: {one}" for one in resumed.warnings])
    return feed


async def _resume_all(terminal: Terminal, client: "Client") -> "list[RunFeed]":
    """Resume every run that is paused or that a crash left behind."""
    from loopwright.operations.use_cases.local_runs import ResumeAll, resume_all  # noqa: PLC0415 - rarely needed

    found = await client.call(resume_all, ResumeAll())
    say_notes(terminal, found.warnings)
    terminal.say(f"{sum(one.is_own for one in found.runs)} resumed")
    for problem in found.problems:  # what could not be taken up
        terminal.tell(problem, tone="bad")
    return [await client.open_feed(one.run, one.seen) for one in found.runs]


def _resume_detached(terminal: Terminal, run: str, changes: "ResumeChanges") -> int:
    """Resume a run that a server drives, or a process in the background."""
    from loopwright.operations.background_runs import resume_in_background  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases.runs import resume_request  # noqa: PLC0415 - the same

    if terminal.server_url:
        with terminal.client() as client:
            resumed = client.call(resume_run, resume_request(client.find_run(run), changes))
        notes = [resumed.message, *(f"warning: {one}" for one in resumed.warnings)]
        say_notes(terminal, notes)
        put_detached(terminal, resumed, where=f"on {terminal.server_url}")
        return 0
    found = resume_in_background(terminal.settings, run, changes, alone=terminal.options.here)
    say_notes(terminal, found.notes)
    put_detached(terminal, found.summary, where=found.where)
    return 0


def _report(terminal: Terminal, word: str, runs: list[str], *, changed: list[str]) -> None:
    if terminal.as_json:
        terminal.put_json({word: changed, "count": len(changed), "runs": runs})
        return
    for run in runs:
        terminal.say(f"{run}: {word}" if run in changed else f"{run} was {word} already")
    if len(runs) != 1:
        terminal.say(f"{len(changed)} {word}")


class _ForkFlags(TypedDict):
    """The options of a fork."""

    at: str | None
    model: str | None
    edit: str | None
    passes: int | None
    agents: tuple[str, ...]
    workspace: Path | None
    restore: bool
    force: bool
    allow_unknown_cost: bool
    env: tuple[str, ...]


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        ("loopwright fork run_01 --at main.2", "everything through the third iteration is kept"),
        (
            "loopwright fork run_01 --at 3",
            "the same: a number alone is an iteration, counted from 1",
        ),
        ("loopwright fork run_01 --at 3 --restore --workspace again", "with its files"),
        ("loopwright fork run_01 --at main.2 --model anthropic/claude-sonnet-5", "another model"),
        (
            'loopwright fork run_01 --at main.2 --edit "Use the old parser"',
            "a message to the next iteration",
        ),
        ("loopwright fork run_01 --at build --agent shipper=command:./ship", "another agent"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--at",
    metavar="PATH|N",
    help="A step or an iteration that completed: `3` is the third iteration, `3~1` that of the "
    "first try where the run was restarted; a path as in the events counts from 0 (`main.2` is the "
    "third iteration).",
)
@click.option("--model", metavar="MODEL", help="The chat model from then on: PROVIDER/NAME.")
@click.option("--edit", metavar="TEXT", help="A message to the next iteration of the loop.")
@click.option(
    "--max",
    "passes",
    metavar="N",
    type=click.IntRange(1, MOST_ITERATIONS),
    help="Iterations that the loop may make in total, including those before.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="Agent backend from then on: SPEC for all agents, NAME=SPEC for one.",
)
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Work in this folder; else in that of RUN.",
)
@click.option(
    "--restore",
    is_flag=True,
    help="Put the files back as they were then: into the new folder of --workspace, else into the "
    "workspace of RUN.",
)
@click.option(
    "--force", is_flag=True, help="With --restore: overwrite changes that no snapshot has."
)
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Fork although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable that RUN was started with, whose value is no longer stored or has changed.",
)
@click.option("--no-wait", is_flag=True, help="Exit with code 5 at a gate instead of asking here.")
@click.option("--jsonl", is_flag=True, help="Print events as they occur, one JSON object per line.")
@click.pass_context
def fork(
    ctx: click.Context,
    /,
    *,
    run: str,
    no_wait: bool,
    jsonl: bool,
    **given: Unpack[_ForkFlags],
) -> int:
    """Start a new run from a completed step or iteration of RUN, and follow it until it ends or
    needs a person. RUN is not changed.

    Iterations, tokens and money up to that point count in the new run too. Calls that were running
    at that point are repeated; calls that have an answer are not. The workspace stays as it is now;
    --restore puts its files back as they were. A fork of a run with a worktree gets a worktree of
    its own.
    """
    from loopwright.cli.attach import follow_runs  # noqa: PLC0415 - help stays quick
    from loopwright.cli.run_output import AttachOptions  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    if jsonl and terminal.as_json:
        raise click.UsageError("--jsonl excludes --json", ctx)
    if terminal.server_url and given["restore"]:
        raise click.UsageError("--restore puts files back on this machine; it excludes --server")
    if terminal.server_url and given["force"]:
        raise click.UsageError("--force is for --restore, which excludes --server")

    async def begin(client: "Client") -> "list[RunFeed]":
        return [await _fork(terminal, client, run, given)]

    return follow_runs(terminal, begin, AttachOptions(no_wait=no_wait, jsonl=jsonl))


async def _fork(
    terminal: Terminal, client: "Client", reference: str, given: _ForkFlags
) -> "RunFeed":
    """The feed of the new run, from its first own event."""
    from loopwright.cli.attach import feed_options  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_start import agent_choices  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_variables import read_variables  # noqa: PLC0415 - quick help
    from loopwright.operations.use_cases import run_changes  # noqa: PLC0415 - quick help

    default, named = agent_choices(given["agents"])
    folder = given["workspace"]
    request = run_changes.LocalFork(
        run=await client.find_run(reference),
        at=given["at"],
        model=given["model"],
        edit=given["edit"],
        max=given["passes"],
        agent=default,
        agents=named,
        workspace=None if folder is None else str(folder),
        allow_unknown_cost=given["allow_unknown_cost"],
        env=read_variables(given["env"], os.environ),
        restore=given["restore"],
        force=given["force"],
    )
    forked = await client.call(run_changes.fork, request)
    say_notes(terminal, forked.notes)
    return await client.open_feed(forked.run, forked.seq, feed_options(terminal))


VERBS = {
    "pause": pause,
    "resume": resume,
    "stop": stop,
    "fork": fork,
}
