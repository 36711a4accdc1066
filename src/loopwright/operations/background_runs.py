"""Drive a run in a background process of its own."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import NamedTuple

from loopwright.engine.driver import already_driven
from loopwright.errors import LoopwrightError, StorageError
from loopwright.operations.accounts.access import find_caller
from loopwright.operations.data_directory import HANDED, lock_holder, open_reader, this_owner
from loopwright.operations.delegating_driver import DelegatingDriver
from loopwright.operations.run_control import ResumeChanges
from loopwright.operations.run_lists import presence_of
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import launch_run
from loopwright.operations.run_workspaces import start_notes, without_word
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import App, local_app, local_caller
from loopwright.operations.use_cases.run_queries import run_summary
from loopwright.operations.use_cases.runs import resume, resume_request
from loopwright.operations.wiring import near
from loopwright.ports import OPEN_STATUSES, EventLog, Owner
from loopwright.views.run_responses import ResumedSummary, StartedRun

TAKEN_SECONDS = 60.0  # until the other process is there; it has to start an interpreter
POLL_SECONDS = 0.02


class DetachedRun(NamedTuple):
    """A run that another process drives, and what people should know about it."""

    summary: StartedRun | ResumedSummary
    notes: Sequence[str]
    pid: int = 0
    served: bool = False  # by the local server

    @property
    def where(self) -> str:
        """Who drives it."""
        return f"{'on the local server, process' if self.served else 'in process'} {self.pid}"


def start_in_background(settings: Settings, start: RunStart, *, alone: bool = False) -> DetachedRun:
    """Create a run that the local server drives; without a server, start a process that
    takes it up and drives it until it ends or waits.
    """

    async def create(app: App) -> DetachedRun:
        run = await launch_run(app.service, start, is_checked=True)
        notes = start_notes(app.service, run)
        warnings = without_word(notes)
        return DetachedRun(await run_summary(app, run, StartedRun, warnings=warnings), notes)

    if not alone and lock_holder(settings.home) is not None:
        served = asyncio.run(_at_server(settings, create))
        if served is not None:
            return served
    # Ours until the other process is there: no server takes it up in between, or ends it as a child
    # of a run that has gone on without it.
    ours = this_owner() if alone or find_caller() is not None else None
    held = presence_of(settings).held(ours.token) if ours is not None else nullcontext()
    start = replace(start, owner=ours)
    service = open_reader(settings)
    with closing(service.log), held:
        made = asyncio.run(create(local_app(service, settings)))
        process = _driving(settings, made.summary.run, alone=alone, heir_of=ours)
        if ours is not None:
            _wait_until_driven(service.log, made.summary.run, process, ours)
    return made._replace(pid=process.pid)


def resume_in_background(
    settings: Settings, reference: str, changes: ResumeChanges, *, alone: bool = False
) -> DetachedRun:
    """Resume a run that the local server drives; without a server, start a process that
    drives it until it ends or waits.
    """

    async def resume_it(app: App) -> DetachedRun:
        request = resume_request(app.service.find(reference), changes)
        resumed = await resume(app, local_caller(app.service.via), request)
        warnings = (f"warning: {one}" for one in resumed.warnings)
        return DetachedRun(resumed, (resumed.message, *warnings))

    if not alone and lock_holder(settings.home) is not None:
        served = asyncio.run(_at_server(settings, resume_it))
        if served is not None:
            return served
    ours, service = this_owner(), open_reader(settings)
    with closing(service.log), presence_of(settings).held(ours.token):
        run = service.find(reference)
        other = service.log.claim([run], ours)[run]  # until the other process is there
        if other is not None:
            raise already_driven(run, other)
        try:
            resumed = asyncio.run(resume_it(local_app(service, settings)))
        except LoopwrightError:
            service.log.release([run], ours)
            raise
        process = _driving(settings, run, alone=alone, heir_of=ours)
        _wait_until_driven(service.log, run, process, ours)
    return resumed._replace(pid=process.pid)


async def _at_server(
    settings: Settings, work: Callable[[App], Awaitable[DetachedRun]]
) -> DetachedRun | None:
    """Start or resume a run that the local server drives; None without such a server."""
    async with near(settings) as here:
        if not isinstance(here.driver, DelegatingDriver):
            return None
        made = await work(local_app(here.service, settings))
        pid = await here.driver.taken_up(made.summary.run)
    if pid is not None:
        return made._replace(pid=pid, served=True)
    return made._replace(pid=drive_in_background(settings, made.summary.run))


def _wait_until_driven(
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
