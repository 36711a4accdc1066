"""Invalid packets close the connection and leave nothing in memory."""

import base64
import contextlib
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopwright.http import socket_transport as packet_module
from loopwright.http.context import UNIDENTIFIED_BYTES
from loopwright.http.socket_endpoint import Sockets
from loopwright.http.socket_transport import MAX_UNIDENTIFIED, BadPacket, check_packet, split_body
from tests.http.served import SECONDS, Served, served, wait_for
from tests.http.test_serving import serving

POLLING = "/socket.io/?EIO=4&transport=polling"
PLAIN = {"Content-Type": "text/plain"}
MB = 1_000_000
NESTED = b'42["x",' + b"[" * 200_000
BAD: list[bytes | str] = [
    "",
    "x",
    "0{}",
    "2",
    "2probe",
    "5",
    "6",
    "7",
    "9" * 100,
    "4",
    "49",
    "4x",
    '42["loop:stop",{}]',
    '42["x",' + "[" * 10_000,
    "43[]",
    "431[]",
    "41",
    "44{}",
    '451-["x",{"_placeholder":true,"num":0}]',
    '459999999999-["x"]',
    "461-[]",
    "40/other,{}",
    "40/" + "n" * 10_000,
    "40" + "x" * UNIDENTIFIED_BYTES,
    "b" + base64.b64encode(b"x" * 100).decode(),
    "b!!!",
    b"\x04\xff\xfe",
    b"",
]


@pytest.mark.item("bnd-srv-1")
@pytest.mark.parametrize("packet", BAD, ids=[f"{number}" for number in range(len(BAD))])
def test_packets_without_a_token_are_refused(packet: bytes | str) -> None:
    """Without a token a client may connect in a small packet, answer a ping and leave."""
    with pytest.raises(BadPacket):
        check_packet(packet, identified=False)


@pytest.mark.parametrize("packet", ["1", "3", "40", '40{"token":"x"}'])
def test_packets_to_connect_are_accepted(packet: str) -> None:
    """Connecting is open to everybody; who connects is checked afterwards."""
    check_packet(packet, identified=False)


@pytest.mark.parametrize(
    ("packet", "good"),
    [
        ('42["x",{}]', True),
        ('4217["x",{}]', True),
        ("41", True),
        ("431[]", True),
        ("40", False),
        ("44{}", False),
        ('451-["x",{"_placeholder":true,"num":0}]', False),
        ("461-[]", False),
        ('42/other,["x"]', False),
        ("bAAAA", False),
        (b"\x00", False),
    ],
)
def test_packets_with_a_token(packet: str | bytes, good: bool) -> None:
    """Events in the default namespace are accepted; attachments and namespaces are not."""
    if good:
        check_packet(packet, identified=True)
        return
    with pytest.raises(BadPacket):
        check_packet(packet, identified=True)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"4\x1e" * 17], ids=["utf-8", "many"])
def test_bodies_that_cannot_be_split_are_refused(body: bytes) -> None:
    """A body is text of at most 16 packets."""
    with pytest.raises(BadPacket):
        split_body(body)


def session(server: Served) -> str:
    """A new session over polling; its address."""
    begun = server("GET", POLLING, token="")
    return f"{POLLING}&sid={json.loads(begun.body[1:])['sid']}"


def sessions(server: Served) -> int:
    return int(server.call(lambda: len(server.context.part(Sockets).line._server.eio.sockets)))


@pytest.mark.item("bnd-srv-1")
@pytest.mark.parametrize(
    "body",
    [b'42["x"]', b"\xff" * 99, NESTED[:9_000], b"451-[]", b"x" * MB, b"4\x1e" * 40],
    ids=["event", "utf-8", "nested", "attachments", "large", "many"],
)
def test_a_bad_body_closes_its_session(shared: Served, body: bytes) -> None:
    """The request is refused, and the session is unknown afterwards."""
    line = session(shared)
    assert shared("POST", line, raw=body, token="", headers=PLAIN).status in (400, 413)
    assert shared("GET", line, token="").status == 400


@pytest.mark.parametrize("more", ["&j=1", "&sid=a&sid=b"])
def test_odd_queries_are_refused(shared: Served, more: str) -> None:
    """JSONP and repeated parameters are not accepted."""
    assert shared("GET", POLLING + more, token="").status == 400


def test_a_session_is_polled_once_at_a_time(shared: Served) -> None:
    """A second poll closes the session, so one session holds one connection."""
    line = session(shared)
    head = f"GET {line} HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", shared.port), timeout=SECONDS) as one:
        one.sendall(head)
        wait_for(lambda: shared("GET", line, token="").status == 400)
        # Which of the two polls came second is not decided by the order in which they were sent.
        assert one.recv(1_000).startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))


@pytest.mark.item("bnd-srv-2")
def test_sessions_without_a_token_are_bounded(shared: Served) -> None:
    """The oldest ones are closed for new ones."""
    first = session(shared)
    for _ in range(MAX_UNIDENTIFIED + 20):
        session(shared)
    assert sessions(shared) <= MAX_UNIDENTIFIED
    assert shared("GET", first, token="").status == 400


