"""What `watch` and `logs -f` show while a call runs, whichever process drives the run."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cli.conftest import Place, lw, until
from tests.http.served import SECONDS, Served, served

__all__ = ["lw"]
REPORTS = """
import json, os, sys, time
def put(**event): print(json.dumps(event), flush=True)
sys.stdin.read()
while not os.path.exists(sys.argv[1] + ".watched"):
    put(type="text", text="still waiting\\n")
    time.sleep(0.05)
put(type="text", text="I look at it.\\n")
put(type="tool", name="Bash", args={"command": "make test"}, exit_code=2)
put(type="tool", name="Bash", kind="denied", target="rm -rf build", text="rm was denied")
put(type="tool", name="wait", kind="status", text="rate limit until 14:00")
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.02)
put(type="text", text="DONE")
"""
# The last one is the event of the denial.
LIVE = (
    "I look at it.",
    "[Bash make test]",
    "rm was denied",
    "[rate limit until 14:00]",
    "agent jsonl",
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that commands beside it do not hand their runs to."""
    with served(tmp_path_factory.mktemp("table")) as one:
        (one.folder / "reports.py").write_text(REPORTS)
        yield one


def started(shared: Served, lw: Place, driver: str, mark: Path) -> str:
    """A run of the data directory of the server, driven by it or by a process of its own."""
    agent = f"jsonl:{sys.executable} -I -S {shared.folder / 'reports.py'} {mark}"
    if driver == "server":
        return shared.start(shared.definition(agent, until={"signal": "DONE"}))
    file = lw.loop(agent, until={"signal": "DONE"})
    home = str(shared.folder / "home")
    return lw.real("run", file, "--detach", "--data-dir", home).out.strip()


class Seen:
    """The lines of a command, from both of its streams, as they come."""

    def __init__(self, *streams: "IO[bytes] | None") -> None:
        self.lines: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(one,)) for one in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: "IO[bytes]") -> None:
        with stream:
            for line in stream:
                self.lines.append(line.decode())

    def count(self, words: str) -> int:
        return sum(words in line for line in list(self.lines))

    def end(self) -> None:
        for thread in self._threads:
            thread.join(SECONDS)


@pytest.mark.item("rec-34")
@pytest.mark.parametrize("driver", ["server", "detached"])
def test_every_command_shows_the_same_wherever_the_run_is_driven(
    shared: Served, lw: Place, driver: str, tmp_path: Path
) -> None:
    """Text, activity, a denial and a status while the call runs; the final line once, at the end.
    The commands read the data directory or ask the server.
    """
    mark = tmp_path / "mark"
    run = started(shared, lw, driver, mark)
    lw.env["LOOPWRIGHT_TOKEN"] = shared.token
    local = ["--data-dir", str(shared.folder / "home")]
    remote = ["--server", f"http://127.0.0.1:{shared.port}"]
    commands = {
        f"{name} {place[0]}": lw.start(name, run, *more, *place)
        for name, more in (("watch", ()), ("logs", ("-f",)))
        for place in (local, remote)
    }
    seen = {name: Seen(one.stdout, one.stderr) for name, one in commands.items()}

    def is_shown(words: str) -> bool:
        return all(one.count(words) for one in seen.values())

    try:
        until(lambda: is_shown("still waiting"), SECONDS)
        Path(f"{mark}.watched").touch()
        until(lambda: all(is_shown(words) for words in LIVE), SECONDS)
        assert not any(one.count("Completed") for one in seen.values())
    finally:
        Path(f"{mark}.watched").touch()
        Path(f"{mark}.go").touch()
        for one in seen.values():
            one.end()
    assert {name: one.wait(SECONDS) for name, one in commands.items()} == dict.fromkeys(seen, 0)
    ends = {name: one.count("✓ Completed in 1 iteration") for name, one in seen.items()}
    assert ends == dict.fromkeys(seen, 1)
