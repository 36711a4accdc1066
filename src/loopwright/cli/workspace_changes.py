"""`diff`, `restore`, `bisect`, `apply` and `discard`: the file changes of a run.

`apply` and `discard` are for runs that work in a worktree.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import open_service
from loopwright.cli.terminal import file_name
from loopwright.cli.verb import Verb, terminal_of
from loopwright.kernel.snapshots import name_files
from loopwright.operations.data_directory import workspaces_of
from loopwright.operations.run_workspaces import RunSnapshots
from loopwright.operations.runs import Service
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_changes import (
    ApplyRun,
    DiscardRun,
    RunWorktree,
    apply_result,
    discard_worktree,
    read_worktree,
)
from loopwright.operations.use_cases.run_views import DiffRun, read_diff
from loopwright.operations.workspace_rules import sandbox_of
from loopwright.views.iterations import stat_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.terminal import Terminal
    from loopwright.model.record import JsonValue
    from loopwright.operations.run_workspaces import Bisection
    from loopwright.views.run_responses import RunDiff

_STATUS_LETTERS = {
    "added": "A",
    "modified": "M",
    "deleted": "D",
    "renamed": "R",
    "type_changed": "T",
}


_UNRECORDED = "changes after the last snapshot were not recorded"


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright diff run_01", "what the whole run changed"),
        ("loopwright diff run_01 2", "what iteration 2 changed"),
        ("loopwright diff run_01 1 3 --stat", "from the end of iteration 1 to that of 3"),
        ("loopwright diff run_01 2 -- src 'tests/**'", "these files alone"),
        ("loopwright diff run_01 2~1", "iteration 2 before the run was restarted"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("words", metavar="[A [B]] [-- PATH…]", nargs=-1)
@click.option("--stat", is_flag=True, help="List the files and how many lines changed in each.")
@click.pass_context
def diff(ctx: click.Context, /, *, run: str, words: tuple[str, ...], stat: bool) -> None:
    """Show what a run changed in its workspace: in all, in iteration A, or between A and B.

    Iterations count from 1; 0 is the workspace before the first one. After `resume --restart`, 2
    is iteration 2 of the newest try and 2~1 that of the first one. Files that no snapshot has, such
    as ignored ones, are not shown.
    """
    terminal = terminal_of(ctx)
    numbers, paths = _split(ctx, words)
    start, end = (*numbers, None, None)[:2]
    with terminal.client() as client:
        request = DiffRun(
            run=client.find_run(run),
            start=start,
            end=end,
            stat=stat,
            paths="\n".join(paths) or None,
            color=terminal.has_color(sys.stdout) and not terminal.as_json,
        )
        _put_changes(terminal, client.call(read_diff, request), stat=stat)


def _split(ctx: click.Context, words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of iterations first, and the paths after them."""
    count = 0
    while count < min(len(words), 2) and words[count].partition("~")[0].isdecimal():
        count += 1
    paths = words[count:]
    if paths and "--" not in sys.argv and not any("/" in one or "." in one for one in paths):
        problem = f"{paths[0]!r} is not an iteration, such as 2 or 2~1; paths come after --"
        raise click.UsageError(problem, ctx)
    return words[:count], paths


def _put_changes(terminal: "Terminal", found: "RunDiff", *, stat: bool) -> None:
    unrecorded = (found.unrecorded_note or _UNRECORDED) if found.unrecorded else ""
    if unrecorded:
        terminal.tell(unrecorded, tone="warn")
    _print_omitted(terminal, found.omitted, found.omitted_count)
    text = found.diff or ""
    if stat or terminal.as_json:
        made: dict[str, JsonValue] = msgspec.to_builtins(found)
        if stat:
            del made["diff"]
        _put_comparison(terminal, made)
    elif text.strip() or not unrecorded:
        _put_diff(terminal, text)


def _print_omitted(terminal: "Terminal", names: "list[str]", count: int) -> None:
    """Name the files that cannot be compared: no snapshot has them."""
    if names:
        named = file_name(name_files(tuple(names), count))
        terminal.say(f"not compared, since snapshots left them out (size or kind): {named}")


def _snapshots(terminal: "Terminal", run: str, service: Service) -> RunSnapshots:
    own = sandbox_of(terminal.settings)
    return RunSnapshots(service, workspaces_of(terminal.settings), run, sandbox=own)


