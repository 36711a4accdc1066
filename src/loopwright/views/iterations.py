"""Iterations of a run: how many there are, their names, and the workspace snapshot of each.

People count iterations from 1; 0 is the workspace before the first one. A plain number names an
iteration of the newest attempt of a loop. After `resume --restart`, or when a step that is a
loop was retried, `2~1` names iteration 2 of the first attempt. In a run without a loop the
snapshots are counted instead. An interrupted iteration has the snapshot that was taken after it
was stopped.
"""

from collections.abc import Iterable

import msgspec

from loopwright.errors import LoopwrightError, NotFound
from loopwright.kernel.event_parts import AgentCall, DiffStat, Snapshot, SnapshotCall, ToolCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationFinished,
    IterationStarted,
    RunReopened,
)
from loopwright.model.ids import is_inside, logical_path, loop_path, parse_iteration, try_number


class IterationNames:
    """The iterations of the outermost loops that a run has started."""

    def __init__(self, started: Iterable[tuple[str, int | None]] = ()) -> None:
        self._loops: dict[str, dict[int, set[int]]] = {}  # numbers, by loop and try
        for path, number in started:
            self.add(path, number)

    def add(self, path: str, number: int | None) -> None:
        """An iteration starts. `number` counts if the path has no number of its own."""
        found = iteration_of(path, number)
        if found is not None and found > 0:
            tries = self._loops.setdefault(_loop(path), {})
            tries.setdefault(try_number(path), set()).add(found)

    @property
    def has_tries(self) -> bool:
        """Whether a number alone is ambiguous between several attempts."""
        return any(len(tries) > 1 or max(tries) > 1 for tries in self._loops.values())

    def name(self, path: str, number: int) -> str:
        """The unambiguous name of an iteration."""
        return f"{number}~{try_number(path)}" if self.has_tries else str(number)

    def is_current(self, path: str, number: int) -> bool:
        """Whether a number alone names this iteration."""
        found = iteration_of(path, number) or 0
        return self._current(_loop(path), found) == try_number(path)

    def _current(self, loop: str, number: int) -> int | None:
        """The attempt of a plain number: the newest one. If that did not start with iteration 1, it
        continues the previous one.
        """
        tries = self._loops.get(loop, {})
        for attempt in sorted(tries, reverse=True):
            if number >= min(tries[attempt]):
                return attempt if number in tries[attempt] else None
        return None

    def find(self, run: str, wanted: str, *, future: bool = False) -> tuple[int, int | None]:
        """The number and the attempt of a name; the attempt is None if there is only one. With
        `future`, it need not have started.
        """
        named = parse_iteration(wanted)
        if named is None or named[0] == 0:
            raise bad_name(wanted, self.hint())
        number, attempt = named
        if attempt is None and self.has_tries:
            found = [self._current(loop, number) for loop in self._loops]
            newest = max(max(tries) for tries in self._loops.values())
            attempt = next((one for one in reversed(found) if one is not None), newest)
        if self._loops and not future and not self._has(number, attempt):
            raise NotFound(
                f"{run} has no iteration {wanted}", code="no-such-iteration", hint=self.hint()
            )
        return number, attempt

    def _has(self, number: int, attempt: int | None) -> bool:
        return any(
            number in numbers and attempt in (None, one)
            for tries in self._loops.values()
            for one, numbers in tries.items()
        )

    def hint(self) -> str:
        """Which names there are."""
        if not self._loops:
            return "iterations count from 1"
        found: dict[int, set[int]] = {}
        for tries in self._loops.values():
            for attempt, numbers in tries.items():
                found.setdefault(attempt, set()).update(numbers)
        if not self.has_tries:
            [numbers] = found.values()
            return f"there {_range(numbers)}"
        ranges = [_range(found[one], f"~{one}").partition(" ")[2] for one in sorted(found)]
        return f"there are {', '.join(ranges)}; a plain number is of the newest try"


def iteration_of(path: str, iteration: int | None) -> int | None:
    """The iteration, from 1, of the outermost loop: the one that people count. Turns of a chat
    model and loops inside of a step count for themselves.
    """
    for part in path.split("."):
        if part.isdecimal():
            return int(part) + 1
    return iteration


def is_in_iteration(
    path: str, iteration: int | None, wanted: tuple[int | None, int | None]
) -> bool:
    """Whether a place belongs to an iteration: its number and attempt, if they are given."""
    number, attempt = wanted
    if number is not None and number != iteration_of(path, iteration):
        return False
    return attempt is None or attempt == try_number(path)


def bad_name(wanted: object, hint: str) -> LoopwrightError:
    """The error for a text that is not the name of an iteration."""
    return LoopwrightError(
        f"{wanted!r} is not the name of an iteration, such as 2, or 2~1 for iteration 2 of try 1",
        code="bad-iteration",
        hint=hint,
    )


