"""Pruning: forgetting runs that ended long ago, with everything that was kept for them."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from loopwright.app.access import Access
from loopwright.app.run_variables import RunVariables
from loopwright.app.service import Service
from loopwright.app.settings import Settings
from loopwright.app.uploads import Uploads
from loopwright.dialects.native.fields import duration_ms
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.ports import APPLIED, OPEN_STATUSES, RunRow
from loopwright.workspaces.snapshots import GitWorkspaces

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
    """Forget these runs; `told` hears how many are done. What was reopened meanwhile stays."""
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
    """Whether a scope was a run that nobody knows any more; sessions are not looked at."""
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
    """Take these files away, and bytes that nobody has entered; how many files there were."""
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
