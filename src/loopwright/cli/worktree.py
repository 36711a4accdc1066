"""`apply` and `discard`: what becomes of the worktree of a run."""

import asyncio
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.looking import looking
from loopwright.cli.texts import file_name
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.cli.door import Door
    from loopwright.model.record import JsonValue

_NAMED = 20


@click.command(
    cls=Verb,
    remote=True,
    examples=[("loopwright apply run_01", "then look at it: git diff")],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.pass_context
def apply(ctx: click.Context, /, *, run: str) -> None:
    """Merge the result of a run that worked in a worktree into the files of your checkout.

    The merge is three-way: what you committed since the start of the run stays. Your branch and
    your index are not changed; the result is in your files, to be looked at and committed. On a
    conflict, or when a file that would be written has uncommitted changes, the files are named and
    nothing is changed.
    """
    door = door_of(ctx)
    done = _apply_here(door, run) if door.remote is None else _post(door, run, "apply", {})
    if door.as_json:
        door.put_json(done)
        return
    files = done["files"]
    assert isinstance(files, list)
    for file in files[:_NAMED]:
        door.put(file_name(str(file)))
    more = f" ({len(files) - _NAMED} more than shown)" if len(files) > _NAMED else ""
    if files:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        door.say(f"changed {count} in {done['repository']}{more}; look at them with `git diff`")
    else:
        door.say(f"nothing to apply: {done['repository']} has the result already")
    outside = done["outside"]
    assert isinstance(outside, list)
    if outside:
        names = ", ".join(file_name(str(one)) for one in outside[:_NAMED])
        more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
        door.say(
            f"warning: not applied, because the run changed it outside of its workspace: {names}"
            f"{more}; the branch has it: `git merge loopwright/{done['run']}`",
            tone="warn",
        )


@click.command(
    cls=Verb,
    remote=True,
    examples=[("loopwright discard run_01 --yes", "without being asked")],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def discard(ctx: click.Context, /, *, run: str, yes: bool) -> int:
    """Remove the worktree of a run that has ended, and its branch, with everything in them that
    was not applied. The record of the run and its snapshots stay.

    The question says how many files would be lost. Exit code 1: the answer was no, and nothing was
    removed.
    """
    door = door_of(ctx)
    if not yes and not door.can_ask:
        raise click.UsageError("no terminal to ask for confirmation; use --yes", ctx)
    if door.remote is not None:
        sure = yes or _confirm(f"Remove the worktree of {run} and its branch?")
        done = _post(door, run, "discard", {"confirm": True}) if sure else None
    else:
        done = _discard_here(door, run, yes=yes)
    if done is None:
        door.say("nothing was removed")
        return 1
    if door.as_json:
        door.put_json(done)
    else:
        door.say(f"removed {done['folder']} and the branch {done['branch']}")
    return 0


def _apply_here(door: "Door", reference: str) -> "dict[str, JsonValue]":
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.app.worktree_runs import apply_run  # noqa: PLC0415 - help stays quick

    with looking(door) as service:
        return asyncio.run(apply_run(service, service.find(reference), by=current_user()))


def _discard_here(door: "Door", reference: str, *, yes: bool) -> "dict[str, JsonValue] | None":
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.app.worktree_runs import (  # noqa: PLC0415 - help stays quick
        check_discard,
        discard_run,
        require_worktree,
        unapplied_files,
    )

    with looking(door) as service:
        run = service.find(reference)
        worktree = require_worktree(service, run)
        check_discard(service, run)
        lost = asyncio.run(unapplied_files(service, run))
        for file in lost[:_NAMED]:
            door.say(f"  {file_name(file)}")
        count = "1 file" if len(lost) == 1 else f"{len(lost)} files"
        if lost:
            never = "was" if len(lost) == 1 else "were"
            door.say(f"{count} of the result {never} never applied to {worktree.repository}")
        what = f"Remove the worktree {worktree.folder} and its branch"
        if not yes and not _confirm(f"{what}, and lose {count}?" if lost else f"{what}?"):
            return None
        return asyncio.run(discard_run(service, run, by=current_user()))


def _confirm(question: str) -> bool:
    return click.confirm(question, err=True)


def _post(
    door: "Door", reference: str, verb: str, body: "dict[str, JsonValue]"
) -> "dict[str, JsonValue]":
    remote = door.remote
    assert remote is not None
    done: dict[str, JsonValue] = remote.post(f"/api/v1/runs/{remote.run(reference)}/{verb}", body)
    return done


VERBS = {"apply": apply, "discard": discard}
