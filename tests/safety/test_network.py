"""Agents without a network: whomever they call, nobody is reached, and it is on record."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.specs import Spec, unfit_agent
from loopwright.errors import LoopwrightError
from loopwright.model.plan import Agent
from loopwright.operations.agents.tool_grants import grant_of
from loopwright.tools.mcp.server_records import HttpServer
from tests.cli.conftest import Place, lw, until
from tests.tools.boxes import Room, inside
from tests.tools.test_servers import http

__all__ = ["lw"]
held = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)

CALLS = """
import socket, sys
port, told = int(sys.argv[1]), []
names = ["localhost", "github.com", "github.com.evil", "127.0.0.1", "2130706433", "8.8.8.8", "::1"]
if "--near" in sys.argv:  # nobody waits for names that are not there
    names = ["127.0.0.1"]
for name in names:
    try:
        socket.create_connection((name, port if name not in ("github.com",) else 443), 2).close()
        told.append(f"{name}: reached")
    except OSError as error:
        told.append(f"{name}: denied")
data = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\6secret\\4evil\\0\\0\\1\\0\\1"
for server in ("127.0.0.1", "8.8.8.8"):  # a secret as a question for a name
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(data, (server, port))
        told.append(f"dns {server}: sent")
    except OSError as error:
        told.append(f"dns {server}: denied")
print("; ".join(told))
sys.exit(1 if "--fail" in sys.argv else 0)
"""


class Ears:
    """A machine outside: everything that reaches it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.tcp.getsockname()[1])
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        for one, listen in ((self.tcp, self._accept), (self.udp, self._receive)):
            one.settimeout(0.2)
            threading.Thread(target=listen, daemon=True).start()
        self.open = True

    def _accept(self) -> None:
        self._each(lambda: self.tcp.accept()[0].close(), "tcp")

    def _receive(self) -> None:
        self._each(lambda: self.udp.recv(100), "udp")

    def _each(self, once: Any, word: str) -> None:
        while True:
            try:
                once()
                self.heard.append(word)
            except TimeoutError:
                continue
            except OSError:
                return

    def close(self) -> None:
        self.tcp.close()
        self.udp.close()


@contextmanager
def ears() -> Iterator[Ears]:
    one = Ears()
    try:
        yield one
    finally:
        one.close()


def definition(folder: Path, port: int, options: dict[str, Any], more: str = "") -> str:
    (folder / "calls.py").write_text(CALLS)
    agent = {"use": f"command:{sys.executable} calls.py {port}{more}", "options": options}
    value = {"name": "n", "agents": {"a": agent}, "agent": "a", "goal": "Go.", "repeat": {"max": 1}}
    (folder / "net.json").write_text(json.dumps(value))
    return "net.json"


@held
@pytest.mark.item("H10")
def test_a_program_without_a_network(lw: Place) -> None:
    """By name, by a name like another, by address in any writing, by a question to a name server:
    nothing gets out, and what was tried is in the events of the run. With a network it would.
    """
    with ears() as outside:
        said = lw("run", definition(lw.folder, outside.port, {"network": "none"}), "--json").json
        assert "reached" not in said["output"]
        assert said["output"].count("denied") >= 8
        assert outside.heard == []
        events = lw("events", said["run"]).out
        assert "github.com.evil: denied" in events
        lw("run", definition(lw.folder, outside.port, {}, " --near"), "--json")
        until(lambda: "tcp" in outside.heard)


@held
@pytest.mark.item("H10")
def test_commands_of_a_model_without_a_network(tmp_path: Path) -> None:
    """The same for what a chat model starts; it is told why, so that it does not guess."""
    allow = {"commands": {"allow": [Path(sys.executable).name]}}
    agent = Agent(tools=("shell.exec",), options={**allow, "network": "none"})
    grant = grant_of(agent, {})
    assert grant.commands.offline
    with ears() as outside:
        argv = [Path(sys.executable).name, "calls.py", str(outside.port), "--fail"]

        async def play(room: Room) -> str:
            (room.work / "calls.py").write_text(CALLS)
            return (await room.box(grant).run("shell.exec", {"argv": list(argv)})).text

        folder = str(Path(sys.executable).parent)
        told = json.loads(inside(tmp_path, play, PATH=f"{folder}:/usr/bin:/bin"))
        assert "reached" not in told["stdout"]
        assert told["note"] == "programs of this agent have no network"
        assert outside.heard == []


class Sends(BaseHTTPRequestHandler):
    """A server of tools that sends its callers on to another host."""

    to = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", self.to)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.item("H10")
def test_a_server_that_sends_on(tmp_path: Path) -> None:
    """A call to a server of the settings goes to that host alone, wherever its answer points, and
    the run is told that the server cannot be used.
    """
    with ears() as outside:
        server = HTTPServer(("127.0.0.1", 0), Sends)
        Sends.to = f"http://127.0.0.1:{outside.port}/mcp"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:

            async def play(room: Room) -> tuple[str, ...]:
                return (await room.box(http(server.server_address[1])).specs()).problems

            [said] = inside(tmp_path, play)
        finally:
            server.shutdown()
            server.server_close()
        assert "cannot be used" in said
        assert outside.heard == []


def test_who_cannot_be_without_a_network() -> None:
    """Coding CLIs and servers need one, a list of hosts means nothing: all told before the run."""
    offline = Agent(options={"network": "none"})
    assert "needs a network" in str(unfit_agent(Spec(kind="claude"), offline))
    hosts = Agent(options={"network": ["github.com"]})
    assert "none or full" in str(unfit_agent(Spec(kind="command"), hosts))
    servers = {"bench": HttpServer(url="https://a.example/mcp")}
    with pytest.raises(LoopwrightError) as error:
        grant_of(Agent(tools=("bench.add",), options={"network": "none"}), servers)
    assert error.value.code == "bad-tool"


def test_without_a_sandbox_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing could keep a program from the network, it is refused."""
    monkeypatch.setattr(bubblewrap, "works", lambda: "bwrap is not there")
    problem = unfit_agent(Spec(kind="command"), Agent(options={"network": "none"}))
    assert "bwrap is not there" in str(problem)
