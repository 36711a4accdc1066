"""Watching runs of a server: over its data directory and from elsewhere, with text."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place, lw, until
from tests.server.served import SECONDS, Served, served

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
    with served(tmp_path_factory.mktemp("watch"), held=True) as one:
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
    threading.Timer(1.0, watched.touch).start()
    request = (
        f"GET {path}?text=true HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n"
        f"Authorization: Bearer {shared.token}\r\nAccept: text/event-stream\r\n"
        "Connection: close\r\n\r\n"
    )
    got = shared.plain(request.encode()).decode()
    frames = [one for one in got.replace("\r\n", "\n").split("\n\n") if "event: delta" in one]
    assert frames
    assert not any("id:" in one.partition("data:")[0] for one in frames)
    told = json.loads(frames[0].partition("data: ")[2].splitlines()[0])
    assert (told["kind"], told["run"], told["said"]) == ("delta", run, "text")
    assert "still writing" in told["text"]
    plain = shared.plain(request.replace("?text=true", "").encode()).decode()
    assert "event: delta" not in plain
