"""`webhook`, `notifications` and `artifact`: the same words here and at a server elsewhere."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.client.http_transport import HttpTransport
from loopwright.operations import outgoing_requests
from tests.cli.conftest import Place, Told, lw
from tests.http.served import Served, served, wait_for
from tests.http.test_loopback import Receiver, receiver

__all__ = ["lw", "receiver"]
Say = Callable[..., Told]


@pytest.fixture(params=["here", "afar"])
def say(
    request: pytest.FixtureRequest, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Say, Served]]:
    """The command line and a server: of the same home, or of another that is asked."""
    remote = request.param == "afar"
    home = "elsewhere" if remote else str(lw.folder.parent / "home")
    monkeypatch.setenv("LOOPWRIGHT_WEBHOOKS_TO_LOOPBACK", "on")
    with served(tmp_path, home=home, more={"webhooks_to_loopback": "on"}) as server:
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
        where = ("--server", f"http://127.0.0.1:{server.port}") if remote else ()
        yield (lambda *words: lw(*words, *where)), server


# -- webhooks --------------------------------------------------------------------------------------


def test_webhooks(say: tuple[Say, Served], receiver: Receiver) -> None:
    """Made, tried, listed without their secrets, and taken away."""
    do, server = say
    assert "no outgoing webhooks" in do("webhook", "ls").err
    url = f"http://127.0.0.1:{receiver.port}/x"
    made = do("webhook", "add", url, "--kind", "run.finished", "--json").json
    assert made["kinds"] == ["run.finished"]
    assert made["secret"].startswith("whsec_")
    plain = do("webhook", "add", url)
    assert plain.out.startswith("whsec_")
    listed = do("webhook", "ls", "--json").json["webhooks"]
    assert listed == server("GET", "/api/v1/webhooks").json["webhooks"]
    assert not any("secret" in one for one in listed)
    [other] = {one["id"] for one in listed} - {made["id"]}
    assert made["id"] in do("webhook", "ls").out
    tried = do("webhook", "test", made["id"], "--json")
    assert (tried.code, tried.json["status"], tried.json["delivered"]) == (0, 200, True)
    assert json.loads(receiver.got[0][1])["type"] == "webhook.test"
    receiver.status = 503
    failed = do("webhook", "test", made["id"])
    assert failed.code == 7
    assert "it answers with 503" in failed.err
    assert do("webhook", "rm", made["id"]).code == 0
    assert do("webhook", "rm", other, "--json").json == {"id": other, "removed": True}
    for words in (["webhook", "rm", made["id"]], ["webhook", "test", made["id"]]):
        gone = do(*words)
        assert (gone.code, "no webhook" in gone.err) == (2, True)
    assert do("webhook", "ls", "--json").json == {"webhooks": []}


def test_addresses_that_may_not_be_reported(say: tuple[Say, Served]) -> None:
    """Refused with the same words by both, and nothing is kept."""
    do, _ = say
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "ftp://example.org/"):
        told = do("webhook", "add", url)
        assert told.code == 2, url
        assert "address" in told.err
    assert do("webhook", "add", "http://127.0.0.1/", "--kind", "other").code == 2
    assert do("webhook", "ls", "--json").json == {"webhooks": []}


def test_loopback_needs_the_setting(lw: Place) -> None:
    """Without it this machine is refused here too."""
    told = lw("webhook", "add", "http://127.0.0.1:8080/")
    assert told.code == 2
    assert "not an address out in the world" in told.err
    assert 8080 in outgoing_requests.ALLOWED_PORTS


# -- notifications ---------------------------------------------------------------------------------


def test_notifications(say: tuple[Say, Served]) -> None:
    """Listed by what is wanted, and read by whoever asks."""
    do, server = say
    assert "no notifications" in do("notifications", "ls").err
    run, gate = server.gated()
    other, _ = server.gated()

    def found(*words: str) -> list[Any]:
        told: list[Any] = do("notifications", "ls", "--json", *words).json["notifications"]
        return told

    wait_for(lambda: len(found()) == 2)
    [one] = found("--run", run[-6:])
    assert (one["run"], one["data"]["gate"], one["read"]) == (run, gate, False)
    assert found("--level", "error") == []
    assert [n["run"] for n in found("--limit", "1")] == [other]
    shown = do("notifications", "ls").out
    assert one["id"] in shown
    assert shown.count("*") == 2
    assert do("notifications", "read", one["id"], "--json").json == {"read": 1}
    assert [n["run"] for n in found("--unread")] == [other]
    assert do("notifications", "read", "--all").err.strip().endswith("1 read")
    assert found("--unread") == []
    assert len(found()) == 2
    server("POST", f"/api/v1/gates/{gate}/approve", {})
    wait_for(lambda: len(found()) == 3)
    assert [n["run"] for n in found("--waiting")] == [other]
    shown = do("notifications", "ls").out
    assert (shown.count("settled"), shown.count("action_required")) == (1, 1)
    server("POST", f"/api/v1/runs/{other}/stop", {})
    wait_for(lambda: len(found()) == 4)
    shown = do("notifications", "ls").out  # the other was never answered, and asks no more
    assert (shown.count("settled"), shown.count("action_required")) == (2, 0)
    assert "answered" not in shown
    assert do("notifications", "read", "ntf_none").code == 2
    assert do("notifications", "read").code == 2
    assert do("notifications", "read", "--all", one["id"]).code == 2


@pytest.mark.parametrize("say", ["afar"], indirect=True)
def test_notifications_of_an_older_server(
    say: tuple[Say, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not say what still waits is of another version, and is named as such."""
    do, server = say
    server.gated()
    wait_for(lambda: do("notifications", "ls").out)
    real = HttpTransport.send

    async def older(transport: HttpTransport, *request: Any, **more: Any) -> bytes:
        return (await real(transport, *request, **more)).replace(b'"waiting":true,', b"")

    monkeypatch.setattr(HttpTransport, "send", older)
    refused = do("notifications", "ls")
    assert (refused.code, "use versions that fit together" in refused.err) == (1, True)


