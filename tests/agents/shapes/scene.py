"""A place where shapes are started and looked for. Looks into /proc with code of its own."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from loopwright.agents.processes.process import ProgramStart
from loopwright.agents.program_files import SWEEP_VARIABLE

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "src"

# Shape -> how many processes it is when complete. Twelve of them.
TWELVE_SHAPES = {
    "plain": 1,
    "ignores_term": 2,
    "daemon": 2,
    "setsid_grandchild": 3,
    "nohup": 2,
    "holds_stdout": 2,
    "fork_chain": 3,
    "stopped": 2,
    "orphans": 4,
    "prints_endlessly": 2,
    "new_group": 2,
    "empty_environment": 2,
}


def read(pid: str, name: str) -> bytes:
    try:
        return Path("/proc", pid, name).read_bytes()
    except OSError:
        return b""


def birth(pid: str) -> str:
    """When a process started; empty if there is none, or only what is left of a dead one."""
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return fields[19].decode() if fields and fields[0] not in (b"Z", b"X") else ""


class Scene:
    """One test's shapes, told from all other processes by a token."""

    def __init__(self, folder: Path) -> None:
        self.token = f"shape-{uuid.uuid4().hex}"
        self.workspace = folder / "workspace"
        self.pids = folder / "pids"
        self.workspace.mkdir()
        self.pids.mkdir()
        self._seen: dict[str, str] = {}

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], SWEEP_VARIABLE: self.token}

    def argv(self, shape: str) -> tuple[str, ...]:
        file = str(HERE / "shape.py")
        return (sys.executable, "-I", "-S", file, shape, self.token, str(self.pids))

    def program(
        self, shape: str, *, wall_s: float | None = None, grace_s: float = 0.2
    ) -> ProgramStart:
        return ProgramStart(
            argv=self.argv(shape),
            cwd=str(self.workspace),
            env=self.env,
            wall_s=wall_s,
            grace_s=grace_s,
        )

    def driver(self, shape: str) -> tuple[list[str], Mapping[str, str]]:
        """Command line and environment of a driver process that runs a shape."""
        command = [sys.executable, str(HERE / "driver.py"), str(self.workspace)]
        return [*command, *self.argv(shape)], {**self.env, "PYTHONPATH": str(SOURCES)}

    def registered(self) -> int:
        """How many processes of the shape have said that they are there."""
        for file in self.pids.iterdir():
            if file.name not in self._seen:
                self._seen[file.name] = birth(file.name)
        return len(self._seen)

    def survivors(self) -> list[str]:
        """Processes of this scene that live: by token in command line or environment, by pid.

        A chain of short-lived ones may slip through a look at /proc, but it goes on registering.
        """
        known = self.registered()
        token = self.token.encode()
        found = {
            pid
            for pid in filter(str.isdigit, os.listdir("/proc"))
            if birth(pid) and (token in read(pid, "cmdline") or token in read(pid, "environ"))
        }
        found |= {pid for pid, born in self._seen.items() if born and birth(pid) == born}
        time.sleep(0.01)
        fresh = [] if self.registered() == known else ["new ones keep coming"]
        return fresh + sorted(f"{pid} {read(pid, 'comm').decode().strip()}" for pid in found)

    def survivors_after(self, seconds: float) -> list[str]:
        """Who is left when all had so much time to go; returns as soon as nobody is."""
        deadline = time.monotonic() + seconds
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def wait_for(self, count: int) -> None:
        """Wait until so many processes have said that they are there."""
        deadline = time.monotonic() + 20
        while self.registered() < count:
            assert time.monotonic() < deadline, f"only {self.registered()} of {count} came up"
            time.sleep(0.005)

    def clear(self) -> None:
        """End what a failed test has left; the rest ends by itself after its lifetime."""
        for survivor in self.survivors():
            pid = survivor.split()[0]
            if pid.isdigit():
                os.kill(int(pid), signal.SIGKILL)
