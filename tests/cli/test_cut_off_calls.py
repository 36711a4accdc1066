"""A call that a stop or a time limit cuts off: what it changed is in the last snapshot."""

from __future__ import annotations

import fcntl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, until

STOP_SECONDS = 9.0
"""More than the time to end an agent and to take the last snapshot."""

AT_ONCE_SECONDS = 3.0
"""Less than the time that a last snapshot may take."""

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
    events = ws.events(run)
    assert events[-1]["kind"] == "run.finished"
    assert events[-2]["snapshot"]["total"]["files"] == 1


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
    failed = [one for one in ws.events(run) if one["kind"] == "effect.failed"]
    assert "it was not finished within 0.001 s" in failed[-1]["error"]["detail"]


@contextmanager
def hold_snapshots(lw: Place) -> Iterator[None]:
    """Let snapshots wait, as they do while another process works on the same repository."""
    files = [open(one, "rb") for one in lw.folder.parent.rglob("snapshots/**/lock")]  # noqa: SIM115
    assert files
    try:
        for one in files:
            fcntl.flock(one, fcntl.LOCK_EX)
        yield
    finally:
        for one in files:
            one.close()


@pytest.mark.item("rec-12", "rec-36")
def test_a_second_stop_ends_a_run_that_takes_its_last_snapshot(ws: Place) -> None:
    """It does not wait for the snapshot; the changes count as not recorded, and a resume records
    them.
    """
    spec, started = agent(ws)
    base = ("loop", "Do it", "--agent", spec, "--max", "3", "--json")
    with ws.start(*base) as running:
        until(started.exists)
        [row] = ws("ls", "--json").json["runs"]
        with hold_snapshots(ws), ws.start("stop", row["run"]) as first:
            until(lambda: any(map(is_last_snapshot, ws.events(row["run"]))))
            assert stop(ws, row["run"]) < AT_ONCE_SECONDS
            first.communicate(timeout=STOP_SECONDS)
        running.communicate(timeout=STOP_SECONDS)
    events = ws.events(row["run"])
    assert [one["kind"] for one in events[-3:]] == [
        "cancel.requested",
        "effect.failed",
        "run.finished",
    ]
    assert ws("diff", row["run"], "--json").json["unrecorded"] is True
    started.unlink()
    ws("resume", row["run"], "--budget", "time=1s")
    assert "+cut off" in ws("diff", row["run"]).out


def is_last_snapshot(event: dict[str, Any]) -> bool:
    return event["kind"] == "effect.requested" and bool(event["call"].get("within_ms"))


LIMITS = {
    "of the loop": "  max: 3\n  limits: {time: 1500ms}\n",
    "of an iteration": "  max: 3\n  limits: {pass_time: 1500ms}\n",
}


@pytest.mark.item("rec-10", "rec-36")
@pytest.mark.parametrize("limit", LIMITS)
def test_diff_of_an_iteration_that_a_limit_of_its_loop_cut_off(ws: Place, limit: str) -> None:
    """Its changes are shown under its number, as after a limit of the run."""
    spec, _ = agent(ws)
    (ws.folder / "l.yaml").write_text(
        f"name: l\nagent: {spec}\ngoal: Do it\nrepeat:\n{LIMITS[limit]}"
    )
    told = ws("run", "l.yaml", "--json")
    assert told.code == 4, told.err
    run = told.json["run"]
    assert "+cut off" in ws("diff", run).out
    assert "+cut off" in ws("diff", run, "2").out
    assert ws("diff", run, "--json").json["unrecorded"] is False
    [_, second] = ws("show", run, "--json").json["passes"]
    assert second["changed"]["files"] == 1


@pytest.mark.parametrize("way", ["kill -9", "SIGTERM"])
def test_a_call_that_was_interrupted_and_made_again_is_shown(lw: Place, way: str) -> None:
    """`resume` says at once what it resumes, `show` and `logs` that there were two attempts; the
    last line of a process that was ended says that the run is interrupted.
    """
    started = lw.folder / "started"
    script = f"#!/bin/sh\ncat >/dev/null\n[ -e {started} ] && exit 0\ntouch {started}\nsleep 60\n"
    lw.write("agent.sh", script).chmod(0o755)
    with lw.start("loop", "go", "--agent", "command:./agent.sh", "--max", "1") as running:
        until(started.exists)
        if way == "kill -9":
            running.kill()
        else:
            running.terminate()
        _, err = running.communicate(timeout=STOP_SECONDS)
    run = lw("ls", "--json").json["runs"][0]["run"]
    if way == "SIGTERM":
        assert "Interrupted in iteration 1 of 1" in err.decode()
        assert "Running iteration" not in err.decode()
        assert f"loopwright resume {run}   continues it" in err.decode()
        return  # it released the run: nothing was lost
    told = lw("resume", run)
    assert told.code == 0
    words = "resuming iteration 1/1, attempt 2: the call of agent worker was interrupted"
    assert words in told.err
    again = "attempt 1 of the call was interrupted when the process of the run ended; "
    assert f"{again}the call was made again (attempt 2)" in lw("show", run).out
    assert f"{again}the call was made again (attempt 2)" in lw("logs", run).out
