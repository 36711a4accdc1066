"""What is wrong with a request is told by status and code, whatever it asks for."""

import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.http import clients
from loopwright.http.context import RequestLimits
from loopwright.workers.background_tasks import NAME
from tests.http.served import SECONDS, Served, served

RUNS = "/api/v1/runs"
HEAD = "POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
POLLING = "/socket.io/?EIO=4&transport=polling"
NOBODY = "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"


def refused(server: Served, raw: bytes, **headers: str) -> tuple[int, str]:
    reply = server("POST", RUNS, raw=raw, headers=headers)
    return reply.status, reply.code


@pytest.mark.item("E1")
@pytest.mark.parametrize(
    ("raw", "kind", "expected"),
    [
        pytest.param(b"", "application/json", (400, "bad-json"), id="nothing"),
        pytest.param(b"{}", "text/plain", (415, "not-json"), id="text"),
        pytest.param(b"{}", "", (415, "not-json"), id="untold"),
        pytest.param(b"{", "application/json", (400, "bad-json"), id="broken"),
        pytest.param(b"{} x", "application/json", (400, "bad-json"), id="trailing"),
        pytest.param(b"[1]", "application/json", (422, "wrong-type"), id="no-object"),
        pytest.param(b"\xff\xfe", "application/json", (400, "bad-json"), id="no-utf8"),
    ],
)
def test_bodies(shared: Served, raw: bytes, kind: str, expected: tuple[int, str]) -> None:
    """A body that is missing, of another type, broken or followed by something is refused."""
    assert refused(shared, raw, **{"Content-Type": kind}) == expected


@pytest.mark.item("C5")
@pytest.mark.parametrize("sign", ["\0", "\x07", "\x1b", "\x7f", "\x9b"], ids=ascii)
@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        (RUNS, {"definition": "{}", "message": "a*b"}, "/message"),
        (RUNS, {"definition": "{}", "inputs": {"n": "*"}}, "/inputs/n"),
        (RUNS, {"definition": "{}", "inputs": {"n*": "1"}}, "/inputs"),
        ("/api/v1/gates/gate_x/continue", {"text": "a*"}, "/text"),
        ("/api/v1/hooks", {"name": "a", "stored": "b", "message": "*"}, "/message"),
        ("/v1/assistant/stream", {"messages": [{"role": "user", "content": "*"}]}, "/messages/0"),
        ("/api/agents/x/loop/start", {"message": "*"}, None),
        ("/api/v1/loops", {"definition": "harness", "goal": "a*b"}, None),
        ("/api/v1/loops/x/skip-stage", {"note": "*"}, None),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_control_characters(
    shared: Served, path: str, body: object, pointer: str | None, sign: str
) -> None:
    """What can be handed to no program or steers a terminal is refused with where it stands."""
    raw = json.dumps(body).replace("*", json.dumps(sign)[1:-1]).encode()
    reply = shared("POST", path, raw=raw)
    assert reply.status in (400, 422)
    assert b"control character" in reply.body
    assert f"U+{ord(sign):04X}".encode() in reply.body
    if pointer is not None and reply.headers["content-type"] == "application/problem+json":
        assert (reply.status, reply.code) == (422, "bad-character")
        assert reply.json["errors"][0]["pointer"].startswith(pointer)


def test_what_people_write_is_no_control_character(shared: Served) -> None:
    """Tabs, line ends of every kind and page breaks; and a definition has rules of its own."""
    text = shared.definition(shared.script("done"))
    run = shared.start(text, message="a\tb\r\nc\fd \u202e \U0001f600")
    assert run.startswith("run_")
    reply = shared("POST", RUNS, {"definition": "name: \0x"})
    assert (reply.status, reply.code) == (422, "bad-definition")
    assert reply.json["errors"][0]["code"] == "encoding"


