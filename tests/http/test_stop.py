"""A run is stopped when none of its processes is left, and stopping until then."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopwright.agents.processes import supervise
from loopwright.agents.processes.process_tree import (
    RUN_VARIABLE,
    describe_processes,
    find_processes,
)
from loopwright.agents.processes.supervise import ProcessEntry, read_entry
from loopwright.operations.run_control import StopState, wait_until_stopped
from tests.http.served import Served, wait_for

pytestmark = pytest.mark.skipif(not supervise.HAS_TABLE, reason="needs /proc")

# A tree that ignores SIGTERM, forks, and leaves its session and its parent.
STUBBORN = """#!{python}
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note():
    open({folder!r} + "/pids", "a").write(str(os.getpid()) + "\\n")
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        note()
        break
else:
    note()
while True:
    time.sleep(0.05)
"""


def stubborn(folder: Path) -> Path:
    agent = folder / "stubborn.py"
    agent.write_text(STUBBORN.format(python=sys.executable, folder=str(folder)))
    agent.chmod(0o755)
    return agent


def processes_of(agent: Path) -> list[int]:
    """Living processes of this program, by their command lines."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if str(agent).encode() in line and b"bwrap" not in line:
                found.append(int(name))
    return found


@pytest.mark.item("bnd-srv-8")
def test_stop_over_http_answers_when_the_tree_is_gone(own: Served) -> None:
    """A tree that ignores SIGTERM, forks and leaves its session is gone when stop says stopped."""
    agent = stubborn(own.folder)
    run = own.start(own.definition(f"command:{agent}"))
    wait_for(lambda: len(noted(own.folder)) == 4)
    assert len(processes_of(agent)) >= 4
    reply = own("POST", f"/api/v1/runs/{run}/stop")
    assert (reply.status, reply.json["stop"], reply.json["processes"]) == (200, "stopped", [])
    assert processes_of(agent) == []
    assert reply.json["status"] == "cancelled"


def noted(folder: Path) -> list[str]:
    pids = folder / "pids"
    return pids.read_text().split() if pids.exists() else []


class Rows:
    """A log that says what a run's status is."""

    def __init__(self, status: str) -> None:
        self.status = status

    def row(self, _run: str) -> "Rows":
        return self

    @property
    def headline(self) -> "Rows":
        return self


def wait(status: str, run: str, seconds: float) -> StopState:
    rows = Rows(status)
    return asyncio.run(wait_until_stopped(rows, [run], seconds=seconds))  # type: ignore[arg-type]


@pytest.mark.item("bnd-srv-9")
def test_a_process_that_stays_is_named() -> None:
    """While one lives the run is stopping, though its log has ended; then it is stopped."""
    run = f"run_test_{os.getpid()}_{time.monotonic_ns()}"
    env = {**os.environ, RUN_VARIABLE: run}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    try:
        wait_for(lambda: find_processes([run]))
        state = wait("cancelled", run, 0.2)
        assert (state.word, state.pids) == ("stopping", [process.pid])
        assert f"{run} is stopping: process {process.pid}" in state.describe()
    finally:
        process.kill()
        process.wait()
    assert wait("cancelled", run, 5.0).word == "stopped"


def test_a_run_that_its_driver_has_not_ended_is_stopping() -> None:
    """No process is looked for before."""
    state = wait("running", "run_x", 0.1)
    assert (state.word, state.open_runs, state.pids) == ("stopping", ("run_x",), [])


@pytest.mark.item("bnd-srv-9")
def test_a_process_that_cannot_be_killed_is_explained() -> None:
    """One that waits for a device (state D) is named with the reason."""
    entry = read_entry(os.getpid())
    assert entry is not None
    stuck = ProcessEntry.__new__(ProcessEntry)
    stuck.pid, stuck.state = 41, b"D"
    assert describe_processes([stuck]) == ("process 41; 41 waits for a device and cannot be killed")
    assert describe_processes([entry, entry]).startswith("processes ")
