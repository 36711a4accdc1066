"""Replay needs the log and nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place, lw

__all__ = ["lw"]

PROGRAM = Path(__file__).with_name("sealed_replay.py")
LONG = "a line that is too long to stand in a fact\n" * 60


def replayed(lw: Place, run: str) -> str:
    """What comes of a run when only its log is left."""
    home = Path(lw.env["LOOPWRIGHT_HOME"])
    for file in lw.folder.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(home), run],
        capture_output=True,
        text=True,
        cwd="/",
        env={},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def loop(lw: Place) -> list[str]:
    """Checks of every kind, memory, long texts, a person, a retry."""
    lw.write("check", "#!/bin/sh\necho seen >> seen; test $(wc -l < seen) -ge 2\n").chmod(0o755)
    agent = lw.script(
        {"text": LONG, "usage": {"input_tokens": 3, "output_tokens": 4, "usd": 0.01}},
        {"fail": {"type": "overloaded", "detail": "try again"}},
        "two DONE",
        "three\nDONE",
    )
    until: dict[str, Any] = {
        "all": [{"regex": "(?i)done"}, {"command": ["./check"]}, {"person": True}]
    }
    top = {"budget": {"usd": 5, "time": "1h"}}
    return ["run", lw.loop(agent, max=4, until=until, memory="progress-log", top=top)]


def graph(lw: Place) -> list[str]:
    """Steps side by side, references, a list, a person."""
    steps = [
        {"id": "list", "prompt": "list", "schema": {"type": "object", "required": ["all"]}},
        {"id": "gate", "needs": ["list"], "gate": {"message": "{{steps.list.output}}?"}},
        {"id": "other", "run": ["echo", "other"]},
        {
            "id": "each",
            "needs": ["gate", "other"],
            "repeat": {"for_each": {"from": "steps.list.result.all"}, "prompt": "do {{item}}"},
        },
    ]
    replies = [{"text": json.dumps({"all": ["a", "b", LONG]})}, "x", "y", "z"]
    definition = {"name": "graph", "agent": lw.script(*replies), "goal": "g", "steps": steps}
    lw.write("graph.json", json.dumps(definition))
    return ["run", "graph.json"]


def expressions(lw: Place) -> list[str]:
    """Conditions, lists and stop rules that are computed."""
    lw.write(
        "flow.yaml",
        """
name: computed
agents:
  w: {description: Works.}
  r: {description: Decides., resultSchema: {type: object, required: [go, all]}}
steps:
  - {id: plan, agent: r}
  - {id: dev, agent: w, dependsOn: [plan], condition: steps.plan.result.go,
     loop: {maxIterations: 4, until: iteration >= 1}}
  - {id: each, agent: w, dependsOn: [dev], loop: {forEach: steps.plan.result.all}}
  - {id: never, agent: w, dependsOn: [plan], condition: '!steps.plan.result.go'}
""",
    )
    agent = lw.script({"text": json.dumps({"go": True, "all": [1, 2]})}, *["ok"] * 6)
    return ["run", "flow.yaml", "--agent", agent]


@pytest.mark.item("inv-28")
@pytest.mark.parametrize("begin", [loop, graph, expressions])
def test_a_run_is_replayed_from_its_log_alone(lw: Place, begin: Any) -> None:
    """Without files, processes, net, clock and dice the same events come out, to the last."""
    told = lw(*begin(lw), "--json")
    while told.code == 5:
        told = lw("approve", told.json["run"], "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told
    count = len(lw.events(told.json["run"]))
    assert replayed(lw, told.json["run"]) == f"the same {count} facts"


@pytest.mark.item("inv-28")
def test_a_stopped_run_is_replayed_from_its_log_alone(lw: Place) -> None:
    """Also one that a person ended while it waited."""
    run = lw(*loop(lw), "--json").json["run"]
    assert lw("stop", run).code == 0
    count = len(lw.events(run))
    assert replayed(lw, run) == f"the same {count} facts"
