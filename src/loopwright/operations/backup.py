"""Backup, restore, integrity checks and pruning of the data of runs.

A backup can be made while the data directory is in use. Files are copied before the log, and
those that the copied log names in addition are copied after it. If one of them has been removed
meanwhile, the backup starts again.

The integrity check compares what lists show of a run with its events: row, open gates and
usage. The hash chain covers events and contents, not the rows that are stored beside them.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from loopwright.dialects.native.fields import duration_ms
from loopwright.engine.services import SystemClock, wall_ms
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.kernel.events import AnyEvent, EffectDone, RunStarted
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.plan import content_hash, stored_plan
from loopwright.operations.accounts.access import Access, current_user
from loopwright.operations.data_directory import open_log
from loopwright.operations.run_variables import RunVariables
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import unusable
from loopwright.operations.uploads import FOLDER, Uploads, digests
from loopwright.ports import APPLIED, OPEN_STATUSES, AuditRow, Liveness, RunRow, UsageRow
from loopwright.ports.headline import figures_of, gate_subject, headline_of, usage_rows
from loopwright.stores.sqlite.connection import DatabaseOptions, heads_beside
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.stores.sqlite.log import rebuild_heads as rebuild
from loopwright.stores.trackers import SqliteTrackers
from loopwright.workspaces.repositories import Stores, check_stores
from loopwright.workspaces.snapshots import GitWorkspaces

TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What is in a copy."""

    folder: Path | None  # with files that were given; None where there are none
    files: int
    missing: int  # named by the log, and not there


def copy_data_directory(settings: Settings, log: SqliteLog, file: Path) -> Copied:
    """Copy the log into a new file, and what was given into a new folder beside it."""
    folder = file.with_name(f"{file.name}.{FOLDER}")
    if folder.exists():
        raise StorageError(f"{folder} exists", code="exists", hint="name a new file for the backup")
    missing: set[str] = set()
    made = False
    try:
        for _ in range(TRIES):
            folder.mkdir(mode=0o700, exist_ok=True)
            _fetch(settings.home / FOLDER, folder, digests(SqliteTrackers(log)))
            if made:
                file.unlink()
            log.backup(file)
            made = True
            missing = _complete(settings.home / FOLDER, file, folder, log.alive)
            if not missing:
                break
    except BaseException as error:
        if made:
            file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise unusable(file.parent, error) from error
        raise
    with suppress(OSError):  # nothing was given
        folder.rmdir()
    files = sum(1 for _ in folder.glob("??/*"))
    return Copied(folder=folder if files else None, files=files, missing=len(missing))


def _complete(source: Path, file: Path, folder: Path, alive: Liveness) -> set[str]:
    """Let the folder have what the copy of the log names, and no more; what is not there."""
    with closing(open_sqlite_log(file, alive=alive, options=DatabaseOptions(heads=False))) as copy:
        named = digests(SqliteTrackers(copy))
    _fetch(source, folder, named)
    there = {place.name: place for place in folder.glob("??/*")}
    for digest in there.keys() - named:  # taken away before the log was copied
        there[digest].unlink()
    for part in folder.iterdir():
        with suppress(OSError):
            part.rmdir()
    return named - there.keys()


def _fetch(source: Path, folder: Path, wanted: set[str]) -> None:
    for digest in sorted(wanted):
        place = folder / digest[:2] / digest
        if place.exists():
            continue
        place.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with (source / digest[:2] / digest).open("rb") as given:
                place.touch(0o600)
                with place.open("wb") as taken:
                    shutil.copyfileobj(given, taken)
        except FileNotFoundError:  # it was just removed
            continue


def export_heads(settings: Settings, file: Path) -> int:
    """Write the newest hash of every run to a new file; answers how many runs there are."""
    with closing(open_log(settings)) as log:
        return log.export_heads(file)


def rebuild_heads(settings: Settings) -> tuple[int, Path]:
    """Take the database as it is; the audit log says who did. Answers how many runs it has."""
    if not settings.database.exists():
        raise StorageError(
            f"{settings.database} does not exist",
            code="no-log",
            hint="put a backup in its place first",
        )
    count = rebuild(settings.database)
    with closing(open_log(settings)) as log:
        who = current_user()
        row = AuditRow(at=wall_ms(), who=who, via="cli", action="heads.rebuilt", subject="")
        log.change(audit=[row])
    return count, heads_beside(settings.database)