@pytest.mark.item("E2")
@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"message": "a", "message": "b"}', id="key-twice"),
        pytest.param(b'{"inputs": {"n": NaN}}', id="nan"),
        pytest.param(b'{"inputs": {"n": -Infinity}}', id="infinity"),
        pytest.param(b'{"inputs": {"n": ' + b"9" * 100_000 + b"}}", id="endless-number"),
        pytest.param(b'{"inputs": {"n": 1e999}}', id="too-large-a-number"),
        pytest.param(b'{"inputs": {"n": [-1.5E+400]}}', id="too-small-a-number"),
        pytest.param(b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
        pytest.param(b'{"message": "\\ud800"}', id="half-a-sign"),
        pytest.param(b'{"inputs": {"\\uDC00": 1}}', id="half-a-sign-as-name"),
    ],
)
def test_json_is_strict(shared: Served, raw: bytes) -> None:
    """JSON that readers would understand in different ways is refused."""
    assert refused(shared, raw) == (400, "bad-json")


@pytest.mark.item("E3")
@pytest.mark.parametrize("path", ["", "/snapshot", "/events"])
@pytest.mark.parametrize("name", ["run_01m7hm7cdxadqad4hrfk6m1enb", "run_0", "last", "x", "'"])
def test_unknown_runs_look_alike(shared: Served, name: str, path: str) -> None:
    """An id that nobody has is not found, whatever it looks like; a part of one is none."""
    run, _ = shared.gated()
    assert shared("GET", f"{RUNS}/{run[:-1]}{path}").status == 404
    reply = shared("GET", f"{RUNS}/{name}{path}")
    assert (reply.status, reply.code) == (404, "not-found")


@pytest.mark.item("E4")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=0", 422),
        ("limit=-1", 422),
        ("limit=1000000000", 422),
        ("limit=abc", 422),
        ("limit=1&limit=2", 422),
        ("status=asleep", 422),
        ("cursor=abc", 400),
        ("cursor=AAAAAAAAAAAAcnVuczpydW5fMDE", 400),
        ("cursor=%00", 400),
        ("cursor=", 400),
    ],
)
def test_bad_pages(shared: Served, query: str, status: int) -> None:
    """Limits out of range and cursors that are not ours are refused."""
    reply = shared("GET", f"{RUNS}?{query}")
    assert reply.status == status
    assert status == 422 or reply.code == "bad-cursor"


def test_a_cursor_of_another_data_directory_is_refused(shared: Served, tmp_path: Path) -> None:
    """A cursor is good at the home where it was made, also after a restart, and nowhere else."""
    for _ in range(2):
        shared.gated()
    cursor = shared("GET", f"{RUNS}?limit=1").json["next"]
    assert shared("GET", f"{RUNS}?limit=1&cursor={cursor}").status == 200
    with served(tmp_path) as other:
        assert other("GET", f"{RUNS}?cursor={cursor}").code == "bad-cursor"


@pytest.mark.item("E5")
@pytest.mark.parametrize("name", ["x') OR '1'='1", "Status", "order", "%27"])
def test_unknown_filters(shared: Served, name: str) -> None:
    """A parameter that does not exist is refused, never passed over."""
    reply = shared("GET", f"{RUNS}?{name.replace(' ', '%20')}=1")
    assert (reply.status, reply.code) == (422, "unknown-filter")


@pytest.mark.item("E11")
def test_methods(shared: Served) -> None:
    """A wrong method is told which there are; an override header changes nothing."""
    reply = shared("DELETE", RUNS)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")
    overridden = shared("GET", RUNS, headers={"X-HTTP-Method-Override": "DELETE"})
    assert overridden.status == 200
    assert shared("HEAD", RUNS).body == b""


@pytest.mark.item("E12")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        pytest.param(RUNS, {"X-Long": "a" * 9_000}, 431, id="header"),
        pytest.param(f"{RUNS}?status={'a' * 100_000}", {}, 414, id="address"),
        pytest.param(f"{RUNS}?{'a=1&' * 1_000}", {}, 400, id="fields"),
    ],
)
def test_oversized(shared: Served, path: str, headers: dict[str, str], status: int) -> None:
    """Headers, addresses and parameters have a limit each."""
    assert shared("GET", path, headers=headers).status == status


