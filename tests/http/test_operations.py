"""What those who run a server look at: health, figures, the description of the API."""

import io
import json
import logging
import re
import socket
from pathlib import Path

import pytest

from loopwright.errors import StorageError
from loopwright.http.route_table import FAMILIES, describe
from loopwright.workers.background_tasks import LOWER, LOWEST, NAME, log_to
from tests.http.served import Served

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def test_the_description_is_current() -> None:
    """docs/reference/openapi.json is what the server tells (`make docs` renews it)."""
    assert json.loads(PAGE.read_text(encoding="utf-8")) == json.loads(
        json.dumps(describe(FAMILIES))
    )


def test_the_description_is_whole(shared: Served) -> None:
    """Every route is in it, every reference leads somewhere, and every operation has a name."""
    told = shared("GET", "/openapi.json").json
    assert told["openapi"] == "3.1.0"
    listed = {(path, method) for path, one in told["paths"].items() for method in one}
    assert listed == {(r.path, r.method.lower()) for f in FAMILIES for r in f.routes}
    names = [one["operationId"] for path in told["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))
    schemas = set(told["components"]["schemas"])
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(told))) <= schemas


def test_figures(own: Served) -> None:
    """Requests by family and status, runs by status, gates."""
    own.gated()
    own("GET", "/api/v1/runs/none")
    reply = own("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    assert 'loopwright_requests_total{method="GET",family="runs",status="404"} 1' in text
    assert 'loopwright_runs{status="waiting"} 1' in text
    assert "loopwright_gates 1" in text
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) .*|[a-z_]+(\{[^}]*\})? [0-9.e+-]+", line), line


@pytest.mark.item("E20")
def test_a_database_that_is_gone(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the data cannot be read, requests get 503 and when to come back, and health names the
    part without telling a path.
    """

    def broken(*_: object, **__: object) -> None:
        raise StorageError(f"{own.folder}: reading or writing the disk failed", code="io")

    assert own("GET", "/readyz").json == {
        "status": "ready",
        "parts": {"database": "ok", "server": "ok"},
    }
    monkeypatch.setattr(type(own.context.here.log), "rows", broken)
    reply = own("GET", "/api/v1/runs")
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert reply.headers["content-type"] == "application/problem+json"
    assert str(own.folder) not in reply.body.decode()
    ill = own("GET", "/healthz")
    assert (ill.status, ill.json["parts"]["database"]) == (503, "io")


def silent() -> None:
    """The log as tests have it."""
    for name in (NAME, LOWER, LOWEST):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True


def test_secrets_stay_out_of_the_log(own: Served) -> None:
    """A line is one JSON object, and what looks like a secret is masked in every part of it."""
    out = io.StringIO()
    log_to(out, requests=True)
    try:
        own("GET", f"/api/v1/runs/{own.token}")
        secret = f"Authorization: Bearer {own.token} and password=hunter22"
        try:
            raise ValueError(secret)
        except ValueError:
            logging.getLogger(NAME).exception("it said %s", secret)
    finally:
        silent()
    request, trouble = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (request["status"], request["method"]) == (404, "GET")
    assert "ValueError" in trouble["trace"]
    assert own.token.split("_")[2] not in out.getvalue()
    assert "hunter22" not in out.getvalue()


def test_what_is_no_request_is_a_line_too(own: Served) -> None:
    """What is said below us stands in the log as everything else does, and not over and over."""
    out = io.StringIO()
    log_to(out, requests=False)
    try:
        with socket.create_connection(("127.0.0.1", own.port), timeout=10) as line:
            line.sendall(b"\x16\x03\x01\r\n\r\n")
            assert b" 400 " in line.recv(1_000)
        for _ in range(9):
            logging.getLogger(LOWEST).error("no place left")
    finally:
        silent()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["level"] for one in told] == ["warning", "error"]


def test_a_defect_reveals_nothing_of_the_inside(
    own: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw is 500 with the id under which the log has it."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(type(own.context.here.log), "rows", broken)
    reply = own("GET", "/api/v1/runs")
    assert (reply.status, reply.code) == (500, "unexpected")
    assert "secret" not in reply.body.decode()
    assert reply.headers["x-request-id"] in reply.json["detail"]
    assert reply.headers["x-request-id"] in caplog.text