_FIELDS = ("name", "dialect", "workspace", "started_at", "key", "session", "labels", "surface")
_END = ("status", "reason", "finished_at")
_CENT = 1e-6


def check_runs(log: SqliteLog) -> Iterator[str]:
    """Everything that is wrong with any run, one line for each."""
    used: dict[str, list[UsageRow]] = {}
    for usage in log.usage():
        used.setdefault(usage.run, []).append(usage)
    old = {*log.unlisted()}
    for row in log.rows():
        found = log.verify(row.run, content_hash)
        if not found:
            stored = None if row.run in old else used.get(row.run, [])
            found = _check_views(log, row, stored)
        yield from (text if row.run in text else f"{row.run}: {text}" for text in found)
    yield from _find_strays(log)


def _check_views(log: SqliteLog, row: RunRow, used: Sequence[UsageRow] | None) -> list[str]:
    events = [one.event for one in log.read(row.run, as_is=True)]
    first = events[0]
    if not isinstance(first, RunStarted):
        return ["does not begin with its start"]
    try:
        state = fold(stored_plan(log.blob, first.plan), events)
    except (LoopwrightError, LookupError, ValueError) as error:
        return [f"its events cannot be followed: {error}"]
    found = [*_check_row(row, state), *_check_gates(log, row.run, state)]
    if used is None:  # of an older version: the rest was not stored yet
        return found
    return [*found, *_check_figures(row, state), *_check_usage(row.run, events, used)]


def _check_row(row: RunRow, state: State) -> Iterator[str]:
    """A run that has not ended may have any open status: other processes may resume it."""
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


def _check_figures(row: RunRow, state: State) -> Iterator[str]:
    if row.version != state.version or state.started is None:
        return  # events were added in the meantime
    if row.figures != (should := figures_of(state)):
        yield f"the row has the figures {row.figures}, its events say {should}"
    if row.details is None or row.details.worktree != state.started.worktree:
        yield "the row has another worktree than its events"


def _check_gates(log: SqliteLog, run: str, state: State) -> Iterator[str]:
    shown = {
        row.gate: (row.path, row.digest, row.message, row.subject or gate_subject(state, row.gate))
        for row in log.gates(run)
    }
    known = {
        name: (gate.path, gate.digest, gate.message, gate_subject(state, name))
        for name, gate in state.gates.items()
    }
    for name in sorted(known.keys() - shown.keys()):
        yield f"gate {name} is open and missing from the inbox"
    for name in sorted(shown.keys() - known.keys()):
        yield f"gate {name} is in the inbox and not open"
    for name in sorted(known.keys() & shown.keys()):
        if known[name] != shown[name]:
            yield f"gate {name} is not as it was opened"


def _check_usage(run: str, events: Sequence[AnyEvent], stored: Sequence[UsageRow]) -> Iterator[str]:
    shown = {(row.agent, row.day): row for row in stored}
    known = {(row.agent, row.day): row for row in usage_rows(run, events)}
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
    """The snapshots that the events of a run name; a damaged run is reported separately."""
    try:
        events = [one.event for one in log.read(run, as_is=True)]
    except LoopwrightError:
        return []
    named = [one.snapshot.tree for one in events if isinstance(one, EffectDone) and one.snapshot]
    return list(dict.fromkeys(tree for tree in named if tree))


def _find_strays(log: SqliteLog) -> Iterator[str]:
    """Rows that belong to no run: left over from one that was taken away."""
    for table in ("segment", "gate", "usage"):
        [(count,)] = log.query(
            f"SELECT count(*) FROM {table} WHERE run <> 0 AND run NOT IN (SELECT id FROM run)"
        )
        if count:
            yield f"{count} rows of the table {table} belong to a run that is not there"


RUN_PREFIX = "run_"
AT_ONCE = 50  # runs in one transaction: others write in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was forgotten."""

    runs: tuple[str, ...]
    contents: int  # pieces of content that nothing names any more


