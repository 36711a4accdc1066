"""Snapshots over HTTP: what a run changed, its certificate, and what gates show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.operations.use_cases.run_views import RunCertificate
from loopwright.views.run_responses import RunDiff
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Served, served, wait_for
from tests.http.test_loopback import Receiver, receiver
from tests.http.test_notifications import when
from tests.http.test_remote_commands import Both

__all__ = ["lw", "receiver"]
RUNS = "/api/v1/runs"


def started(own: Served, folder: Path, then: str = "echo ok", **repeat: object) -> str:
    """A run whose agent adds a line in each iteration; its id."""
    agent = folder / "agent.sh"
    agent.write_text(f'#!/bin/sh\necho "line $LOOPWRIGHT_ITERATION" >> work.txt\n{then}\n')
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


# -- the same at every interface -------------------------------------------------------------------


def by_mcp(server: Served, run: str, **given: Any) -> Any:
    """The answer of the MCP tool."""
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, agents=[])
    work = LoopTools(loops=loops).answer("loop_diff", {"id": run, **given})
    said = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    assert not said.error, said.text
    return json.loads(said.text)


@pytest.mark.item("rec-12")
def test_a_diff_is_the_same_with_server_over_http_and_over_mcp(
    own: Served, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`diff --server` prints what `diff` prints on the machine of the server."""
    run = started(own, tmp_path, until={"command": ["grep", "-q", "line 2", "work.txt"]})
    own.until(run, "completed")
    both = Both(lw, own, monkeypatch)
    assert "+line 1\n+line 2" in both.alike("diff", run).out
    for words in (
        *(("--stat",), ("2",), ("0", "1"), ("2", "--stat"), ("1", "2", "--json")),
        *(("9",), ("0",)),
    ):
        both.alike("diff", run, *words)
    assert "+line 2" in lw("diff", run, "2", "--server", both.url, "--", "work.txt").out
    assert lw("diff", run, "2", "--server", both.url, "--", "other").out == ""
    over_http = own("GET", f"{RUNS}/{run}/diff?from=2").json
    assert by_mcp(own, run, **{"from": 2}) == over_http == both("diff", run, "2", "--json").json
    stat = by_mcp(own, run, stat=True)
    assert (stat["insertions"], stat["unrecorded"], "diff" in stat) == (2, False, False)


@pytest.mark.item("rec-11", "rec-12")
def test_every_interface_names_the_files_that_snapshots_left_out(
    own: Served, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else says that a difference has no part of them."""
    run = started(own, tmp_path, then="mkfifo pipe; touch ok", max=2)
    own.until(run, "completed")
    told = Both(lw, own, monkeypatch).alike("diff", run, "--stat")
    assert "not compared, since snapshots left them out (size or kind): pipe" in told.err
    stat = own("GET", f"{RUNS}/{run}/diff?stat=true").json
    assert (stat["omitted"], stat["omitted_count"]) == (["pipe"], 1)
    assert by_mcp(own, run, stat=True)["omitted"] == ["pipe"]


@pytest.mark.item("rec-12")
def test_every_interface_says_that_the_last_changes_were_not_recorded(
    own: Served, lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped during a call, and whose last snapshot takes too long."""
    monkeypatch.setattr("loopwright.kernel.snapshots.CUT_OFF_MS", 1)
    run = started(own, tmp_path, then="touch began; sleep 60", max=1)
    wait_for((tmp_path / "files" / "began").exists)
    assert own("POST", f"{RUNS}/{run}/stop").json["status"] == "cancelled"
    told = Both(lw, own, monkeypatch).alike("diff", run)
    assert "changes after the last snapshot were not recorded" in told.err
    assert own("GET", f"{RUNS}/{run}/diff?stat=true").json["unrecorded"] is True
    assert by_mcp(own, run)["unrecorded"] is True


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Served]:
    """A server that may deliver webhooks to this machine."""
    with served(tmp_path, more={"webhooks_to_loopback": "on"}) as one:
        yield one


@pytest.mark.item("rec-42")
def test_webhooks_and_notifications_carry_the_certificate(
    telling: Served, receiver: Receiver, tmp_path: Path
) -> None:
    """It is the certificate of the run, without what programs printed."""
    hook = {"url": f"http://127.0.0.1:{receiver.port}/x", "kinds": ["run.finished"]}
    assert telling("POST", "/api/v1/webhooks", hook).status == 201
    check = tmp_path / "check.sh"
    check.write_text("#!/bin/sh\necho printed by the check\ngrep -q 'line 2' work.txt\n")
    check.chmod(0o755)
    run = started(telling, tmp_path, until={"command": [str(check)]})
    telling.until(run, "completed")
    made = telling("GET", f"{RUNS}/{run}/certificate").json
    assert made["checks"][0]["verdict"] == "pass"
    wait_for(lambda: receiver.got)
    data = json.loads(receiver.got[-1][1])["data"]
    [noticed] = [one for one in when(telling, run, "run.completed") if one["kind"] != "run.started"]
    for told in (data, noticed["data"]):
        certificate = told["certificate"]
        assert b"printed by" not in json.dumps(certificate).encode()
        assert [{**one, "evidence": ""} for one in made["checks"]] == certificate["checks"]
        for name in ("run", "outcome", "protected", "first_tree", "final_tree", "head", "events"):
            assert certificate[name] == made[name], name
