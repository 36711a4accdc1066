"""Loops of roles whose driver is killed with kill -9: inside each stage, and between them.

The agent is a small shell program that writes down where it was called, and stops once at the place
that a test names, until it is killed with its driver.
"""

import json
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.journeys.test_zenflow_crashes import Stage

PATHS = [f"main.{n}.{stage}" for n in (0, 1) for stage in ("coder", "coder-2")]
DEFINITION = {
    "name": "pair",
    "description": "Two stages, twice",
    "roles": [{"role": "coder", "prompt": "Write it."}, {"role": "coder", "prompt": "Mend it."}],
    "termination_condition": {"type": "iteration_bound", "value": 2},
}


@pytest.fixture
def stage(lw: Place) -> Stage:
    folder = lw.folder / ".loopwright" / "loops"
    folder.mkdir(parents=True)
    (folder / "pair.json").write_text(json.dumps(DEFINITION), encoding="utf-8")
    return Stage(lw)


def killed_at(lw: Place, stage: Stage, path: str) -> None:
    stage.stop_at(path)
    process = lw.start("run", "pair", "Build it", "--agent", stage.agent)
    stage.kill_there(process)


def finished(lw: Place) -> list[Any]:
    """Go on with what was left; the events of the run."""
    told = lw("resume", "all", "--json")
    assert told.code == 0, told
    run = lw("ls", "--json").json["runs"][0]
    assert run["status"] == "completed"
    return lw.events(str(run["run"]))


@pytest.mark.item("coqui-42")
@pytest.mark.parametrize("path", PATHS[1:2] + PATHS[2:3], ids=["second stage", "second iteration"])
def test_killed_inside_a_stage(lw: Place, stage: Stage, path: str) -> None:
    """The stage that was under way is run again, which is recorded; no other is."""
    killed_at(lw, stage, path)
    events = finished(lw)
    at = PATHS.index(path)
    assert stage.calls == [*PATHS[: at + 1], *PATHS[at:]]
    again = [event["path"] for event in events if event["kind"] == "effect.repeated"]
    assert again == [path]


@pytest.mark.deep
@pytest.mark.item("coqui-42", "coqui-67")
def test_killed_inside_every_stage_and_too_often(lw: Place, stage: Stage) -> None:
    """A stage that takes its driver down three times has failed, and the loop with it; tried again,
    it goes on with what completed before it.
    """
    killed_at(lw, stage, PATHS[0])
    for path in (PATHS[1], PATHS[1], PATHS[1]):
        stage.stop_at(path)
        process = lw.start("resume", "last")
        stage.kill_there(process)
    told = lw("resume", "last", "--json")
    assert told.json["status"] == "failed"
    assert stage.calls == [PATHS[0], PATHS[0], PATHS[1], PATHS[1], PATHS[1]]
    assert lw("retry", "last").code == 0
    assert stage.calls[5:] == ["main~2.0.coder-2", "main~2.1.coder", "main~2.1.coder-2"]
