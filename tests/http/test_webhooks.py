"""Webhooks: which addresses may be told, what they are told, and what happens when they do not
listen.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import GateOpened, RunFinished
from loopwright.operations.accounts.access import Access
from loopwright.operations.outgoing_requests import Target, check_url, is_public, send
from loopwright.ports import Append
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from loopwright.testing import FakeClock
from loopwright.workers.webhooks import DELIVERY, TRIES_S, WebhookDeliveries
from tests.contracts.event_log_suite import headline
from tests.http.served import Served

WORLD = "93.184.216.34"


def nowhere(_host: str, _port: int) -> list[str]:
    return [WORLD]


@pytest.mark.item("H1")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
    ],
)
def test_this_machine_is_no_receiver(shared: Served, host: str) -> None:
    """Loopback is refused in whatever way it is written."""
    reply = shared("POST", "/api/v1/webhooks", {"url": f"http://{host}/x"})
    assert (reply.status, reply.code) == (422, "private-address")
    assert shared("GET", "/api/v1/webhooks").json == {"webhooks": [], "next": None}


@pytest.mark.item("H2")
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "100.64.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fd00::1",
        "fe80::1",
        "224.0.0.1",
        "ff02::1",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "0.0.0.0",
        "::",
        "::ffff:10.0.0.1",
        "255.255.255.255",
        "2001::1",
        "198.18.0.1",
    ],
)
def test_networks_that_are_not_the_world(address: str) -> None:
    """Addresses of a network, of a cloud's inside and of groups are refused, also in disguise."""
    assert not is_public(address)
    with pytest.raises(LoopwrightError) as error:
        check_url("https://hooks.example/x", lambda *_: [WORLD, address])
    assert error.value.code == "private-address"


@pytest.mark.parametrize("address", [WORLD, "2606:2800:220:1:248:1893:25c8:1946", "8.8.8.8"])
def test_the_world_is_the_world(address: str) -> None:
    """A public address is a receiver, and is the one that is connected to."""
    target = check_url("https://hooks.example/a?b=1", lambda *_: [address])
    assert (target.host, target.port, target.path) == ("hooks.example", 443, "/a?b=1")
    assert target.address == address


@pytest.mark.item("H5")
@pytest.mark.parametrize(
    "url",
    [
        "gopher://a.example/",
        "file:///etc/passwd",
        "https://u:p@a.example/",
        "https://u@a.example/",
        "https://a.example:22/",
        "https://a.example/#x",
        "https:///x",
        "https://a.example:99999/",
        "https://a.example/\n",
        "https://a.example\\@b/",
        "ftp://a.example/",
        "x",
        "",
        "https://a.example/" + "x" * 3000,
    ],
)
def test_odd_addresses(shared: Served, url: str) -> None:
    """Other schemes, credentials, ports and fragments are refused."""
    reply = shared("POST", "/api/v1/webhooks", {"url": url})
    assert (reply.status, reply.code) == (422, "bad-url")


class World:
    """A log, a clock, hooks, and a receiver that answers as it is told to."""

    def __init__(self, log: SqliteLog) -> None:
        self.log, self.clock = log, FakeClock(1_000_000)
        self.hooks = WebhookDeliveries(log, log, Access(log, self.clock), self.clock)
        self.hooks.resolve = nowhere
        self.answers: list[int | Exception] = []
        self.got: list[tuple[Target, dict[str, str], bytes]] = []

    def send(self, target: Target, headers: dict[str, str], body: bytes) -> int:
        self.got.append((target, headers, body))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver(self) -> int:
        self.hooks.notice()
        return asyncio.run(self.hooks.deliver_due(self.send))

    def finish(self, run: str = "run_a") -> None:
        """A run that asked and ended."""
        now = self.clock.now_ms()
        events = [
            GateOpened(
                at=now,
                path="main.0",
                gate="gate_1",
                digest="d",
                message="secret words",
                answers=("approve",),
            ),
            RunFinished(at=now, outcome="completed", reason="approved", output="secret output"),
        ]
        first = Append(run=run, expected=0, events=events, headline=headline())
        asyncio.run(self.log.append(first))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    log = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    yield World(log)
    log.close()


