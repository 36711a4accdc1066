"""Runs that an agent of another run starts: how deep that may go, and what they may use.

A process that descends from an agent is recognised by the process tree. A run that it starts is a
child of the agent's run: one level deeper, and it has no more to spend than its parent has left.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from loopwright.app.dialects import OF_LOOPS
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.kernel.facts import NO_USAGE, RunStarted, Usage
from loopwright.kernel.state import State
from loopwright.model.access import is_offline
from loopwright.model.plan import stored_plan
from loopwright.model.policy import Limits
from loopwright.ports import EventLog, RunRow
from loopwright.programs.lineage import InsideRun

MOST_DEPTH = 5


@dataclass(frozen=True, slots=True)
class Runs:
    """Where other runs are looked up."""

    log: EventLog
    state: Callable[[str], State]


@dataclass(frozen=True, slots=True)
class Nest:
    """Where a run stands among runs that have started one another, and what it may use."""

    limits: Limits
    parent: str | None = None
    depth: int = 0
    allow_unknown_cost: bool = False  # as its parent


def nested(runs: Runs, limits: Limits, inside: InsideRun | None) -> Nest:
    """A child is held to what its parent has left; any other run is as it is."""
    if inside is None or not inside.run:
        return Nest(limits)
    above = claimed_run(runs.log, inside)
    parent = _first(runs, above)
    depth = 1 + max(inside.depth, parent.depth if parent is not None else 0)
    if depth > MOST_DEPTH:
        raise LoopwrightError(
            f"this would be run {depth} inside of another: {MOST_DEPTH} levels are the most",
            code="run-depth",
            hint="a loop that starts itself has no end; start it from outside",
        )
    if parent is None:  # of another data directory: what it has left is not known here
        return Nest(limits, above, depth)
    plan = runs.state(above).plan
    left = _within(limits, plan.limits, _used(runs, parent))
    # A plan of an older version names only the agents that this was needed for.
    allow = plan.allow_unknown_cost or bool(plan.uncovered)
    return Nest(left, above, depth, allow_unknown_cost=allow)


def claimed_run(log: EventLog, inside: InsideRun) -> str:
    """The run that a process belongs to. A program can start a supervisor of its own that names
    another run, so the innermost run counts only if it was started below the outermost one.
    """
    outer = inside.runs[-1] if inside.runs else inside.run
    return inside.run if is_own_run(log, outer, inside.run) else outer


def is_own_run(log: EventLog, own: str, run: str) -> bool:
    """Whether a run is `own` or was started below it."""
    for _ in range(MOST_DEPTH + 1):
        if run == own:
            return True
        try:
            parent = _parent(log, run)
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return False
        if parent is None:
            return False
        run = parent
    return False


def is_stage_of_loop(log: EventLog, inside: InsideRun) -> bool:
    """Whether a process belongs to a stage of a loop of roles, or to a run below one."""
    run: str | None = claimed_run(log, inside)
    for _ in range(MOST_DEPTH + 1):
        try:
            first = log.read(run, limit=1)[0].fact if run else None
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return False
        if not isinstance(first, RunStarted):
            return False
        if first.dialect == OF_LOOPS:
            return True
        run = first.parent
    return False


def superseded(log: EventLog, rows: Iterable[RunRow]) -> set[str]:
    """Of runs that somebody left behind, those whose parent will not wait for them: it was ended,
    or it makes the pass again that had started them, and with it another such run. And those of a
    parent with agents behind a wall: nobody else would drive them behind it.
    """
    return {row.run for row in rows if _is_running(row) and _is_lost(log, row.run)}


def adoptable(log: EventLog, rows: Sequence[RunRow]) -> list[RunRow]:
    """The others; none that waits behind a wall, for it could only go on outside of it."""
    return [
        row
        for row in rows
        if not (_is_lost(log, row.run) if _is_running(row) else _wall_around(log, row.run))
    ]


def _is_running(row: RunRow) -> bool:
    return row.headline.status == "running"


def check_wall(log: EventLog, run: str, inside: InsideRun | None) -> None:
    """Refuse to let a run go on that was started behind the wall of an agent, and that nobody
    drives there any more: here it would have what the wall takes away. Ending it is no matter.
    """
    owner = log.row(run).owner
    if owner is not None and log.alive(owner):
        return
    around = _wall_around(log, run, inside=inside.run if inside is not None else None)
    if around is not None:
        raise Conflict(
            f"{run} was started by an agent of {around}, behind a wall: without that agent it "
            "would go on outside of it",
            code="behind-wall",
            hint=f"`loopwright stop {run}` ends it; what it is for can be started by a person",
        )


def _is_lost(log: EventLog, run: str) -> bool:
    try:
        parent = _parent(log, run)
        if parent is None:
            return False
        return log.row(parent).headline.status != "completed" or _wall_around(log, run) is not None
    except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
        return False


def _wall_around(log: EventLog, run: str, *, inside: str | None = None) -> str | None:
    """The run above this one, at any height, that has agents behind a wall; for whoever is a
    program of a run on the way there, there is none between them.
    """
    for _ in range(MOST_DEPTH):
        try:
            parent = _parent(log, run)
            if parent is None or parent == inside:
                return None
            if _has_walls(log, parent):
                return parent
        except (NotFound, StorageError, ValueError):  # of another data directory, or damaged
            return None
        run = parent
    return None


def _parent(log: EventLog, run: str) -> str | None:
    [first] = log.read(run, limit=1)
    return first.fact.parent if isinstance(first.fact, RunStarted) else None


def _has_walls(log: EventLog, run: str) -> bool:
    [first] = log.read(run, limit=1)
    if not isinstance(first.fact, RunStarted):
        return False
    plan = stored_plan(log.blob, first.fact.plan)
    return any(is_offline(one) or one.access not in (None, "full") for one in plan.agents.values())


def _first(runs: Runs, run: str) -> RunStarted | None:
    try:
        first = runs.log.read(run, limit=1)[0].fact
    except NotFound:
        return None
    return first if isinstance(first, RunStarted) else None


def used_with_children(runs: Runs, run: str) -> Usage:
    """What a run has used, with the runs below it at any depth."""
    first = _first(runs, run)
    return NO_USAGE if first is None else _used(runs, first)


def _used(runs: Runs, parent: RunStarted) -> Usage:
    """What a run has used, with the runs below it."""
    used = runs.state(parent.run).usage
    for child in _children(runs, parent):
        more = used_with_children(runs, child)
        used = Usage(
            input_tokens=used.input_tokens + more.input_tokens,
            output_tokens=used.output_tokens + more.output_tokens,
            usd=round(used.usd + more.usd, 9),
        )
    return used


def _children(runs: Runs, parent: RunStarted) -> Iterator[str]:
    for row in runs.log.rows():
        if row.headline.started_at < parent.at or row.run == parent.run:
            continue
        first = _first(runs, row.run)
        if first is not None and first.parent == parent.run and first.depth > parent.depth:
            yield row.run


def _within(own: Limits, around: Limits, used: Usage) -> Limits:
    """The smaller of what a child may use and what its parent has left."""
    usd, tokens = own.usd, own.tokens
    if around.usd is not None:
        left = max(0.0, round(around.usd - used.usd, 9))
        usd = left if usd is None else min(usd, left)
    if around.tokens is not None:
        rest = max(0, around.tokens - used.input_tokens - used.output_tokens)
        tokens = rest if tokens is None else min(tokens, rest)
    return msgspec.structs.replace(own, usd=usd, tokens=tokens)
