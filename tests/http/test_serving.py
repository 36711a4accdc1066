"""The life of a server as a process of its own: start, refusals, kill, restart, drain."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.main import main
from loopwright.cli.problems import problem_of
from loopwright.errors import LoopwrightError
from loopwright.http import server as serving_room
from loopwright.http.context import ServerOptions
from loopwright.http.server import announce, hold_lock, serve
from loopwright.operations.data_directory import ServerLockInfo, address_of
from loopwright.operations.settings import Settings
from loopwright.stores.sqlite.log import open_sqlite_log
from tests.cli.forks import Command, start_forked
from tests.http.served import SECONDS, Served, served, wait_for

COMMAND = [sys.executable, "-m", "loopwright"]


class Process:
    """`loopwright serve`, and a client for it. An interpreter of its own takes long to start."""

    def __init__(
        self, folder: Path, *args: str, token: str = "", own_interpreter: bool = False
    ) -> None:
        self.folder = folder
        self.said: list[str] = []
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOOPWRIGHT_")}
        env["LOOPWRIGHT_DURABILITY"] = "normal"
        words = ["serve", "--port", "0", "--data-dir", "home", *args]
        self.process: Command | subprocess.Popen[bytes]
        if own_interpreter:
            self.process = subprocess.Popen(
                [*COMMAND, *words],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        else:
            self.process = start_forked(words, env=env, cwd=folder)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode().rstrip())
            if line.startswith(b"serving "):
                break
        told = dict(line.partition(" ")[::2] for line in self.said)
        self.url = told.get("serving", "")
        client = Served.__new__(Served)
        client.port = int(self.url.rpartition(":")[2] or 0)
        client.folder = folder
        client.token = told.get("token:", token)
        client._kept, client._lines = threading.local(), []
        self.ask = client

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=SECONDS)
        self.ask.close()
        assert self.process.returncode is not None
        return self.process.returncode


@contextmanager
def serving(
    folder: Path, *args: str, token: str = "", own_interpreter: bool = False
) -> Iterator[Process]:
    one = Process(folder, *args, token=token, own_interpreter=own_interpreter)
    try:
        yield one
    finally:
        one.ask.close()
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=SECONDS)


def test_everyone_who_looks_finds_the_server_of_a_data_directory(tmp_path: Path) -> None:
    """Its address is told while it holds the home, the public one where it has one."""
    assert address_of(tmp_path) is None
    with hold_lock(tmp_path) as handle:
        assert address_of(tmp_path) is None  # just starting
        announce(handle, ServerLockInfo(pid=1, url="http://127.0.0.1:3001", version="0"))
        assert address_of(tmp_path) == "http://127.0.0.1:3001"
        public = "https://loops.example/"
        announce(
            handle, ServerLockInfo(pid=1, url="http://127.0.0.1:3001", version="0", public=public)
        )
        assert address_of(tmp_path) == "https://loops.example"
    assert address_of(tmp_path) is None


def refused(folder: Path, **how: Any) -> tuple[int, str]:
    """How a server that does not start leaves, and what it says."""
    settings = Settings(home=folder / "home", durability="normal")
    with pytest.raises(LoopwrightError) as error:
        serve(settings, ServerOptions(**how), lambda _: None)
    problem = problem_of(error.value)
    return problem.exit, "\n".join(problem.as_lines())


LASTING = """#!/bin/sh
trap '' TERM INT HUP
echo "pass $LOOPWRIGHT_ITERATION" >> "$1"
supervisor=${LOOPWRIGHT_SUPERVISOR%%:*}  # it lives as long as either of them
setsid sh -c 'echo $1 >> "$0"; exec sleep 600' "$1.pids" $supervisor &
echo $supervisor >> "$1.pids"
while [ ! -e "$1.go" ]; do sleep 0.2; done
echo said
"""


def lasting_agent(folder: Path, name: str) -> str:
    """An agent that heeds no signal and has a child in a session of its own; both would last for
    minutes, if nobody ended them.
    """
    script = folder / "lasting.sh"
    if not script.exists():
        script.write_text(LASTING)
        script.chmod(0o755)
    return f"command:{script} {folder / name}"


@pytest.fixture
def tidy(tmp_path: Path) -> Iterator[None]:
    """A test that fails leaves nobody behind either."""
    yield
    for pid in programs(tmp_path):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"lasting.sh" in line or line == b"sleep\x00600\x00":
                os.kill(pid, signal.SIGKILL)


def programs(folder: Path) -> list[int]:
    """The supervisors of agents in this folder, and of what those have started."""
    return [int(pid) for file in folder.glob("*.pids") for pid in file.read_text().split()]


def at_work(folder: Path, agents: int) -> list[int]:
    """The processes of so many agents, once they are all there."""
    wait_for(lambda: len(programs(folder)) == 2 * agents)
    found = programs(folder)
    assert all(map(is_alive, found))
    return found


def are_gone(pids: list[int]) -> None:
    """None of them lives any more. Who was killed just now may need a moment to be gone."""
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("G13", "inv-15")
def test_kill_and_restart(tmp_path: Path) -> None:
    """After `kill -9` the next start goes on with what ran and keeps what waits; the token, the
    gates and their ids are the same, passes that were made are not made again, and no program is
    left behind.
    """
    kill_and_restart(tmp_path, running=3, waiting=3)


@pytest.mark.deep
@pytest.mark.usefixtures("tidy")
@pytest.mark.item("G13")
def test_kill_and_restart_with_many(tmp_path: Path) -> None:
    """The same with fifty loops that run and fifty that wait."""
    kill_and_restart(tmp_path, running=50, waiting=50)


UNHURRIED = ("--rate", "10000")  # so many are asked about at once


def kill_and_restart(folder: Path, *, running: int, waiting: int) -> None:
    with serving(folder, *UNHURRIED) as first:
        ask = first.ask
        agent = ask.script(*["draft"] * 3)
        gated = [ask.start(ask.definition(agent, until={"person": True})) for _ in range(waiting)]
        for run in gated:
            ask.until(run, "waiting")
        going = [
            ask.start(ask.definition(lasting_agent(folder, f"{number}.txt")))
            for number in range(running)
        ]
        inbox = ask("GET", "/api/v1/gates").json
        assert len(inbox["gates"]) == waiting
        left = at_work(folder, running)
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
    with serving(folder, *UNHURRIED, token=ask.token) as second:
        are_gone(left)
        for number in range(running):
            (folder / f"{number}.txt.go").touch()
        assert not any(line.startswith("token:") for line in second.said)
        assert second.ask("GET", "/api/v1/gates").json == inbox
        for run in going:
            assert second.ask.until(run, "completed")["iterations"] == 3
        for run, gate in zip(gated, inbox["gates"], strict=True):
            reply = second.ask("POST", f"/api/v1/gates/{gate['id']}/approve", {})
            assert reply.status == 200, reply.body
            assert second.ask.until(run, "completed")["iterations"] == 1
        for number in range(running):
            passes = (folder / f"{number}.txt").read_text().splitlines()
            assert passes == ["pass 1", "pass 1", "pass 2", "pass 3"]  # what was under way, again
        assert second.end(signal.SIGTERM) == 0
    are_gone(programs(folder))


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("J1", "J11")
def test_one_server_that_drains(tmp_path: Path) -> None:
    """A second server is refused and told which process is the first. SIGTERM ends that one with
    0, and its programs with it.
    """
    with serving(tmp_path) as one:
        code, said = refused(tmp_path, port=0)
        assert code == 8
        assert f"process {one.process.pid} at {one.url}" in said
        held = json.loads((tmp_path / "home" / "server.json").read_text())
        assert (held["pid"], held["url"]) == (one.process.pid, one.url)
        one.ask.start(one.ask.definition(lasting_agent(tmp_path, "a.txt")))
        left = at_work(tmp_path, 1)
        began = time.monotonic()
        assert one.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < SECONDS  # its agents would take 300
        are_gone(left)


@contextmanager
def half_asked(ask: Served, body: bytes) -> Iterator[socket.socket]:
    """A request to start a run whose last byte has not come yet."""
    head = (
        f"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ask.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", ask.port), timeout=SECONDS) as line:
        line.sendall(head.encode() + body[:-1])
        assert ask("GET", "/healthz").status == 200  # so that one was taken before
        yield line


def is_draining(port: int) -> bool:
    """Whether nobody is let in any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
    except ConnectionError:
        return True
    return False


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("J11")
def test_draining(tmp_path: Path) -> None:
    """With several agents that heed no signal it ends in time and they with it; whoever asks for
    something new meanwhile is told to come back, and nothing of it is kept.
    """
    with serving(tmp_path) as one:
        ask = one.ask
        for number in range(4):
            ask.start(ask.definition(lasting_agent(tmp_path, f"{number}.txt")))
        left = at_work(tmp_path, 4)
        body = json.dumps({"definition": ask.definition(ask.script("late"))}).encode()
        with half_asked(ask, body) as line:
            began = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            wait_for(lambda: is_draining(ask.port))
            line.sendall(body[-1:])
            reply = http.client.HTTPResponse(line)
            reply.begin()
            told = json.loads(reply.read())
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert told["type"] == "urn:loopwright:problem:draining"
        one.process.communicate(timeout=SECONDS)
        assert one.process.returncode == 0
        assert time.monotonic() - began < SECONDS  # its agents would take 300
        are_gone(left)
    log = open_sqlite_log(tmp_path / "home" / "loopwright.db", alive=lambda _: True)
    assert len(log.rows()) == len(log.rows(statuses=("running",))) == 4
    log.close()


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("J11")
def test_a_second_signal(tmp_path: Path) -> None:
    """It leaves at once, with the number of the signal; programs end all the same."""
    with serving(tmp_path) as one:
        one.ask.start(one.ask.definition(lasting_agent(tmp_path, "a.txt")))
        left = at_work(tmp_path, 1)
        with half_asked(one.ask, b"{}"):
            one.process.send_signal(signal.SIGTERM)
            wait_for(lambda: is_draining(one.ask.port))
            assert one.process.poll() is None
            # Had it waited for the request, this would be 0.
            assert one.end(signal.SIGINT) == 128 + signal.SIGINT
        are_gone(left)


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("G13", "inv-15")
def test_what_another_process_leaves_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose driver was killed is taken up by the server that is there, without a restart; its
    programs are ended first.
    """
    monkeypatch.setattr(serving_room, "RESCUE_SECONDS", 0.05)
    with served(tmp_path) as own:
        command = [*COMMAND, "loop", "Do it.", "--max", "2", "--data-dir", "home", "--here"]
        command += ["--agent", lasting_agent(tmp_path, "a.txt")]
        driver = subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        left = at_work(tmp_path, 1)
        (listed,) = own("GET", "/api/v1/runs").json["runs"]
        time.sleep(0.2)  # it is looked at meanwhile, and left alone as long as it is driven
        assert all(map(is_alive, left))
        driver.kill()
        driver.wait(SECONDS)
        are_gone(left)
        (tmp_path / "a.txt.go").touch()
        assert own.until(listed["run"], "completed")["iterations"] == 2
    assert (tmp_path / "a.txt").read_text().split() == ["pass", "1", "pass", "1", "pass", "2"]


@pytest.mark.item("J4")
@pytest.mark.parametrize("content", [b"", b"some text" * 1_000], ids=["empty", "text"])
def test_a_database_that_is_none(tmp_path: Path, content: bytes) -> None:
    """It is refused with what looks closer and what helps, stays as it is, and the command that is
    named says what is wrong.
    """
    (tmp_path / "home").mkdir()
    place = tmp_path / "home" / "loopwright.db"
    place.write_bytes(content)
    code, said = refused(tmp_path, port=0)
    assert code == 1
    assert str(place) in said
    assert "`loopwright doctor`" in said
    assert "backup" in said
    assert place.read_bytes() == content
    looked = subprocess.run(
        [*COMMAND, "doctor", "--data-dir", "home"], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert looked.returncode == 1
    assert b"backup" in looked.stdout + looked.stderr
    assert place.read_bytes() == content


@pytest.mark.item("J6")
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The port is named, and the flag that chooses another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = refused(tmp_path, port=port)
    assert code == 1
    assert f"port {port}" in said
    assert "--port" in said


@pytest.mark.item("coqui-58")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach(tmp_path: Path, host: str) -> None:
    """Without people and TLS nothing but this machine is served, and the reason is told."""
    code, said = refused(tmp_path, port=0, host=host)
    assert code == 6
    assert "loopwright user add" in said
    assert "--tls-cert" in said


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][:1] not in ("Z", "X")


def test_answers_are_not_held_back() -> None:
    """The socket says that it speaks TCP: asyncio then sends the head and the body of an answer
    without waiting for acknowledgements in between.
    """
    with serving_room._listening(ServerOptions(port=0)) as (sock, _):
        assert sock.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(("args", "rate"), [((), 100), (("--rate", "5000"), 5_000)])
def test_the_rate_is_an_option(
    args: tuple[str, ...], rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many requests anybody may make in a second is said at the start."""
    found: list[ServerOptions] = []
    monkeypatch.setattr(serving_room, "serve", lambda _, how, __: found.append(how) or 0)
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--data-dir", str(tmp_path), *args])
    assert [how.limits.requests_per_second for how in found] == [rate]