@pytest.mark.item("inv-19")
def test_what_happened_is_reported_once_and_signed(world: World) -> None:
    """Each event is told under an id of its own, signed as the standard says, without any words of
    agents; what was delivered is not told again, also after a restart.
    """
    hook = world.hooks.add("https://hooks.example/in", ["gate.opened", "run.finished"], by="ann")
    world.finish()
    world.deliver()
    assert len(world.got) == 2
    for _, headers, body in world.got:
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(hook.secret.removeprefix("whsec_"))
        mac = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        assert b"secret" not in body
    told = {json.loads(body)["type"]: json.loads(body)["data"] for _, _, body in world.got}
    assert told["gate.opened"]["gate"] == "gate_1"
    assert told["run.finished"]["outcome"] == "completed"
    assert len({headers["webhook-id"] for _, headers, _ in world.got}) == 2
    again = World(world.log)
    assert again.deliver() == 0


@pytest.mark.item("H6", "inv-19")
def test_who_does_not_listen_is_reported_again(world: World) -> None:
    """A receiver that fails, is busy, hangs or redirects is tried again later and later under the
    same id, ten times; then it is given up and the reason is kept. The page says how long it takes.
    """
    hours = math.ceil(sum(TRIES_S) / 3_600)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
    assert page.count(f"ten times within {hours} hours") == 2
    world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
    world.finish()
    world.answers = [500, 429, TimeoutError(), 302, ConnectionRefusedError(), *[503] * 9]
    for wait_s in (*TRIES_S[1:], 0):
        assert world.deliver() == 1
        assert world.deliver() == 0
        world.clock.elapse(wait_s * 1_000)
    assert len(world.got) == len(TRIES_S)
    assert len({headers["webhook-id"] for _, headers, _ in world.got}) == 1
    (hook,) = world.hooks.all()
    assert (hook.active, hook.problem) == (True, "it failed 10 times")
    assert world.log.records(DELIVERY) == []


@pytest.mark.item("H6")
def test_who_is_gone_is_reported_no_more(world: World) -> None:
    """410 ends it."""
    world.hooks.add("https://hooks.example/in", ["gate.opened", "run.finished"], by="ann")
    world.finish()
    world.answers = [410]
    world.deliver()
    assert len(world.got) == 1
    assert world.hooks.all()[0].active is False
    world.finish("run_b")
    assert world.deliver() == 0


@pytest.mark.item("H3")
def test_a_name_that_turns_inwards(world: World) -> None:
    """A name that was public when it was saved and is not when something is sent gets nothing."""
    world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
    world.finish()
    world.hooks.resolve = lambda *_: ["127.0.0.1"]
    assert world.deliver() == 1
    assert world.got == []


def test_nothing_of_before_is_reported(world: World) -> None:
    """A webhook is told what happens from now on."""
    world.finish("run_old")
    world.clock.elapse(1_000)
    hook = world.hooks.add("https://hooks.example/in", ["run.finished"], by="ann")
    assert world.deliver() == 0
    world.hooks.remove(hook.id, by="ann")
    world.finish("run_new")
    assert world.deliver() == 0


class Receiver(BaseHTTPRequestHandler):
    """Somebody who is told, and sends on."""

    seen: list[tuple[str, str]] = []

    def do_POST(self) -> None:
        self.seen.append((self.path, self.headers["Host"]))
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", "http://127.0.0.1:1/inside")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.item("H3", "H4")
def test_a_redirect_is_not_followed() -> None:
    """The connection goes to the address that was looked at, under its name; where the answer
    points to nobody goes.
    """
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        target = Target(
            scheme="http", host="hooks.example", port=port, path="/in?a=1", address="127.0.0.1"
        )
        assert send(target, {"webhook-id": "x"}, b"{}") == 307
        assert Receiver.seen == [("/in?a=1", f"hooks.example:{port}")]
    finally:
        server.shutdown()
        server.server_close()
