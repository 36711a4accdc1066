"""Runs that work in a worktree: what to say at the start, how to apply and discard the result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loopwright.app.given import access_in
from loopwright.app.named_programs import worktree_warnings
from loopwright.app.project_files import user_records
from loopwright.app.service import Service, row_ended
from loopwright.app.views.listing import is_left_behind
from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.facts import RunStarted, Worktree
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue
from loopwright.ports import CHAT_SURFACE, OPEN_STATUSES, RunRow, Worktrees

_WARNING = "warning: "


def start_notes(service: Service, run: str) -> list[str]:
    """What a person should know about a run that has just been started: limits that cannot stop it,
    and the folder that it works in.
    """
    first = _first(service, run)
    free = service.costs.free_agents(service.plan(first)) if service.costs is not None else ()
    return [*(f"{_WARNING}{one}" for one in free), *_folder_notes(service, run, first)]


def _folder_notes(service: Service, run: str, first: RunStarted) -> list[str]:
    if first.worktree is not None:
        made = first.worktree
        notes = [f"worktree {made.folder} on the branch {made.branch}"]
        if made.uncommitted:
            files = "1 file has" if made.uncommitted == 1 else f"{made.uncommitted} files have"
            notes.append(
                f"warning: {files} uncommitted changes in {made.repository}, which are not in the "
                "worktree; commit them before the start to include them"
            )
        plan, folder = service.plan(first), Path(first.workspace)
        checkout = Path(made.repository) / folder.relative_to(made.folder)
        missing = worktree_warnings(plan, folder, checkout)
        return [*notes, *(f"{_WARNING}{one}" for one in missing), *_git_notes(plan, made)]
    return _shared_folder(service, run, first)


def resume_warnings(service: Service, run: str) -> list[str]:
    """That other runs are working in the folder that a run continues in."""
    first = _first(service, run)
    if first.worktree is not None:
        return []
    working = [one for one in _other_rows(service, run, first) if _is_working(service, one)]
    if not working:
        return []
    where = f"{_also_running(working)} in the folder of {run}, on the same files"
    return [_other_runs(working, where, "pause or stop one of them")]


def _shared_folder(service: Service, run: str, first: RunStarted) -> list[str]:
    """Whether other open runs have the folder of a run; those that are running count first."""
    others = _other_rows(service, run, first)
    working = [row for row in others if _is_working(service, row)]
    remedy = "--worktree gives each run its own files"
    if working:
        where = f"{_also_running(working)} in this folder, on the same files"
        return [_WARNING + _other_runs(working, where, remedy)]
    if others:
        where = f"{_standing(others)} and would continue in this folder"
        return [_WARNING + _other_runs(others, where, remedy)]
    return []


def _other_rows(service: Service, run: str, first: RunStarted) -> list[RunRow]:
    return [
        row
        for row in service.log.rows(statuses=OPEN_STATUSES)
        if row.run != run
        and row.headline.workspace == first.workspace
        and first.parent != row.run
        and row.headline.surface != CHAT_SURFACE
    ]


def _is_working(service: Service, row: RunRow) -> bool:
    return row.headline.status == "running" and not is_left_behind(service.log, row)


def _also_running(rows: Sequence[RunRow]) -> str:
    return "are also running" if len(rows) > 1 else "is also running"


def _standing(rows: Sequence[RunRow]) -> str:
    """How runs stand that are open and are not running."""
    if len(rows) > 1:
        return "have not ended"
    status = rows[0].headline.status
    return {"paused": "is paused", "waiting": "waits for a decision"}.get(status, "was interrupted")


def _other_runs(rows: Sequence[RunRow], what: str, remedy: str) -> str:
    first, count = rows[0], len(rows) - 1
    more = f" and {count} more run{'' if count == 1 else 's'}" if count else ""
    return f"{first.run} ({first.headline.name}){more} {what}; {remedy}"


def _git_notes(plan: Plan, worktree: Worktree) -> list[str]:
    """Which agents see no Git. The history of a worktree is in the user's repository, which may
    have credentials in its settings, so agents below `full` are not shown it.
    """
    names = [name for name, agent in plan.agents.items() if agent.access not in (None, "full")]
    if not names:
        return []
    return [
        f"read-only agents ({', '.join(names)}) see the files of the worktree, but not the Git "
        f"repository {worktree.repository}"
    ]


def start_warnings(service: Service, run: str) -> list[str]:
    """Those of the notes about a new run that warn, without the word."""
    notes = start_notes(service, run)
    return [one.removeprefix(_WARNING) for one in notes if one.startswith(_WARNING)]


async def apply_run(service: Service, run: str, *, by: str) -> dict[str, JsonValue]:
    """Merge the result of a run into the checkout that it was started in."""
    worktree, worktrees = _worktree(service, run)
    if service.log.row(run).headline.status == "running":
        raise Conflict(
            f"{run} is still running",
            code="run-open",
            hint=f"wait for it, or pause it: `loopwright pause {run}`",
        )
    with user_records().working(worktree.repository):  # these are files of agents
        applied = await worktrees.apply(worktree, Path(_first(service, run).workspace))
    _audit(service, run, "run.applied", f"{len(applied.files)} files", by)
    return {
        "run": run,
        "repository": worktree.repository,
        "files": list(applied.files),
        "outside": list(applied.outside),
    }


async def unapplied_files(service: Service, run: str) -> list[str]:
    """The files that would be lost with the worktree of a run."""
    worktree, worktrees = _worktree(service, run)
    return list(await worktrees.unapplied(worktree, Path(_first(service, run).workspace)))


async def discard_run(service: Service, run: str, *, by: str) -> dict[str, JsonValue]:
    """Remove the worktree of a run that has ended, and its branch."""
    worktree, worktrees = _worktree(service, run)
    check_discard(service, run)
    await worktrees.discard(worktree)
    _audit(service, run, "run.discarded", worktree.branch, by)
    return {"run": run, "branch": worktree.branch, "folder": worktree.folder}


def check_discard(service: Service, run: str) -> None:
    """Refuse to remove a worktree that a run still works in."""
    worktree = require_worktree(service, run)
    if not row_ended(service.log.row(run)):
        raise Conflict(
            f"{run} has not ended", code="run-open", hint=f"end it: `loopwright stop {run}`"
        )
    users = [
        row.run
        for row in service.log.rows(statuses=OPEN_STATUSES)
        if Path(row.headline.workspace).is_relative_to(worktree.folder)
    ]
    if users:
        raise Conflict(
            f"{users[0]} works in the worktree of {run}",
            code="run-open",
            hint=f"end it: `loopwright stop {users[0]}`",
        )


def require_worktree(service: Service, run: str) -> Worktree:
    """The worktree of a run; one without is refused."""
    found = _first(service, run).worktree
    if found is None:
        raise LoopwrightError(
            f"{run} has no worktree: it worked in the folder itself",
            code="no-worktree",
            hint="start a run with --worktree to keep its changes apart",
        )
    return found


def _worktree(service: Service, run: str) -> tuple[Worktree, Worktrees]:
    found = require_worktree(service, run)
    if service.worktrees is None:
        raise LoopwrightError("worktrees are not available here", code="no-worktrees")
    return found, service.worktrees


def _first(service: Service, run: str) -> RunStarted:
    first = service.facts(run)[0].fact
    assert isinstance(first, RunStarted)
    return first


def _audit(service: Service, run: str, action: str, detail: str, by: str) -> None:
    access = access_in(service)
    access.cards.change(audit=[replace(access.row(by, action, run, detail), via=service.via)])
