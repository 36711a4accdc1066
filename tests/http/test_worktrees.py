"""Worktrees over HTTP: start in one, apply it, discard it; the same from the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.served import Served, served
from tests.workspaces.folders import commit, git, put


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server of its own for each test."""
    with served(tmp_path) as found:
        yield found


@pytest.fixture
def project(server: Served) -> Path:
    """A repository in the folder of the server."""
    folder = server.folder / "project"
    put(folder, a__txt="a\n")
    git(folder, "init", "-q", "-b", "main", "--template=")
    commit(folder, "first")
    return folder


def started(server: Served, project: Path) -> str:
    body = {
        "definition": server.definition(server.script("x", "x", "x")),
        "workspace": str(project),
        "worktree": True,
    }
    reply = server("POST", "/api/v1/runs", body)
    assert reply.status == 201, reply.body
    run = str(reply.json["run"])
    server.until(run, "completed")
    return run


@pytest.mark.item("rec-18", "rec-19", "rec-20")
def test_start_apply_and_discard_over_http(server: Served, project: Path) -> None:
    """The result arrives in the checkout, and the worktree goes after a confirmation."""
    run = started(server, project)
    page = server("GET", f"/api/v1/runs/{run}/snapshot").json
    put(Path(page["workspace"]), a__txt="a\nb\n")
    applied = server("POST", f"/api/v1/runs/{run}/apply")
    assert applied.json == {
        "run": run,
        "repository": str(project),
        "files": ["a.txt"],
        "outside": [],
    }
    assert (project / "a.txt").read_text() == "a\nb\n"
    path = f"/api/v1/runs/{run}/discard"
    assert server("POST", path, {"confirm": False}).code == "not-confirmed"
    assert server("POST", path, {"confirm": True}).json["branch"] == f"loopwright/{run}"
    assert server("GET", f"/api/v1/runs/{run}/snapshot").json["worktree"]["exists"] is False
    audit = server("GET", "/api/v1/audit").json
    actions = [row["action"] for row in audit["rows"] if row["subject"] == run]
    assert {"run.applied", "run.discarded"} <= set(actions)


def test_a_conflict_and_a_folder_without_git_are_problems(server: Served, project: Path) -> None:
    """409 with the names of the files; 400 for a folder that cannot have a worktree."""
    run = started(server, project)
    page = server("GET", f"/api/v1/runs/{run}/snapshot").json
    put(Path(page["workspace"]), a__txt="theirs\n")
    put(project, a__txt="mine\n")
    commit(project, "mine")
    reply = server("POST", f"/api/v1/runs/{run}/apply")
    assert (reply.status, reply.code) == (409, "merge-conflict")
    assert reply.json["detail"].endswith("a.txt")
    body = {"definition": server.definition(server.script("x")), "worktree": True}
    refused = server("POST", "/api/v1/runs", body)
    assert (refused.status, refused.code) == (400, "not-a-repository")


def test_a_second_run_in_the_same_folder_is_warned_about(server: Served) -> None:
    """In the answer to the start; the first run has no warning."""
    body = {"definition": server.definition(server.script("x", "x", "x"), until={"person": True})}
    first = server("POST", "/api/v1/runs", body).json
    server.until(first["run"], "waiting")
    [warning] = server("POST", "/api/v1/runs", body).json["warnings"]
    assert first["warnings"] == []
    assert warning.startswith(f"{first['run']} (work) waits for a decision and would continue")
