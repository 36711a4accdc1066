"""The final line of a run where people read it: terminal, `show`, HTTP, notifications, webhooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, lw
from tests.http.served import Served, served, wait_for
from tests.http.test_loopback import Receiver, receiver
from tests.http.test_notifications import when
from tests.http.test_remote_commands import Both

__all__ = ["lw", "receiver"]
RUNS = "/api/v1/runs"
REPORTS = 'echo \'{"type":"usage","input_tokens":5,"output_tokens":1,"usd":0.25}\'\n'
WRITES = 'cat > /dev/null; echo "line $LOOPWRIGHT_ITERATION" >> work.txt\n'
FAILS = "echo broken >&2; exit 3\n"
ENDINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "completed": (
        "",
        {"until": {"command": ["grep", "-q", "line 2", "work.txt"]}},
        {},
    ),
    "exhausted": ("", {"max": 2, "until": {"command": ["grep", "-q", "line 9", "work.txt"]}}, {}),
    "budget": ("", {"max": 5}, {"budget": {"usd": 0.4}}),
    "deadline": ("touch began; sleep 60\n", {}, {"budget": {"time": "2s"}}),
    "failed": (FAILS, {}, {}),
    "cancelled": ("touch began; sleep 60\n", {}, {}),
}
LINES = {
    "completed": "✓ Completed in 2 iterations · … · $0.50 · 1 file changed (+2 −0)"
    " · grep -q 'line 2' work.txt passed",
    "exhausted": "■ Stopped at the limit of 2 iterations · … · $0.50 · 1 file changed (+2 −0)"
    " · grep -q 'line 9' work.txt failed (exit code 1)",
    "budget": "■ Stopped by the budget in iteration 2 of 5 · … · $0.50 · 1 file changed (+2 −0)",
    "deadline": "■ Stopped by the time limit in iteration 1 of 3 · … · $0.25"
    " · 2 files changed (+1 −0)",
    "failed": "✗ Failed in iteration 1 of 3: the program exited with code 3: broken · … · $0.25"
    " · 1 file changed (+1 −0)",
    "cancelled": "■ Stopped by the first administrator in iteration 1 of 3 · … · $0.25"
    " · 2 files changed (+1 −0)",
}


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Served]:
    """A server that may deliver webhooks to this machine."""
    with served(tmp_path, more={"webhooks_to_loopback": "on"}) as one:
        yield one


@pytest.mark.item("rec-36")
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_final_line_is_the_same_wherever_it_is_read(
    ending: str,
    telling: Served,
    receiver: Receiver,
    lw: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A webhook leaves out what an agent printed, and nothing else."""
    hook = {"url": f"http://127.0.0.1:{receiver.port}/x", "kinds": ["run.finished"]}
    assert telling("POST", "/api/v1/webhooks", hook).status == 201
    then, repeat, more = ENDINGS[ending]
    folder = tmp_path / "files"
    folder.mkdir()
    agent = tmp_path / "agent.sh"
    agent.write_text(f"#!/bin/sh\n{WRITES}{REPORTS}{then}")
    agent.chmod(0o755)
    definition = json.loads(telling.definition(f"jsonl:{agent}", **repeat))
    definition |= {"workspace": {"snapshots": True}, **more}
    run = telling.start(json.dumps(definition), workspace=str(folder))
    if ending == "cancelled":
        wait_for((folder / "began").exists)
        assert telling("POST", f"{RUNS}/{run}/stop").status == 200
    status = "exhausted" if ending in ("budget", "deadline") else ending
    telling.until(run, status)

    line = telling("GET", f"{RUNS}/{run}").json["summary"]
    assert re.sub(r"[\d.]+ s ·", "… ·", line) == LINES[ending]
    both = Both(lw, telling, monkeypatch)
    assert line in both.alike("show", run).out
    assert line in both.alike("logs", run).out
    [noticed] = [one for one in when(telling, run, f"run.{status}") if "outcome" in one["data"]]
    assert noticed["data"]["summary"] == line
    assert noticed["title"].endswith(line)
    wait_for(lambda: receiver.got)
    sent = json.loads(receiver.got[-1][1])["data"]["summary"]
    assert sent == line.replace("the program exited with code 3: broken", "exit")
