"""The command line with `--server`: the same words at a server elsewhere."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from loopwright import __version__
from loopwright.client.client import CommandClient, RemoteServer, open_client
from loopwright.client.http_transport import read_refusal
from loopwright.errors import Unreachable
from loopwright.kernel.events import GateOpened
from loopwright.operations.loops import dialect_events
from loopwright.operations.use_cases.lists import ListRuns, list_runs
from loopwright.ports import NumberedEvent
from loopwright.views.event_records import event_on_wire
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Served, left_when_followed, served

__all__ = ["lw"]


class There:
    """The command line, pointed at a server; what is kept here has nothing to do with it."""

    def __init__(self, lw: Place, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lw, self.server = lw, server
        self.url = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)

    def __call__(self, *args: str) -> Any:
        return self.lw(*args, "--server", self.url)


@pytest.fixture
def there(lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    """A server, and the command line for it."""
    with served(tmp_path, home="elsewhere") as server:
        yield There(lw, server, monkeypatch)
    assert not (lw.folder.parent / "home" / "loopwright.db").exists()


def test_looking(there: There) -> None:
    """Lists, pages and events are those of the server."""
    run, gate = there.server.gated()
    assert [item["run"] for item in there("ls", "--json").json["runs"]] == [run]
    assert run in there("ls", "--status", "waiting").out
    assert there("ls", "--status", "failed", "--json").json["runs"] == []
    detail = there("show", "last", "--json").json
    assert (detail["run"], detail["status"]) == (run, "waiting")
    assert gate in there("show", run[-6:]).out
    assert gate in there("inbox").out
    events = there("events", run).lines
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert there("events", run, "--after", "2", "--json").json["events"] == events[2:]


def test_a_page_names_commands_for_that_server(there: There) -> None:
    """What may be done next is said with the server that was asked."""
    run, gate = there.server.gated()
    page = there("show", run).out
    assert f"loopwright approve {gate} --server {there.url}" in page


def test_a_definition_by_its_name(there: There) -> None:
    """A name that is known here is run there."""
    there.lw.script("APPROVED")
    told = there("run", "harness", "Build it", "--agent", "command:true", "--detach", "--json")
    assert told.code == 0, told
    assert there("show", told.json["run"], "--json").json["goal"] == "Build it"
    assert "did you mean harness?" in there("run", "harnes", "Build it").err


@pytest.mark.parametrize(
    ("words", "status", "iterations"),
    [
        (["approve", "GATE", "Good."], "completed", 1),
        (["approve", "RUN"], "completed", 1),
        (["approve", "RUN", "--no-drive"], "completed", 1),
        (["reject", "GATE", "No."], "failed", 1),
        (["continue", "GATE", "Shorter."], "waiting", 2),
    ],
)
def test_deciding(there: There, words: list[str], status: str, iterations: int) -> None:
    """An answer counts there, and the run goes on there; how it comes out is how it leaves."""
    run, gate = there.server.gated()
    told = there(*[{"GATE": gate, "RUN": run}.get(word, word) for word in words], "--json")
    assert told.code == {"completed": 0, "failed": 3, "waiting": 5}[status], told
    if "--no-drive" not in words:
        assert (told.json["status"], told.json["iterations"]) == (status, iterations)
    assert there.server.until(run, status)["iterations"] == iterations
    if words[0] == "approve":
        again = there("approve", gate)
        assert again.code == 8
        assert "already answered" in again.err


def test_control(there: There) -> None:
    """Pausing, resuming and stopping, of one run and of all."""
    run, _ = there.server.gated()
    other, _ = there.server.gated()
    assert there("pause", run, "--json").json["paused"] == [run]
    assert there.server("GET", f"/api/v1/runs/{run}").json["status"] == "paused"
    again = there("resume", run, "--json")
    assert (again.code, again.json["status"]) == (5, "waiting")
    assert there("pause", "all", "--json").json["count"] == 2
    all_of_them = there("resume", "all", "--json").json["runs"]
    assert sorted(one["run"] for one in all_of_them) == sorted([run, other])
    told = there("stop", "all", "--json").json
    assert sorted(told["stopped"]) == sorted([run, other])
    ended = there("stop", run)
    assert ended.code == 8
    assert "already ended" in ended.err


def test_a_run_is_started_there(there: There) -> None:
    """`run` sends the definition, shows what happens, and leaves with the exit code of the end."""
    agent = there.server.script("a", "DONE")
    file = there.lw.loop(agent, until={"contains": "DONE"})
    told = there("run", file, "Do it.", "--name", "mine")
    assert (told.code, told.out) == (0, "DONE\n")
    assert "iteration 2/3 started" in told.err
    capped = there("run", there.lw.loop(there.server.script("a"), max=1, until={"contains": "x"}))
    assert capped.code == 4
    gated = there("run", there.lw.loop(there.server.script("a"), until={"person": True}), "--json")
    assert (gated.code, gated.json["status"]) == (5, "waiting")
    away = there("run", there.lw.loop(there.server.script("a"), until={"person": True}), "--detach")
    assert away.out.startswith("run_")


@pytest.mark.item("F15")
def test_a_server_that_knows_more(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds of events and fields that only a newer server knows: the kind is shown as unknown, and
    everything after it is followed to the end.
    """
    newer = {"iteration.started": "future.begun", "effect.done": "future.done"}

    def told(run: str, one: NumberedEvent) -> dict[str, Any]:
        event = event_on_wire(run, one)
        event.pop("iteration", None)
        return {**event, "kind": newer.get(str(event["kind"]), event["kind"]), "mood": {"x": [1]}}

    monkeypatch.setattr(dialect_events, "event_on_wire", told)
    file = there.lw.loop(there.server.script("a", "DONE"), until={"contains": "DONE"})
    done = there("run", file, "Do it.")
    assert (done.code, done.out) == (0, "DONE\n")
    assert done.err.count("unknown event future.begun; a newer loopwright would know it") == 2
    assert "unknown event future.done" in done.err
    assert "unknown event run.finished" not in done.err
    assert "iteration 1/3: a" in done.err, "a fact without one of its fields"
    log_events = there("events", "last", "--follow").lines
    assert "future.begun" in [event["kind"] for event in log_events]
    assert log_events[-1]["kind"] == "run.finished"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "run_none"], 2, "no run"),
        (["approve", "gate_none"], 2, "no gate"),
        (["run", "bad.yaml"], 2, "unknown-field"),
        (["run", "none.yaml"], 2, "none.yaml"),
        (["run", "bad.yaml", "--file-tools-only"], 2, "bad.yaml:3:1: unknown-field"),
    ],
)
def test_refusals(there: There, words: list[str], code: int, said: str) -> None:
    """What is refused there is told here, with the same exit code as at home."""
    there.lw.write("bad.yaml", "name: a\ngoal: b\nagnet: c\n")
    told = there(*words)
    assert (told.code, said in told.err) == (code, True), told.err