def _loop(path: str) -> str:
    return logical_path(loop_path(path))


def _range(numbers: set[int], end: str = "") -> str:
    first, last = min(numbers), max(numbers)
    return f"is {first}{end}" if first == last else f"are {first}{end} to {last}{end}"


TREE_CHARS = 40
_HEX = frozenset("0123456789abcdef")


class TreeOfIteration(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace after one iteration, or after one step of a run without a loop."""

    number: int
    path: str
    tree: str
    before: str
    changed: DiffStat
    paths: tuple[str, ...] = ()


class WorkspaceHistory:
    """Collects the snapshots of one run, event by event."""

    def __init__(self) -> None:
        self.first = ""
        self.last = ""
        self.trees: set[str] = set()
        self.total = DiffStat()
        self.watched: list[tuple[int | None, str]] = []
        self.is_incomplete = False  # a call that may have written was ended before a snapshot
        self.failed: dict[int | None, str] = {}  # why snapshots failed, by iteration
        self.omitted: dict[str, None] = {}  # files that snapshots left out, as events name them
        self.omitted_count = 0
        self.names = IterationNames()
        self._asked: dict[str, SnapshotCall] = {}
        self._working: set[str] = set()
        self._began: dict[str, int] = {}
        self._before: dict[str, str] = {}
        self._is_unchanged = False  # the newest snapshot has the files of the one before it
        self._cut_off: list[str] = []
        self._iterations: dict[str, TreeOfIteration] = {}
        self._steps: list[TreeOfIteration] = []

    def take(self, event: AnyEvent) -> None:
        match event:
            case EffectRequested(call=SnapshotCall() as call):
                self._asked[event.effect] = call
            case EffectFailed():
                self._failed(event)
            case EffectRequested(call=AgentCall() | ToolCall()):
                self._working.add(event.effect)
            case IterationStarted():
                self._began[event.path] = event.iteration or 0
                self.names.add(event.path, event.iteration)
                if not (event.resumed and self._is_unchanged and event.path in self._before):
                    self._before[event.path] = self.last
                self._cut_off.clear()
            case IterationFinished(status="cancelled", tree=""):
                self._cut_off.append(event.path)
            case RunReopened():  # the next snapshot has changes of others too
                self._cut_off.clear()
            case EffectDone(snapshot=Snapshot() as snapshot):
                self._taken(event, snapshot, self._asked.pop(event.effect, SnapshotCall()))
            case IterationFinished() if event.tree and event.path not in self._iterations:
                self._add_iteration(event.path, Snapshot(tree=event.tree), event.tree)
            case _:
                pass

    def _failed(self, event: EffectFailed) -> None:
        """A call that was ended may have written; without a snapshot it is not known what."""
        if event.error.type == "cancelled":
            self.is_incomplete = self.is_incomplete or event.effect in self._working
        elif event.effect in self._asked:
            self.is_incomplete = True
            self.failed.setdefault(event.iteration, event.error.detail)

    def _taken(self, event: EffectDone, snapshot: Snapshot, call: SnapshotCall) -> None:
        self.first = self.first or snapshot.tree
        self.is_incomplete = False
        self.failed.clear()
        self._is_unchanged = snapshot.tree == self.last
        self.last, self.total = snapshot.tree, snapshot.total
        self.omitted.update(dict.fromkeys(snapshot.omitted))
        self.omitted_count = max(self.omitted_count, snapshot.omitted_count, len(self.omitted))
        self.trees.add(snapshot.tree)
        self.watched += [(event.iteration, path) for path in snapshot.watched]
        if event.path in self._began:
            self._add_iteration(event.path, snapshot, call.previous)
            return
        for path in self._cut_off:  # the snapshot of what is around belongs to them
            if is_inside(path, event.path):
                self._add_iteration(path, snapshot, self._before[path])
        if event.path:
            number = len(self._steps) + 1
            self._steps.append(_entry(number, event.path, snapshot, call.previous))

    def _add_iteration(self, path: str, snapshot: Snapshot, before: str) -> None:
        self._iterations[path] = _entry(self._began.get(path, 0), path, snapshot, before)

    def unrecorded(self, start: str | int | None, end: str | int | None = None) -> str:
        """Which changes of the run, or of the iteration `start`, no snapshot contains, as a
        message; empty if nothing is missing.
        """
        if end is not None or not self.is_incomplete:
            return ""
        named = [one for one in self.failed if start is None or str(one) == str(start)]
        if named:
            where = f"of iteration {named[0]}" if named[0] else "after the last snapshot"
            return f"the changes {where} were not recorded: {self.failed[named[0]]}"
        return "changes after the last snapshot were not recorded" if start is None else ""

    @property
    def entries(self) -> list[TreeOfIteration]:
        """One for each iteration of the outermost loop that a plain number names, else one for each
        snapshot of a step.
        """
        found = {
            one.number: one
            for one in self._outermost()
            if self.names.is_current(one.path, one.number)
        }
        return [found[number] for number in sorted(found)] or self._steps

    @property
    def all_entries(self) -> dict[str, TreeOfIteration]:
        """The iterations of the outermost loop of all tries by their names, oldest first, else the
        snapshots of the steps.
        """
        found: dict[str, TreeOfIteration] = {}
        for one in self._outermost() or self._steps:
            name = self.names.name(one.path, one.number)
            found.pop(name, None)  # the newest of several loops, at its own place in time
            found[name] = one
        return found

    @property
    def has_loop(self) -> bool:
        """Whether iterations have snapshots; otherwise they are those of steps."""
        return bool(self._outermost())

    def at(self, path: str) -> TreeOfIteration | None:
        """The iteration or the step at a place."""
        known = self._outermost() or self._steps
        return next((one for one in reversed(known) if one.path == path), None)

    def _outermost(self) -> list[TreeOfIteration]:
        """The iterations of the outermost loop, of all tries."""
        found = [one for one in self._iterations.values() if one.number > 0]
        depth = min((_depth(one.path) for one in found), default=0)
        return [one for one in found if _depth(one.path) == depth]

    def tree(self, run: str, wanted: str | int) -> str:
        """The tree of a name: 0 is before the first iteration. A whole tree id names itself."""
        if not self.first:
            raise no_snapshots(run)
        if isinstance(wanted, str) and len(wanted) == TREE_CHARS and set(wanted) <= _HEX:
            return wanted
        number, attempt = self._named(wanted)
        if number:
            return self.entry(run, wanted).tree
        return self.first if attempt is None else self.entry(run, f"1~{attempt}").before

    def entry(self, run: str, wanted: str | int) -> TreeOfIteration:
        """One iteration: of the newest try, or of the one that is named (`2~1`)."""
        if not self.first:
            raise no_snapshots(run)
        number, attempt = self._named(wanted)
        known = self.entries if attempt is None else list(self.all_entries.values())
        for one in known:
            if one.number == number and attempt in (None, try_number(one.path)):
                return one
        raise NotFound(
            f"{run} has no snapshot of iteration {wanted}",
            code="no-such-iteration",
            hint=_hint(self),
        )

    def _named(self, wanted: str | int) -> tuple[int, int | None]:
        named = parse_iteration(str(wanted))
        if named is None:
            raise bad_name(wanted, _hint(self))
        return named

    def between(self, run: str, start: str | int | None, end: str | int | None) -> tuple[str, str]:
        """Two trees: of the whole run, of one iteration, or of two of them."""
        if start is None:
            if not self.first:
                raise no_snapshots(run)
            return self.first, self.last
        if end is not None:
            return self.tree(run, start), self.tree(run, end)
        if self._named(start)[0] == 0:
            raise LoopwrightError(
                "iterations count from 1",
                code="bad-iteration",
                hint=f"`diff {run} 0 1` compares two",
            )
        one = self.entry(run, start)
        return one.before, one.tree


def history_of(events: Iterable[AnyEvent]) -> WorkspaceHistory:
    """The snapshots that these events tell of."""
    found = WorkspaceHistory()
    for event in events:
        found.take(event)
    return found


def no_snapshots(run: str) -> NotFound:
    """The error for a run without snapshots."""
    return NotFound(
        f"{run} has no snapshots",
        code="no-snapshots",
        hint="they were switched off, or nothing in the run could write; "
        "`loopwright run --dry-run` says why",
    )


def stat_words(stat: DiffStat) -> str:
    """`3 files (+12 −4)`."""
    plural = "" if stat.files == 1 else "s"
    return f"{stat.files} file{plural} (+{stat.insertions} −{stat.deletions})"


def change_words(snapshot: Snapshot, *, of_run: bool = False, named: int = 3) -> str:
    """`3 files changed (+12 −4): src/a.py, src/b.py …`."""
    stat = snapshot.total if of_run else snapshot.changed
    if not stat.files:
        return "no files changed"
    words = stat_words(stat).replace(" (", " changed (", 1)
    if of_run or not snapshot.paths:
        return words
    more = " …" if stat.files > named else ""
    return f"{words}: {', '.join(snapshot.paths[:named])}{more}"


def _entry(number: int, path: str, snapshot: Snapshot, before: str) -> TreeOfIteration:
    return TreeOfIteration(
        number=number,
        path=path,
        tree=snapshot.tree,
        before=before,
        changed=snapshot.changed,
        paths=snapshot.paths,
    )


def _hint(history: WorkspaceHistory) -> str:
    entries = history.all_entries.values()
    if not entries:
        return "it has only the snapshot before the first iteration, 0"
    found = IterationNames((one.path if history.has_loop else "", one.number) for one in entries)
    return f"{found.hint()}; 0 is before the first one"


def _depth(path: str) -> int:
    return path.count(".") + path.count("[")
