"""Snapshots and worktrees of runs: compare, restore, find what broke a check, apply, discard."""

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.program_files import agent_environment
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.event_parts import DiffStat, Worktree
from loopwright.kernel.events import RunStarted
from loopwright.model.actions import Action, Repeat, Steps
from loopwright.model.checks import CommandCheck, ScriptCheck, leaves
from loopwright.model.plan import Plan
from loopwright.operations.agents.programs import worktree_warnings
from loopwright.operations.run_lists import is_left_behind
from loopwright.operations.runs import Service, row_ended
from loopwright.operations.settings_files import user_records
from loopwright.ports import CHAT_SURFACE, OPEN_STATUSES, FileChange, RunRow, Workspaces, Worktrees
from loopwright.views.iterations import WorkspaceHistory, history_of, no_snapshots
from loopwright.views.run_responses import (
    AppliedResult,
    BisectionView,
    ChangedFile,
    DiscardedResult,
    RunDiff,
    change_counts,
)

TREE_CHARS = 40
BISECT_SECONDS = 600.0
BEFORE = "0"  # the snapshot before the first iteration

Say = Callable[[str], None]


class RunSnapshots:
    """The snapshots of one run. Nothing here writes an event."""

    def __init__(
        self,
        service: Service,
        workspaces: Workspaces,
        run: str,
        *,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.sandbox = sandbox or Sandbox()
        events = [numbered.event for numbered in service.events(run)]
        first = events[0]
        assert isinstance(first, RunStarted)
        self.run = run
        self.plan = service.plan(first)
        self.workspace = Path(first.workspace)
        self.history = history_of(events)
        self.status = service.log.row(run).headline.status
        self._workspaces = workspaces

    # -- compare -----------------------------------------------------------------------------------

    async def changes(self, start: str | None, end: str | None) -> "Comparison":
        """The files that differ; see `WorkspaceHistory.between`."""
        old, new = self.history.between(self.run, start, end)
        found = await self._workspaces.changes(self.run, old, new)
        return Comparison(
            run=self.run,
            old=old,
            new=new,
            files=tuple(found),
            unrecorded=self.history.unrecorded(start, end),
            omitted=tuple(self.history.omitted),
            omitted_count=self.history.omitted_count,
        )

    async def diff(
        self, start: str | None, end: str | None, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff."""
        old, new = self.history.between(self.run, start, end)
        return await self._workspaces.diff(self.run, old, new, paths=paths, color=color)

    async def restore(self, wanted: str, *, force: bool = False) -> "Restored":
        """Restore the files of a snapshot in the workspace. The current files are recorded first;
        if they were not recorded before, `force` is required.
        """
        tree = self.history.tree(self.run, wanted)
        if not self.workspace.is_dir():
            raise LoopwrightError(
                f"the workspace {self.workspace} does not exist any more",
                code="workspace-gone",
                hint=f"write the files into a new folder: loopwright restore {self.run} {wanted} "
                "--to DIR",
            )
        if self.status == "running":
            raise Conflict(
                f"{self.run} is running in {self.workspace}",
                code="run-active",
                hint="pause or stop it first, or restore into another folder with --to DIR",
            )
        now = await self._workspaces.snapshot(
            self.run, str(self.workspace), previous=self.history.last, first=self.history.first
        )
        known = now.tree in self.history.trees
        with user_records().working(str(self.workspace)):  # an agent may have written the files
            count = await self._workspaces.restore(
                self.run,
                tree,
                self.workspace,
                expected=now.tree if known or force else self.history.last,
                force=force,
            )
        return Restored(tree=tree, files=count, before=now.tree, folder=self.workspace)

    async def export(self, wanted: str, to: Path) -> "Restored":
        """Write the files of a snapshot into a new folder."""
        tree = self.history.tree(self.run, wanted)
        await self._workspaces.export(self.run, tree, to)
        return Restored(tree=tree, files=None, before="", folder=to)

    # -- bisect ------------------------------------------------------------------------------------

    async def bisect(self, command: Sequence[str], say: Say) -> "Bisection":
        """Find the iteration that broke a check: the command, or else the run's own checks."""
        if not self.history.first:
            raise no_snapshots(self.run)
        checks = [_Check(tuple(command))] if command else list(check_commands(self.plan))
        if not checks:
            raise LoopwrightError(
                f"{self.run} has no check command",
                code="no-check",
                hint=f"name one: `loopwright bisect {self.run} -- pytest -q`",
            )
        _require_programs(checks)
        folder = Path(tempfile.mkdtemp(prefix="loopwright-bisect-"))
        try:
            return await _Bisecting(self, checks, folder, say).find()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def passes(self, tree: str, checks: "Sequence[_Check]", where: Path) -> bool:
        """Whether all checks pass on the files of a snapshot, in a new folder."""
        await self._workspaces.export(self.run, tree, where)
        try:
            for check in checks:
                end = await self.sandbox.run(
                    ProgramStart(
                        argv=check.argv,
                        cwd=str(where),
                        env=agent_environment(os.environ, {}, {"LOOPWRIGHT_RUN": self.run}),
                        wall_s=check.seconds,
                    ),
                    Confinement(level=self.plan.sandbox or self.sandbox.policy.default),
                )
                check.started = check.started or end.how != "not_started"
                if end.how != "exited" or end.code not in check.codes:
                    return False
            return True
        finally:
            shutil.rmtree(where, ignore_errors=True)


def _require_programs(checks: "Sequence[_Check]") -> None:
    """Refuse a program that is not on the PATH; one with a folder may be a file of a snapshot."""
    for check in checks:
        program = check.argv[0]
        if os.sep not in program and shutil.which(program) is None:
            raise _no_program(program)


def _no_program(name: str) -> NotFound:
    return NotFound(
        f"the program {name!r} was not found, so no snapshot can be tested",
        code="no-such-program",
        hint="name a program on the PATH, or a file of the workspace as ./check.sh",
    )


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The files that differ between two trees. `unrecorded`: which changes of the run no snapshot
    has, in words. `omitted`: files that snapshots of the run have left out.
    """

    run: str
    old: str
    new: str
    files: tuple[FileChange, ...]
    unrecorded: str = ""
    omitted: tuple[str, ...] = ()
    omitted_count: int = 0

    @property
    def stat(self) -> DiffStat:
        return DiffStat(
            len(self.files),
            sum(one.insertions for one in self.files),
            sum(one.deletions for one in self.files),
        )

    def view(self, diff: str | None) -> RunDiff:
        """What people see of it, with the diff itself."""
        stat = self.stat
        return RunDiff(
            run=self.run,
            old=self.old,
            new=self.new,
            unrecorded=bool(self.unrecorded),
            unrecorded_note=self.unrecorded or None,
            omitted=list(self.omitted),
            omitted_count=self.omitted_count,
            files=stat.files,
            insertions=stat.insertions,
            deletions=stat.deletions,
            changes=[
                ChangedFile(
                    path=one.path,
                    status=one.status,
                    insertions=one.insertions,
                    deletions=one.deletions,
                    binary=one.binary,
                    old_path=one.old_path or None,
                )
                for one in self.files
            ],
            diff=diff,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was written where; `before` is the tree that undoes it."""

    tree: str
    files: int | None
    before: str
    folder: Path


@dataclass(slots=True)
class _Check:
    """A command that decides whether a snapshot is good."""

    argv: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    seconds: float = BISECT_SECONDS
    started: bool = False  # on any snapshot so far


def check_commands(plan: Plan) -> "list[_Check]":
    """The check commands of all loops of a plan."""
    return [check for step in plan.steps for check in _checks(step.action)]


def _checks(action: Action) -> "list[_Check]":
    found: list[_Check] = []
    while isinstance(action, Repeat):
        for leaf in leaves(action.until):
            if isinstance(leaf, CommandCheck):
                found.append(_Check(leaf.argv, leaf.done_codes, leaf.timeout_ms / 1_000))
            elif isinstance(leaf, ScriptCheck):
                argv = (leaf.interpreter, "-c", leaf.text)
                found.append(_Check(argv, seconds=leaf.timeout_ms / 1_000))
        action = action.body
    if isinstance(action, Steps):
        for step in action.steps:
            found += _checks(step.action)
    return found


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search: the iteration that broke the check, else why there is none. `tested`
    has the names of iterations (`2`, or `2~1` in a run with several attempts), oldest first.
    """

    run: str
    checks: tuple[str, ...]
    tested: dict[str, bool]
    broken_by: int | None = None
    iteration: str = ""  # its name, for `diff` and `restore`
    verdict: str = ""  # broken, never_passed, passes
    path: str = ""
    changed: DiffStat = DiffStat()
    paths: tuple[str, ...] = ()

    def view(self) -> BisectionView:
        """What people see of it."""
        return BisectionView(
            run=self.run,
            checks=list(self.checks),
            tested=dict(self.tested),
            verdict=self.verdict,
            broken_by=self.broken_by,
            iteration=self.iteration or None,
            path=self.path or None,
            changed=change_counts(self.changed),
            paths=list(self.paths),
        )


class _Bisecting:
    """One search, through the iterations of all tries in the order of time. Every snapshot is
    tested at most once.
    """

    def __init__(
        self, snapshots: RunSnapshots, checks: Sequence[_Check], folder: Path, say: Say
    ) -> None:
        self._snapshots, self._checks, self._folder, self._say = snapshots, checks, folder, say
        self._entries = snapshots.history.all_entries
        self._tested: dict[str, bool] = {}

    async def find(self) -> Bisection:
        names = [BEFORE, *self._entries]
        if await self._passes(names[-1]):
            return self._made("passes")
        good = await self._last_good(names)
        missing = next((one for one in self._checks if not one.started), None)
        if good is None and missing is not None:
            raise _no_program(missing.argv[0])
        if good is None:
            return self._made("never_passed")
        bad = len(names) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            if await self._passes(names[middle]):
                good = middle
            else:
                bad = middle
        return self._made("broken", names[bad])

    async def _last_good(self, names: Sequence[str]) -> int | None:
        """A snapshot that passes: the first one, else the latest one that does."""
        if await self._passes(names[0]):
            return 0
        for place in range(len(names) - 2, 0, -1):
            if await self._passes(names[place]):
                return place
        return None

    async def _passes(self, name: str) -> bool:
        if name not in self._tested:
            history = self._snapshots.history
            tree = history.first if name == BEFORE else self._entries[name].tree
            good = await self._snapshots.passes(tree, self._checks, self._folder / name)
            self._tested[name] = good
            where = "before the first iteration" if name == BEFORE else f"iteration {name}"
            self._say(f"{where}: {'passed' if good else 'failed'}")
        return self._tested[name]

    def _made(self, verdict: str, name: str = "") -> Bisection:
        checks = tuple(shlex.join(one.argv) for one in self._checks)
        run, order = self._snapshots.run, [BEFORE, *self._entries]
        tested = {one: self._tested[one] for one in order if one in self._tested}
        made = Bisection(run=run, checks=checks, tested=tested, verdict=verdict)
        if not name:
            return made
        broken = self._entries[name]
        return msgspec.structs.replace(
            made,
            broken_by=broken.number,
            iteration=name,
            path=broken.path,
            changed=broken.changed,
            paths=broken.paths,
        )


def tree_at(history: WorkspaceHistory, run: str, place: str) -> str:
    """The tree after a place, for a fork that starts there."""
    one = history.at(place)
    if one is not None:
        return one.tree
    raise NotFound(
        f"{run} has no snapshot after {place}",
        code="no-snapshots",
        hint="fork it without --restore, in the workspace as it is",
    )


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
    """The status of runs that are open and not running."""
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
    return without_word(start_notes(service, run))


def without_word(notes: Sequence[str]) -> list[str]:
    """Those of some notes that warn, without the word."""
    return [one.removeprefix(_WARNING) for one in notes if one.startswith(_WARNING)]


async def apply_run(service: Service, run: str, *, by: str) -> AppliedResult:
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
    return AppliedResult(run, worktree.repository, [*applied.files], [*applied.outside])


async def unapplied_files(service: Service, run: str) -> list[str]:
    """The files that would be lost with the worktree of a run."""
    worktree, worktrees = _worktree(service, run)
    return list(await worktrees.unapplied(worktree, Path(_first(service, run).workspace)))


async def discard_run(service: Service, run: str, *, by: str) -> DiscardedResult:
    """Remove the worktree of a run that has ended, and its branch."""
    worktree, worktrees = _worktree(service, run)
    check_discard(service, run)
    await worktrees.discard(worktree)
    _audit(service, run, "run.discarded", worktree.branch, by)
    return DiscardedResult(run=run, branch=worktree.branch, folder=worktree.folder)


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
    first = service.events(run)[0].event
    assert isinstance(first, RunStarted)
    return first


def _audit(service: Service, run: str, action: str, detail: str, by: str) -> None:
    # Trackers bring uploads and archives with them, and a plain start writes no audit row here.
    from loopwright.operations.trackers import access_in  # noqa: PLC0415 - see above

    access = access_in(service)
    access.records.change(audit=[replace(access.row(by, action, run, detail), via=service.via)])
