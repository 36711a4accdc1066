"""A machine without file descriptors or processes: runs wait for them and do not fail."""

import json
import os
import resource
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from loopwright.agents.calls import not_started
from loopwright.agents.program_files import cannot_start
from loopwright.engine.effects import defect
from loopwright.kernel.effects import MOST_SHORTAGES, SHORTAGE, parked_until
from loopwright.kernel.event_parts import Failure
from loopwright.ports import EffectFailure
from tests.http.served import wait_for
from tests.http.test_serving import Process, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.mark.item("bnd-srv-10")
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (24, "waiting for file descriptors"),
        (23, "waiting for file descriptors"),
        (11, "waiting for processes"),
        (12, "waiting for memory"),
    ],
    ids=["EMFILE", "ENFILE", "EAGAIN", "ENOMEM"],
)
def test_a_shortage_is_a_failure_of_the_host(number: int, words: str) -> None:
    """It is recognised when a program starts and anywhere else in an effect, and named."""
    started = not_started(str(cannot_start(number, "/bin/agent")))
    other = defect(OSError(number, os.strerror(number)))
    assert isinstance(other, EffectFailure)
    for failure in (started, other.error):
        assert failure.type == SHORTAGE
        assert failure.detail.startswith(words)


@pytest.mark.parametrize("number", [2, 13, 28])
def test_other_errors_are_no_shortage(number: int) -> None:
    """A missing file, a missing right and a full disk fail as before."""
    other = defect(OSError(number, os.strerror(number)))
    assert isinstance(other, EffectFailure)
    assert other.error.type == "internal"


@pytest.mark.item("bnd-srv-10")
def test_waits_for_the_host_grow_and_are_bounded() -> None:
    """One second at first, a minute at most, for more than a day."""
    failure = Failure(type=SHORTAGE, detail="waiting for processes")
    waits = [parked_until(failure, parks=parks, now=0) for parks in range(MOST_SHORTAGES + 1)]
    assert waits[:8] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert waits[-1] is None
    assert sum(one or 0 for one in waits) > 86_400_000


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def take_descriptors(server: Process) -> tuple[int, int]:
    """Leave a server no descriptor beyond those it has; the limits before."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    held = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(held, highest + 1), before[1]))
    return before


def give_descriptors(server: Process, before: tuple[int, int]) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.item("bnd-srv-10")
def test_a_run_waits_for_descriptors_and_continues(tmp_path: Path) -> None:
    """The start of its agent is repeated; neither an attempt nor an iteration is used up. `ls` and
    `show` say what the run waits for.
    """
    gate, agent = tmp_path / "go", tmp_path / "agent.sh"
    agent.write_text(f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\necho worked\n")
    agent.chmod(0o755)
    with serving(tmp_path) as server:
        text = server.ask.definition(f"command:{agent}")
        run = server.ask.start(text.replace('"max": 3', '"max": 2'))
        before = take_descriptors(server)
        try:
            gate.touch()  # the first iteration ends, the second cannot start
            log = tmp_path / "home" / "loopwright.db"
            wait_for(lambda: b"waiting for file descriptors" in stored(log))
            views = [shown("ls", folder=log.parent), shown("show", run, folder=log.parent)]
        finally:
            give_descriptors(server, before)
        ended = server.ask.until(run, "completed", "exhausted", "failed")
        told = server.ask("GET", f"/api/v1/runs/{run}/events").body.decode().splitlines()
    events = [json.loads(line[6:]) for line in told if line.startswith("data: ")]
    failed = [one["error"]["type"] for one in events if one["kind"] == "effect.failed"]
    assert SHORTAGE in failed
    for view in views:
        assert "running (waiting for file descriptors)" in view
    assert set(failed) <= {SHORTAGE, "snapshot"}  # a snapshot that fails is left out
    assert (ended["status"], ended["reason"]) == ("completed", "max_iterations")
    assert max(one.get("iteration") or 0 for one in events) == 2


def shown(*words: str, folder: Path) -> str:
    """What a command of a person prints."""
    command = [sys.executable, "-m", "loopwright", *words, "--data-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def stored(log: Path) -> bytes:
    """What is on disk, without opening the database."""
    parts = [log, log.with_name(f"{log.name}-wal")]
    return b"".join(one.read_bytes() for one in parts if one.exists())


@pytest.mark.item("bnd-srv-11")
def test_a_server_without_descriptors_neither_spins_nor_ends(tmp_path: Path) -> None:
    """It uses little processor time while it cannot accept, and answers when it can again."""
    with serving(tmp_path) as server:
        assert server.ask("GET", "/healthz").status == 200
        before = take_descriptors(server)
        lines: list[socket.socket] = []
        try:
            address = ("127.0.0.1", server.ask.port)
            used = processor_seconds(server.process.pid)
            lines = [socket.create_connection(address, timeout=5) for _ in range(20)]
            time.sleep(3)
            spent = processor_seconds(server.process.pid) - used
        finally:
            give_descriptors(server, before)
            for line in lines:
                line.close()
        wait_for(lambda: server.ask("GET", "/healthz").status == 200)
    assert spent < 1.5


NPROC = """
import asyncio, os, resource, sys
from loopwright.agents.calls import failure_of
from loopwright.agents.processes.process import ProgramStart, run_program

async def main():
    if os.getuid() == 0:
        os.setuid(65534)  # root has no limit
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    end = await run_program(ProgramStart(argv=("/bin/true",), cwd="/", env={"PATH": "/bin"}))
    print(end.how, failure_of(end).type, failure_of(end).detail.partition(":")[0], sep="|")

asyncio.run(main())
"""


@pytest.mark.item("bnd-srv-10")
def test_a_shortage_of_processes_is_recognised(tmp_path: Path) -> None:
    """With no process left for an ordinary user, a program is not started, and that is said."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NPROC)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "not_started|host_shortage|waiting for processes", done.stderr
