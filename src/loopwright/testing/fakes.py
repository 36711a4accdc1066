"""Fakes of ports in memory: a clock that the test sets, a scripted performer, and workspaces.

The clock does not move by itself. The performer answers by a script, at once or when the test
releases an answer. The workspaces take snapshots without Git.
"""

import asyncio
import difflib
import hashlib
import heapq
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.event_parts import NO_DIFF, AgentCall, DiffStat, Failure, Snapshot
from loopwright.ports import (
    Answer,
    ChangeStatus,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    FileChange,
    Progress,
)

START_MS = 1_700_000_000_000


class FakeClock:
    """The port `Clock` without real time. Timers run inside `advance` and `fire`, in order of time.

    `now` is the wall clock, which can be set; `passed` is the elapsed time.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now = now_ms
        self.passed = 0
        self._at: list[tuple[int, int]] = []
        self._after: list[tuple[int, int]] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._made = 0

    def now_ms(self) -> int:
        return self.now

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until the wall clock shows `when_ms`; the returned function cancels it."""
        return self._keep(self._at, when_ms, action)

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Keep an action until this much time has passed; the returned function cancels it."""
        return self._keep(self._after, self.passed + delay_ms, action)

    @property
    def next_in(self) -> int | None:
        """Time until the earliest timer; 0 if one is due, None if there is none."""
        at, after = self._first(self._at), self._first(self._after)
        left = [] if at is None else [at - self.now]
        left += [] if after is None else [after - self.passed]
        return max(min(left), 0) if left else None

    def fire(self) -> int:
        """Run what is due now, including what becomes due by it; returns the number of actions."""
        ran = 0
        while self.next_in == 0:
            after = self._first(self._after)
            steady = after is not None and after <= self.passed
            _, number = heapq.heappop(self._after if steady else self._at)
            self._actions.pop(number)()
            ran += 1
        return ran

    def advance(self, ms: int) -> int:
        """Let time pass: each timer on the way runs at its own time; returns the number of
        actions.
        """
        ran, left = self.fire(), self.next_in
        while left is not None and left <= ms:
            ms -= left
            self.elapse(left)
            ran += self.fire()
            left = self.next_in
        self.elapse(ms)
        return ran

    def elapse(self, ms: int) -> None:
        """Let time pass and run nothing: everything that was due in the meantime is late."""
        self.now += ms
        self.passed += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back, as a person or a time server does."""
        self.now += ms

    def forget(self) -> None:
        """Drop every timer, as the end of a process does."""
        self._at.clear()
        self._after.clear()
        self._actions.clear()

    def _keep(
        self, heap: list[tuple[int, int]], when: int, action: Callable[[], None]
    ) -> Callable[[], None]:
        self._made += 1
        number = self._made
        self._actions[number] = action
        heapq.heappush(heap, (when, number))
        return lambda: self._cancel(number)

    def _first(self, heap: list[tuple[int, int]]) -> int | None:
        while heap and heap[0][1] not in self._actions:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _cancel(self, number: int) -> None:
        self._actions.pop(number, None)


PerformerScript: TypeAlias = Callable[[EffectJob], Answer | None]
"""The answer to a job; None delays the job until `ScriptedPerformer.answer` is called."""
Said: TypeAlias = Answer | str | int | None
"""A short form of an answer: a text, or the exit code of a program."""


def answer_of(said: Said) -> Answer | None:
    """An answer from its short form."""
    if isinstance(said, str):
        return EffectSuccess(output=said, code=0)
    return EffectSuccess(code=said) if isinstance(said, int) else said


def failed(kind: str, detail: str = "it did not work") -> EffectFailure:
    """An answer that reports a failure."""
    return EffectFailure(error=Failure(type=kind, detail=detail))


def always(said: Said = "ok") -> PerformerScript:
    """The same answer to everything."""
    answer = answer_of(said)
    return lambda job: answer


def never() -> PerformerScript:
    """Every job is delayed."""
    return lambda job: None


def by_effect(table: Mapping[str, Said], default: Said = "ok") -> PerformerScript:
    """Named effects get their own answer, all others the default."""
    return lambda job: answer_of(table.get(job.effect, default))


def by_pass(agents: Sequence[Said], commands: Sequence[Said] = (0,)) -> PerformerScript:
    """The n-th iteration gets the n-th answer, and further ones the last answer."""

    def script(job: EffectJob) -> Answer | None:
        row = agents if isinstance(job.call, AgentCall) else commands
        return answer_of(row[min(job.iteration, len(row)) - 1])

    return script


class ScriptedPerformer:
    """The port `Performer` without side effects. `jobs` has every requested job, in order."""

    def __init__(self, script: PerformerScript | None = None) -> None:
        self.script = script or always()
        self.jobs: list[EffectJob] = []
        self.held: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self.jobs.append(job)
        answer = self.script(job)
        return answer if answer is not None else self.hold(job)

    def hold(self, job: EffectJob) -> Awaitable[Answer]:
        """Delay a job; it leaves `held` when it is answered or withdrawn."""
        key = job.run, job.effect
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held[key] = future
        future.add_done_callback(lambda done: self._over(key, done))
        return future

    def answer(self, run: str, effect: str, said: Said) -> bool:
        """Answer a delayed job; False if it is no longer waiting."""
        future = self.held.get((run, effect))
        answer = answer_of(said)
        if future is None or future.done() or answer is None:
            return False
        future.set_result(answer)
        return True

    def _over(self, key: tuple[str, str], done: asyncio.Future[Answer]) -> None:
        if self.held.get(key) is done:
            del self.held[key]


