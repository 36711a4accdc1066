"""Processes that are killed in the middle of a workflow, and how little is done again.

The agent is a small shell program that writes down where it was called. At the place that a test
names it stops once and waits to be killed with its driver, or fails.
"""

import json
import os
import shlex
import signal
import subprocess
from collections import Counter
from typing import Any

import pytest

from tests.cli.conftest import PATIENCE_S, Place, until
from tests.journeys.flows import flow

AGENT = """#!/bin/sh
echo "$LOOPWRIGHT_PATH" >> "$1/calls"
for stop in "$1"/stop-*; do
  [ -f "$stop" ] || continue
  if [ "$(cat "$stop")" = "$LOOPWRIGHT_PATH" ]; then
    mv "$stop" "$1/reached"
    sleep 60
  fi
done
if [ -f "$1/fail-here" ] && [ "$(cat "$1/fail-here")" = "$LOOPWRIGHT_PATH" ]; then
  rm "$1/fail-here"
  exit 1
fi
echo "said $LOOPWRIGHT_PATH"
"""


class Stage:
    """The folder of the agent: what was called, and where it shall stop."""

    def __init__(self, lw: Place) -> None:
        self.lw = lw
        self.folder = lw.folder / "stage"
        self.folder.mkdir()
        program = lw.write("agent.sh", AGENT)
        program.chmod(0o755)
        self.agent = f"command:{shlex.quote(str(program))} {shlex.quote(str(self.folder))}"

    def stop_at(self, path: str) -> None:
        (self.folder / "stop-here").write_text(path)

    def kill_there(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the agent to come to its stop, and kill the driver there."""
        reached = self.folder / "reached"
        until(reached.exists)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
        reached.unlink()

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().split()


@pytest.fixture
def stage(lw: Place) -> Stage:
    return Stage(lw)


def test_a_loop_continues_inside_the_iteration_that_a_crash_left(lw: Place, stage: Stage) -> None:
    """Killed in the second step of pass 7: the first is not run again, nor any pass before."""
    text = flow("""
  - id: dev
    loop:
      maxIterations: 8
      steps:
        - {id: code, agent: w, instructions: Write it.}
        - {id: review, agent: w, instructions: Review it., dependsOn: [code]}
""")
    file = lw.write("flow.yaml", text)
    stage.stop_at("dev.6.review")
    stage.kill_there(lw.start("run", str(file), "Go.", "--agent", stage.agent))
    told = lw("resume", "run_", "--json")
    assert told.code == 0, told.err
    assert told.json["status"] == "completed"
    made = [f"dev.{n}.{name}" for n in range(8) for name in ("code", "review")]
    made.insert(made.index("dev.6.review"), "dev.6.review")
    assert stage.calls == made


GATED: dict[str, Any] = {
    "name": "release",
    "goal": "Release it.",
    "repeat": {
        "for_each": {"items": ["a", "b", "c"], "parallel": 3},
        "steps": [
            {"id": "build", "agent": "w", "prompt": "Build {{item}}."},
            {"id": "sure", "needs": ["build"], "gate": {"message": "Ship {{item}}?"}},
            {"id": "ship", "needs": ["sure"], "agent": "w", "prompt": "Ship {{item}}."},
        ],
    },
}


def gate_of(lw: Place, path: str) -> str:
    """The open gate of a place."""
    events = lw.events("run_")
    return next(str(f["gate"]) for f in events if f["kind"] == "gate.opened" and f["path"] == path)


def test_gates_of_items_are_answered_one_by_one_across_crashes(lw: Place, stage: Stage) -> None:
    """Three are open at once; after each answer the process is killed, and nothing is lost."""
    file = lw.write("release.json", json.dumps({**GATED, "agents": {"w": {"use": stage.agent}}}))
    assert lw("run", str(file), "--json").json["status"] == "waiting"
    gates = [gate_of(lw, f"main[{n}].sure") for n in range(3)]
    assert len(lw("inbox", "--json").json["gates"]) == 3
    for n in range(2):
        stage.stop_at(f"main[{n}].ship")
        process = lw.start("approve", gates[n])
        until(lambda n=n: n == 0 or ended(lw, f"main[{n - 1}].ship"))  # type: ignore[misc]
        stage.kill_there(process)
        assert len(lw("inbox", "--json").json["gates"]) == 2 - n
    told = lw("approve", gates[2], "--json")
    assert told.code == 0, told.err
    assert told.json["status"] == "completed"
    calls = Counter(stage.calls)
    assert {path: count for path, count in calls.items() if count > 1} == {
        "main[0].ship": 2,
        "main[1].ship": 2,
    }
    assert len(calls) == 6
    answered = [f for f in lw.events("run_") if f["kind"] == "gate.answered"]
    assert [event["gate"] for event in answered] == gates


def ended(lw: Place, path: str) -> bool:
    return any(f["kind"] == "step.finished" and f["path"] == path for f in lw.events("run_"))