# -- artifacts -------------------------------------------------------------------------------------


def packed() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.txt", "one")
        archive.writestr("d/b.txt", "two")
    return made.getvalue()


def test_artifacts(say: tuple[Say, Served], tmp_path: Path) -> None:
    """Given, listed, got back by version, and taken away, with who did it in the record."""
    do, server = say
    run, _ = server.gated()
    assert "there are none" in do("artifact", "ls", run).err
    file = tmp_path / "report.txt"
    file.write_bytes(b"first \xff")
    [made] = do("artifact", "put", run, str(file), "--json").json["artifacts"]
    assert (made["name"], made["version"], made["size"]) == ("report.txt", 1, 7)
    file.write_bytes(b"second")
    assert do("artifact", "put", run[-6:], str(file)).out.split()[-5:-3] == [made["id"], "2"]
    listed = do("artifact", "ls", run, "--json").json["artifacts"]
    assert listed == server("GET", f"/api/v1/runs/{run}/artifacts").json["artifacts"]
    place = tmp_path / "out.bin"
    got = do("artifact", "get", run, made["id"], "--version", "1", "-o", str(place), "--json")
    assert got.json == {"id": made["id"], "file": str(place), "bytes": 7}
    assert place.read_bytes() == b"first \xff"
    again = do("artifact", "get", run, made["id"], "-o", str(place))
    assert (again.code, place.read_bytes()) == (8, b"first \xff")
    assert do("artifact", "get", run, made["id"], "--json").code == 2
    assert do("artifact", "get", run, made["id"], "--version", "9", "-o", "x").code == 2
    archive = tmp_path / "all.zip"
    archive.write_bytes(packed())
    both = do("artifact", "put", run, str(archive), "--unpack", "--json").json["artifacts"]
    assert [one["name"] for one in both] == ["a.txt", "d/b.txt"]
    assert do("artifact", "rm", run, made["id"], "--json").json["removed"] is True
    assert do("artifact", "rm", run, made["id"]).code == 2
    names = [one["name"] for one in do("artifact", "ls", run, "--json").json["artifacts"]]
    assert names == ["a.txt", "d/b.txt"]
    actions = [row["action"] for row in server("GET", "/api/v1/audit").json["rows"]]
    assert actions.count("artifact.added") == 3
    assert actions.count("artifact.removed") == 1


def test_artifacts_of_a_session(say: tuple[Say, Served], tmp_path: Path) -> None:
    """A session is named by its id; what is not there is told."""
    do, server = say
    session = server("POST", "/api/v1/sessions", {}).json["id"]
    (tmp_path / "a.txt").write_text("x")
    put = do("artifact", "put", session, str(tmp_path / "a.txt"), "--name", "b.txt", "--json")
    [made] = put.json["artifacts"]
    assert made["name"] == "b.txt"
    assert [one["id"] for one in do("artifact", "ls", session, "--json").json["artifacts"]] == [
        made["id"]
    ]
    assert do("artifact", "ls", "ses_none").code == 2
    assert do("artifact", "ls", "nobody").code == 2
    assert do("artifact", "put", session, str(tmp_path / "none")).code == 2
    (tmp_path / "empty").write_bytes(b"")
    assert do("artifact", "put", session, str(tmp_path / "empty")).code == 2
    assert do("artifact", "put", session, str(tmp_path / "a.txt"), "--unpack").code == 2


def test_bytes_through_pipes(lw: Place) -> None:
    """From stdin and to stdout, as they are."""
    lw.loop(lw.script("a"), until={"person": True})
    run = lw("run", "loop.yaml", "--no-wait", "--json").json["run"]
    put = lw.real("artifact", "put", run, "-", "--json", stdin=b"\0\xff\n")
    name = put.json["artifacts"][0]["id"]
    assert lw.start("artifact", "get", run, name).communicate(timeout=30)[0] == b"\0\xff\n"
