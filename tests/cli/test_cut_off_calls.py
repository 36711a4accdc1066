"""A call that a stop or a time limit cuts off: what it changed is in the last snapshot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Place, until

STOP_SECONDS = 9.0
"""More than the time to end an agent and to take the last snapshot."""

WORKING = """#!/bin/sh
cat >/dev/null
trap 'echo "{late}" >> work.txt; exit 1' TERM
echo "line $LOOPWRIGHT_ITERATION" >> work.txt
if [ "$LOOPWRIGHT_ITERATION" = 2 ]; then
  echo "cut off" >> work.txt
  touch {started}
  while true; do sleep 0.05; done
fi
echo ok
"""


@pytest.fixture
def ws(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A Git repository, with snapshots switched on."""
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "on")
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = "on"
    subprocess.run(["git", "init", "-q", "."], check=True, cwd=lw.folder)
    return lw


def agent(lw: Place) -> tuple[str, Path]:
    """An agent that hangs in iteration 2 after it has written, and writes once more at its end;
    and the file that says that it hangs.
    """
    file, started = lw.folder.parent / "agent.sh", lw.folder.parent / "started"
    file.write_text(WORKING.format(started=started, late="on the way out"))
    file.chmod(0o755)
    return f"command:{file}", started


def stop(lw: Place, run: str) -> float:
    begun = time.monotonic()
    assert lw("stop", run).code == 0
    return time.monotonic() - begun


def wait_and_stop(lw: Place, base: tuple[str, ...], started: Path) -> str:
    """Stop the run from another process while its agent works."""
    with lw.start(*base, "--json") as running:
        until(started.exists)
        [row] = lw("ls", "--json").json["runs"]
        assert stop(lw, row["run"]) < STOP_SECONDS
        running.communicate(timeout=STOP_SECONDS)
    return str(row["run"])


def exceed_time(lw: Place, base: tuple[str, ...], _started: Path) -> str:
    """Let the time limit of the run end it."""
    return str(lw(*base, "--budget", "time=1500ms", "--json").json["run"])


def kill_and_stop(lw: Place, base: tuple[str, ...], started: Path) -> str:
    """Stop a run whose process was killed: the command that stops it takes the snapshot."""
    with lw.start(*base, "--json") as running:
        until(started.exists)
        running.kill()
        running.communicate()
    [row] = lw("ls", "--json").json["runs"]
    assert stop(lw, row["run"]) < STOP_SECONDS
    return str(row["run"])


WAYS: dict[str, Callable[[Place, tuple[str, ...], Path], str]] = {
    "stop": wait_and_stop,
    "time limit": exceed_time,
    "stop after kill -9": kill_and_stop,
}


@pytest.mark.item("rec-10", "rec-12", "rec-36")
@pytest.mark.parametrize("way", WAYS)
def test_diff_shows_what_an_agent_did_until_it_was_cut_off(ws: Place, way: str) -> None:
    """Also what it wrote while it was ended; the final line and `diff` have nothing to warn about,
    and the run continues in the same iteration.
    """
    spec, started = agent(ws)
    base = ("loop", "Do it", "--agent", spec, "--max", "3")
    run = WAYS[way](ws, base, started)
    shown = ws("show", run)
    assert "not recorded" not in shown.out
    told = ws("diff", run)
    assert (told.code, told.err) == (0, "")
    assert "+line 1\n+line 2\n+cut off\n" in told.out
    if way != "stop after kill -9":  # its supervisor ends the agent some time after the kill
        assert "+on the way out" in told.out
    assert "+line 1" not in ws("diff", run, "2").out
    assert "+cut off" in ws("diff", run, "2").out
    assert ws("diff", run, "--json").json["unrecorded"] is False
    facts = ws.facts(run)
    assert facts[-1]["kind"] == "run.finished"
    assert facts[-2]["snapshot"]["total"]["files"] == 1


@pytest.mark.item("rec-12", "rec-36")
def test_a_last_snapshot_that_is_not_finished_in_time_is_reported(
    ws: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends all the same; the final line and every form of `diff` warn."""
    monkeypatch.setattr("loopwright.kernel.snapshots.CUT_OFF_MS", 1)
    spec, started = agent(ws)
    base = ("loop", "Do it", "--agent", spec, "--max", "3")
    told = ws(*base, "--budget", "time=1500ms")
    assert started.exists()
    assert told.code == 4
    assert "changes of iteration 2 were not recorded" in told.err + told.out
    run = ws("ls", "--json").json["runs"][0]["run"]
    warning = "changes after the last snapshot were not recorded"
    for form in ((), ("--stat",), ("--json",)):
        assert warning in ws("diff", run, *form).err
    assert ws("diff", run, "--json").json["unrecorded"] is True
    failed = [one for one in ws.facts(run) if one["kind"] == "effect.failed"]
    assert "it was not finished within 0.001 s" in failed[-1]["error"]["detail"]
