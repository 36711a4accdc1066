"""Compare what lists show of a run with its events: the row, the open gates and the usage.

The hash chain covers events and the contents that they name. Rows are written beside the events,
so whoever edits a row leaves the chain whole; the events still say what the row has to be.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopwright.app.uploads import Uploads, digests
from loopwright.errors import LoopwrightError
from loopwright.kernel.facts import AnyFact, EffectDone, RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.plan import content_hash, stored_plan
from loopwright.ports import OPEN_STATUSES, RunRow, UsageRow
from loopwright.runtime.clock import SystemClock
from loopwright.runtime.headline import headline_of, usage_rows
from loopwright.stores.sqlite import SqliteLog
from loopwright.stores.trackers import SqliteTrackers
from loopwright.workspaces.store import Stores, check_stores

_FIELDS = ("name", "dialect", "workspace", "started_at", "key", "session", "labels", "surface")
_END = ("status", "reason", "finished_at")
_CENT = 1e-6


def check_runs(log: SqliteLog) -> Iterator[str]:
    """Everything that is wrong with any run, one line for each."""
    used: dict[str, list[UsageRow]] = {}
    for usage in log.usage():
        used.setdefault(usage.run, []).append(usage)
    unmetered = {*log.unmetered()}
    for row in log.rows():
        found = log.verify(row.run, content_hash)
        if not found:
            stored = None if row.run in unmetered else used.get(row.run, [])
            found = _check_views(log, row, stored)
        yield from (text if row.run in text else f"{row.run}: {text}" for text in found)
    yield from _find_strays(log)


def _check_views(log: SqliteLog, row: RunRow, used: Sequence[UsageRow] | None) -> list[str]:
    facts = [one.fact for one in log.read(row.run, as_is=True)]
    first = facts[0]
    if not isinstance(first, RunStarted):
        return ["does not begin with its start"]
    try:
        state = fold(stored_plan(log.blob, first.plan), facts)
    except (LoopwrightError, LookupError, ValueError) as error:
        return [f"its events cannot be followed: {error}"]
    return [
        *_check_row(row, state),
        *_check_gates(log, row.run, state),
        *(_check_usage(row.run, facts, used) if used is not None else ()),
    ]


def _check_row(row: RunRow, state: State) -> Iterator[str]:
    """A run that has not ended may be shown in any open status: others tell it to go on."""
    shown, recorded = row.headline, headline_of(state)
    fields = _FIELDS if state.finished is None else (*_FIELDS, *_END)
    for field in fields:
        is_there, should = getattr(shown, field), getattr(recorded, field)
        if field == "started_at" and state.started is not None and is_there == state.started.at:
            continue  # rows of forks made by earlier versions have the start of their parent
        if is_there != should:
            yield f"the row has {field} {is_there!r}, its events say {should!r}"
    if state.finished is None and shown.status not in OPEN_STATUSES:
        yield f"the row has status {shown.status!r}, but its events do not end"


def _check_gates(log: SqliteLog, run: str, state: State) -> Iterator[str]:
    shown = {gate.gate: (gate.path, gate.digest, gate.message) for gate in log.gates(run)}
    known = {name: (gate.path, gate.digest, gate.message) for name, gate in state.gates.items()}
    for name in sorted(known.keys() - shown.keys()):
        yield f"gate {name} is open and missing from the inbox"
    for name in sorted(shown.keys() - known.keys()):
        yield f"gate {name} is in the inbox and not open"
    for name in sorted(known.keys() & shown.keys()):
        if known[name] != shown[name]:
            yield f"gate {name} is not as it was opened"


def _check_usage(run: str, facts: Sequence[AnyFact], stored: Sequence[UsageRow]) -> Iterator[str]:
    shown = {(row.agent, row.day): row for row in stored}
    known = {(row.agent, row.day): row for row in usage_rows(run, facts)}
    for agent, day in sorted(shown.keys() | known.keys()):
        one, other = shown.get((agent, day)), known.get((agent, day))
        if one is None or other is None or not _is_same(one, other):
            yield f"the usage of agent {agent!r} (day {day}) is not what its events say"


def _is_same(one: UsageRow, other: UsageRow) -> bool:
    close = abs(one.usage.usd - other.usage.usd) < _CENT
    counts = [
        (row.calls, row.usage.input_tokens, row.usage.output_tokens, row.usage.unpriced)
        for row in (one, other)
    ]
    return close and counts[0] == counts[1]


def check_files(log: SqliteLog, home: Path) -> Iterator[str]:
    """Everything that is wrong with files outside of the database that its rows and events name:
    uploads, and the snapshots of workspaces.
    """
    uploads = Uploads(home=home, trackers=SqliteTrackers(log), clock=SystemClock())
    for digest in sorted(digests(uploads.trackers)):
        problem = uploads.problem(digest)
        if problem:
            yield f"an artifact: {problem}"
    trees = {row.run: found for row in log.rows() if (found := _trees(log, row.run))}
    stores = Stores(home / "snapshots")
    if trees and not stores.folder.is_dir():
        return  # a backup of the database alone; `diff` says that they are missing
    yield from asyncio.run(_collect(stores, trees))


async def _collect(stores: Stores, trees: dict[str, list[str]]) -> list[str]:
    return [problem async for problem in check_stores(stores, trees)]


def _trees(log: SqliteLog, run: str) -> list[str]:
    """The snapshots that the events of a run name; a damaged run is reported elsewhere."""
    try:
        facts = [one.fact for one in log.read(run, as_is=True)]
    except LoopwrightError:
        return []
    named = [one.snapshot.tree for one in facts if isinstance(one, EffectDone) and one.snapshot]
    return list(dict.fromkeys(tree for tree in named if tree))


def _find_strays(log: SqliteLog) -> Iterator[str]:
    """Rows that belong to no run: left over from one that was taken away."""
    for table in ("segment", "gate", "usage"):
        [(count,)] = log.query(
            f"SELECT count(*) FROM {table} WHERE run <> 0 AND run NOT IN (SELECT id FROM run)"
        )
        if count:
            yield f"{count} rows of the table {table} belong to a run that is not there"
