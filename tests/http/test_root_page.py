"""The answers at `/`, for browsers and for programs."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from loopwright import __version__
from loopwright.http.status import Front
from tests.http.served import Served
from tests.http.test_runs import fits

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


RULES = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Seen(HTMLParser):
    """What a page has in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.links += [str(value) for name, value in attrs if name == "href"]


def test_a_page_for_browsers(shared: Served) -> None:
    """It says what this is and how to come in, loads and runs nothing, and its links lead on."""
    reply = shared("GET", "/", token="", headers={"Accept": BROWSER})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.headers["vary"] == "Accept"
    style = reply.body.decode().partition("<style>")[2].partition("</style>")[0]
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert reply.headers["content-security-policy"] == (
        f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    seen, text = Seen(), reply.body.decode()
    seen.feed(text)
    assert seen.tags.isdisjoint({"script", "img", "iframe", "form", "link", "object"})
    assert not any(name.startswith("on") or name == "style" for name in seen.names)
    assert "/api/v1/session" in text
    assert "Authorization: Bearer" in text
    assert __version__ in text
    assert "/openapi.json" in seen.links
    for link in seen.links:
        assert shared("GET", link).status == 200
    assert len(re.findall("<style>", text)) == 1


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("GET", "/api/v1/runs", {}, 200),
        ("GET", "/openapi.json", {}, 200),
        ("GET", "/setup", {}, 200),
        ("GET", "/decide", {}, 200),
        ("GET", "/setup.js", {}, 200),
        ("GET", "/api/v1/runs/none", {}, 404),
        ("GET", "/no/such", {}, 404),
        ("DELETE", "/api/v1/runs", {}, 405),
        ("GET", "/api/v1/runs", {"Authorization": "Bearer x"}, 401),
        ("GET", "/api/v1/runs", {"Host": "evil.example"}, 400),
        ("POST", "/api/v1/runs", {"Origin": "https://evil.example"}, 403),
        ("POST", "/api/v1/runs", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_what_a_browser_may_do_with_an_answer(
    shared: Served, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """Answers, pages and refusals carry the same rules: scripts of ours alone, none inline, and no
    frame around it.
    """
    reply = shared(method, path, {} if method == "POST" else None, headers=headers)
    assert reply.status == status
    told = {name: reply.headers[name] for name in RULES}
    assert told == RULES


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
def test_the_same_for_programs(shared: Served, accept: str | None) -> None:
    """JSON, with where the description is."""
    headers = {} if accept is None else {"Accept": accept}
    reply = shared("GET", "/", token="", headers=headers)
    assert reply.headers["content-type"] == "application/json"
    fits(reply.json, Front)
    assert shared("GET", reply.json["description"]).json["openapi"] == "3.1.0"
    assert shared("GET", reply.json["health"], token="").status == 200


def test_only_that(shared: Served) -> None:
    """What is beside it is not found as before, and nothing can be posted there."""
    assert shared("GET", "/index.html", token="").status == 404
    assert shared("POST", "/", {}).status == 405
    assert shared("GET", "/", headers={"Host": "evil", "Accept": BROWSER}).status == 400
