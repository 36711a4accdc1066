"""Processes that descend from a program of a run are recognised, whatever they do to hide it."""

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from itertools import count, repeat
from pathlib import Path

import pytest

from loopwright.agents.processes import process_tree
from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.agents.processes.process_tree import (
    UNKNOWN_PEER,
    InsideRun,
    find_inside_run,
    find_unix_peer,
    list_descendants,
)
from loopwright.agents.processes.supervise import HAS_TABLE, PROCESS_NAME, ProcessEntry
from loopwright.agents.processes.tcp_peer import find_tcp_peer
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


def entry(pid: int, parent: int, start: int, name: bytes = b"program") -> ProcessEntry:
    return ProcessEntry(pid, name, [b"S", str(parent).encode(), *[b"0"] * 17, str(start).encode()])


@pytest.mark.item("bnd-p1")
@pytest.mark.parametrize("is_moving", [True, False], ids=["ended", "hidden"])
def test_a_process_whose_parent_is_missing_is_that_of_a_person_only_if_it_keeps_its_parent(
    monkeypatch: pytest.MonkeyPatch, *, is_moving: bool
) -> None:
    """`/proc` can hide the processes of other users. A program can have its ancestors end one
    after the other: then it has another one whenever it is looked at.
    """
    parents = count(500_000) if is_moving else repeat(500_000)

    def read(pid: int) -> ProcessEntry | None:
        return entry(pid, next(parents), 7) if pid == 4_000 else None

    monkeypatch.setattr(process_tree, "read_entry", read)
    monkeypatch.setattr(process_tree, "read_entries", lambda: iter([entry(4_000, 499_999, 7)]))
    assert find_inside_run(4_000) is (UNKNOWN_PEER if is_moving else None)
    assert list_descendants() == ({4_000} if is_moving else set())


@pytest.mark.item("bnd-p1")
def test_a_number_that_was_used_again_does_not_hide_what_a_process_descends_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parent ended, and a later process outside of runs has the number."""
    top = entry(2_000, 0, 1, PROCESS_NAME)
    listed = [top, entry(4_000, 3_999, 7), entry(3_999, 0, 9)]
    now = {one.pid: one for one in (*listed, entry(4_000, 2_000, 7))}
    monkeypatch.setattr(process_tree, "read_entries", lambda: iter(listed))
    monkeypatch.setattr(process_tree, "read_entry", now.get)
    monkeypatch.setattr(process_tree, "_is_supervisor", lambda one: one.name == PROCESS_NAME)
    assert list_descendants() == {2_000, 4_000}
