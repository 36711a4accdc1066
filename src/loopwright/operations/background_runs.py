"""Drive a run in a background process of its own."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

from loopwright.engine.driver import already_driven
from loopwright.errors import LoopwrightError, StorageError
from loopwright.operations.accounts.access import find_caller
from loopwright.operations.data_directory import HANDED, lock_holder, open_reader, this_owner
from loopwright.operations.delegating_driver import DelegatingDriver
from loopwright.operations.run_control import ResumeChanges
from loopwright.operations.run_lists import presence_of
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import launch_run
from loopwright.operations.run_workspaces import resume_warnings, start_notes
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import local_app, local_caller
from loopwright.operations.use_cases.runs import resume_named
from loopwright.operations.wiring import near
from loopwright.ports import OPEN_STATUSES, EventLog, Owner
from loopwright.views.run_responses import RunSummary
from loopwright.views.summary import summary

TAKEN_SECONDS = 60.0  # until the other process is there; it has to start an interpreter
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A run that another process drives."""

    run: str
    pid: int
    served: bool  # by the local server
    summary: RunSummary
    notes: tuple[str, ...] = ()  # about the folder it works in, and where it continues


def start_in_background(settings: Settings, start: RunStart, *, alone: bool = False) -> Detached:
    """Create a run that the local server drives; without a server, start a process that
    takes it up and drives it until it rests.
    """
    if not alone and lock_holder(settings.home) is not None:
        served = asyncio.run(_start_at_server(settings, start))
        if served is not None:
            return served
    # Ours until the other process is there: no server takes it up in between, or ends it as a child
    # of a run that has gone on without it.
    ours = this_owner() if alone or find_caller() is not None else None
    held = presence_of(settings).held(ours.token) if ours is not None else nullcontext()
    service = open_reader(settings)
    with closing(service.log), held:
        run = asyncio.run(launch_run(service, replace(start, owner=ours), is_checked=True))
        seen = summary(service.state(run), service.read_text)
        notes = tuple(start_notes(service, run))
        process = _driving(settings, run, alone=alone, heir_of=ours)
        if ours is not None:
            _wait_until_taken(service.log, run, process, ours)
    return Detached(run=run, pid=process.pid, served=False, summary=seen, notes=notes)


def resume_in_background(
    settings: Settings, reference: str, changes: ResumeChanges, *, alone: bool = False
) -> Detached:
    """Resume a run that the local server drives; without a server, start a process that
    drives it until it rests.
    """
    if not alone and lock_holder(settings.home) is not None:
        served = asyncio.run(_resume_at_server(settings, reference, changes))
        if served is not None:
            return served
    ours, service = this_owner(), open_reader(settings)
    with closing(service.log), presence_of(settings).held(ours.token):
        run = service.find(reference)
        other = service.log.claim([run], ours)[run]  # until the other process is there
        if other is not None:
            raise already_driven(run, other)
        app, caller = local_app(service, settings), local_caller(service.via)
        try:
            one = asyncio.run(resume_named(app, caller, run, changes))
        except LoopwrightError:
            service.log.release([run], ours)
            raise
        seen = summary(service.state(run), service.read_text)
        notes = (one.words, *_folder_warnings(service, run))
        process = _driving(settings, run, alone=alone, heir_of=ours)
        _wait_until_taken(service.log, run, process, ours)
    return Detached(run=run, pid=process.pid, served=False, summary=seen, notes=notes)


def _folder_warnings(service: Service, run: str) -> list[str]:
    return [f"warning: {one}" for one in resume_warnings(service, run)]


async def _resume_at_server(
    settings: Settings, reference: str, changes: ResumeChanges
) -> Detached | None:
    """None where there is no server that takes it."""
    async with near(settings) as here:
        driver = here.driver
        if not isinstance(driver, DelegatingDriver):
            return None
        app, caller = local_app(here.service, settings), local_caller(here.service.via)
        one = await resume_named(app, caller, reference, changes)
        seen = summary(here.service.state(one.run), here.service.read_text)
        notes = (one.words, *_folder_warnings(here.service, one.run))
        pid = await driver.taken_up(one.run)
    driver_pid = pid or drive_in_background(settings, one.run)
    served = pid is not None
    return Detached(run=one.run, pid=driver_pid, served=served, summary=seen, notes=notes)


def _wait_until_taken(
    log: EventLog, run: str, process: subprocess.Popen[bytes], ours: Owner
) -> None:
    until = time.monotonic() + TAKEN_SECONDS
    while True:
        code = process.poll()  # before the look at the run: a process may have done all and ended
        row = log.row(run)
        if row.owner != ours or row.headline.status not in OPEN_STATUSES:
            return
        if code is not None or time.monotonic() > until:
            did = "has not taken it up" if code is None else f"ended with {code}"
            raise StorageError(
                f"{run} is recorded, but the process that should drive it {did}",
                code="cannot-detach",
                hint=f"its words are in logs/{run}.log; `loopwright resume {run}` drives it here",
            )
        time.sleep(POLL_SECONDS)


async def _start_at_server(settings: Settings, start: RunStart) -> Detached | None:
    """None where there is no server that takes it."""
    async with near(settings) as here:
        driver = here.driver
        if not isinstance(driver, DelegatingDriver):
            return None
        run = await launch_run(here.service, start, is_checked=True)
        seen = summary(here.service.state(run), here.service.read_text)
        notes = tuple(start_notes(here.service, run))
        pid = await driver.taken_up(run)
    driver_pid = pid or drive_in_background(settings, run)
    served = pid is not None
    return Detached(run=run, pid=driver_pid, served=served, summary=seen, notes=notes)


def drive_in_background(settings: Settings, run: str, *, alone: bool = False) -> int:
    """Start a process that takes a run up; its id. It outlives its terminal and writes what it has
    to say into a file of its own.
    """
    return _driving(settings, run, alone=alone).pid


def _driving(
    settings: Settings, run: str, *, alone: bool, heir_of: Owner | None = None
) -> subprocess.Popen[bytes]:
    home = str(settings.home)
    # Without `-P`, modules that an agent has written to this folder would be imported first.
    command = [sys.executable, "-P", "-m", "loopwright", "--data-dir", home, "--no-color"]
    command += ["resume", run]
    command += ["--here"] if alone else []
    try:
        settings.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (settings.logs / f"{run}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, HANDED: heir_of.token} if heir_of else None,
            )
    except OSError as error:
        raise StorageError(
            f"{run} is recorded, but no process could be started for it: {error}",
            code="cannot-detach",
            hint=f"`loopwright resume {run}` drives it here",
        ) from error
    return process
