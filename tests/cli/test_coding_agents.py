"""Coding agents from the command line: gates of acp agents, parking, and what the doctor says."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from loopwright.agents.clis.catalogue import CLIS
from tests.agents.clis import events as e
from tests.agents.fake_cli import FakeCli
from tests.cli.conftest import Place, until

ACP = Path(__file__).parents[1] / "agents" / "acp_agent.py"
SPEC = f"acp:{sys.executable} -I {ACP}"


def asked(lw: Place, *args: str) -> dict[str, object]:
    """A run that waits for a permission."""
    told = lw.real("loop", "write", "--agent", SPEC, "--max", "1", "--json", *args)
    assert (told.code, told.json["status"]) == (5, "waiting"), told.err
    run: dict[str, object] = told.json
    return run


def test_a_permission_is_a_gate_that_outlives_its_process(lw: Place) -> None:
    """The process leaves with 5; the approval is found by the next one, and used once."""
    run = asked(lw)
    assert not (lw.folder / "a.txt").exists()
    [gate] = lw("inbox", "--json").json["gates"]
    assert gate["message"] == "The agent wants to edit: Write a.txt"
    told = lw.real("approve", gate["id"], "--json")
    assert (told.code, told.json["status"], told.json["output"]) == (
        0,
        "completed",
        "written: True",
    )
    assert (lw.folder / "a.txt").read_text() == "hi\n"
    kinds = [event["kind"] for event in lw("events", str(run["run"])).lines]
    assert kinds.count("gate.opened") == kinds.count("gate.answered") == 1


def test_a_rejected_permission_is_a_no_for_the_agent_alone(lw: Place) -> None:
    """The agent is told no and goes on; the run does not fail by it."""
    run = asked(lw)
    told = lw.real("reject", str(run["run"]), "--json")
    assert (told.json["status"], told.json["output"]) == ("completed", "written: False")
    assert not (lw.folder / "a.txt").exists()


def test_a_stop_closes_the_question(lw: Place) -> None:
    """A run that is stopped while it asks leaves nothing in the inbox and allows nothing."""
    run = asked(lw)
    lw.real("stop", str(run["run"]))
    assert lw("inbox", "--json").json == {"gates": []}
    events = lw("events", str(run["run"])).lines
    assert [f["reason"] for f in events if f["kind"] == "gate.closed"] == ["stopped"]
    assert events[-1]["kind"] == "run.finished"
    assert lw.real("approve", str(run["run"])).code == 8
    assert not (lw.folder / "a.txt").exists()


def test_an_answer_from_elsewhere_reaches_the_waiting_agent(lw: Place) -> None:
    """A driver that stays gets the decision of another process, and its agent goes on."""
    go = lw.folder / "go"
    second = lw.probe({"wait_for": str(go)})
    plan = {
        "name": "two",
        "agents": {"asks": {"use": SPEC}, "works": {"use": second}},
        "steps": [
            {"id": "a", "agent": "asks", "prompt": "write"},
            {"id": "b", "agent": "works", "prompt": "x"},
        ],
    }
    file = lw.folder / "two.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    driver = lw.start("run", str(file), "--json")
    until(lambda: bool(lw("inbox", "--json").json["gates"]))
    [gate] = lw("inbox", "--json").json["gates"]
    assert lw.real("approve", gate["id"]).code in (0, 5)
    until(lambda: (lw.folder / "a.txt").exists())
    go.touch()
    out, _ = driver.communicate(timeout=60)
    assert json.loads(out)["steps"]["a"]["output"] == "written: True"
    assert (lw.folder / "a.txt").read_text() == "hi\n"


# -- coding CLIs -----------------------------------------------------------------------------------


@pytest.fixture
def fake(lw: Place) -> FakeCli:
    cli = FakeCli(lw.folder.parent / "fake").install(*CLIS)
    lw.env["PATH"] = f"{cli.folder / 'bin'}:{os.environ['PATH']}"
    return cli


def test_a_loop_with_a_coding_cli(lw: Place, fake: FakeCli) -> None:
    """`--agent claude` is all it takes; usage and cost are counted."""
    fake.says(e.CLAUDE_WRITES)
    told = lw.real("loop", "go", "--agent", "claude", "--max", "2", "--json")
    assert told.json["iterations"] == 2
    assert told.json["output"] == "DONE. File written."
    assert told.json["usage"] == {
        "input_tokens": 4000,
        "output_tokens": 80,
        "usd": 0.0176,
        "unpriced_calls": 0,
        "cost": "$0.02",
    }


def test_a_used_up_allowance_parks_the_run(lw: Place, fake: FakeCli) -> None:
    """The run waits for the time that is named, in the same iteration, and then goes on."""
    soon = int(time.time()) + 2
    fake.says(e.claude_api_error(429, f"usage limit reached|{soon}"), code=1)
    fake.says(e.CLAUDE_WRITES)
    told = lw.real("loop", "go", "--agent", "claude", "--max", "1", "--json")
    assert (told.json["iterations"], told.json["output"]) == (1, "DONE. File written.")
    assert time.time() >= soon
    assert "rate_limited" in told.err
    events = lw("events", told.json["run"]).lines
    [wait] = [f for f in events if f["kind"] == "effect.requested" and f["call"]["do"] == "sleep"]
    assert wait["call"]["until"] >= soon * 1_000


def test_a_session_continues_from_iteration_to_iteration(lw: Place, fake: FakeCli) -> None:
    """With the session as memory, the second iteration resumes what the first began."""
    fake.says(e.CLAUDE_WRITES)
    lw.real("loop", "go", "--agent", "claude", "--max", "2", "--memory", "session")
    first, second = (call["argv"] for call in fake.calls)
    assert "--resume" not in first  # type: ignore[operator]
    assert second[second.index("--resume") + 1] == e.SESSION  # type: ignore[index,union-attr]


def test_rights_that_cannot_be_held_are_refused_before_anything_runs(
    lw: Place, fake: FakeCli
) -> None:
    """A definition that confines an agent to tools is not run by one that cannot be confined."""
    file = lw.folder / "tools.json"
    agents = {"w": {"use": "codex", "tools": ["Read"]}}
    plan = {"name": "t", "goal": "x", "agent": "w", "agents": agents, "repeat": {"max": 1}}
    file.write_text(json.dumps(plan), encoding="utf-8")
    told = lw.real("run", str(file))
    assert told.code == 2
    assert "cannot be used without 'bash' among its tools" in told.err
    assert fake.calls == []


@pytest.mark.parametrize("cli", sorted(CLIS))
def test_the_doctor_knows_each_cli(lw: Place, cli: str) -> None:
    """A CLI that is missing is told with the way to install it, and is no fault of the place."""
    lw.env["PATH"] = "/nowhere"
    checks = {c["check"]: c for c in lw.real("doctor", "--json").json["checks"]}
    found = checks[f"agent {cli}"]
    assert (found["state"], found["why"]) == ("none", "not installed")
    assert "npm install -g" in found["fix"]
