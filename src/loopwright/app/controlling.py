"""Control of one run or of all: pause, resume, stop, whoever drives them."""

import os
from typing import NamedTuple

from loopwright.app.reopening import NO_CHANGES, Changes, check_folder, has_ended, reopen
from loopwright.app.service import Service, current_user
from loopwright.app.stop_wait import wait_until_stopped
from loopwright.app.views.listing import driver_pid
from loopwright.app.wiring import Local
from loopwright.errors import Conflict, StorageError
from loopwright.ports import OPEN_STATUSES, EventLog, RunRow


class ResumedRun(NamedTuple):
    """A run that was resumed, the number of its newest event before that, and where it continues,
    in words. `is_own` is false for one that another process has resumed at the same time.
    """

    run: str
    seen: int
    words: str
    is_own: bool = True


def runs_to_pause(service: Service) -> list[str]:
    """Every run that could go on by itself or by an answer."""
    return [row.run for row in service.rows(("running", "waiting"))]


async def pause_run(service: Service, run: str, *, by: str | None = None) -> bool:
    """Pause a run; False when it was paused already."""
    if service.log.row(run).headline.status == "paused":
        return False
    await service.pause(run, by=current_user() if by is None else by)
    return True


# -- resuming ------------------------------------------------------------------------------------


async def resume_run(
    here: Local, reference: str, changes: Changes = NO_CHANGES, *, by: str | None = None
) -> ResumedRun:
    """Resume a run. One that has ended without completing continues where it stopped."""
    one = await resume_stored(here.service, reference, changes, by=by)
    row = here.log.row(one.run)
    if row.headline.status == "waiting" and row.headline.wake_at is not None:
        here.service.look(one.run)
    return one


async def resume_stored(
    service: Service, reference: str, changes: Changes = NO_CHANGES, *, by: str | None = None
) -> ResumedRun:
    """The same, also for a service that does not drive: then another process has to."""
    run, who = service.find(reference), current_user() if by is None else by
    seen = service.log.version(run)
    if has_ended(service, run):
        words = await reopen(service, run, by=who, changes=changes)
        return ResumedRun(run, seen, words)
    if changes:
        raise Conflict(
            f"{run} has not ended, so nothing about it can be changed now",
            code="not-ended",
            hint=f"`loopwright stop {run}` ends it, and then `loopwright resume {run}` takes these "
            "options",
        )
    check_folder(service.state(run))
    await service.resume(run, by=who)
    return ResumedRun(run, seen, f"{run} resumed")


async def resume_all(here: Local) -> list[ResumedRun]:
    """Resume all runs that are paused or that no process drives; not those that another process
    drives.
    """
    seen = {row.run: row.version for row in here.service.rows(OPEN_STATUSES)}
    resumed: list[str] = []
    others: set[str] = set()
    for row in here.service.rows(("paused",)):
        if driver_pid(here.log, row) in (None, here.driver.server_pid, os.getpid()):
            try:
                is_own = await here.service.resume(row.run, by=current_user())
            except StorageError as error:  # one that is damaged must not hold up the others
                here.driver.trouble(row.run, error)
            else:
                resumed.append(row.run)
                others |= set() if is_own else {row.run}
    # One that was quick has ended by now and is told all the same.
    taken = dict.fromkeys([*resumed, *here.service.recover()])
    return [
        ResumedRun(run, version, f"{run} resumed", is_own=run not in others)
        for run, version in seen.items()
        if run in taken
    ]


# -- stopping ------------------------------------------------------------------------------------


async def stop_run(here: Local, reference: str, *, by: str | None = None) -> str:
    """End a run and wait until it has ended."""
    run = here.service.find(reference)
    if not await here.service.stop(run, by=current_user() if by is None else by):
        head = here.log.row(run).headline
        raise Conflict(f"{run} has already ended: {head.status} ({head.reason})", code="ended")
    await _ended(here, [run])
    return run


async def stop_all(here: Local) -> list[str]:
    """End every open run; which. What is wrong with one is told when the others have ended."""
    stopped: list[str] = []
    wrong: StorageError | None = None
    for row in here.service.rows(OPEN_STATUSES):
        try:
            if await here.service.stop(row.run, by=current_user()):
                stopped.append(row.run)
        except StorageError as error:
            wrong = wrong or error
    await _ended(here, stopped)
    if wrong is not None:
        raise wrong
    return stopped


async def _ended(here: Local, runs: list[str]) -> None:
    """Wait until nothing is left of the runs, whichever process drives them."""
    state = await wait_until_stopped(here.log, runs)
    if state.open_runs:
        raise Conflict(
            _stuck(here.log, [here.log.row(run) for run in state.open_runs]), code="busy"
        )
    if not state.is_stopped:
        raise Conflict(
            state.describe(),
            code="stopping",
            hint="`loopwright stop` again waits for them; end them yourself if they stay",
        )


def _stuck(log: EventLog, rows: list[RunRow]) -> str:
    first = rows[0]
    pid = driver_pid(log, first)
    who = f"process {pid}, which drives it," if pid else "the process that drives it"
    return f"{first.run} has been told to stop, but {who} has not ended it yet"
