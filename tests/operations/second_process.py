"""Another process on the same data: starts a run, drives it, and says on stdout what happens.

    second_process.py DATA_DIR WORKSPACE PLAN

PLAN is a file with a plan as JSON. It says the run's id, then `said` with the first words of an
agent, then `rests STATUS` each time the run rests, and ends when the run has ended.
"""

import asyncio
import sys
from pathlib import Path

from loopwright.model.plan import Plan, decode_plan
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import local


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main(home: Path, workspace: Path, plan: Plan) -> None:
    async with local(Settings(home=home)) as here:
        here.bus.listen(lambda delta: say(f"said {delta.text.strip()}"))
        start = RunStart(plan=plan, workspace=workspace, message="Do it.")
        run = await here.service.start(start)
        say(run)
        told = ""
        while told not in ("completed", "exhausted", "failed", "cancelled"):
            await here.driver.rest(run)
            status = here.log.row(run).headline.status
            if status != told:
                say(f"rests {status}")
                told = status
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    folder, where, file = map(Path, sys.argv[1:])
    asyncio.run(main(folder, where, decode_plan(file.read_bytes())))
