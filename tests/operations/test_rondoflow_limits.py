"""Times of an assistant document, with real programs under the real supervisor.

A minute and five minutes are not waited for: the clock of the event loop, which is the one that
counts the limits, is moved on.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from loopwright.kernel.events import CheckVerdict, EffectFailed, EffectRequested
from loopwright.kernel.state import State
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from tests.operations.test_wiring import ended, events, is_alive

# Writes down the pid of its supervisor, which lives as long as the program or its child, and stays:
# silent, or talking to whoever listens.
STAYS = """\
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
part = pathlib.Path("pids.part")
part.write_text(os.environ["LOOPWRIGHT_SUPERVISOR"].split(":")[0])
part.rename("pids")
while True:
    time.sleep(0.02)
    if pathlib.Path("speak").exists():
        pathlib.Path("speak").unlink()
        print("still here", flush=True)
        pathlib.Path("spoken").touch()
"""


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved on by hand."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Stage:
    """A run of an assistant document in a workspace of its own."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        self._home = Settings(home=folder / "home", durability="normal")
        self._document = folder / "assistant.json"
        self.here: Local
        self.run = ""

    def program(self, name: str, code: str) -> str:
        """A program in the workspace; the words that start it."""
        (self.workspace / name).write_text(code, encoding="utf-8")
        return f"{sys.executable} {name}"

    def play(
        self,
        document: dict[str, object],
        agent: str,
        body: "Callable[[Stage, ShiftedLoop], Coroutine[object, object, None]]",
    ) -> None:
        """Start the document with an agent, and do something while it runs."""
        looping = {"name": "fixer", "loopEnabled": True, **document}
        self._document.write_text(json.dumps(looping), encoding="utf-8")
        place = StartPlace(settings=self._home, workspace=self.workspace)
        source = DefinitionSource(file=str(self._document))

        async def played() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ShiftedLoop)
            async with local(self._home) as here:
                self.here = here
                self.run = await here.service.start(
                    prepare_start(place, StartRun(message="Go", agent=agent), source)[0]
                )
                await body(self, loop)

        with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
            runner.run(played())

    async def there(self, name: str) -> Path:
        """A file that a program writes, once it is there."""
        file = self.workspace / name
        while not file.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        return file

    async def pids(self) -> list[int]:
        return [int(pid) for pid in (await self.there("pids")).read_text().split()]

    async def moved_on(self, loop: ShiftedLoop, seconds: float) -> None:
        """Time passes, and everything that was due has been done."""
        loop.ahead += seconds
        await asyncio.sleep(0.2)

    async def end(self) -> State:
        return await ended(self.here, self.run)

    def requests(self) -> list[EffectRequested]:
        return [one for one in events(self.here, self.run) if isinstance(one, EffectRequested)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.item("rondoflow-26")
def test_a_test_command_is_ended_after_a_minute(stage: Stage) -> None:
    """It lives for most of a minute, then it and its child are gone, and the iteration has
    failed.
    """
    stage.program("stays.py", STAYS)
    once = "#!/bin/sh\nif test -e pids; then exit 0; fi\nexec {} stays.py\n"
    check = stage.workspace / "check"
    check.write_text(once.format(sys.executable), encoding="utf-8")
    check.chmod(0o755)

    async def body(stage: Stage, loop: ShiftedLoop) -> None:
        pids = await stage.pids()
        await stage.moved_on(loop, 45)
        assert all(is_alive(pid) for pid in pids)
        loop.ahead += 15
        state = await stage.end()
        assert not any(is_alive(pid) for pid in pids)
        verdicts = [one for one in events(stage.here, stage.run) if isinstance(one, CheckVerdict)]
        assert [one.verdict for one in verdicts] == ["timed_out", "pass"]
        assert "timed out" in stage.here.service.read_text(verdicts[0].evidence)
        assert state.finished is not None
        assert (state.finished.outcome, state.finished.reason) == ("completed", "command")

    criteria = {"type": "test_pass", "value": "./check"}
    stage.play({"loopCriteria": criteria, "maxIterations": 3}, "command:echo fine", body)


@pytest.mark.item("rondoflow-26")
def test_a_test_command_that_always_takes_too_long(stage: Stage) -> None:
    """Each iteration counts as not passed, and the loop goes on to its last one."""
    stage.program("stays.py", STAYS)
    check = stage.workspace / "check"
    check.write_text(f"#!/bin/sh\nexec {sys.executable} stays.py\n", encoding="utf-8")
    check.chmod(0o755)

    async def body(stage: Stage, loop: ShiftedLoop) -> None:
        for _ in range(2):
            await stage.pids()
            (stage.workspace / "pids").unlink()
            loop.ahead += 60
        state = await stage.end()
        assert state.finished is not None
        assert (state.finished.outcome, state.finished.reason) == ("completed", "max_iterations")

    criteria = {"type": "test_pass", "value": "./check"}
    stage.play({"loopCriteria": criteria, "maxIterations": 2}, "command:echo fine", body)


@pytest.mark.item("rondoflow-33")
def test_an_agent_that_is_silent_for_five_minutes_is_ended(stage: Stage) -> None:
    """Silence counts from the last word; then agent and child are gone, the run is timed out."""
    agent = f"command:{stage.program('stays.py', STAYS)}"

    async def body(stage: Stage, loop: ShiftedLoop) -> None:
        pids = await stage.pids()
        await stage.moved_on(loop, 280)
        assert all(is_alive(pid) for pid in pids)
        (stage.workspace / "speak").touch()
        await stage.there("spoken")
        await stage.moved_on(loop, 280)
        assert all(is_alive(pid) for pid in pids), "the word it said gave it time"
        loop.ahead += 20
        state = await stage.end()
        assert not any(is_alive(pid) for pid in pids)
        assert len(stage.requests()) == 1, "no further pass, no second try"
        [failed] = [one for one in events(stage.here, stage.run) if isinstance(one, EffectFailed)]
        assert failed.error.type == "idle_timeout"
        assert "timed out" in failed.error.detail
        assert state.finished is not None
        assert (state.finished.outcome, state.finished.reason) == ("failed", "error")

    stage.play({"maxIterations": 3}, agent, body)
