"""What is left after the driver and its supervisors were killed is ended by the next start."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.agents.processes.process_marks import (
    ProcessMark,
    boot_id,
    process_mark,
    sweep,
    sweep_marks,
    this_process,
)
from loopwright.agents.program_files import SWEEP_VARIABLE
from tests.agents.shapes.scene import TWELVE_SHAPES, Scene

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene that is cleared up when a test failed to."""
    scene = Scene(tmp_path)
    yield scene
    scene.clear()


def kill_driver_and_supervisor(scene: Scene, shape: str) -> ProcessMark:
    """Run a shape under a driver, then kill both above it; the supervisor's mark."""
    command, env = scene.driver(shape)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid, start, boot = driver.stdout.readline().split()
        scene.wait_for(TWELVE_SHAPES[shape])
        # Stopped first, so that neither can react to the death of the other.
        os.kill(int(pid), signal.SIGSTOP)
        driver.kill()
        driver.wait()
        os.kill(int(pid), signal.SIGKILL)
    return ProcessMark(int(pid), int(start), boot)


# The others end without their supervisor: by its death, by a closed pipe, or, when stopped, by the
# hang-up that the system sends to a group without parents.
LEAVING_SHAPES = [
    "ignores_term",
    "daemon",
    "setsid_grandchild",
    "nohup",
    "holds_stdout",
    "fork_chain",
    "orphans",
    "new_group",
]


@pytest.mark.item("B10", "inv-15")
@pytest.mark.parametrize("shape", LEAVING_SHAPES)
def test_the_token_leads_to_what_is_left(scene: Scene, shape: str) -> None:
    """All processes that carry the token of a dead driver are ended, and counted."""
    kill_driver_and_supervisor(scene, shape)
    assert scene.survivors() != [], "nothing is left, so the test would show nothing"
    assert sweep([scene.token]) > 0
    assert scene.survivors() == []
    assert sweep([scene.token]) == 0


@pytest.mark.item("B10", "inv-15")
@pytest.mark.parametrize("shape", [*LEAVING_SHAPES, "empty_environment"])
def test_the_mark_leads_to_what_is_left(scene: Scene, shape: str) -> None:
    """All processes below a recorded supervisor are ended, even one without an environment."""
    mark = kill_driver_and_supervisor(scene, shape)
    assert scene.survivors() != [], "nothing is left, so the test would show nothing"
    assert sweep_marks([mark]) > 0
    assert scene.survivors() == []
    assert sweep_marks([mark]) == 0


def test_a_living_supervisor_is_swept_with_its_tree(scene: Scene) -> None:
    """A supervisor that is stopped and cannot end its tree goes with it."""
    command, env = scene.driver("plain")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline().split()[0])
        scene.wait_for(1)
        os.kill(pid, signal.SIGSTOP)
        driver.kill()
    # The stopped supervisor and the program below it.
    assert sweep([scene.token]) == 2
    assert scene.survivors() == []


def test_others_are_spared(scene: Scene) -> None:
    """Processes of other drivers, and those without a token, are not touched."""
    sleeper = ["sleep", "60"]
    tokens = ["", "other", f"{scene.token}-longer", scene.token[:-1]]
    others = [
        subprocess.Popen(sleeper, env={**os.environ, SWEEP_VARIABLE: token}) for token in tokens
    ]
    others.append(subprocess.Popen(sleeper))
    try:
        assert sweep([scene.token, ""]) == 0
        assert sweep([]) == 0
        assert [other.poll() for other in others] == [None] * len(others)
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_reused_pid_is_spared() -> None:
    """A mark whose pid now belongs to another process ends nobody."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        real = process_mark(other.pid)
        assert real is not None
        outdated = [
            ProcessMark(real.pid, real.start_ticks - 1, real.boot_id),
            ProcessMark(real.pid, real.start_ticks + 1, real.boot_id),
        ]
        for mark in (*outdated, ProcessMark(real.pid, real.start_ticks, "an earlier boot")):
            assert sweep_marks([mark]) == 0
        assert other.poll() is None
        assert sweep_marks([real]) == 1
        assert other.wait() == -signal.SIGKILL


def test_the_sweeper_spares_itself_and_its_parents() -> None:
    """A driver that was started by an agent does not end itself with the agent's leftovers."""
    code = (
        "import subprocess, sys\n"
        "from loopwright.agents.processes.process_marks import sweep, sweep_marks\n"
        "from loopwright.agents.processes.process_marks import this_process\n"
        "beside = subprocess.Popen(['sleep', '60'])\n"
        "print(sweep(['outer']), beside.wait(), sweep_marks([this_process()]))\n"
    )
    sources = str(Path(__file__).resolve().parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": sources, SWEEP_VARIABLE: "outer"}
    said = subprocess.run([sys.executable, "-c", code], env=env, stdout=-1, check=True).stdout
    assert said.split() == [b"1", b"-9", b"0"]


def test_marks_without_a_start_time_are_ignored() -> None:
    """A mark from a system without /proc could mean anybody."""
    assert sweep_marks([ProcessMark(os.getpid(), 0, boot_id())]) == 0
    assert sweep_marks([]) == 0
    assert this_process().start_ticks > 0
