"""`fork`: a new run from a finished place of another."""

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.control import MOST_PASSES
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.wiring import Local
    from loopwright.cli.door import Door
    from loopwright.cli.driving import Taken
    from loopwright.model.record import JsonValue


class _Given(TypedDict):
    """What a fork is made with."""

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
        ("loopwright fork run_01 --at 3 --restore --workspace again", "with the files of then"),
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
    type=click.IntRange(1, MOST_PASSES),
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
    help="A variable that RUN was started with, whose value is not stored any more or is another "
    "one.",
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
    **given: Unpack[_Given],
) -> int:
    """Make a new run that begins with what RUN has recorded up to the end of a place, and drive it
    here until it rests; with --server it is driven there, and watched. RUN stays as it is.

    Passes, tokens and money up to there count in the new run too. What was under way elsewhere at
    that point is asked for anew; nothing that has an answer is repeated. The workspace stays as it
    is now; --restore puts its files back as they were. A fork of a run with a worktree gets a
    worktree of its own.
    """
    from loopwright.app.forking import Fork  # noqa: PLC0415 - help stays quick
    from loopwright.app.forking import fork as make  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.cli.driving import Manner, Taken, drive  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if jsonl and door.as_json:
        raise click.UsageError("--jsonl excludes --json", ctx)
    if door.remote is not None:
        return _fork_afar(door, run, given, jsonl=jsonl)

    async def begin(here: "Local") -> "list[Taken]":
        service = here.service
        wish = Fork(**given, workspaces=here.workspaces, say=door.say)
        return [Taken(*await make(service, service.find(run), wish, by=current_user()))]

    return drive(door, begin, Manner(no_wait=no_wait, jsonl=jsonl))


def _fork_afar(door: "Door", run: str, given: _Given, *, jsonl: bool) -> int:
    """The same at the server that was named; a gate is answered by `approve` there."""
    from loopwright.cli.afar import agents_afar, env_afar, fork_afar  # noqa: PLC0415 - only when asked for

    if given["restore"]:
        raise click.UsageError("--restore puts files back on this machine; it excludes --server")
    if given["force"]:
        raise click.UsageError("--force is for --restore, which excludes --server")
    folder = given["workspace"]
    body: dict[str, JsonValue] = {
        "at": given["at"],
        "model": given["model"],
        "edit": given["edit"],
        "max": given["passes"],
        "workspace": None if folder is None else str(folder),
        **agents_afar(given["agents"]),
        **({"allow_unknown_cost": True} if given["allow_unknown_cost"] else {}),
        **env_afar(given["env"]),
    }
    return fork_afar(door, run, body, jsonl=jsonl)


VERBS = {"fork": fork}