def _put_comparison(terminal: "Terminal", made: "dict[str, JsonValue]") -> None:
    if terminal.as_json:
        terminal.put_json(made)
        return
    for line in comparison_lines(made):
        terminal.put(line)


def comparison_lines(made: "dict[str, JsonValue]") -> "Iterator[str]":
    """The files with their lines, and a sum."""
    files = made["changes"]
    assert isinstance(files, list)
    for one in files:
        assert isinstance(one, dict)
        letter = _STATUS_LETTERS.get(str(one["status"]), "M")
        name = file_name(str(one["path"]))
        old = f"{file_name(str(one['old_path']))} → " if one["old_path"] else ""
        lines = "binary" if one["binary"] else f"+{one['insertions']} −{one['deletions']}"
        yield f"{letter} {old}{name}  {lines}"
    plural = "" if made["files"] == 1 else "s"
    sums = f"(+{made['insertions']} −{made['deletions']})"
    none = "no changes were recorded" if made["unrecorded"] else "no files changed"
    yield f"{made['files']} file{plural} changed {sums}" if made["files"] else none


def _put_diff(terminal: "Terminal", text: str) -> None:
    if not text.strip():
        terminal.say("no files changed")
        return
    show_paged(terminal, text)


_CONTROLS = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


def show_paged(terminal: "Terminal", text: str) -> None:
    """A long text through the pager if stdout is a terminal, else unchanged to stdout. Control
    characters are removed in the first case, except for colours.
    """
    if sys.stdout.isatty():
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    pager = os.environ.get("PAGER") or "less"
    program = shutil.which(pager.split()[0]) if pager.strip() else None
    height = shutil.get_terminal_size().lines
    if not sys.stdout.isatty() or program is None or text.count("\n") < height:
        terminal.put(text.rstrip("\n"))
        return
    environment = {"LESS": "FRX", **os.environ}
    subprocess.run(
        [program, *pager.split()[1:]],
        input=text.encode(errors="replace"),
        env=environment,
        check=False,
    )


