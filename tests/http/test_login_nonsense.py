"""Signing in at what is no server of ours, or at one behind something else."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, lw

__all__ = ["lw"]
TOKEN = {
    "token": "lwt_a_b",
    "id": "a",
    "label": "login",
    "role": "editor",
    "person": "ann",
    "parent": None,
    "created_at": "2029-12-01T00:00:00.000Z",
    "expires_at": "2030-01-01T00:00:00.000Z",
    "revoked_at": None,
}
VERSION = b'{"api": 1, "version": "0"}'


@contextmanager
def answering(given: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A server that answers each path with a status, headers and a body; what it was asked."""
    asked: list[tuple[str, str | None]] = []
    usual: dict[str, Any] = {
        "/api/version": (200, [], VERSION),
        "/api/v1/session": (200, [("Set-Cookie", "session=s; Path=/")], b"{}"),
        "/api/v1/tokens": (200, [], json.dumps(TOKEN).encode()),
    }

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((f"{self.command} {self.path}", self.headers.get("Cookie")))
            status, headers, body = (usual | given).get(self.path, (404, [], b""))
            self.send_response(status)
            for name, text in [*headers, ("Content-Length", str(len(body)))]:
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def login(lw: Place, url: str) -> Told:
    return lw.real("login", url, "--name", "ann", "--password-stdin", stdin=b"x\n")


def test_a_proxy_with_a_cookie_of_its_own(lw: Place) -> None:
    """All that were set are sent back: which one is the server's does not matter."""
    cookies = [("Set-Cookie", "lb=1; Path=/"), ("Set-Cookie", "session=s; HttpOnly")]
    with answering({"/api/v1/session": (200, cookies, b"{}")}) as (url, asked):
        told = login(lw, url)
    assert told.code == 0, told.err
    assert ("POST /api/v1/tokens", "lb=1; session=s") in asked
    assert asked[-1] == ("DELETE /api/v1/session", "lb=1; session=s")


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/api/v1/tokens", (200, [], b"")),
        ("/api/v1/tokens", (200, [], b"<html>")),
        ("/api/v1/tokens", (200, [], b"[]")),
        ("/api/v1/tokens", (200, [], b"9" * 5_000)),
        ("/api/v1/tokens", (200, [], b"[" * 100_000)),
        ("/api/v1/tokens", (200, [], json.dumps({**TOKEN, "token": "a\r\nb"}).encode())),
        ("/api/v1/tokens", (200, [], json.dumps({**TOKEN, "token": "\u20ac"}).encode())),
        ("/api/v1/tokens", (200, [], json.dumps({**TOKEN, "expires_at": None}).encode())),
        ("/api/v1/tokens", (302, [("Location", "/")], b"")),
        ("/api/v1/tokens", (400, [], b'{"error": "x", "details": []}')),
        ("/api/version", (200, [], b"[" * 100_000)),
        ("/api/version", (301, [("Location", "/")], b"")),
    ],
    ids=range(12),
)
def test_nonsense(lw: Place, path: str, answer: tuple[int, Any, bytes]) -> None:
    """It is the server that failed, nothing is kept, and nobody is told of a defect here."""
    with answering({path: answer}) as (url, asked):
        told = login(lw, url)
    assert told.code in (1, 2, 7), told.err
    assert told.err.startswith(f"error: {url} ")
    assert "defect" not in told.err
    assert not (Path(lw.env["XDG_CONFIG_HOME"]) / "loopwright" / "servers.json").exists()
    assert path == "/api/version" or asked[-1][0] == "DELETE /api/v1/session"
