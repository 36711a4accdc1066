"""A program: one long loop with answers of 2.7 kB, in memory of its own. Prints its peak in bytes
and whether the settings of the garbage collector are those of before.
"""

import asyncio
import gc
import sys
from itertools import count
from pathlib import Path

from loopwright.agents.processes.process_marks import Presence
from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import SystemClock, schema_problem
from loopwright.model.actions import CallAgent, Repeat, Step
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ProgressLog
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.operations.wiring import this_owner
from loopwright.ports import Answer, EffectJob, EffectSuccess
from loopwright.stores.sqlite.log import open_sqlite_log
from tests.planned_levels import PlannedLevels

ANSWER_CHARS = 2_700


class Speaker:
    """Answers each call with another text."""

    def __init__(self) -> None:
        self._numbers = count()

    def perform(self, job: EffectJob) -> Answer:
        words = f"answer {next(self._numbers)} to a prompt of {len(job.prompt.text)} characters; "
        return EffectSuccess(output=(words * ANSWER_CHARS)[:ANSWER_CHARS])


async def drive(folder: Path, iterations: int) -> str:
    """Run the loop; its status."""
    memory = ProgressLog(total=8_000)
    action = Repeat(
        body=CallAgent(agent="speaker"), max=iterations, at_cap="complete", memory=memory
    )
    step = Step(id="main", action=action)
    plan = Plan(name="long", steps=(step,), agents={"speaker": Agent()})
    log = open_sqlite_log(folder / "loopwright.db", alive=Presence(folder / "owners").alive)
    driver = LocalDriver(
        log, Speaker(), clock=SystemClock(), owner=this_owner(), check_schema=schema_problem
    )
    driver.open()
    service = Service(log, SystemClock(), driver, PlannedLevels())
    run = await service.start(RunStart(plan=plan, workspace=folder, message="go"))
    await driver.rest(run)
    status = log.row(run).headline.status
    await driver.close()
    log.close()
    return status


def peak_bytes() -> int:
    """The most memory that this program has had: unlike `ru_maxrss`, without that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmHWM:"))


def collector() -> tuple[object, ...]:
    return gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), gc.get_debug()


def main() -> None:
    folder, iterations, with_collector = sys.argv[1:]
    if with_collector == "off":
        gc.disable()
    before = collector()
    status = asyncio.run(drive(Path(folder), int(iterations)))
    unchanged = collector() == before
    sys.stdout.write(f"{status} {peak_bytes()} {unchanged}\n")


if __name__ == "__main__":
    main()
