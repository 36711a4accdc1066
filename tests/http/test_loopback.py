"""Webhooks on one machine: a server lets them go to itself when it is told to, and nowhere else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations import outgoing_requests
from loopwright.operations.outgoing_requests import check_url, is_loopback
from loopwright.operations.settings import SettingsSources, load_settings
from loopwright.operations.webhooks import is_signed
from tests.http.served import Served, served, wait_for

BASE = "/api/v1/webhooks"


class Receiver:
    """A program on this machine that is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({name.lower(): v for name, v in self.headers.items()}, body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that may tell this machine."""
    more = {"webhooks_to_loopback": "on"}
    with served(tmp_path_factory.mktemp("near"), more=more) as one:
        yield one


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver whose port is one of those that may be told."""
    one = Receiver()
    monkeypatch.setattr(
        outgoing_requests, "ALLOWED_PORTS", {*outgoing_requests.ALLOWED_PORTS, one.port}
    )
    yield one
    one.server.shutdown()
    one.server.server_close()


OTHERS = [
    "10.0.0.1",
    "10.255.255.255",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "::",
    "fd00::1",
    "fe80::1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "::ffff:10.0.0.1",
    "224.0.0.1",
]


@pytest.mark.parametrize("address", OTHERS)
def test_nothing_else_is_let_in(address: str) -> None:
    """Private networks, those of clouds, and loopback in disguise stay closed; a name that is
    loopback and something else too.
    """
    assert not is_loopback(address)
    for found in ([address], ["127.0.0.1", address], [address, "::1"]):
        with pytest.raises(LoopwrightError) as refused:
            check_url("http://x/", lambda *_, found=found: found, loopback=True)
        assert refused.value.code == "private-address"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_let_in_when_it_may(address: str) -> None:
    """Only then; ports and schemes stay those that they are."""

    def found(*_: object) -> list[str]:
        return [address]

    assert check_url("http://localhost:8080/x", found, loopback=True).address == address
    with pytest.raises(LoopwrightError) as refused:
        check_url("http://localhost:8080/x", found)
    assert refused.value.code == "private-address"
    with pytest.raises(LoopwrightError) as refused:
        check_url("http://localhost:22/x", found, loopback=True)
    assert refused.value.code == "bad-url"


def test_over_http(near: Served, shared: Served) -> None:
    """The server that may takes this machine and no other network; another one neither."""
    for url, status in (("http://127.0.0.1:8080/", 201), ("http://10.0.0.1/", 422)):
        assert near("POST", BASE, {"url": url}).status == status
        assert shared("POST", BASE, {"url": url}).status == 422
    assert near("POST", BASE, {"url": "http://169.254.169.254/"}).code == "private-address"
    for hook in near("GET", BASE).json["webhooks"]:
        near("DELETE", f"{BASE}/{hook['id']}")


def test_it_is_reported_on_this_machine(near: Served, receiver: Receiver) -> None:
    """A try and what happens, both signed; a receiver that fails is told with its answer."""
    made = near("POST", BASE, {"url": f"http://127.0.0.1:{receiver.port}/x"}).json
    tried = near("POST", f"{BASE}/{made['id']}/test")
    assert (tried.status, tried.json["status"], tried.json["delivered"]) == (200, 200, True)
    headers, body = receiver.got[0]
    assert json.loads(body)["type"] == "webhook.test"
    given = tuple(headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    assert given[0] == tried.json["id"]
    assert is_signed(made["secret"], given, body, near.context.clock.now_ms())  # type: ignore[arg-type]
    _, gate = near.gated()
    wait_for(lambda: len(receiver.got) > 1)
    assert json.loads(receiver.got[1][1])["data"]["gate"] == gate
    receiver.status = 500
    failed = near("POST", f"{BASE}/{made['id']}/test").json
    assert (failed["status"], failed["delivered"]) == (500, False)
    assert failed["problem"] == "it answers with 500"
    receiver.server.shutdown()
    receiver.server.server_close()
    silent = near("POST", f"{BASE}/{made['id']}/test").json
    assert (silent["status"], silent["delivered"]) == (None, False)
    assert "does not answer" in silent["problem"]
    near("DELETE", f"{BASE}/{made['id']}")
    assert near("POST", f"{BASE}/{made['id']}/test").status == 404


def test_a_try_at_what_may_not_be_reported(near: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that has turned inwards since is refused at the try, too."""
    made = near("POST", BASE, {"url": "http://127.0.0.1:8080/"}).json
    monkeypatch.setattr(near.context.webhooks, "resolve", lambda *_: ["10.0.0.1"])
    told = near("POST", f"{BASE}/{made['id']}/test").json
    assert told["delivered"] is False
    assert "not an address out in the world" in told["problem"]


def test_the_setting(tmp_path: Path) -> None:
    """It is off until somebody says otherwise."""
    nobody = SettingsSources(env={}, cwd=tmp_path, user_file=tmp_path / "none")
    assert load_settings(place=nobody).settings.webhooks_to_loopback == "off"
    env = {"LOOPWRIGHT_WEBHOOKS_TO_LOOPBACK": "on"}
    told = SettingsSources(env=env, cwd=tmp_path, user_file=tmp_path / "none")
    assert load_settings(place=told).settings.webhooks_to_loopback == "on"


def test_it_is_reported_at_the_start(tmp_path: Path) -> None:
    """Whoever starts a server with it sees so; without it there is nothing to see."""
    for flags, said in (["--webhooks-to-loopback"], True), ([], False):
        started = subprocess.Popen(
            [sys.executable, "-m", "loopwright", "serve", "--port", "0", *flags],
            env={"HOME": str(tmp_path), "LOOPWRIGHT_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert started.stderr is not None
            lines = []
            for line in iter(started.stderr.readline, ""):
                lines.append(line)
                if line.startswith("serving"):
                    break
        finally:
            started.kill()
            started.communicate()
        assert any("webhooks may go to this machine" in line for line in lines) is said