def prunable(service: Service, *, older_ms: int, keep: int) -> list[RunRow]:
    """Runs that ended before that long ago, oldest first, without the newest `keep` of all."""
    limit = service.clock.now_ms() - older_ms
    return [
        row
        for row in reversed(service.rows()[keep:])
        if row.headline.status not in OPEN_STATUSES
        and (row.headline.finished_at or row.headline.updated_at) <= limit
        and not _has_worktree(row)
    ]


def _has_worktree(row: RunRow) -> bool:
    """Whether work of a run may be in a worktree: that is removed by `discard` alone."""
    return (
        f"/worktrees/{row.run}" in row.headline.workspace and Path(row.headline.workspace).is_dir()
    )


def prune(
    service: Service,
    settings: Settings,
    runs: Sequence[str],
    told: Callable[[int], None] = lambda _: None,
    *,
    by: str = "",
) -> Pruned:
    """Delete these runs; `told` is called with the number of deleted runs. Reopened runs stay."""
    gone: list[str] = []
    contents = 0
    for start in range(0, len(runs), AT_ONCE):
        several = list(runs[start : start + AT_ONCE])
        try:
            contents += service.forget(several, by=by)
            done = several
        except (Conflict, NotFound):
            done, more = _one_by_one(service, several, by)
            contents += more
        for run in done:
            _remove_files(settings, run)
        _remove_snapshots(settings, done)
        gone += done
        told(start + len(several))
    return Pruned(runs=tuple(gone), contents=contents)


def old_uploads(
    service: Service, uploads: Uploads, *, older_ms: int, gone: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Files that were given that long ago to what is not open any more, and all of runs that are
    not there, or will be `gone`; by scope and id.
    """
    rows = service.rows(statuses=OPEN_STATUSES)
    used = {row.run for row in rows} | {row.headline.session for row in rows}
    old = uploads.old(service.clock.now_ms() - older_ms, used)
    all_of = uploads.old(service.clock.now_ms(), used)
    left = [place for place in all_of if place[0] in gone or _is_gone(service, place[0])]
    return list(dict.fromkeys([*old, *left]))


def _is_gone(service: Service, scope: str) -> bool:
    """Whether a scope was a run that does not exist any more; sessions are not checked."""
    if not scope.startswith(RUN_PREFIX):
        return False
    try:
        service.log.row(scope)
    except NotFound:
        return True
    return False


def prune_uploads(
    uploads: Uploads, access: Access, places: Sequence[tuple[str, str]], *, by: str = ""
) -> int:
    """Delete these files, and unreferenced content; returns the number of files."""
    uploads.sweep()
    if places:
        counts = Counter(scope for scope, _ in places)
        rows = [
            access.row(by, "artifact.pruned", scope, f"{count} files")
            for scope, count in counts.items()
        ]
        uploads.forget(places, rows)
    return len(places)


def _one_by_one(service: Service, runs: Sequence[str], by: str) -> tuple[list[str], int]:
    done, contents = [], 0
    for run in runs:
        try:
            contents += service.forget([run], by=by)
        except (Conflict, NotFound):
            continue
        done.append(run)
    return done, contents


def _remove_snapshots(settings: Settings, runs: Sequence[str]) -> None:
    """In a thread: the caller may run an event loop."""

    async def forget() -> None:
        workspaces = GitWorkspaces(settings.home)
        for run in runs:
            with suppress(LoopwrightError):  # without Git there are none
                await workspaces.forget(run)

    thread = Thread(target=lambda: asyncio.run(forget()))
    thread.start()
    thread.join()


def _remove_files(settings: Settings, run: str) -> None:
    (settings.logs / f"{run}.log").unlink(missing_ok=True)
    (settings.worktrees / f"{run}{APPLIED}").unlink(missing_ok=True)
    RunVariables(settings.home).remove(run)
    for place in (settings.artifacts, settings.results):
        shutil.rmtree(place / run, ignore_errors=True)


def age_ms(text: str) -> int:
    """How long ago, as people write it: `30d`, `12h`."""
    try:
        return duration_ms(text)
    except ValueError as error:
        hint = "write a number and its unit: 30d, 12h, 90m"
        raise LoopwrightError(f"--older: {error}", code="bad-duration", hint=hint) from error