def test_a_body_has_a_limit(tmp_path: Path) -> None:
    """More than the limit is refused, before it is read when it says so itself."""
    with served(tmp_path, limits=RequestLimits(body_bytes=100)) as one:
        assert refused(one, b'{"message": "' + b"a" * 100 + b'"}') == (413, "too-large")
        head = HEAD.format(port=one.port, token=one.token)
        told = one.plain(f"{head}Content-Length: 101\r\nConnection: close\r\n\r\n".encode())
        assert told.startswith(b"HTTP/1.1 413 ")
        chunked = "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        told = one.plain(f"{head}{chunked}65\r\n{'a' * 101}\r\n0\r\n\r\n".encode())
        assert told.startswith(b"HTTP/1.1 413 ")


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that waits for no body, and takes small ones."""
    limits = RequestLimits(body_seconds=0.2, body_bytes=100)
    with served(tmp_path_factory.mktemp("hurried"), limits=limits) as one:
        yield one


@pytest.mark.item("E13")
@pytest.mark.parametrize(
    ("method", "path"), [("POST", RUNS), ("POST", POLLING), ("GET", POLLING)], ids=str
)
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("Content-Length: 100\r\nContent-Type: application/json\r\n\r\n{", id="drips"),
        pytest.param("Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", id="endless"),
    ],
)
def test_a_slow_body_is_cut_off(hurried: Served, method: str, path: str, rest: str) -> None:
    """A body that does not come in time is answered with 408, and the connection is closed, on the
    line for sockets too, where nobody has said yet who they are.
    """
    head = NOBODY.format(method=method, path=path, port=hurried.port)
    if path == RUNS:
        head += f"Authorization: Bearer {hurried.token}\r\n"
    assert hurried.plain(f"{head}{rest}".encode()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        pytest.param("Content-Length: 101\r\n\r\n", 413, id="declared"),
        pytest.param(f"Transfer-Encoding: chunked\r\n\r\n65\r\n{'a' * 101}\r\n", 413, id="grows"),
        pytest.param("Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415, id="packed"),
    ],
)
def test_polling_takes_no_more_than_other_requests(hurried: Served, rest: str, status: int) -> None:
    """What is too large or packed is refused before anything of it is kept."""
    head = NOBODY.format(method="POST", path=POLLING, port=hurried.port) + "Connection: close\r\n"
    assert hurried.plain(f"{head}{rest}".encode()).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.item("E13")
@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127", b"again"])
def test_a_head_without_end_is_cut_off(
    shared: Served, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Who connects and never says what they want holds no place, neither at once nor later on."""
    if said != b"again":
        monkeypatch.setattr(clients, "HEADER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", shared.port), timeout=SECONDS) as line:
        if said == b"again":
            host = f"Host: 127.0.0.1:{shared.port}"
            line.sendall(f"GET /healthz HTTP/1.1\r\n{host}\r\n\r\n".encode())
            got = b""
            while b'"server":"ok"' not in got:
                piece = line.recv(4_000)
                assert piece, got
                got += piece
            monkeypatch.setattr(clients, "HEADER_SECONDS", 0.2)
        line.sendall(said)
        assert line.recv(1_000) == b""


@pytest.mark.item("E14")
@pytest.mark.parametrize("packing", ["gzip", "br", "GZIP, identity"])
def test_packed_bodies(shared: Served, packing: str) -> None:
    """Nothing is unpacked."""
    assert refused(shared, b"\x1f\x8b", **{"Content-Encoding": packing}) == (415, "packed-body")


@pytest.mark.item("E15", "F2")
@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "127.0.0.1:x", "", "localhost@evil", "[::1"],
)
def test_foreign_hosts(shared: Served, host: str) -> None:
    """A name that was made to point here is not ours, with or without an Origin of that name."""
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        reply = shared("GET", RUNS, headers=headers)
        assert (reply.status, reply.code) == (400, "bad-host")


