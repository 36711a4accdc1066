"""Snapshots over HTTP: what a run changed, its certificate, and what gates show."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from loopwright.server.view_shapes import RunCertificate, RunDiff
from tests.server.served import Served

RUNS = "/api/v1/runs"


def started(own: Served, folder: Path, **repeat: object) -> str:
    """A run whose agent adds a line in each iteration; its id."""
    agent = folder / "agent.sh"
    agent.write_text('#!/bin/sh\necho "line $LOOPWRIGHT_ITERATION" >> work.txt\necho ok\n')
    agent.chmod(0o755)
    (folder / "files").mkdir()
    definition = json.loads(own.definition(f"command:{agent}", **repeat))
    definition["workspace"] = {"snapshots": True}
    return own.start(json.dumps(definition), workspace=str(folder / "files"))


@pytest.mark.item("rec-12", "rec-42")
def test_a_diff_and_a_certificate_over_http(own: Served, tmp_path: Path) -> None:
    """The whole run, one iteration, two of them; counts alone; what decided the run."""
    run = started(own, tmp_path, until={"command": ["grep", "-q", "line 2", "work.txt"]})
    own.until(run, "completed")
    whole = own("GET", f"{RUNS}/{run}/diff").json
    msgspec.convert(whole, RunDiff)
    assert (whole["files"], whole["insertions"]) == (1, 2)
    assert "+line 1\n+line 2" in whole["diff"]
    one = own("GET", f"{RUNS}/{run}/diff?from=2").json
    assert "+line 1" not in one["diff"]
    both = own("GET", f"{RUNS}/{run}/diff?from=0&to=1&stat=true").json
    assert (both["insertions"], both["diff"]) == (1, None)
    assert own("GET", f"{RUNS}/{run}/diff?from=2&paths=other").json["diff"] == ""
    assert own("GET", f"{RUNS}/{run}/diff?from=9").status == 404
    assert own("GET", f"{RUNS}/{run}/diff?from=x").status == 422
    made = own("GET", f"{RUNS}/{run}/certificate").json
    msgspec.convert(made, RunCertificate)
    [check] = made["checks"]
    assert (check["verdict"], check["exit_code"], check["tree"]) == ("pass", 0, whole["to"])


@pytest.mark.item("rec-16")
def test_gates_have_the_counts_of_their_iteration(own: Served, tmp_path: Path) -> None:
    """In the list of gates and in the run."""
    run = started(own, tmp_path, until={"person": True})
    own.until(run, "waiting")
    [gate] = own("GET", "/api/v1/gates").json["gates"]
    assert gate["snapshot"]["changed"] == {"files": 1, "insertions": 1, "deletions": 0}
    assert gate["snapshot"]["paths"] == ["work.txt"]
    assert own("GET", f"{RUNS}/{run}").json["gates"][0]["snapshot"] == gate["snapshot"]


def test_a_run_without_snapshots_has_no_diff(own: Served) -> None:
    """It is said so; its certificate has no trees."""
    run = own.start(own.definition(own.script("a"), max=1))
    own.until(run, "completed")
    refused = own("GET", f"{RUNS}/{run}/diff")
    assert (refused.status, "no snapshots" in refused.body.decode()) == (404, True)
    assert own("GET", f"{RUNS}/{run}/certificate").json["final_tree"] is None
