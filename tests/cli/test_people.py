"""`user` and `token`: who may come in to a server of this home."""

import io

import pytest

from tests.cli.conftest import Place


def test_people_come_and_go(lw: Place) -> None:
    """An account is made, changed, closed, opened and taken away; the last admin stays."""
    made = lw("user", "add", "ann", "--role", "admin", "--json").json
    assert (made["name"], made["role"]) == ("ann", "admin")
    assert made["link"].startswith("/setup#")
    assert lw("user", "add", "bob").code == 0
    assert lw("user", "add", "bob").code == 8
    assert lw("user", "role", "bob", "editor").code == 0
    assert lw("user", "off", "bob").code == 0
    assert "bob   editor  off" in lw("user", "ls").out
    assert lw("user", "on", "bob", "--json").json == {"name": "bob", "active": True}
    last = lw("user", "rm", "ann")
    assert (last.code, "last admin" in last.err) == (8, True)
    assert lw("user", "rm", "bob").code == 0
    assert lw("user", "rm", "bob").code == 2
    listed = lw("user", "ls", "--json").json["users"]
    assert listed == [{"name": "ann", "role": "admin", "active": True}]


def test_a_password_comes_by_stdin(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is no argument; with one no link is needed."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a good password\n"))
    assert lw("user", "add", "ann", "--password-stdin", "--json").json["link"] is None
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert lw("user", "add", "bob", "--password-stdin").code == 2
    assert lw("user", "add", "bob", "--password", "x").code == 2


def test_tokens_are_reported_once(lw: Place) -> None:
    """The text of a token is printed when it is made, and in no list."""
    text = lw("token", "create", "ci", "--role", "editor").out.strip()
    assert text.startswith("lwt_")
    told = lw("token", "create", "mine", "--days", "2", "--json").json
    listed = lw("token", "ls", "--json").json["tokens"]
    assert {one["label"] for one in listed} == {"ci", "mine"}
    assert text.split("_")[2] not in lw("token", "ls").out + str(listed)
    assert lw("token", "revoke", told["id"]).code == 0
    states = {one["label"]: one["state"] for one in lw("token", "ls", "--json").json["tokens"]}
    assert states == {"ci": "good", "mine": "revoked"}
    assert lw("token", "revoke", "nothing").code == 2
    assert lw("token", "create", "x", "--user", "nobody").code == 2


def test_a_backup_is_whole(lw: Place) -> None:
    """The copy has every run and opens as a data directory of its own; no file is written over."""
    run = lw("run", lw.loop(lw.script("x"), max=1), "--json").json["run"]
    told = lw("backup", "copy.db", "--json").json
    assert (told["file"], told["runs"]) == ("copy.db", 1)
    assert (lw.folder / "copy.db").stat().st_mode & 0o077 == 0
    assert lw("backup", "copy.db").code == 1
    (lw.folder / "other").mkdir()
    (lw.folder / "copy.db").rename(lw.folder / "other" / "loopwright.db")
    assert lw("show", run, "--data-dir", "other", "--json").json["status"] == "completed"


def test_empty_lists_say_what_to_do(lw: Place) -> None:
    """Where nobody is, the next command is named."""
    assert "user add" in lw("user", "ls").err
    assert "token create" in lw("token", "ls").err


def test_a_new_link_for_an_existing_user(lw: Place) -> None:
    """One that was lost is made anew; of nobody, and of a closed account, none is made."""
    first = lw("user", "add", "ann", "--json").json["link"]
    again = lw("user", "link", "ann", "--json").json
    assert again["link"].startswith("/setup#")
    assert again["link"] != first
    assert (
        "link that sets the password of ann (once, within a day): SERVER/setup#"
        in lw("user", "link", "ann").err
    )
    assert lw("user", "link", "nobody").code == 2
    lw("user", "off", "ann")
    assert lw("user", "link", "ann").code == 8