@pytest.mark.item("E15")
@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n",
        "GET http://evil.example/healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n",
        "GET /healthz HTTP/1.1\r\n",
    ],
    ids=["two", "absolute", "none"],
)
def test_one_host_and_no_other(shared: Served, head: str) -> None:
    """Two hosts, none, and an address that names another are refused."""
    sent = head.format(port=shared.port) + "Connection: close\r\n\r\n"
    assert shared.plain(sent.encode()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_ours(shared: Served, host: str) -> None:
    """This machine has several names."""
    assert shared("GET", RUNS, headers={"Host": f"{host}:{shared.port}"}).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:1",
        "http://localhost",
        "file://",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_foreign_origins(shared: Served, method: str, origin: str) -> None:
    """A page of another site, or of another port of this machine, may not ask."""
    sent = {"Origin": origin.format(port=shared.port)}
    reply = shared(method, RUNS, headers=sent)
    assert (reply.status, reply.code) == (403, "foreign-origin")


def test_our_own_origin(shared: Served) -> None:
    """Pages of ours may ask."""
    for host in ("127.0.0.1", "localhost"):
        sent = {"Origin": f"http://{host}:{shared.port}", "Sec-Fetch-Site": "same-origin"}
        assert shared("GET", RUNS, headers=sent).status == 200


@pytest.mark.item("F4")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Content-Type": "application/json"}, 403),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_forms_of_other_sites(shared: Served, headers: dict[str, str], status: int) -> None:
    """What a page elsewhere can make a browser send is refused by where it comes from, and by
    what it is.
    """
    assert shared("POST", RUNS, raw=b'{"definition": "x"}', headers=headers).status == status


@pytest.mark.item("F5")
@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "api_key"])
def test_a_token_in_the_address(shared: Served, name: str) -> None:
    """A token in an address is refused, also a good one."""
    reply = shared("GET", f"{RUNS}?{name}={shared.token}", token="")
    assert (reply.status, reply.code) == (400, "secret-in-address")


SHAPES: dict[str, Callable[[Any], str]] = {
    "/api/v1/runs": lambda told: str(told["type"]).rpartition(":")[2],
    "/api/agents": lambda told: str(told["code"]) if told["success"] is False else "",
    "/api/v1/loops": lambda told: str(told["details"]["reason"]) if told["error"] else "",
    "/v1/runs/x/approvals": lambda told: str(told["error"]["code"]),
}


@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize(
    ("headers", "query", "status", "code"),
    [
        ({"Origin": "http://evil.example"}, "", 403, "foreign-origin"),
        ({"Host": "evil.example"}, "", 400, "bad-host"),
        ({}, "?token=x", 400, "secret-in-address"),
        ({}, f"?x={'y' * 20_000}", 414, "address-too-long"),
    ],
    ids=["origin", "host", "token", "long"],
)
def test_the_guard_speaks_as_each_family(
    shared: Served, path: str, headers: dict[str, str], query: str, status: int, code: str
) -> None:
    """What is refused before a route is asked has the shape of the routes there; it is counted."""

    def counted() -> int:
        text = shared("GET", "/metrics").body.decode()
        line = f'method="GET",family="guard",status="{status}"'
        return sum(int(one.rpartition(" ")[2]) for one in text.splitlines() if line in one)

    before = counted()
    reply = shared("GET", f"{path}{query}", headers=headers)
    assert (reply.status, SHAPES[path](reply.json)) == (status, code)
    assert counted() == before + 1


def test_the_guard_is_logged(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    """With the path that was asked for, and without what stood behind the question mark."""
    with caplog.at_level(logging.INFO, logger=NAME):
        reply = shared("GET", "/api/agents?token=secret-word")
    (entry,) = [one for one in caplog.records if getattr(one, "status", 0) == 400]
    told = vars(entry)
    assert (told["path"], told["request"]) == ("/api/agents", reply.headers["x-request-id"])
    assert "secret-word" not in str(told)


def test_what_a_problem_is_about(shared: Served) -> None:
    """A problem names what was asked for, and the request, as the log of the server has it."""
    for path in (f"{RUNS}/none", "/nothing", f"{RUNS}?limit=0"):
        reply = shared("GET", path)
        assert reply.json["instance"] == path.partition("?")[0]
        assert reply.json["trace_id"] == reply.headers["x-request-id"]
    refused = shared(
        "POST",
        "/socket.io/?EIO=4&transport=polling",
        raw=b"",
        headers={"Content-Length": "99999999"},
    )
    assert refused.json["trace_id"] == refused.headers["x-request-id"]


@pytest.mark.item("F14")
def test_headers_that_protect_pages(shared: Served) -> None:
    """No page of ours is shown inside of another, no type is guessed, nothing is told onwards."""
    for path in ("/healthz", RUNS, "/nothing", POLLING, "/socket.io/?EIO=9", "/socket.io/x"):
        told = shared("GET", path).headers
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert told["x-frame-options"] == "DENY"
        assert told["x-content-type-options"] == "nosniff"
        assert told["referrer-policy"] == "no-referrer"
        assert told["cache-control"] == "no-store"
        assert len(told["x-request-id"]) == 16
        assert "access-control-allow-origin" not in told
        assert "server" not in told


@pytest.mark.item("E16")
def test_forwarding_headers_mean_nothing(shared: Served) -> None:
    """What a request says about where it comes from is not believed."""
    claimed = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Host": "127.0.0.1",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=127.0.0.1;host=127.0.0.1",
    }
    assert shared("GET", RUNS, headers={**claimed, "Host": "evil.example"}).status == 400
    assert shared("GET", RUNS, token="", headers=claimed).status == 401
    assert shared("GET", RUNS, headers={**claimed, "Origin": "https://127.0.0.1"}).status == 403


