"""Processes that descend from a program of a run are recognised, whatever they do to hide it."""

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.agents.processes.process_tree import (
    UNKNOWN_PEER,
    InsideRun,
    find_inside_run,
    find_tcp_peer,
    find_unix_peer,
    list_descendants,
)
from loopwright.agents.processes.supervise import HAS_TABLE
from loopwright.agents.sandbox.bubblewrap import works

pytestmark = pytest.mark.skipif(not HAS_TABLE, reason="there is no process table to read")

PROBE = """
import dataclasses, json, os, sys
from loopwright.agents.processes.process_tree import find_inside_run
found = find_inside_run(environment=os.environ)
text = json.dumps(found and dataclasses.asdict(found))
with open(sys.argv[1] + ".part", "w") as file:
    file.write(text)
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""
OWN = {"LOOPWRIGHT_RUN": "run_1", "LOOPWRIGHT_AGENT": "coder", "LOOPWRIGHT_DEPTH": "2"}
DAEMON = "import os, sys\nfor _ in '12':\n    os.fork() and os._exit(0)\n    os.setsid()\n"
WAYS = {
    "plain": "{probe}",
    "without-variables": "env -i {probe}",
    "in-a-session-of-its-own": "env -i setsid -w {probe}",
    "in-the-background": "env -i nohup {probe} >/dev/null 2>&1 &",
    "as-a-daemon": "env -i {daemon} {probe}",
    "with-variables-of-another-run": "LOOPWRIGHT_RUN=run_2 LOOPWRIGHT_SUPERVISOR= {probe}",
}
BWRAP = "bwrap --bind / / --unshare-pid --dev /dev --proc /proc -- "


def run_in_shell(folder: Path, script: str, env: dict[str, str] | None = None) -> None:
    """Run a shell script as a program of a run, until a file with the result is there."""
    waits = f"{script}\nuntil test -e {folder}/found; do sleep 0.02; done"
    given = {"PATH": os.environ["PATH"], **(OWN if env is None else env)}
    program = ProgramStart(argv=("sh", "-c", waits), cwd=str(folder), env=given, wall_s=60)
    end = asyncio.run(run_program(program))
    assert end.code == 0, end


def probe_words(folder: Path) -> str:
    (folder / "probe.py").write_text(PROBE, encoding="utf-8")
    return shlex.join([sys.executable, str(folder / "probe.py"), str(folder / "found")])


def daemon_words(folder: Path) -> str:
    file = folder / "daemon.py"
    file.write_text(f"{DAEMON}os.execvp(sys.argv[1], sys.argv[1:])\n", encoding="utf-8")
    return shlex.join([sys.executable, str(file)])


@pytest.mark.item("bnd-p1")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("space", ["same", "own"], ids=["same-namespace", "own-namespace"])
def test_a_descendant_of_a_program_is_recognised(tmp_path: Path, way: str, space: str) -> None:
    """With its run and its agent, also without variables, as a daemon and in a namespace."""
    if space == "own" and works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {works()}")
    words = WAYS[way].format(probe=probe_words(tmp_path), daemon=daemon_words(tmp_path))
    if space == "own":
        inner = f"{words}\nuntil test -e {tmp_path}/found; do sleep 0.02; done"
        words = f"{BWRAP} sh -c {shlex.quote(inner)}"
    run_in_shell(tmp_path, words)
    found = json.loads((tmp_path / "found").read_text())
    expected = {"run": "run_1", "agent": "coder", "depth": 2, "sandboxed": space == "own"}
    if (way, space) == ("with-variables-of-another-run", "own"):
        expected.pop("run")  # its own variables are the nearest; all runs around it are known
        assert "run_1" in found["runs"]
    assert {name: found[name] for name in expected} == expected


def test_a_process_of_a_person_is_not_inside() -> None:
    """Nor is one whose variables are those of another program; a variable can only add."""
    assert find_inside_run() is None
    assert os.getpid() not in list_descendants()
    assert find_inside_run(environment={}) is None
    found = find_inside_run(environment=OWN)
    assert found == InsideRun(run="run_1", agent="coder", depth=2, runs=("run_1",))
    assert found.actor == "agent:coder of run_1"


@pytest.mark.parametrize(
    ("env", "actor"),
    [
        ({"LOOPWRIGHT_RUN": "run_1"}, "program of run_1"),
        ({}, "program of a run"),
        ({"LOOPWRIGHT_RUN": "run_1", "LOOPWRIGHT_DEPTH": "x" * 9}, "program of run_1"),
    ],
    ids=["check", "without-a-run", "bad-depth"],
)
def test_a_program_without_an_agent_is_named(
    tmp_path: Path, env: dict[str, str], actor: str
) -> None:
    """A check, a tool and a program whose supervisor was given no run are recognised too."""
    run_in_shell(tmp_path, probe_words(tmp_path), env)
    found = json.loads((tmp_path / "found").read_text())
    assert InsideRun(**{**found, "runs": tuple(found["runs"])}).actor == actor


# -- sockets ---------------------------------------------------------------------------------------

CONNECT = {
    "unix": """
import socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.recv(1)
""",
    "tcp": """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.recv(1)
""",
    "tcp6": """
import socket, sys
sock = socket.create_connection(("::1", int(sys.argv[1])))
sock.recv(1)
""",
}
GONE = """
import socket, sys, os
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
if os.fork():
    os._exit(0)
sock.recv(1)
"""


def listen(kind: str, folder: Path) -> tuple[socket.socket, str]:
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(folder / "socket"))
        address = str(folder / "socket")
    else:
        family = socket.AF_INET6 if kind == "tcp6" else socket.AF_INET
        sock = socket.socket(family)
        try:
            sock.bind(("::1" if kind == "tcp6" else "127.0.0.1", 0))
        except OSError:
            pytest.skip("there is no IPv6 here")
        address = str(sock.getsockname()[1])
    sock.listen()
    return sock, address


def look_up(connection: socket.socket, kind: str) -> InsideRun | None:
    if kind == "unix":
        return find_unix_peer(connection)
    return find_tcp_peer(connection.getpeername()[:2], connection.getsockname()[:2])


@pytest.mark.item("bnd-p2")
@pytest.mark.parametrize("kind", CONNECT)
def test_a_peer_inside_a_run_is_recognised(tmp_path: Path, kind: str) -> None:
    """By its process, while a peer of a person on the same socket is not."""
    found: list[InsideRun | None] = []
    sock, address = listen(kind, tmp_path)

    def serve() -> None:
        for _ in range(2):
            connection, _ = sock.accept()
            with connection:
                found.append(look_up(connection, kind))

    server = threading.Thread(target=serve)
    server.start()
    command = [sys.executable, "-c", CONNECT[kind], address]
    person = subprocess.Popen(command)  # also while a program of a run is under way
    person.wait(30)
    run_in_shell(tmp_path, f"env -i {shlex.join(command)}; touch found")
    server.join(30)
    sock.close()
    assert found[0] is None
    assert found[1] is not None
    assert found[1].actor == "agent:coder of run_1"


@pytest.mark.item("bnd-p2")
def test_a_peer_that_has_ended_is_not_taken_for_a_person(tmp_path: Path) -> None:
    """A process that connects, forks and ends leaves a connection of an unknown process."""
    sock, address = listen("unix", tmp_path)
    process = subprocess.Popen([sys.executable, "-c", GONE, address])
    process.wait(30)
    connection, _ = sock.accept()
    with connection, sock:
        assert find_unix_peer(connection) is UNKNOWN_PEER


def test_a_connection_that_was_closed_is_not_taken_for_a_person() -> None:
    """Its process can no longer be found. One from another machine is none of ours."""
    sock, address = listen("tcp", Path())
    with sock, socket.create_connection(("127.0.0.1", int(address))) as client:
        connection, peer = sock.accept()
        own = connection.getsockname()
        assert find_tcp_peer(peer, own) is None
        client.close()
        assert find_tcp_peer(peer, own) is UNKNOWN_PEER
        connection.close()
    assert find_tcp_peer(("192.0.2.7", 40_000), own) is None
