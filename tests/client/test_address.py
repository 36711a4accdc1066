"""Addresses of servers, as people write them."""

import pytest

from loopwright.client.servers import parse_address
from loopwright.errors import LoopwrightError


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("127.0.0.1:3001", "http://127.0.0.1:3001"),
        ("HTTP://LocalHost:3001/", "http://localhost:3001"),
        ("https://Loops.Example.org:443", "https://loops.example.org"),
        ("http://loops.example.org:", "http://loops.example.org"),
        ("http://localhost:80", "http://localhost"),
        ("https://localhost:80", "https://localhost:80"),
        ("http://[::1]:3001", "http://[::1]:3001"),
        ("http://[FE80::A]", "http://[fe80::a]"),
        ("https://ä.example", "https://ä.example"),
    ],
)
def test_one_address_has_one_form(written: str, url: str) -> None:
    """So that a token is found again however the server is called."""
    assert parse_address(written).url == url
    assert parse_address(url).url == url


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ftp://x",
        "http://",
        "http://:3001",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
        "http://[::1",
        "https://a..b",
        f"https://{'a' * 70}.example",
        "http://ann@localhost",
        "http://:secret@localhost",
    ],
)
def test_what_is_no_address(written: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(LoopwrightError) as refused:
        parse_address(written)
    assert refused.value.code == "bad-server"