@pytest.mark.item("E17")
@pytest.mark.parametrize("extra", [{"role": "admin"}, {"id": "run_1"}, {"by": "somebody"}])
def test_fields_that_nobody_may_set(shared: Served, extra: dict[str, str]) -> None:
    """A field that the request does not have is refused by its name."""
    reply = shared("POST", RUNS, {"definition": "x", **extra})
    assert (reply.status, reply.code) == (422, "unknown-field")
    assert reply.json["errors"][0]["pointer"] == f"/{next(iter(extra))}"


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"message": 1}, "/message", "wrong-type"),
        ({"agents": {"a": 1}}, "/agents/a", "wrong-type"),
        ({"parallel": 0}, "/parallel", "out-of-range"),
        ({"parallel": "2"}, "/parallel", "wrong-type"),
    ],
)
def test_fields_of_another_kind(
    shared: Served, body: dict[str, object], pointer: str, code: str
) -> None:
    """Nothing is turned into what it is not, and the place is told."""
    reply = shared("POST", RUNS, {"definition": "x", **body})
    assert (reply.status, reply.code) == (422, code)
    assert reply.json["errors"][0]["pointer"] == pointer


@pytest.mark.item("E18")
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs/..%2f..%2fhealthz",
        "/api/v1/runs/%2e%2e%2fruns",
        "/api/v1/runs%00",
        "/api/v1/runs/%00",
        "//api/v1/runs",
        "/api/v1//runs",
        "/api/v1/runs/",
        "/api/v1/runs.json",
        "/api/v1/runs/x%5cy",
        "/API/V1/RUNS",
        "/api/v1/runs/../runs",
    ],
)
def test_tricks_in_paths(shared: Served, path: str) -> None:
    """A path is what is written in the table, and nothing that could be taken for it."""
    assert shared("GET", path).status == 404


def test_problems_are_problems(shared: Served) -> None:
    """A refusal is RFC 9457, with a request id, and tells nothing of the inside."""
    reply = shared("GET", f"{RUNS}/none")
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.json) >= {"type", "title", "status", "detail"}
    assert reply.json["status"] == reply.status
    assert re.fullmatch(r"[0-9a-f]{16}", reply.headers["x-request-id"])
    assert str(shared.folder) not in json.dumps(reply.json)


@pytest.mark.parametrize("half", [r"\ud800", r"\uDC00 x", r"\ud800A"])
def test_half_a_character(shared: Served, half: str) -> None:
    """What cannot be written down is refused wherever it stands; both halves are a character."""
    for body in (f'{{"title": "{half}"}}', f'{{"{half}": 1}}', f'{{"a": [{{"b": "{half}"}}]}}'):
        reply = shared("POST", "/api/v1/sessions", raw=body.encode())
        assert (reply.status, reply.code) == (400, "bad-json")
    whole = shared("POST", "/api/v1/sessions", raw=rb'{"title": "\ud83d\ude00"}')
    assert (whole.status, whole.json["title"]) == (201, "\N{GRINNING FACE}")


def test_numbers_beyond_what_can_be_kept(shared: Served) -> None:
    """A number that no store holds is refused."""
    reply = shared("GET", f"/api/v1/audit?before={10**30}")
    assert (reply.status, reply.code) == (422, "out-of-range")
