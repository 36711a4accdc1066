"""Stored tokens, by server."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopwright.client import servers
from loopwright.client.servers import (
    StoredToken,
    remove_token,
    store_token,
    stored_tokens,
    token_for,
)
from loopwright.errors import LoopwrightError

URL = "http://localhost:1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (servers.TOKEN, servers.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(servers, "_file", lambda: tmp_path / "config" / "servers.json")
    return tmp_path / "config" / "servers.json"


def one(token: str) -> StoredToken:
    return {"token": token, "id": token, "name": "ann", "until": "2030-01-01"}


def test_many_at_the_same_instant(file: Path) -> None:
    """None is lost, and each that was replaced is told to exactly one."""
    store_token(URL, one("first"))

    def signed(number: int) -> str:
        store_token(f"{URL}{number}", one("x"))
        before = store_token(URL, one(f"t{number}"))
        assert before is not None
        return before["token"]

    with ThreadPoolExecutor(8) as pool:
        replaced = list(pool.map(signed, range(32)))
    assert {f"{URL}{number}" for number in range(32)} < set(stored_tokens())
    assert sorted([*replaced, token_for(URL)]) == sorted(["first", *(f"t{n}" for n in range(32))])
    assert [found.name for found in file.parent.iterdir()] == ["servers.json"]
    remove_token(URL)
    assert token_for(URL) == ""


def test_a_file_elsewhere(file: Path, tmp_path: Path) -> None:
    """No copy of a token stays behind a link that was replaced."""
    file.parent.mkdir()
    (tmp_path / "else").mkdir()
    file.symlink_to(tmp_path / "else" / "mine.json")
    store_token(URL, one("a"))
    assert (file.is_symlink(), token_for(URL)) == (True, "a")
    remove_token(URL)
    assert (tmp_path / "else" / "mine.json").read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("text", ['{"x": {"a": "b"}}', '{"http://localhost:1": {"token": "x"}}'])
def test_what_is_not_said(file: Path, text: str) -> None:
    """An entry has all its parts, whoever wrote it."""
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    [found] = stored_tokens().values()
    assert {"token", "id", "name", "until"} <= set(found)


@pytest.mark.parametrize("text", ['{"x": 1}', "[" * 100_000, "1", "null"])
def test_what_cannot_be_used(file: Path, text: str) -> None:
    """The way out is told."""
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(LoopwrightError, match="cannot be used"):
        stored_tokens()


@pytest.mark.parametrize("token", ["a\nb", "a b", "lwt_ä", "\x1b[0m"])
def test_no_token_at_all(file: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """What cannot be sent is told, and not shown."""
    store_token(URL, one(token))
    with pytest.raises(LoopwrightError) as kept:
        token_for(URL)
    monkeypatch.setenv(servers.TOKEN, token)
    with pytest.raises(LoopwrightError) as given:
        token_for(URL)
    assert {kept.value.code, given.value.code} == {"bad-token"}
    assert token not in f"{kept.value.message} {given.value.message}"
