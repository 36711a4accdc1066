"""A night in the life of a loop: killed, failed and out of budget, resumed each time.

The repository, the agent, the check and every process are real. In the morning every view of the
record agrees with what the agent did.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Place, until

AGENT = Path(__file__).with_name("night_agent.py")
CHECK = """import sys
lines = open("notes.txt").read().splitlines()
print(len(lines), "lines")
sys.exit(len(lines) < 6)
"""


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(lw: Place) -> Path:
    """A Git repository with a check that wants six lines in a file that has one."""
    (lw.folder / "notes.txt").write_text("line 0\n")
    (lw.folder / "check.py").write_text(CHECK)
    git(lw.folder, "init", "-q", "-b", "main")
    git(lw.folder, "config", "user.name", "Tester")
    git(lw.folder, "config", "user.email", "tester@example.invalid")
    git(lw.folder, "add", ".")
    git(lw.folder, "commit", "-q", "-m", "Start")
    return lw.folder


def user_state(folder: Path) -> dict[str, bytes]:
    """Every file of the user's own repository, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / ".git").rglob("*"))
        if path.is_file()
    }


@pytest.mark.item("rec-43")
def test_overnight_run_with_kill_failure_and_budget(
    lw: Place, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each iteration completes exactly once, and diff, logs, spend and the final line agree."""
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = "on"
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    night = tmp_path / "night"
    night.mkdir()
    agent = f"jsonl:{sys.executable} -I -S {shlex.quote(str(AGENT))} {shlex.quote(str(night))}"
    check = f"{sys.executable} check.py"
    before = user_state(repository)

    # 22:00: started; the machine dies in iteration 2.
    options = ["--max", "8", "--budget", "usd=0.45", "--memory", "progress-log"]
    process = lw.start("loop", "Add lines", "--agent", agent, "--until-command", check, *options)
    until((night / "hangs").exists)
    run = str(lw("ls", "--json").json["runs"][0]["run"])
    until(lambda: (2, "Read") in tools_recorded(lw, run))  # visible while the call runs
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)

    # 23:00: resumed; the agent fails in iteration 3.
    failed = lw.real("resume", run)
    assert failed.code == 3, failed
    assert "the model is not available" in failed.err

    # 01:00: resumed; the budget ends in the middle of iteration 4.
    spent = lw.real("resume", run)
    assert spent.code == 4, spent

    # 07:00: resumed with more money.
    refused = lw.real("resume", run)
    assert refused.code == 8, refused
    assert "--budget" in refused.err
    done = lw.real("resume", run, "--budget", "usd=2")
    assert done.code == 0, done

    events = lw.events(run)
    finished = [e for e in events if e["kind"] == "iteration.finished"]
    ended_well = [e for e in finished if e.get("status", "completed") == "completed"]
    completed = Counter(e["iteration"] for e in ended_well)
    assert completed == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    calls = [json.loads(line) for line in (night / "calls.jsonl").read_text().splitlines()]
    assert [call["iteration"] for call in calls] == [1, 2, 2, 3, 3, 4, 4, 5]
    assert [n for n in range(1, 6) if f"Added line {n}." in calls[-1]["prompt"]] == [1, 2, 3, 4]
    _check_views(lw, run, night, done.err)
    assert user_state(repository) == before


def tools_recorded(lw: Place, run: str) -> list[tuple[int, str]]:
    """The activity of a run: iteration and tool of each entry."""
    logged: Any = lw("logs", run, "--tools", "--json").json
    return [(entry["iteration"], entry["tool"]) for entry in logged["entries"]]


def _check_views(lw: Place, run: str, night: Path, screen: str) -> None:
    """What the record shows is what the agent did."""
    did = [json.loads(line) for line in (night / "tools.jsonl").read_text().splitlines()]
    assert Counter(tools_recorded(lw, run)) == Counter(map(tuple, did))

    whole = lw("diff", run).out
    assert [line for line in whole.splitlines() if line.startswith("+line")] == [
        f"+line {number}" for number in range(1, 6)
    ]
    third = lw("diff", run, "3").out
    assert [line for line in third.splitlines() if line.startswith("+line")] == ["+line 3"]

    spend = lw("spend", "--json").json
    assert spend["total"]["usd"] == pytest.approx(0.70)
    shown = lw("show", run, "--json").json
    assert shown["usage"]["usd"] == pytest.approx(0.70)
    for view in (screen, lw("show", run).out):
        assert "Completed in 5 iterations" in view
        assert "$0.70" in view
        assert "1 file changed (+5 −0)" in view
        assert "check.py passed" in view
