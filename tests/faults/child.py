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
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

from loopwright.agents.processes.process_marks import Presence
from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import SystemClock, schema_problem
from loopwright.kernel.events import EffectRequested, encode_events
from loopwright.model.plan import content_hash
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.operations.wiring import this_owner
from loopwright.ports import OPEN_STATUSES, Answer, EffectJob
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.testing import ScriptedPerformer
from tests.faults import mutants
from tests.faults.chatting import NOTES, Chat
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.planned_levels import PlannedLevels

LOG = "log.db"
LONGEST_S = 60
AT_REST = 3  # how a child ends that leaves a run which waits for a person


class Death:
    """Kills a process when a point is met the n-th time; 0 is never. All children of one order
    count together.
    """

    def __init__(self, hit: int) -> None:
        self._left = mmap.mmap(-1, 8)
        self._write(hit)

    def _write(self, left: int) -> None:
        self._left[:] = left.to_bytes(8, "big", signed=True)

    def __call__(self, _point: str) -> None:
        left = int.from_bytes(self._left, "big", signed=True) - 1
        self._write(left)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """What a child did, one line for each thing, in order."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Recorder(ScriptedPerformer):
    """Notes each effect when it is begun and when it is done; the points to die are around it."""

    def __init__(
        self, scenario: Scenario, home: Path, log: SqliteLog, notes: Notes, death: Death
    ) -> None:
        super().__init__(scenario.script)
        self.chat = scenario.chat(home) if scenario.chat is not None else None
        self.scenario = scenario
        self.log = log
        self.notes = notes
        self.death = death

    def perform(self, job: EffectJob) -> Any:
        self.death("perform.before")
        events = [numbered.event for numbered in self.log.read(job.run)]
        asked = any(isinstance(f, EffectRequested) and f.effect == job.effect for f in events)
        self.notes.add("begun" if asked else "unasked", job.effect)
        if self.chat is not None:
            return self._chatted(self.chat, job)
        answer = self.script(job)
        assert answer is not None
        if self.scenario.slow is not None:
            return self._later(job, answer)
        self.death("perform.after")
        return answer

    async def _chatted(self, chat: Chat, job: EffectJob) -> Answer:
        answer = await chat.perform(job)
        self.death("perform.after")
        return answer

    async def _later(self, job: EffectJob, answer: Answer) -> Answer:
        assert self.scenario.slow is not None
        await asyncio.sleep(self.scenario.slow(job))
        self.death("perform.after")
        return answer


def no_schema(schema: object, value: object) -> None:
    """No scenario has a schema."""


async def decide(home: Path, scenario: Scenario, death: Death) -> int:
    """The life of a person, who decides what is open and drives nothing."""
    alive = Presence(home / "owners").alive
    log = open_sqlite_log(home / LOG, alive=alive, durability=scenario.durability, killpoint=death)
    [row] = log.rows()
    await scenario.person(Service(log, SystemClock(), None, PlannedLevels()), row.run)
    log.close()
    return 0


async def live(home: Path, scenario: Scenario, death: Death) -> int:
    """One life: take up what is there, or begin, and go on to the end of the run, or to where it
    waits for a person in another process.
    """
    notes, clock = Notes(home / NOTES), SystemClock()
    alive = Presence(home / "owners").alive
    log = open_sqlite_log(home / LOG, alive=alive, durability=scenario.durability, killpoint=death)
    driver = LocalDriver(
        log,
        Recorder(scenario, home, log, notes, death),
        clock=clock,
        owner=this_owner(),
        check_schema=no_schema,
    )
    driver.open()
    service = Service(log, clock, driver, PlannedLevels())
    news = asyncio.Event()
    rows = log.rows()
    known = rows[0].version if rows else 0

    def told(run: str, version: int) -> None:
        nonlocal known
        known = version
        found = log.read(run) if log.rows() else []
        events = [numbered.event for numbered in found][:version]
        notes.add("told", version, content_hash(encode_events(events)))
        news.set()

    notes.add("opened", known)
    log.subscribe(told)
    if rows:
        service.recover()
    else:
        await service.start(RunStart(plan=scenario.plan, workspace=home))
    [row] = log.rows()
    code = 0
    while row.headline.status in OPEN_STATUSES or known < row.version:
        news.clear()
        if scenario.apart:
            at_rest = row.headline.status == "waiting" and not driver.is_driving(row.run)
            if at_rest and known == row.version:
                code = AT_REST
                break
        elif row.headline.status in OPEN_STATUSES:
            await scenario.person(service, row.run)
        if known < log.version(row.run) or log.row(row.run).headline.status in OPEN_STATUSES:
            await news.wait()
        row = log.row(row.run)
    await driver.close()
    log.close()
    return code


def obey(order: dict[str, Any], death: Death, *, person: bool) -> int:
    """The whole life of a child, who drives or decides."""
    signal.alarm(LONGEST_S)
    if order["mutant"]:
        mutants.apply(order["mutant"])
    home, scenario = Path(order["home"]), SCENARIOS[order["scenario"]]
    for name, content in scenario.files.items():
        if not (home / name).exists():
            (home / name).write_text(content)
    return asyncio.run((decide if person else live)(home, scenario, death))


def lived(order: dict[str, Any], death: Death, *, person: bool = False) -> int:
    """How a child ended that was made for an order."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = obey(order, death, person=person)
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    schema_problem({}, None)  # loads what each child would have to load
    for line in sys.stdin:
        order = json.loads(line)
        death = Death(order["kill"])
        ended = lived(order, death)
        while ended == AT_REST:
            ended = lived(order, death, person=True) or lived(order, death)
        sys.stdout.write(f"{ended}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
