"""A driver to be killed: `driver.py CWD COMMAND...` runs the command without limits.

SIGTERM cancels the run, as the product does. The pid of the supervisor goes to stdout.
"""

import asyncio
import os
import signal
import sys

from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.agents.processes.process_marks import ProcessMark


async def main(cwd: str, *argv: str) -> None:
    """Run the command; end when it ended or SIGTERM came."""

    def say(mark: ProcessMark) -> None:
        sys.stdout.write(f"{mark.pid} {mark.start_ticks} {mark.boot_id}\n")
        sys.stdout.flush()

    program = ProgramStart(argv=argv, cwd=cwd, env=dict(os.environ), grace_s=0.2)
    running = asyncio.ensure_future(run_program(program, on_start=say))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.wait([running])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
