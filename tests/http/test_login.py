"""`login` and `logout`: a token for a server, made with a name and a password and kept."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, Told, lw
from tests.http.served import Served, served

__all__ = ["lw"]
PASSWORD = "correct horse"


class There:
    """The command line of a person who has an account at a server, and no token yet."""

    def __init__(self, lw: Place, server: Served) -> None:
        self.lw, self.server = lw, server
        self.url = f"http://127.0.0.1:{server.port}"
        self.file = Path(lw.env["XDG_CONFIG_HOME"]) / "loopwright" / "servers.json"
        for name, role in (("ann", "editor"), ("vic", "viewer")):
            account = {"name": name, "role": role, "password": PASSWORD}
            assert server("POST", "/api/v1/users", account).status == 201

    def login(self, name: str = "ann", password: str = PASSWORD, *more: str) -> Told:
        words = ["login", self.url, "--name", name, "--password-stdin", *more]
        return self.lw.real(*words, stdin=f"{password}\n".encode())

    def __call__(self, *args: str) -> Told:
        return self.lw.real(*args, "--server", self.url)

    @property
    def kept(self) -> Any:
        return json.loads(self.file.read_text(encoding="utf-8"))

    def tokens(self, name: str) -> list[Any]:
        """The tokens of a person that still count."""
        listed = self.server("GET", "/api/v1/tokens").json["tokens"]
        return [one for one in listed if one["person"] == name and not one["revoked_at"]]


@pytest.fixture
def there(lw: Place, tmp_path: Path) -> Iterator[There]:
    with served(tmp_path, home="elsewhere") as server:
        yield There(lw, server)


@pytest.mark.parametrize(("name", "role"), [("ann", "editor"), ("vic", "viewer")])
def test_in_and_out(there: There, name: str, role: str) -> None:
    """From then on every command has the rights of that person, until they sign out. No session is
    left, and neither the password nor anything that others could read.
    """
    before = there("ls")
    assert before.code == 6
    assert f"`loopwright login {there.url}`" in before.err
    told = there.login(name)
    assert told.code == 0, told.err
    assert told.err.startswith(f"signed in at {there.url} as {name} ({role}) until ")
    assert stat.S_IMODE(there.file.stat().st_mode) == 0o600
    assert PASSWORD not in there.file.read_text(encoding="utf-8")
    [token] = there.tokens(name)
    assert token["label"].startswith("login from ")
    assert there("ls", "--json").json["runs"] == []
    started = there("run", there.lw.loop(there.server.script("a"), max=1), "--json")
    assert started.code == (0 if role == "editor" else 6)
    listed = there.lw.real("login", "--json").json["servers"]
    assert [(one["server"], one["name"]) for one in listed] == [(there.url, name)]
    assert there.kept[there.url]["token"] not in there.lw.real("login").out
    out = there.lw.real("logout", there.url, "--json")
    assert out.json == {"server": there.url, "ended": True}
    assert (there.tokens(name), there.kept) == ([], {})
    assert there("ls").code == 6
    assert there.lw.real("logout", there.url).code == 2


def test_again(there: There) -> None:
    """Signing in again ends the token of before; other servers are kept."""
    there.login()
    there.file.write_text(json.dumps({**there.kept, "http://other": {"token": "x"}}))
    first = there.kept[there.url]["id"]
    assert there.login("ann", PASSWORD, "--days", "2").code == 0
    [token] = there.tokens("ann")
    assert token["id"] == there.kept[there.url]["id"] != first
    assert set(there.kept) == {there.url, "http://other"}


def test_refused(there: There) -> None:
    """A wrong password keeps nothing; a closed account neither."""
    told = there.login(password="wrong horse")
    assert (told.code, there.file.exists()) == (6, False)
    assert "accounts are made by an admin" in told.err
    assert "wrong horse" not in told.err
    there.server("PATCH", "/api/v1/users/ann", {"active": False})
    assert there.login().code == 6
    assert not there.file.exists()


def test_a_server_by_any_of_its_names(there: There) -> None:
    """However the address is written, it is the same place."""
    there.url = f"HTTP://LOCALHOST:{there.server.port}/"
    assert there.login().code == 0
    assert set(there.kept) == {f"http://localhost:{there.server.port}"}
    assert there.lw.real("ls", "--server", f"localhost:{there.server.port}").code == 0
    assert there.lw.real("logout", there.url).code == 0


def test_a_folder_that_takes_nothing(there: There) -> None:
    """A token that cannot be kept does not count at the server for a month either."""
    there.file.parent.parent.mkdir(exist_ok=True)
    there.file.parent.write_text("no folder", encoding="utf-8")
    told = there.login()
    assert told.code == 2
    assert "cannot be written" in told.err
    assert there.tokens("ann") == []


def test_out_of_a_closed_account(there: There) -> None:
    """The token could not be ended: it counts again once the account is open again."""
    there.login()
    there.server("PATCH", "/api/v1/users/ann", {"active": False})
    told = there.lw.real("logout", there.url)
    assert told.code == 6
    assert "deleted here, but is valid there until " in told.err
    assert there.kept == {}
    there.server("PATCH", "/api/v1/users/ann", {"active": True})
    assert len(there.tokens("ann")) == 1


def test_more_than_a_server_reads(there: There) -> None:
    """It closes the line before all of it was sent; what it said counts, not the broken line."""
    told = there.login(password="x" * 3_000_000)
    assert told.code == 2, told.err
    assert "does not answer" not in told.err


def test_the_environment_counts_first(there: There) -> None:
    """A token that is given for once is not replaced by one that is kept."""
    assert "is set" not in there.login().err
    there.lw.env["LOOPWRIGHT_TOKEN"] = "lwt_0_wrong"
    assert there("ls").code == 6
    again = there.login()
    assert (again.code, "LOOPWRIGHT_TOKEN is set, and counts before" in again.err) == (0, True)
    assert "lwt_0_wrong" not in again.err


@pytest.mark.parametrize(
    ("plant", "code", "said"),
    [
        (lambda file: file.chmod(0o640), 6, "chmod 600 "),
        (lambda file: file.write_text("{"), 2, "sign in again after: rm "),
        (lambda file: file.write_text("[]"), 2, "sign in again after: rm "),
        (lambda file: file.write_bytes(b"\xff"), 2, "cannot be read"),
    ],
    ids=["open", "half", "another shape", "no text"],
)
def test_a_file_that_cannot_be_trusted(there: There, plant: Any, code: int, said: str) -> None:
    """Nothing is asked with it, and the way out is told."""
    there.login()
    plant(there.file)
    told = there("ls")
    assert told.code == code
    assert said in told.err


def test_a_server_that_is_gone(lw: Place, tmp_path: Path) -> None:
    """Signing out forgets the token all the same, and says that it still counts there."""
    with served(tmp_path, home="elsewhere") as server:
        there = There(lw, server)
        there.login()
    told = lw.real("logout", there.url)
    assert told.code == 7
    assert "deleted here, but is valid there until " in told.err
    assert there.kept == {}


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://loops.example.org", 6),
        ("http://10.0.0.1:3001", 6),
        ("http://127.0.0.1.example.org", 6),
        ("http://[::1]:1", 7),
        ("http://localhost:1", 7),
        ("ftp://x", 2),
    ],
)
def test_a_password_is_not_sent_in_the_open(lw: Place, url: str, code: int) -> None:
    """Only to this machine, or encrypted."""
    told = lw.real("login", url, "--password-stdin", stdin=b"x\n")
    assert told.code == code
    assert ("without encryption" in told.err) is (code == 6)


def test_asked_on_a_terminal(there: There) -> None:
    """The password is not shown while it is typed; without a terminal nobody is asked."""
    assert "--password-stdin" in there.lw.real("login", there.url).err
    with there.lw.terminal("login", there.url, "--name", "ann") as terminal:
        terminal.wait_for("Password of ann: ")
        terminal.type(f"{PASSWORD}\n")
        assert PASSWORD not in terminal.wait_for("signed in at ")
        assert terminal.leave() == 0
