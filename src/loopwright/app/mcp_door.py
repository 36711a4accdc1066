"""`loopwright mcp`: loops for other agents, over the Model Context Protocol on stdin and stdout."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from loopwright.app.detaching import drive_in_background
from loopwright.app.loop_tools import LoopTools
from loopwright.app.role_loops import Loops
from loopwright.app.settings import Settings
from loopwright.app.wiring import near
from loopwright.ports import OPEN_STATUSES

INSTRUCTIONS = (
    "Loops of agents that go on by themselves until the work is approved or a limit is reached. "
    "Start one with loop_start, and look at it with loop_status from time to time."
)


async def serve(
    settings: Settings,
    *,
    cwd: Path,
    agents: Sequence[str],
    session: str,
    answers: bool,
    alone: bool = False,
) -> list[str]:
    """Serve until the client has gone. Loops that are under way then are driven on by a process
    of their own; the answer names them.
    """
    library = import_module("loopwright.tools.serving")
    async with near(settings, via="mcp", alone=alone) as here:
        if answers and here.service.rights is not None:
            here.service.rights.refuse("answer gates", "loopwright mcp --allow-answers")
        loops = Loops(here=here, settings=settings, cwd=cwd, agents=agents)
        tools = LoopTools(loops=loops, session=session, answers=answers)
        await library.serve_stdio(
            "loopwright",
            tools.specs(),
            tools.answer,
            instructions=INSTRUCTIONS,
            refused=tools.refused_names(),
        )
        mine = here.driver.owner
        left = [
            row.run
            for row in here.log.rows(statuses=OPEN_STATUSES)
            if row.owner == mine and row.headline.status == "running"
        ] + here.driver.stranded()
    for run in left:
        drive_in_background(settings, run, alone=alone)
    return left
