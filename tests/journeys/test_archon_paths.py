"""Archon workflows and the folder they work in: one run at a time, none taken up unasked, and
names of branches that are only names."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Place, until
from tests.journeys.test_zenflow_crashes import Stage
from tests.journeys.workflows import Troupe, loop, workflow


@pytest.fixture
def troupe(lw: Place) -> Troupe:
    return Troupe(lw)


@pytest.fixture
def stage(lw: Place) -> Stage:
    return Stage(lw)


NODES = (
    {"id": "plan", "prompt": "Plan."},
    {"id": "dev", "loop": loop(most=3), "depends_on": ["plan"]},
    {"id": "ship", "prompt": "Ship $dev.output.", "depends_on": ["dev"]},
)


@pytest.mark.item("archon-63")
def test_a_failed_workflow_continues(troupe: Troupe) -> None:
    """Completed nodes are not run again and their outputs are there; the loop begins at pass 1."""
    troupe.says(plan=["planned"], dev=["not yet"])
    first = troupe.run(*NODES)
    assert (first["status"], len(troupe.calls)) == ("failed", 4)
    troupe.says(**{"plan": ["planned again"], "dev~2": ["made.\nDONE"], "ship": ["shipped"]})
    told = troupe.lw("resume", first["run"], "--json").json
    assert (told["run"], told["status"]) == (first["run"], "completed")
    assert told["steps"]["plan"]["output"] == "planned"
    assert [call["path"] for call in troupe.calls[4:]] == ["dev~2.0", "ship"]


@pytest.mark.item("archon-64", "archon-65")
def test_a_killed_run_holds_its_folder_until_it_is_stopped(lw: Place, stage: Stage) -> None:
    """The second run is told who holds the folder and how it stands; after `stop` it may start."""
    file = lw.write("flow.yaml", workflow({"id": "a", "prompt": "Go."}))
    stage.stop_at("a")
    stage.kill_there(lw.start("run", str(file), "Go.", "--agent", stage.agent))
    [held] = lw("ls", "--json").json["runs"]
    told = lw("run", str(file), "Go.", "--agent", stage.agent)
    assert told.code == 8
    assert f"{held['run']} (journey) holds workspace" in told.err
    assert "left behind by a process that is gone" in told.err
    assert lw("stop", held["run"]).code == 0
    assert lw("run", str(file), "Go.", "--agent", stage.agent).code == 0
    assert [run["status"] for run in lw("ls", "--json").json["runs"]] == ["completed", "cancelled"]


@pytest.mark.item("archon-65")
def test_a_living_holder_is_reported_as_such(lw: Place, stage: Stage) -> None:
    """It is running, and another folder is free."""
    file = lw.write("flow.yaml", workflow({"id": "a", "prompt": "Go."}))
    stage.stop_at("a")
    process = lw.start("run", str(file), "Go.", "--agent", stage.agent)
    try:
        until((stage.folder / "reached").exists)
        told = lw("run", str(file), "Go.", "--agent", stage.agent)
        assert (told.code, "it is running" in told.err) == (8, True)
        other = lw.folder / "other"
        other.mkdir()
        free = lw("run", str(file), "Go.", "--agent", stage.agent, "--workspace", str(other))
        assert free.code == 0, free.err
    finally:
        process.kill()
        process.communicate()


@pytest.mark.item("archon-66")
def test_a_plain_run_is_a_new_run(troupe: Troupe) -> None:
    """After a failure the same command starts from the first node, under another id."""
    troupe.says(plan=["planned"], dev=["not yet"])
    first = troupe.run(*NODES)
    troupe.says(plan=["planned"], dev=["made.\nDONE"], ship=["shipped"])
    second = troupe.run(*NODES)
    assert first["run"] != second["run"]
    assert (first["status"], second["status"]) == ("failed", "completed")
    assert [call["path"] for call in troupe.calls].count("plan") == 2


HOSTILE = ["main;curl", "-delete", "a\u200bb", "..", "a" * 300, "--upload-pack=touch owned"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.item("C6", "C7")
def test_hostile_branches_are_refused(lw: Place, name: str) -> None:
    """By the option, before anything starts, with a code of their own."""
    node = {"id": "a", "bash": "printf %s $BASE_BRANCH"}
    file = lw.write("flow.yaml", workflow(node))
    told = lw("run", str(file), "Go.", f"--base-branch={name}", "--agent", "command:x", "--json")
    assert told.code == 2
    assert told.json["type"].endswith("bad-ref")
    assert not (lw.folder / "owned").exists()


@pytest.mark.item("C6", "C7")
def test_the_branch_of_a_repository_is_a_name_too(lw: Place) -> None:
    """What the repository itself says is checked in the same way; git is told where options end."""
    folder = Path(lw.folder)
    git = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def run(*args: str) -> None:
        subprocess.run(["git", *args], cwd=folder, env=git, check=True, capture_output=True)

    run("init", "-q")
    run("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main;touch${IFS}owned")
    file = lw.write("flow.yaml", workflow({"id": "a", "bash": "printf %s $BASE_BRANCH"}))
    told = lw("run", str(file), "Go.", "--agent", "command:x", "--json")
    assert (told.code, told.json["type"].rpartition(":")[2]) == (2, "bad-ref")
    good = lw("run", str(file), "Go.", "--agent", "command:x", "--base-branch", "dev/1", "--json")
    assert (good.code, good.json["output"]) == (0, "dev/1")
    assert not (folder / "owned").exists()
