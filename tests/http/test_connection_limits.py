"""Clients without a token that are many, slow or wordy: others are still answered."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from loopwright.http import clients
from loopwright.http.clients import ConnectionLimits, TimedConnection
from tests.http.served import SECONDS, Served, served
from tests.http.test_invalid_packets import WebSocket

IDLE = b""
SLOW_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-One: 1\r\n"
SLOW_BODY = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server with few connections."""
    monkeypatch.setattr(clients, "MAX_CONNECTIONS", 24)
    monkeypatch.setattr(clients, "MAX_FROM_ADDRESS", 16)
    with served(tmp_path) as one:
        yield one


@pytest.mark.item("bnd-srv-12")
@pytest.mark.parametrize("sent", [IDLE, SLOW_HEAD, SLOW_BODY], ids=["idle", "head", "body"])
@pytest.mark.parametrize(("near", "most"), [(1, 16), (9, 24)], ids=["one-address", "nine"])
def test_slow_connections_give_way_to_a_request(
    small: Served, sent: bytes, near: int, most: int
) -> None:
    """However many connections are held open, a client that asks is answered; the oldest go."""
    words = sent % small.port if sent == SLOW_BODY else sent
    with contextlib.ExitStack() as stack:
        lines = []
        for number in range(60):
            line = connect(small, f"127.0.0.{1 + number % near}")
            lines.append(stack.enter_context(line))
            with contextlib.suppress(ConnectionError):
                line.sendall(words)
        assert small("GET", "/healthz").status == 200
        assert sum(is_open(line) for line in lines) <= most


def connect(server: Served, near: str = "127.0.0.1") -> socket.socket:
    there = ("127.0.0.1", server.port)
    return socket.create_connection(there, timeout=SECONDS, source_address=(near, 0))


def send_for_ever(line: socket.socket, data: bytes) -> None:
    """Send until it fails; at most 60 MB."""
    for _ in range(60_000_000 // len(data)):
        line.sendall(data)


def is_open(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def connection(address: str, state: object, since: float = 0.0) -> Any:
    """A connection as the limits see it."""
    one = TimedConnection.__new__(TimedConnection)
    one.client = (address, 1)
    one.conn = SimpleNamespace(their_state=state)  # type: ignore[assignment]
    one.idle_since = since
    one.dropped = False  # type: ignore[attr-defined]
    one.drop = lambda: setattr(one, "dropped", True)  # type: ignore[method-assign]
    return one


@pytest.mark.item("bnd-srv-12")
def test_a_connection_is_refused_when_all_others_are_being_answered() -> None:
    """Nobody who is being answered is cut off for somebody new."""
    limits = ConnectionLimits()
    busy = [connection(f"10.0.0.{number}", h11.DONE) for number in range(limits.total)]
    new = connection("10.0.1.1", h11.IDLE)
    assert not limits.make_room(new, [*busy, new])
    assert not any(one.dropped for one in busy)


def test_the_connection_that_is_idle_for_longest_is_closed() -> None:
    """Idle ones go before those that still send a body."""
    limits = ConnectionLimits()
    sending = connection("10.0.0.1", h11.SEND_BODY, since=1.0)
    old, young = (connection("10.0.0.1", h11.IDLE, since=at) for at in (5.0, 6.0))
    busy = [connection("10.0.0.1", h11.DONE) for _ in range(limits.from_address - 3)]
    new = connection("10.0.0.1", h11.IDLE, since=9.0)
    assert limits.make_room(new, [sending, young, old, *busy, new])
    assert (sending.dropped, young.dropped, old.dropped) == (False, False, True)


@pytest.mark.parametrize(("proxies", "room"), [((), False), (("10.0.0.0/24",), True)])
def test_a_trusted_proxy_is_limited_in_total_only(proxies: tuple[str, ...], room: bool) -> None:
    """Everybody behind a proxy comes from its address."""
    limits = ConnectionLimits(proxies)
    busy = [connection("10.0.0.1", h11.DONE) for _ in range(limits.from_address)]
    new = connection("10.0.0.1", h11.IDLE)
    assert limits.make_room(new, [*busy, new]) is room


def test_few_descriptors_mean_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the descriptors are left for files and programs."""
    monkeypatch.setattr(clients.resource, "getrlimit", lambda _: (100, 100))
    limits = ConnectionLimits()
    assert (limits.total, limits.from_address) == (50, 37)


@pytest.mark.item("bnd-srv-12")
@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"X-%d: %s\r\n" % (number, b"y" * 90) for number in range(10_000)) + b"X: y",
        b"X: " + b"y" * 1_000_000,
        b"\r\n".join([b"X: y"] * 2_000),
    ],
    ids=["many", "long", "same"],
)
def test_a_flood_of_headers_closes_the_connection(shared: Served, flood: bytes) -> None:
    """Headers beyond the limit are refused, and nothing more is read."""
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % shared.port
    with connect(shared) as line:
        got = b""
        with contextlib.suppress(ConnectionError):
            line.sendall(head + flood + b"\r\nConnection: close\r\n\r\n")
            while piece := line.recv(65_536):
                got += piece
    assert got == b"" or got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert shared("GET", "/healthz").status == 200


def test_a_body_that_continues_after_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who was refused cannot hold the connection by sending on."""
    monkeypatch.setattr(clients, "HEADER_SECONDS", 0.3)
    with served(tmp_path) as own, connect(own) as line:
        head = SLOW_BODY % own.port
        line.sendall(head.replace(b"Content-Length: 100", b"Content-Length: 100000000"))
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")
        with pytest.raises(ConnectionError):
            send_for_ever(line, b"x" * 1_000)


@pytest.mark.item("bnd-srv-2")
def test_pings_whose_answers_no_client_reads_are_not_piled_up(shared: Served) -> None:
    """The server reads no further while its answers are not read."""
    with WebSocket(shared.port) as line:
        line.sock.settimeout(1.0)
        ping = bytes([0x89, 0x80 | 125]) + bytes(4) + b"x" * 125
        with pytest.raises((TimeoutError, ConnectionError)):
            send_for_ever(line.sock, ping * 1_000)
