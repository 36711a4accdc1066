"""Wait for the end of runs that were told to stop. There is one rule for all interfaces: a run is
stopped when its log says so and none of its processes is left; until then it is stopping.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loopwright.ports import OPEN_STATUSES, EventLog
from loopwright.programs.run_processes import describe_processes, find_processes
from loopwright.programs.supervise import Entry

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class StopState:
    """What is left of runs that were told to stop."""

    open_runs: tuple[str, ...] = ()  # whoever drives them has not ended them yet
    processes: dict[str, list[Entry]] = field(default_factory=dict)

    @property
    def is_stopped(self) -> bool:
        return not self.open_runs and not self.processes

    @property
    def word(self) -> str:
        return "stopped" if self.is_stopped else "stopping"

    @property
    def pids(self) -> list[int]:
        return sorted(entry.pid for entries in self.processes.values() for entry in entries)

    def describe(self) -> str:
        """Which processes of which runs are left."""
        return "; ".join(
            f"{run} is stopping: {describe_processes(entries)} not ended yet"
            for run, entries in self.processes.items()
        )


async def wait_until_stopped(
    log: EventLog,
    runs: Sequence[str],
    *,
    seconds: float = STOP_SECONDS,
    is_closing: Callable[[], bool] = lambda: False,
) -> StopState:
    """Wait until nothing is left of these runs, or until the time is over."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        still = tuple(run for run in runs if log.row(run).headline.status in OPEN_STATUSES)
        left = {} if still else await asyncio.to_thread(find_processes, runs)
        state = StopState(still, left)
        if state.is_stopped or is_closing() or asyncio.get_running_loop().time() >= end:
            return state
        await asyncio.sleep(POLL_SECONDS)
