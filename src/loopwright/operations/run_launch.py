"""Launch a run that was prepared: the one way in which every interface starts runs."""

from loopwright.operations.preflight import check_programs
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service


async def check_start(service: Service, start: RunStart) -> RunStart:
    """Check everything that would fail in the first iteration: what may run here, the folder,
    and the programs of the agents and checks. Returns the start as it is allowed here.
    """
    start = service.admit(start)
    start.check_workspace()
    await check_programs(start)
    return start


async def launch_run(service: Service, start: RunStart, *, is_checked: bool = False) -> str:
    """Create a run, after it is checked. `is_checked`: the caller has checked it before, to show
    warnings or to create nothing else for a start that is refused.
    """
    return await service.start(start if is_checked else await check_start(service, start))