Tree: TypeAlias = dict[str, tuple[str, bytes]]
"""Kind (`file`, `program`, `link`) and content by path."""


class MemoryWorkspaces:
    """Stores whole trees. It has no ignore rules, no limits and no renames; `.git` is not part of a
    workspace.
    """

    def __init__(self) -> None:
        self._trees: dict[str, Tree] = {"": {}}
        self._runs: dict[str, set[str]] = {}

    async def snapshot(
        self,
        run: str,
        workspace: str,
        *,
        previous: str = "",
        first: str = "",
        progress: Progress | None = None,
    ) -> Snapshot:
        """Store the files of a folder."""
        name = self._keep(run, _read(Path(workspace)))
        first = first or previous
        changed = await self.changes(run, previous, name) if previous else ()
        total = await self.changes(run, first, name) if first else ()
        return Snapshot(
            tree=name,
            changed=_count(changed),
            total=_count(total),
            paths=tuple(one.path for one in changed[:100]),
        )

    async def changes(self, run: str, old: str, new: str) -> Sequence[FileChange]:
        """The files that differ."""
        before, after = self._tree(run, old), self._tree(run, new)
        paths = sorted({*before, *after})
        return [
            _change(path, before.get(path), after.get(path))
            for path in paths
            if before.get(path) != after.get(path)
        ]

    async def diff(
        self, run: str, old: str, new: str, *, paths: Sequence[str] = (), color: bool = False
    ) -> str:
        """A unified diff of the texts."""
        before, after = self._tree(run, old), self._tree(run, new)
        lines: list[str] = []
        for change in await self.changes(run, old, new):
            if paths and not any(_is_below(change.path, one) for one in paths):
                continue
            a, b = (_lines(tree.get(change.path)) for tree in (before, after))
            lines.append(f"diff --git a/{change.path} b/{change.path}\n")
            lines += difflib.unified_diff(a, b, f"a/{change.path}", f"b/{change.path}")
        return "".join(lines)

    async def restore(
        self, run: str, tree: str, to: Path, *, expected: str = "", force: bool = False
    ) -> int:
        """Write the files that differ."""
        wanted, actual = self._tree(run, tree), _read(to)
        if expected and actual != self._tree(run, expected) and not force:
            raise Conflict("files changed after the last snapshot", code="unrecorded-changes")
        known = self._tree(run, expected) if expected else {}
        gone = [path for path in actual if path in known and path not in wanted]
        for path in gone:
            (to / path).unlink()
        changed = {path: one for path, one in wanted.items() if actual.get(path) != one}
        _write(to, changed)
        return len(gone) + len(changed)

    async def export(self, run: str, tree: str, to: Path) -> None:
        """Write all files."""
        if _is_occupied(to):
            raise LoopwrightError(f"{to} is not an empty folder", code="not-empty")
        _write(to, self._tree(run, tree))

    async def forget(self, run: str) -> None:
        """Delete the trees of a run."""
        self._runs.pop(run, None)

    def _keep(self, run: str, tree: Tree) -> str:
        name = hashlib.sha1(repr(sorted(tree.items())).encode()).hexdigest()
        self._trees[name] = tree
        self._runs.setdefault(run, set()).add(name)
        return name

    def _tree(self, run: str, name: str) -> Tree:
        if run not in self._runs:
            raise NotFound(f"run {run} has no snapshots", code="no-snapshots")
        if name not in self._trees:
            raise NotFound("the snapshot is not there any more", code="snapshot-missing")
        return self._trees[name]


def _read(folder: Path) -> Tree:
    if not folder.is_dir():
        raise LoopwrightError(f"the workspace {folder} does not exist", code="workspace-gone")
    tree: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if ".git" in name.split("/"):
            continue
        if path.is_symlink():
            tree[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_file():
            program = path.stat().st_mode & 0o100
            tree[name] = ("program" if program else "file", path.read_bytes())
    return tree


def _is_occupied(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _write(folder: Path, files: Tree) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, data) in files.items():
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(os.fsdecode(data))
        else:
            path.write_bytes(data)
            path.chmod(0o755 if kind == "program" else 0o644)


def _change(
    path: str, before: tuple[str, bytes] | None, after: tuple[str, bytes] | None
) -> FileChange:
    status: ChangeStatus = "modified"
    if before is None or after is None:
        status = "added" if before is None else "deleted"
    elif (before[0] == "link") != (after[0] == "link"):
        status = "type_changed"
    binary = any(b"\0" in one[1] for one in (before, after) if one)
    marks = [] if binary else [line[0] for line in difflib.ndiff(_lines(before), _lines(after))]
    return FileChange(
        path=path,
        status=status,
        insertions=marks.count("+"),
        deletions=marks.count("-"),
        binary=binary,
    )


def _lines(entry: tuple[str, bytes] | None) -> list[str]:
    return entry[1].decode("utf-8", "replace").splitlines(keepends=True) if entry else []


def _is_below(path: str, pattern: str) -> bool:
    return path.startswith(f"{pattern}/") or fnmatchcase(path, pattern)


def _count(changes: Sequence[FileChange]) -> DiffStat:
    if not changes:
        return NO_DIFF
    return DiffStat(
        files=len(changes),
        insertions=sum(one.insertions for one in changes),
        deletions=sum(one.deletions for one in changes),
    )
