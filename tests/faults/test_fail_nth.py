"""The storage fails once, at each of its statements in turn; the run goes on by itself."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loopwright.engine.driver import LocalDriver
from loopwright.errors import LoopwrightError, StorageError
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.ports import OPEN_STATUSES, Owner
from loopwright.stores.sqlite.connection import DatabaseOptions
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.testing import FakeClock, ScriptedPerformer
from tests.faults.child import LOG, no_schema
from tests.faults.scenarios import SEQUENTIAL
from tests.faults.walking import events_of, plain
from tests.planned_levels import PlannedLevels
from tests.support.laws.log import check_invariants

ME = Owner(pid=1, start=1, boot="boot", token="me")
PATIENCE_S = 60.0
WRITING = {"BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT"}


class Failure:
    """Makes the n-th statement that writes fail, once: without doing it, or after it
    was done, so that nobody knows. 0 is never.
    """

    def __init__(self, hit: int, moment: str) -> None:
        self.left = hit
        self.moment = moment
        self.spent = hit == 0
        failure = self

        class Cursor(sqlite3.Cursor):
            """Statements of a connection whose disk fails."""

            def execute(self, *statement: Any) -> sqlite3.Cursor:
                failure.left -= statement[0].split()[0] in WRITING
                if failure.left != 0 or failure.spent:
                    return super().execute(*statement)
                failure.spent = True
                if failure.moment == "after":
                    super().execute(*statement)
                raise sqlite3.OperationalError("database or disk is full")

        class Failing(sqlite3.Connection):
            def cursor(self, *_: Any) -> sqlite3.Cursor:
                return Cursor(self)

            def execute(self, *statement: Any) -> sqlite3.Cursor:
                return self.cursor().execute(*statement)

        self.connection = Failing

    def connect(self, uri: str, timeout: float) -> sqlite3.Connection:
        return sqlite3.connect(
            uri,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
            factory=self.connection,
        )


def opened(path: Path, failure: Failure) -> SqliteLog:
    """The log; opening it may be what fails, then it is opened once more."""
    for last in (False, True):
        try:
            return open_sqlite_log(
                path,
                alive=lambda owner: False,
                durability="normal",
                options=DatabaseOptions(connect=failure.connect),
            )
        except StorageError:
            if last:
                raise
    raise AssertionError("not reached")


async def started(service: Service, home: Path) -> str:
    """The run; a start that is refused may still have come to be, else it is asked for again."""
    while not service.rows():
        try:
            await service.start(RunStart(plan=SEQUENTIAL.plan, workspace=home))
        except StorageError:
            continue
    [row] = service.rows()
    return row.run


async def drive(home: Path, failure: Failure) -> list[str]:
    """One process that goes through the whole scenario, whatever its storage does."""
    log, clock = opened(home / LOG, failure), FakeClock()
    performer = ScriptedPerformer(SEQUENTIAL.script)
    driver = LocalDriver(log, performer, clock=clock, owner=ME, check_schema=no_schema)
    driver.open()
    service = Service(log, clock, driver, PlannedLevels())
    try:
        run = await started(service, home)
        end = time.monotonic() + PATIENCE_S
        while log.row(run).headline.status in OPEN_STATUSES and time.monotonic() < end:
            with suppress(LoopwrightError):  # told to the person, who tries again
                await SEQUENTIAL.person(service, run)
            clock.advance(50)
            await asyncio.sleep(0.0005)  # a writer thread is at work
        while driver.is_driving(run) and time.monotonic() < end:
            clock.advance(50)
            await asyncio.sleep(0.0005)
        begun = [job.effect for job in performer.jobs]
        problems = [f"{effect} was begun twice" for effect in begun if begun.count(effect) > 1]
        await _closed(driver)
        return [*problems, *check_invariants(log)]
    finally:
        log.close()


async def _closed(driver: LocalDriver) -> None:
    try:
        await driver.close()
    except StorageError:
        await driver.close()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.item("inv-1", "inv-2", "inv-4", "inv-5", "inv-6", "inv-26")
def test_every_failure_of_the_storage_is_survived(tmp_path: Path, moment: str) -> None:
    """Whichever statement fails, the run ends by itself with the events of an undisturbed one."""
    reference = tmp_path / "undisturbed"
    reference.mkdir()
    assert asyncio.run(drive(reference, Failure(0, moment))) == []
    expected = plain(events_of(reference), reference)
    for hit in count(1):
        home = tmp_path / str(hit)
        home.mkdir()
        failure = Failure(hit, moment)
        assert asyncio.run(drive(home, failure)) == [], f"statement {hit}"
        assert plain(events_of(home), home) == expected, f"statement {hit}"
        if not failure.spent:
            break
    assert hit > 50
