"""A driver that dies: started by the kill walk, it makes children that kill themselves.

    child.py

reads one order for each line of its input, forks, lets the child drive a scenario to its end or to
its death, and says how it ended. Forking from a process that has loaded everything makes a start
cost milliseconds; what dies is a real process all the same. A child notes what it does in a file
beside the log: written at once, without a sync, since this file has to survive the child only.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from loopwright.app.service import Service, Start
from loopwright.app.wiring import owner_alive, this_owner
from loopwright.kernel.encoding import encode_facts
from loopwright.kernel.facts import EffectRequested
from loopwright.ports import OPEN_STATUSES, Answer, Job
from loopwright.runtime.clock import SystemClock
from loopwright.runtime.driver import LocalDriver
from loopwright.runtime.senses import content_hash
from loopwright.stores import SqliteLog, open_sqlite_log
from loopwright.testing import ScriptedPerformer
from tests.faults import mutants
from tests.faults.scenarios import SCENARIOS, Scenario

NOTES = "notes"
LOG = "log.db"
LONGEST_S = 20


class Death:
    """Kills this process when a point is met the n-th time; 0 is never."""

    def __init__(self, hit: int) -> None:
        self.left = hit

    def __call__(self, _point: str) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """What a child did, one line for each thing, in order."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Recorder(ScriptedPerformer):
    """Notes each effect when it is begun and when it is done; the points to die are around it."""

    def __init__(self, scenario: Scenario, log: SqliteLog, notes: Notes, death: Death) -> None:
        super().__init__(scenario.script)
        self.scenario = scenario
        self.log = log
        self.notes = notes
        self.death = death

    def perform(self, job: Job) -> Any:
        self.death("perform.before")
        facts = [numbered.fact for numbered in self.log.read(job.run)]
        asked = any(isinstance(f, EffectRequested) and f.effect == job.effect for f in facts)
        self.notes.add("begun" if asked else "unasked", job.effect)
        answer = self.script(job)
        assert answer is not None
        if self.scenario.slow is not None:
            return self._later(job, answer)
        self.death("perform.after")
        return answer

    async def _later(self, job: Job, answer: Answer) -> Answer:
        assert self.scenario.slow is not None
        await asyncio.sleep(self.scenario.slow(job))
        self.death("perform.after")
        return answer


def no_schema(schema: object, value: object) -> None:
    """No scenario has a schema."""


async def live(home: Path, scenario: Scenario, death: Death) -> None:
    """One life: take up what is there, or begin, and go on to the end of the run."""
    notes, clock = Notes(home / NOTES), SystemClock()
    log = open_sqlite_log(
        home / LOG, alive=owner_alive, durability=scenario.durability, killpoint=death
    )
    driver = LocalDriver(
        log,
        Recorder(scenario, log, notes, death),
        clock=clock,
        owner=this_owner(),
        check_schema=no_schema,
    )
    driver.open()
    service = Service(log, clock, driver)
    news = asyncio.Event()
    rows = log.rows()
    known = rows[0].version if rows else 0

    def told(run: str, version: int) -> None:
        nonlocal known
        known = version
        found = log.read(run) if log.rows() else []
        facts = [numbered.fact for numbered in found][:version]
        notes.add("told", version, content_hash(encode_facts(facts)))
        news.set()

    notes.add("opened", known)
    log.subscribe(told)
    if rows:
        service.recover()
    else:
        await service.start(Start(plan=scenario.plan, workspace=home))
    [row] = log.rows()
    while row.headline.status in OPEN_STATUSES or known < row.version:
        news.clear()
        if row.headline.status in OPEN_STATUSES:
            await scenario.person(service, row.run)
        if known < log.version(row.run) or log.row(row.run).headline.status in OPEN_STATUSES:
            await news.wait()
        row = log.row(row.run)
    await driver.close()
    log.close()


def obey(order: dict[str, Any]) -> None:
    """The whole life of a child."""
    signal.alarm(LONGEST_S)
    if order["mutant"]:
        mutants.apply(order["mutant"])
    asyncio.run(live(Path(order["home"]), SCENARIOS[order["scenario"]], Death(order["kill"])))


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                obey(order)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
