"""`pause`, `resume` and `stop`: one run or all, whoever drives them, also after a crash."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, until
from tests.cli.terminal import PATIENCE_S
from tests.person import ME


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def begun(lw: Place, *behaviour: dict[str, Any], count: int = 1) -> Any:
    """A run in a process of its own whose agent has been called so many times."""
    file = lw.loop("command:false", until={"signal": "DONE"})
    process = lw.start("run", file, "--agent", lw.probe(*behaviour), "--json")
    until(lambda: len(lw.calls()) >= count)
    return process


def test_pause_and_resume(lw: Place) -> None:
    """A pause lets the iteration end and starts no other; resume drives on from there."""
    go = lw.folder / "go"
    process = begun(lw, {"wait_for": str(go), "say": "one"}, {"say": "DONE"})
    told = lw("pause", "run_", "--json")
    assert (told.code, told.json["count"]) == (0, 1)
    assert "already" in lw("pause", "run_").err
    go.touch()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["status"]) == (5, "paused")
    assert len(lw.calls()) == 1
    assert lw("ls", "--status", "paused", "--json").json["runs"][0]["iterations"] == 1
    resumed = lw("resume", "run_", "--json")
    assert (resumed.code, resumed.json["iterations"]) == (0, 2)


def test_stop_ends_what_another_process_drives(lw: Place) -> None:
    """Stop ends the agent with everything it started, wherever it runs, and the run with it."""
    process = begun(lw, {"hang": True})
    [call] = lw.calls()
    told = lw("stop", "run_", "--json")
    assert (told.code, told.json["count"]) == (0, 1)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["status"]) == (3, "cancelled")
    until(lambda: not is_running(call["pid"]) and not is_running(call["child"]))
    again = lw("stop", "run_")
    assert again.code == 8
    assert "already ended: cancelled (stopped)" in again.err


def test_a_call_that_was_stopped_is_shown_as_such(lw: Place) -> None:
    """What it said was not recorded, which is not the same as no output."""
    lw.write("agent.sh", "#!/bin/sh\ncat > /dev/null\necho working\ntouch said\nsleep 60\n").chmod(
        0o755
    )
    process = lw.start("run", lw.loop("command:./agent.sh"))
    until(lambda: (lw.folder / "said").exists())
    assert lw("stop", "last").code == 0
    err = process.communicate(timeout=PATIENCE_S)[1].decode()
    assert f"is being stopped by {ME}\n" in err
    page = lw("show", "last").out
    assert "(the call was stopped)" in page
    assert "produced no output" not in page
    assert "command:./agent.sh" in lw("spend").out


def test_stop_of_a_run_that_no_process_drives(lw: Place) -> None:
    """A run that waits or was left behind is ended here."""
    run = lw("run", lw.loop(lw.script("x"), until={"person": True}), "--json").json
    assert lw("stop", run["run"]).code == 0
    assert lw("show", run["run"], "--json").json["status"] == "cancelled"
    assert lw("inbox", "--json").json["gates"] == []
    late = lw("approve", run["gates"][0]["id"])
    assert late.code == 8


@pytest.mark.parametrize("verb", ["pause", "resume", "stop"])
def test_references(lw: Place, verb: str) -> None:
    """An unknown run is 2, one that has ended 8; `all` of nothing is no error."""
    assert lw(verb, "run_nothing").code == 2
    assert lw(verb, "all").code == 0
    lw("run", lw.loop(lw.script("x"), max=1))
    told = lw(verb, "run_", "--json")
    assert (told.code, told.json["status"]) == (8, 409)


def test_all_at_once(lw: Place) -> None:
    """`all` reports how many; several runs are resumed side by side."""
    file = lw.loop(lw.script("x"), until={"person": True})
    runs = [lw("run", file, "--json").json["run"] for _ in range(3)]
    assert lw("pause", "all", "--json").json["count"] == 3
    assert {item["status"] for item in lw("ls", "--json").json["runs"]} == {"paused"}
    for run in runs:
        assert lw("approve", run, "--no-drive").code == 0
    told = lw("resume", "all", "--json")
    assert told.code == 0, told.err
    assert sorted(one["run"] for one in told.json["runs"]) == sorted(runs)
    assert {one["status"] for one in told.json["runs"]} == {"completed"}
    assert lw("stop", "all", "--json").json["count"] == 0


@pytest.mark.item("J1")
def test_a_second_driver_is_refused_by_name(lw: Place) -> None:
    """A run that a living process drives is not taken from it; the process is named."""
    process = begun(lw, {"hang": True})
    told = lw("resume", "run_")
    assert told.code == 8
    assert f"process {process.pid}" in told.err
    assert lw("resume", "all", "--json").json == {"runs": []}
    assert lw("stop", "all").code == 0
    process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("which", ["run_", "all"])
def test_a_crashed_run_is_taken_up(lw: Place, which: str) -> None:
    """After a kill -9 the run is shown as left behind; resume ends leftovers and goes on."""
    process = begun(lw, {"say": "one"}, {"hang": True}, count=2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    crashed = lw.calls()[1]
    [item] = lw("ls", "--json").json["runs"]
    assert item["left_behind"]
    doctor = {one["check"]: one for one in lw("doctor", "--json").json["checks"]}
    assert (doctor["left behind"]["state"], "resume all" in doctor["left behind"]["fix"]) == (
        "warn",
        True,
    )
    lw.probe({"say": "one"}, {"say": "DONE"})
    told = lw("resume", which, "--json")
    assert told.code == 0, told.err
    assert not is_running(crashed["pid"])
    assert not is_running(crashed["child"])
    run = item["run"]
    assert [f["seq"] for f in lw.events(run)] == list(range(1, len(lw.events(run)) + 1))
    calls = [call["env"]["LOOPWRIGHT_EFFECT"] for call in lw.calls()]
    assert calls == ["main.0/agent#1", "main.1/agent#1", "main.1/agent#1"]


@pytest.mark.item("rec-1")
@pytest.mark.parametrize("how", ["failed", "stopped at a gate"])
def test_resume_in_the_background(lw: Place, how: str) -> None:
    """`--detach` says where the run continues and returns; another process drives it."""
    if how == "failed":
        file = lw.loop(lw.script({"fail": "no"}, "DONE"), until={"signal": "DONE"})
        run = lw("run", file, "--json").json["run"]
        words = ["--agent", lw.probe({"say": "DONE"})]
    else:
        agent = lw.probe({"say": "DONE"}, {"say": "DONE"})
        file = lw.loop(agent, until={"all": [{"signal": "DONE"}, {"person": True}]})
        run = lw("run", file, "--no-wait", "--json").json["run"]
        assert lw("stop", run).code == 0
        words = []
    told = lw.real("resume", run, *words, "--detach")
    assert (told.code, told.out.strip()) == (0, run), told.err
    assert f"{run} resumed at iteration 1" in told.err
    assert "running in process" in told.err
    status = "completed" if how == "failed" else "waiting"
    until(lambda: lw("show", run, "--json").json["status"] == status)
    if how == "failed":
        refused = lw("resume", run, "--detach")
        assert "there is nothing left to do" in refused.err


def test_resume_in_the_background_of_a_run_that_is_driven(lw: Place) -> None:
    """Refused: two processes cannot drive one run. It is for one run, and prints no events."""
    go = lw.folder / "go"
    process = begun(lw, {"wait_for": str(go), "say": "DONE"})
    refused = lw("resume", "last", "--detach")
    assert (refused.code, f"driven by process {process.pid}" in refused.err) == (8, True)
    go.touch()
    process.communicate(timeout=PATIENCE_S)
    for words in (["all", "--detach"], ["last", "--detach", "--jsonl"]):
        assert "--detach is for one run" in lw("resume", *words).err


def test_resume_of_a_loop_that_completed_at_its_limit_names_the_fork(lw: Place) -> None:
    """The command of the hint makes more iterations."""
    run = lw("loop", "go", "--agent", "command:echo hi", "--max", "2", "--json").json["run"]
    refused = lw("resume", run)
    assert refused.code == 8
    words = f"loopwright fork {run} --at 2 --max 4"
    assert words in refused.err
    forked = lw(*words.split()[1:], "--json")
    assert (forked.code, forked.json["iterations"]) == (0, 4)


SLOW = "#!/bin/sh\ncat > /dev/null\nsleep 1.5\necho done\n"


def test_the_idle_limit_is_set_at_the_start_and_on_resume(lw: Place) -> None:
    """A silent agent fails with the limit and the option that raises it."""
    lw.write("slow.sh", SLOW).chmod(0o755)
    words = ["loop", "go", "--agent", "command:./slow.sh", "--max", "1"]
    told = lw(*words, "--budget", "idle=500ms")
    assert told.code == 3
    assert "no output for 0.5s; allow more with --budget idle=1s" in told.err
    assert "500ms idle" in lw("show", "last").out
    assert lw("resume", "last", "--budget", "idle=20s").code == 0
    assert "20s idle" in lw("show", "last").out


def test_an_idle_limit_that_is_none_is_refused(lw: Place) -> None:
    """With the form that is expected."""
    told = lw("loop", "go", "--agent", lw.script("x"), "--budget", "idle=soon")
    assert (told.code, '"soon" is not a time' in told.err) == (2, True)
    near = lw("loop", "go", "--agent", lw.script("x"), "--budget", "idel=1m")
    assert "did you mean idle?" in near.err
