"""No process of a program is left: twelve shapes of programs, four ways to end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopwright.agents.processes.process import ProgramEnd, run_program
from loopwright.agents.processes.process_marks import ProcessMark, sweep
from loopwright.agents.processes.supervise import read_entry
from tests.agents.leaping import HOUR_S, leap, play
from tests.agents.shapes.scene import TWELVE_SHAPES, Scene

PATIENCE_SECONDS = 30.0  # half of what a shape would stay by itself

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whole trees end on Linux only")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene that is cleared up when a test failed to."""
    scene = Scene(tmp_path)
    yield scene
    scene.clear()


async def complete(scene: Scene, shape: str) -> None:
    """Wait until the shape has all its processes."""
    await asyncio.to_thread(scene.wait_for, TWELVE_SHAPES.get(shape, 1))
    assert scene.survivors(), "the shape is not there, so the test would show nothing"


# -------------------------------------------------------------------------------- ways to end


def by_cancelling(scene: Scene, shape: str) -> None:
    async def play() -> None:
        running = asyncio.create_task(run_program(scene.program(shape)))
        await complete(scene, shape)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())


def at_its_limit(scene: Scene, shape: str, **more: float) -> ProgramEnd:
    """The end of a program whose limit is over when the shape has all its processes."""

    async def whole() -> ProgramEnd:
        program = scene.program(shape, wall_s=HOUR_S, **more)
        running = asyncio.create_task(run_program(program))
        await complete(scene, shape)
        leap(HOUR_S)
        return await running

    return play(whole())


def by_wall_limit(scene: Scene, shape: str) -> None:
    end = at_its_limit(scene, shape)
    assert (end.how, end.error) == ("wall_timeout", None)


def by_signalling_the_driver(scene: Scene, shape: str, number: int) -> None:
    command, env = scene.driver(shape)
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as driver:
        asyncio.run(complete(scene, shape))
        driver.send_signal(number)
        driver.wait(PATIENCE_SECONDS)


def by_term_of_the_driver(scene: Scene, shape: str) -> None:
    by_signalling_the_driver(scene, shape, signal.SIGTERM)


def by_kill_of_the_driver(scene: Scene, shape: str) -> None:
    by_signalling_the_driver(scene, shape, signal.SIGKILL)


@pytest.mark.item("B10")
@pytest.mark.parametrize(
    ("ending", "patience"),
    [
        # Here the runner itself waits for the end, so nothing may be left when it returns.
        pytest.param(by_cancelling, 0, id="stop"),
        pytest.param(by_wall_limit, 0, id="timeout"),
        pytest.param(by_term_of_the_driver, 0, id="sigterm"),
        pytest.param(by_kill_of_the_driver, PATIENCE_SECONDS, id="sigkill"),
    ],
)
@pytest.mark.parametrize("shape", TWELVE_SHAPES)
def test_nothing_survives(
    scene: Scene, shape: str, ending: Callable[[Scene, str], None], patience: float
) -> None:
    """However a program is ended, and however it resists, no process of it is left."""
    ending(scene, shape)
    assert scene.survivors_after(patience) == []


def test_there_are_twelve_shapes() -> None:
    """The table covers the number of shapes it promises."""
    assert len(TWELVE_SHAPES) == 12


@pytest.mark.parametrize("shape", ["daemon", "setsid_grandchild", "fork_chain"])
def test_a_group_kill_would_be_seen_to_leave_some(scene: Scene, shape: str) -> None:
    """The search for survivors finds those that a plain kill of the group leaves."""
    with subprocess.Popen(scene.argv(shape), env=scene.env, start_new_session=True) as process:
        asyncio.run(complete(scene, shape))
        os.killpg(process.pid, signal.SIGKILL)
    assert scene.survivors_after(0.2) != []
    assert sweep([scene.token]) > 0
    assert scene.survivors() == []


# ------------------------------------------------------------------------------ single matters


@pytest.mark.item("B10")
def test_what_a_program_leaves_ends_with_it(scene: Scene) -> None:
    """A program that exits at once is over at once, and its orphan is killed and counted."""
    end = asyncio.run(run_program(scene.program("leaves")))
    assert (end.how, end.code, end.survivors_killed) == ("exited", 7, 1)
    assert end.seconds < PATIENCE_SECONDS
    assert scene.survivors() == []


def test_a_program_that_kills_its_supervisor_ends(scene: Scene) -> None:
    """Without its supervisor a program is ended from the driver, and the end says so."""
    end = asyncio.run(run_program(scene.program("kills_its_supervisor")))
    assert (end.how, end.signal, end.problem) == ("signalled", 9, "supervisor-killed")
    assert scene.survivors() == []


def test_a_stopped_supervisor_still_obeys(scene: Scene) -> None:
    """A program cannot escape its limit by stopping the supervisor."""
    end = at_its_limit(scene, "stops_its_supervisor")
    assert (end.how, end.signal, end.error) == ("wall_timeout", signal.SIGTERM, None)
    assert scene.survivors() == []


@pytest.mark.item("B10")
def test_cancelling_twice_still_waits_for_the_end(scene: Scene) -> None:
    """A second cancellation does not make the runner leave before the tree is gone."""

    async def play() -> None:
        running = asyncio.create_task(run_program(scene.program("ignores_term")))
        await complete(scene, "ignores_term")
        running.cancel()
        await asyncio.sleep(0.02)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert scene.survivors() == []

    asyncio.run(play())


def test_a_willing_program_gets_its_grace(scene: Scene) -> None:
    """SIGTERM comes first: a program that reacts to it ends by it, before the grace is over."""
    end = at_its_limit(scene, "plain", grace_s=60)
    assert (end.how, end.signal) == ("wall_timeout", signal.SIGTERM)
    assert end.seconds < HOUR_S + 60


def test_an_unwilling_program_is_killed_after_its_grace(scene: Scene) -> None:
    """What ignores SIGTERM is killed when the grace is over, not before."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(run_program(scene.program("ignores_term", grace_s=0.4)))
        await complete(scene, "ignores_term")
        asked = loop.time()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert 0.4 <= loop.time() - asked < PATIENCE_SECONDS

    asyncio.run(play())
    assert scene.survivors() == []


@pytest.mark.item("inv-15")
def test_the_mark_is_that_of_the_supervisor(scene: Scene) -> None:
    """The start is reported with the process above the program, in a session of its own."""
    marks: list[ProcessMark] = []

    async def play() -> None:
        running = asyncio.create_task(run_program(scene.program("plain"), on_start=marks.append))
        await complete(scene, "plain")
        (program,) = (int(file.name) for file in scene.pids.iterdir())
        entry, above = read_entry(program), read_entry(marks[0].pid)
        assert entry is not None
        assert above is not None
        assert entry.ppid == above.pid == above.sid == entry.sid
        assert entry.pgid == program
        assert above.start == marks[0].start_ticks
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    assert len(marks) == 1


def test_the_supervisor_leaves_the_workspace_alone(scene: Scene) -> None:
    """Only the program is in the workspace: its directory may be deleted meanwhile."""
    marks: list[ProcessMark] = []

    async def play() -> None:
        running = asyncio.create_task(run_program(scene.program("plain"), on_start=marks.append))
        await complete(scene, "plain")
        assert os.readlink(f"/proc/{marks[0].pid}/cwd") == "/"
        scene.workspace.rmdir()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    assert scene.survivors() == []
