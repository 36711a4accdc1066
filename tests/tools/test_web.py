"""`web.fetch`: pages of the public web as text, and no other addresses."""

import asyncio
from pathlib import Path

import pytest

from loopwright.errors import LoopwrightError
from loopwright.operations.outgoing_requests import (
    MOST_REDIRECTS,
    Fetched,
    PublicWeb,
    Target,
    check_url,
)
from loopwright.tools.builtin import ShellRules, html_text
from loopwright.tools.results import FolderResultStore, ToolCallResult, ToolRefusal
from loopwright.tools.toolbox import Grant, Workshop
from tests.tools.boxes import furnish, problem, value

PAGES = {
    "https://a.example/": Fetched(302, "/next#part", "", b"", truncated=False),
    "https://a.example/next": Fetched(
        200, "", "text/html; charset=utf-8", b"<p>Hello</p><script>x()</script>", truncated=False
    ),
    "https://a.example/loop": Fetched(301, "/loop", "", b"", truncated=False),
    "https://a.example/away": Fetched(301, "http://inside.example/", "", b"", truncated=False),
    "https://a.example/picture": Fetched(200, "", "image/png", b"PNG", truncated=False),
    "https://a.example/missing": Fetched(404, "", "text/plain", b"no", truncated=False),
}


def checked(url: str) -> Target:
    if "inside" in url:
        raise LoopwrightError("inside.example is not public", code="private-address")
    return Target(scheme="https", host=url, port=443, path="/", address="192.0.2.1")


def got(target: Target, *, seconds: float, limit: int) -> Fetched:
    assert seconds <= 60
    assert limit == 1_000_000
    if target.host not in PAGES:
        raise OSError("refused")
    return PAGES[target.host]


def fetched(tmp_path: Path, url: str, *, offline: bool = False) -> ToolCallResult:
    """What the tool answers, with a web of a few pages behind it."""
    if not (tmp_path / "work").exists():
        furnish(tmp_path)
    workshop = Workshop(None, lambda schema, one: None, web=PublicWeb(checked, got))  # type: ignore[arg-type]
    grant = Grant(native=("web.fetch",), commands=ShellRules(offline=offline))
    box = workshop.toolbox(str(tmp_path / "work"), grant, FolderResultStore(tmp_path / "shelf"))
    return asyncio.run(box.run("web.fetch", {"url": url}))


@pytest.mark.item("coqui-88")
def test_a_page_is_read_as_text_after_redirects(tmp_path: Path) -> None:
    """The text that a reader sees, and where it is from."""
    found = value(fetched(tmp_path, "https://a.example/"))
    assert (found["url"], found["text"]) == ("https://a.example/next", "Hello")


@pytest.mark.item("coqui-88")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://a.example/loop", "too-many-redirects"),
        ("https://a.example/away", "not-allowed"),
        ("http://inside.example/", "not-allowed"),
        ("https://a.example/picture", "not-text"),
        ("https://b.example/", "unreachable"),
    ],
)
def test_other_addresses_and_other_files_are_refused(tmp_path: Path, url: str, why: str) -> None:
    """Also where a redirect leads there."""
    assert problem(fetched(tmp_path, url)) == why
    assert MOST_REDIRECTS == 5


def test_a_page_that_is_not_there_is_an_error_with_its_status(tmp_path: Path) -> None:
    told = fetched(tmp_path, "https://a.example/missing")
    assert told.error
    assert '"status":404' in told.text


def test_an_agent_without_a_network_fetches_nothing(tmp_path: Path) -> None:
    """The tool says so."""
    assert problem(fetched(tmp_path, "https://a.example/", offline=True)) == "no-network"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "file:///etc/passwd",
        "http://user@example.com/",
        "http://127.0.0.1:22/",
    ],
)
def test_addresses_of_this_machine_are_never_fetched(url: str) -> None:
    """With the real check of addresses, before anything is connected to."""

    def none(target: Target, *, seconds: float, limit: int) -> Fetched:
        raise AssertionError(target)

    with pytest.raises(ToolRefusal):
        asyncio.run(PublicWeb(check_url, none).get(url, 5))


def test_the_text_of_a_page() -> None:
    """Blocks are lines, and what is not shown is left out."""
    page = "<h1>Title</h1><p>One &amp; two</p><style>p {}</style><ul><li>a<li>b</ul>"
    assert html_text(page).split() == ["Title", "One", "&", "two", "a", "b"]