def test_tokens(there: There, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token comes from the environment or a file of one's own; without a good one it is 6."""
    token = there.server.token
    monkeypatch.setenv("LOOPWRIGHT_TOKEN", "lwt_x_y")
    wrong = there("ls")
    assert (wrong.code, "LOOPWRIGHT_TOKEN" in wrong.err) == (6, True)
    monkeypatch.delenv("LOOPWRIGHT_TOKEN")
    assert there("ls").code == 6
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    monkeypatch.setenv("LOOPWRIGHT_TOKEN_FILE", str(file))
    assert there("ls").code == 0


@pytest.mark.item("J8")
def test_a_token_file_that_others_can_read(
    there: There, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A secret that lies open is refused, with how to close it."""
    file = tmp_path / "token"
    file.write_text(there.server.token)
    file.chmod(0o644)
    monkeypatch.delenv("LOOPWRIGHT_TOKEN")
    monkeypatch.setenv("LOOPWRIGHT_TOKEN_FILE", str(file))
    told = there("ls")
    assert (told.code, f"chmod 600 {file}" in told.err) == (6, True)


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["events", "x"], ["stop", "all"]])
def test_a_server_that_is_not_there(lw: Place, words: list[str]) -> None:
    """Nobody answers: exit code 7."""
    told = lw(*words, "--server", "127.0.0.1:9", "--json")
    assert told.code == 7
    assert told.json["type"].endswith(":unreachable")
    assert lw("ls", "--server", "ftp://x").code == 2


@pytest.mark.item("K7")
def test_a_watch_outlives_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone and comes back: the watch says so, and goes on at the next event."""
    seen: list[dict[str, Any]] = []
    said: list[str] = []
    with served(tmp_path) as first:
        run, gate = first.gated()
        monkeypatch.setenv("LOOPWRIGHT_TOKEN", first.token)
        address = RemoteServer(f"127.0.0.1:{first.port}")

        def follow() -> None:
            with CommandClient(open_client(address, say=said.append)) as client:
                seen.extend(one for one in client.follow(run) if isinstance(one, dict))

        watch = threading.Thread(target=follow, daemon=True)
        watch.start()
        first.followed(GateOpened)
    with served(tmp_path, at=first.port) as second:
        second.token = first.token
        assert second("POST", f"/api/v1/gates/{gate}/approve", {}).status == 200
        watch.join(SECONDS)
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1]["kind"] == "run.finished"
    assert said == [f"http://127.0.0.1:{first.port} is gone; reconnecting"]


@pytest.mark.item("K7")
def test_a_watch_that_is_not_to_wait(there: There) -> None:
    """With --no-retry the command leaves with 7 when the line breaks."""
    run, _ = there.server.gated()
    ending = left_when_followed(there.server, GateOpened)
    told = there("events", run, "--follow", "--no-retry")
    ending.join()
    assert told.code == 7
    assert json.loads(told.out.splitlines()[-1])["kind"] == "gate.opened"


class Newer(BaseHTTPRequestHandler):
    """A server of another age."""

    body = b'{"version": "9.1.0", "api": 9}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def newer() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Newer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.item("K10")
def test_a_server_of_another_age(lw: Place, newer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that speaks another API is told with both versions, and so is what is no server."""
    told = lw("ls", "--server", f"127.0.0.1:{newer}")
    assert told.code == 1
    assert "9.1.0" in told.err
    assert __version__ in told.err
    monkeypatch.setattr(Newer, "body", b"<html>")
    told = lw("ls", "--server", f"127.0.0.1:{newer}")
    assert (told.code, "is not a Loopwright server" in told.err) == (1, True)


def test_a_sign_in_that_is_missing_at_a_server_is_named_with_the_server() -> None:
    """Signing in on the own machine would not help."""
    told = {
        "detail": "Claude Code is not signed in",
        "type": "urn:loopwright:problem:agent-not-signed-in",
        "hint": "run x",
    }
    error = read_refusal("http://127.0.0.1:9", 400, json.dumps(told).encode())
    assert error.hint == "on the machine of http://127.0.0.1:9: run x"


def test_a_line_that_breaks_is_reported() -> None:
    """Without retry the reason is told."""
    client = CommandClient(open_client(RemoteServer("http://127.0.0.1:9")))
    with client, pytest.raises(Unreachable, match="does not answer"):
        client.call(list_runs, ListRuns())
