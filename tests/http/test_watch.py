"""Watching runs of a server: over its data directory and from elsewhere, with text."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.kernel.events import GateAnswered
from tests.cli.conftest import Place, lw, until
from tests.http.served import SECONDS, Served, served

__all__ = ["lw"]
AGENT = """
import json, os, sys, time
sys.stdin.read()
while not os.path.exists(sys.argv[1] + ".watched"):
    print(json.dumps({"type": "text", "text": "still writing\\n"}), flush=True)
    time.sleep(0.05)
print(json.dumps({"type": "text", "text": "DONE"}), flush=True)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a data directory, for all tests here."""
    with served(tmp_path_factory.mktemp("watch"), held=True, more={"snapshots": "on"}) as one:
        yield one


def writing(server: Served, name: str) -> tuple[str, Path]:
    """A run whose agent writes until a file is there; the run and the file."""
    (server.folder / "agent.py").write_text(AGENT)
    mark = server.folder / name
    agent = f"jsonl:{sys.executable} {server.folder / 'agent.py'} {mark}"
    run = server.start(server.definition(agent, until={"signal": "DONE"}))
    return run, server.folder / f"{name}.watched"


@pytest.mark.item("rec-34")
@pytest.mark.parametrize("verb", ["watch", "logs"])
@pytest.mark.parametrize("where", ["data directory", "remote"])
def test_text_of_a_served_run_is_shown(shared: Served, lw: Place, where: str, verb: str) -> None:
    """While its agent writes, by a command beside the server or far from it."""
    run, watched = writing(shared, f"{verb}-{where[:4]}")
    lw.env["LOOPWRIGHT_TOKEN"] = shared.token
    place = ["--data-dir", str(shared.folder / "home")]
    if where == "remote":
        place = ["--server", f"http://127.0.0.1:{shared.port}"]
    process = lw.start(verb, run, *(["-f"] if verb == "logs" else []), *place)
    stream = process.stderr if verb == "watch" else process.stdout
    assert stream is not None
    seen: list[bytes] = []
    thread = threading.Thread(target=lambda: seen.extend(stream))
    thread.start()
    until(lambda: any(b"still writing" in line for line in list(seen)), SECONDS)
    assert shared("GET", f"/api/v1/runs/{run}").json["status"] == "running"
    watched.touch()
    thread.join(SECONDS)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert any("✓ Completed in 1 iteration" in line.decode() for line in seen)


@pytest.mark.item("rec-34")
def test_text_has_no_number_and_only_who_asks_gets_it(shared: Served) -> None:
    """Events named `delta` carry no id, so a client that reconnects resumes at an event."""
    run, watched = writing(shared, "frames")
    path = f"/api/v1/runs/{run}/events"

    def end_after_text(got: bytes) -> None:
        if b"still writing" in got:
            watched.touch()

    request = (
        f"GET {path}?text=true HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n"
        f"Authorization: Bearer {shared.token}\r\nAccept: text/event-stream\r\n"
        "Connection: close\r\n\r\n"
    )
    got = shared.plain(request.encode(), on_data=end_after_text).decode()
    frames = [one for one in got.replace("\r\n", "\n").split("\n\n") if "event: delta" in one]
    assert frames
    assert not any("id:" in one.partition("data:")[0] for one in frames)
    told = json.loads(frames[0].partition("data: ")[2].splitlines()[0])
    assert (told["kind"], told["run"], told["said"]) == ("delta", run, "text")
    assert "still writing" in told["text"]
    plain = shared.plain(request.replace("?text=true", "").encode()).decode()
    assert "event: delta" not in plain


@pytest.mark.item("rec-34")
@pytest.mark.parametrize("verb", ["watch", "logs"])
def test_text_from_before_is_shown_by_a_remote_command(
    shared: Served, lw: Place, verb: str
) -> None:
    """The end of what the call under way has written, once, after the events that led to it."""
    mark = shared.folder / f"tail-{verb}"
    (shared.folder / "before.py").write_text(BEFORE)
    agent = f"jsonl:{sys.executable} {shared.folder / 'before.py'} {mark}"
    run = shared.start(shared.definition(agent, until={"signal": "DONE"}))
    until(lambda: Path(f"{mark}.wrote").exists(), SECONDS)
    until(lambda: shared.context.here.live.tail(run) is not None, SECONDS)
    lw.env["LOOPWRIGHT_TOKEN"] = shared.token
    place = ["--server", f"http://127.0.0.1:{shared.port}"]
    process = lw.start(verb, run, *(["-f"] if verb == "logs" else []), *place)
    stream = process.stderr if verb == "watch" else process.stdout
    assert stream is not None
    seen: list[bytes] = []
    thread = threading.Thread(target=lambda: seen.extend(stream))
    thread.start()
    until(lambda: any(b"written before" in line for line in list(seen)), SECONDS)
    Path(f"{mark}.go").touch()
    thread.join(SECONDS)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    shown = [line for line in seen if line.strip(b" |\n") == b"written before"]
    assert len(shown) == 1, seen


BEFORE = """
import json, os, sys, time
sys.stdin.read()
print(json.dumps({"type": "text", "text": "written before\\n"}), flush=True)
open(sys.argv[1] + ".wrote", "w").close()
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.02)
print(json.dumps({"type": "text", "text": "DONE"}), flush=True)
"""


@pytest.mark.item("rec-34")
def test_a_remote_watch_asks_at_a_gate(shared: Served, lw: Place) -> None:
    """Like a local one: help, the diff, another iteration with a reason, and the approval."""
    work = shared.folder / "gate-work"
    work.mkdir()
    (shared.folder / "edits.py").write_text(EDITS)
    agent = f"command:{sys.executable} {shared.folder / 'edits.py'}"
    definition = shared.definition(agent, until={"person": True})
    run = shared.start(definition, workspace=str(work))
    shared.until(run, "waiting")
    lw.env |= {"LOOPWRIGHT_TOKEN": shared.token, "PAGER": "cat"}
    with lw.terminal("watch", run, "--server", f"http://127.0.0.1:{shared.port}") as screen:
        seen = screen.wait_for("[l]eave it: ")
        assert "Review iteration 1. Accept?" in seen
        assert "  edited a.txt" in seen
        screen.type("?\n")
        seen = screen.wait_for("[l]eave it: ", times=2)
        assert "a, approve TEXT   accept the result of this iteration" in seen
        screen.type("d\n")
        assert "\x1b[32mmore\x1b" in screen.wait_for("[l]eave it: ", times=3)
        screen.type("c rhyme\n")
        screen.wait_for("[l]eave it: ", times=4)
        assert "Review iteration 2. Accept?" in screen.seen
        screen.type("a good\n")
        assert screen.leave() == 0
    assert "✓ Completed in 2 iterations" in screen.seen
    events = [one.event for one in shared.context.here.log.read(run)]
    answers = [event for event in events if isinstance(event, GateAnswered)]
    assert [(one.decision, one.text, one.by) for one in answers] == [
        ("continue", "rhyme", "first-start"),
        ("approve", "good", "first-start"),
    ]


EDITS = """
import sys
sys.stdin.read()
with open("a.txt", "a") as file:
    file.write("more\\n")
print("edited a.txt")
"""


@pytest.mark.item("rec-34")
@pytest.mark.parametrize("how", ["leave", "no-wait", "elsewhere"])
def test_a_remote_watch_leaves_a_gate_open(shared: Served, lw: Place, how: str) -> None:
    """For later, without a question, or because somebody else has answered it."""
    run, gate = shared.gated()
    lw.env["LOOPWRIGHT_TOKEN"] = shared.token
    more = ["--no-wait"] if how == "no-wait" else []
    with lw.terminal("watch", run, "--server", f"http://127.0.0.1:{shared.port}", *more) as screen:
        if how != "no-wait":
            screen.wait_for("[l]eave it: ")
        if how == "leave":
            screen.type("l\n")
        if how == "elsewhere":
            shared("POST", f"/api/v1/gates/{gate}/approve", {})
            screen.wait_for("answered in another place")
        assert screen.leave() == (0 if how == "elsewhere" else 5)
    gates = shared("GET", f"/api/v1/runs/{run}").json["gates"]
    assert len(gates) == (0 if how == "elsewhere" else 1)