@click.command(
    cls=Verb,
    only_here=True,
    examples=[
        ("loopwright restore run_01 2", "the workspace as it was after iteration 2"),
        ("loopwright restore run_01 0 --to before", "as it was before the run, in a new folder"),
        ("loopwright restore run_01 2~1", "after iteration 2 of the first try"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("iteration", metavar="ITERATION")
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the files into this new folder instead of the workspace.",
)
@click.option("--force", is_flag=True, help="Overwrite changes that no snapshot has.")
@click.pass_context
def restore(
    ctx: click.Context, /, *, run: str, iteration: str, to: Path | None, force: bool
) -> None:
    """Put the files of the workspace back as they were after ITERATION; 0 is before the first one.

    The files as they are now are recorded first, so that it can be undone. Changes that no snapshot
    of the run has are not overwritten without --force. Files that no snapshot has are kept. After
    `resume --restart`, 2 is iteration 2 of the newest try and 2~1 that of the first one.
    """
    terminal = terminal_of(ctx)
    with open_service(terminal) as service:
        snapshots = _snapshots(terminal, service.find(run), service)
        if to is not None:
            done = asyncio.run(snapshots.export(iteration, to))
        else:
            done = asyncio.run(snapshots.restore(iteration, force=force))
    undo = f"loopwright restore {snapshots.run} {done.before}" if done.before else None
    if terminal.as_json:
        terminal.put_json(
            {
                "run": snapshots.run,
                "tree": done.tree,
                "folder": str(done.folder),
                "files": done.files,
                "undo": undo,
            }
        )
        return
    if done.files is None:
        terminal.put(f"wrote the files into {done.folder}")
        return
    plural = "" if done.files == 1 else "s"
    terminal.put(f"restored {done.folder}: {done.files} file{plural} changed")
    terminal.say(f"undo it with: {undo}")


@click.command(
    cls=Verb,
    only_here=True,
    examples=[
        ("loopwright bisect run_01", "with the run's own check commands"),
        ("loopwright bisect run_01 -- pytest -q tests/test_api.py", "with another command"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("command", metavar="[-- COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bisect(ctx: click.Context, /, *, run: str, command: tuple[str, ...]) -> int:
    """Find the iteration that broke a check.

    The snapshots are written into temporary folders and tested there, by binary search. The
    workspace is not touched. Exit code 0: found, or nothing is broken; 3: the check never passed.
    After `resume --restart` the iterations of all tries are searched, and 2~1 is iteration 2 of the
    first one.
    """
    terminal = terminal_of(ctx)
    with open_service(terminal) as service:
        snapshots = _snapshots(terminal, service.find(run), service)
        found = asyncio.run(snapshots.bisect(command, lambda line: terminal.say(line)))
    if terminal.as_json:
        terminal.put_json(found.view())
    else:
        for line in _found_lines(found):
            terminal.put(line)
    return 3 if found.verdict == "never_passed" else 0


def _found_lines(found: "Bisection") -> "Iterator[str]":
    what = " and ".join(f"`{one}`" for one in found.checks)
    last = [*found.tested][-1]
    if found.verdict == "passes":
        yield f"{what} passes on the last snapshot (iteration {last}); nothing is broken"
    elif found.verdict == "never_passed":
        yield f"{what} never passed: it fails on every snapshot, also before the first iteration"
    else:
        yield f"iteration {found.iteration} broke {what}: {stat_words(found.changed)}"
        for path in found.paths[:20]:
            yield f"  {file_name(path)}"
        yield f"see it with: loopwright diff {found.run} {found.iteration}"


_NAMED = 20


@click.command(
    cls=Verb,
    remote=True,
    examples=[("loopwright apply run_01", "then review it: git diff")],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.pass_context
def apply(ctx: click.Context, /, *, run: str) -> None:
    """Merge the result of a run that worked in a worktree into the files of your checkout.

    The merge is three-way: what you committed since the start of the run stays. Your branch and
    your index are not changed; the result is in your files, for you to review and commit. On a
    conflict, or when a file that would be written has uncommitted changes, the files are named and
    nothing is changed.
    """
    terminal = terminal_of(ctx)
    with terminal.client() as client:
        done = client.call(apply_result, ApplyRun(run=client.find_run(run)))
    if terminal.as_json:
        terminal.put_json(done)
        return
    files = done.files
    for file in files[:_NAMED]:
        terminal.put(file_name(file))
    more = f" ({len(files) - _NAMED} more than shown)" if len(files) > _NAMED else ""
    if files:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        terminal.say(f"changed {count} in {done.repository}{more}; look at them with `git diff`")
    else:
        terminal.say(f"nothing to apply: {done.repository} has the result already")
    if done.outside:
        names = ", ".join(file_name(one) for one in done.outside[:_NAMED])
        more = f" and {len(done.outside) - _NAMED} more" if len(done.outside) > _NAMED else ""
        terminal.say(
            f"warning: not applied, because the run changed it outside of its workspace: {names}"
            f"{more}; the branch has it: `git merge loopwright/{done.run}`",
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
    was not applied. The log of the run and its snapshots are kept.

    The question says how many files would be lost. Exit code 1: not confirmed, and nothing was
    removed.
    """
    terminal = terminal_of(ctx)
    if not yes and not terminal.can_ask:
        raise click.UsageError("no terminal to ask for confirmation; use --yes", ctx)
    with terminal.client() as client:
        wanted = RunReference(run=client.find_run(run))
        if not yes and not _confirm(_loss(terminal, client.call(read_worktree, wanted))):
            terminal.say("nothing was removed")
            return 1
        done = client.call(discard_worktree, DiscardRun(run=wanted.run, confirm=True))
    if terminal.as_json:
        terminal.put_json(done)
    else:
        terminal.say(f"removed {done.folder} and the branch {done.branch}")
    return 0


def _loss(terminal: "Terminal", found: RunWorktree) -> str:
    """The question whether a worktree may be removed, after naming the files that would be lost."""
    lost = found.unapplied
    for file in lost[:_NAMED]:
        terminal.say(f"  {file_name(file)}")
    count = "1 file" if len(lost) == 1 else f"{len(lost)} files"
    what = f"Remove the worktree {found.folder} and its branch"
    if not lost:
        return f"{what}?"
    never = "was" if len(lost) == 1 else "were"
    terminal.say(f"{count} of the result {never} never applied to {found.repository}")
    return f"{what}, and lose {count}?"


def _confirm(question: str) -> bool:
    return click.confirm(question, err=True)


VERBS = {
    "diff": diff,
    "restore": restore,
    "bisect": bisect,
    "apply": apply,
    "discard": discard,
}