# -- WebSockets ------------------------------------------------------------------------------------


class WebSocket:
    """A client that sends any frame it likes."""

    def __init__(self, port: int, more: str = "") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        head = (
            f"GET /socket.io/?EIO=4&transport=websocket{more} HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        self.sock.sendall(head.encode())
        self.got = b""
        wanted = b"\r\n\r\n" if more else b'"sid"'
        while wanted not in self.got:
            self.got += self.sock.recv(65_536)

    def __enter__(self) -> "WebSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def frame(self, payload: bytes, opcode: int = 1) -> None:
        """Send a frame; its mask is zero, so the payload is as it is."""
        size = len(payload)
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | (size if size < 126 else 127))
        self.sock.sendall(head + (struct.pack("!Q", size) if size >= 126 else b"") + bytes(4))
        self.sock.sendall(payload)

    def is_closed(self) -> bool:
        """Whether the server closes: a close frame, or the end of the connection."""
        try:
            while piece := self.sock.recv(65_536):
                self.got = self.got[-100:] + piece
                if re.search(rb"\x88[\x02-\x7d]", self.got):
                    return True
        except ConnectionError:
            return True
        return True


FRAMES = [
    (b'42["x"]', 1),
    (NESTED[:MB], 1),
    (b"40" + b"x" * (MB - 10), 1),
    (b'459-["x",{"_placeholder":true,"num":0}]', 1),
    (b"\x00" * (MB - 10), 2),
    (b"\xff" * 1_000, 1),
    (b"", 1),
    (b"40/" + b"n" * 100_000, 1),
    (b"b" + b"A" * (MB - 10), 1),
    (b"x" * (MB + 10), 1),
]


@pytest.mark.item("bnd-srv-1")
@pytest.mark.parametrize(("payload", "opcode"), FRAMES, ids=[str(one) for one in range(10)])
def test_a_bad_frame_closes_the_socket(shared: Served, payload: bytes, opcode: int) -> None:
    """The WebSocket is closed, and its session is gone."""
    before = sessions(shared)
    with WebSocket(shared.port) as line:
        try:
            line.frame(payload, opcode)
        except ConnectionError:
            return
        assert line.is_closed()
    wait_for(lambda: sessions(shared) <= before)


@pytest.mark.parametrize("upgrade", [False, True], ids=["connect", "upgrade"])
def test_a_handshake_that_never_ends_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: bool
) -> None:
    """A WebSocket that neither sends a token nor completes its upgrade is closed in time."""
    monkeypatch.setattr(packet_module, "HANDSHAKE_SECONDS", 0.2)
    with served(tmp_path) as own:
        more = session(own).partition("&transport=polling")[2] if upgrade else ""
        with WebSocket(own.port, more) as line:
            if upgrade:
                line.frame(b"2probe")
            assert line.is_closed()
        wait_for(lambda: sessions(own) == 0)


# -- memory ----------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Resident memory in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _bodies() -> Iterator[bytes]:
    """Bodies of 1 MB, each bad in another way."""
    kinds = [
        b'42["x","' + b"y" * MB,
        b'42["x",' + b"[" * MB,
        b'459999999-["x",{"_placeholder":true,"num":0}]' + b" " * MB,
        b"b" + b"A" * MB,
        b"\xff" * MB,
        b"40/" + b"n" * MB,
        b"4\x1e" * (MB // 2),
        b"2" * MB,
    ]
    while True:
        yield from (one[:MB] for one in kinds)


def _post(server: Served, body: bytes, number: int) -> None:
    """Every second body is chunked, so that its size is not known before."""
    line = session(server)
    size = f"Content-Length: {len(body)}" if number % 2 else "Transfer-Encoding: chunked"
    sent = body if number % 2 else b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    head = (
        f"POST {line} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: text/plain\r\n"
        f"{size}\r\nConnection: close\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as sock,
        contextlib.suppress(ConnectionError),  # closed before the end
    ):
        sock.sendall(head.encode() + sent)
        sock.recv(1_000)


def _frame(server: Served, body: bytes, number: int) -> None:
    with WebSocket(server.port) as line, contextlib.suppress(ConnectionError):
        line.frame(body[: MB - 1], 1 + number % 2)
        line.is_closed()


@pytest.mark.item("bnd-srv-2")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("send", [_post, _frame], ids=["polling", "websocket"])
@pytest.mark.parametrize("packets", [120, pytest.param(1_000, marks=pytest.mark.deep)])
def test_memory_stays_flat_under_bad_packets(
    tmp_path: Path, send: Callable[[Served, bytes, int], None], packets: int
) -> None:
    """The resident memory of a server grows by less than 10 % over many packets of 1 MB."""
    bodies = _bodies()
    with serving(tmp_path) as one:
        for number in range(packets * 2 // 5):
            send(one.ask, next(bodies), number)
        before = resident(one.process.pid)
        for number in range(packets):
            send(one.ask, next(bodies), number)
        after = resident(one.process.pid)
        assert one.ask("GET", "/healthz").status == 200
    assert after < 1.1 * before, (before, after)
