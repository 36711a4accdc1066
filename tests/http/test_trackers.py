"""Projects, sprints and todos over HTTP, as on the command line."""

from typing import Any

import pytest

from tests.http.served import Served
from tests.http.test_loops import start, until

PROJECTS, SPRINTS = "/api/v1/projects", "/api/v1/sprints"


@pytest.mark.item("coqui-85")
def test_projects_and_sprints(shared: Served) -> None:
    """A loop has a project with a sprint for each iteration; people create others."""
    loop = start(shared, "Rejected", "APPROVED")["loop"]
    until(shared, loop["id"], "completed")
    told: Any = shared("GET", f"{PROJECTS}/{loop['project_id']}").json
    assert told["description"] == loop["goal"]
    assert [one["status"] for one in told["sprints"]] == ["rejected", "complete"]
    made = shared("POST", PROJECTS, {"title": "Auth", "slug": "auth"})
    assert made.status == 201
    assert shared("POST", PROJECTS, {"title": "Auth", "slug": "auth"}).status == 409
    assert made.json["id"] in [one["id"] for one in shared("GET", PROJECTS).json["projects"]]
    planned = shared("POST", f"{PROJECTS}/auth/sprints", {"title": "Login"}).json
    assert (planned["status"], planned["project"]) == ("planned", made.json["id"])
    assert shared("PATCH", f"{SPRINTS}/{planned['id']}", {"status": "complete"}).status == 409
    moved = shared("PATCH", f"{SPRINTS}/{planned['id']}", {"status": "in_progress"})
    assert (moved.status, moved.json["status"]) == (200, "in_progress")
    assert [one["id"] for one in shared("GET", f"{SPRINTS}?project=auth").json["sprints"]] == [
        planned["id"]
    ]
    assert shared("PATCH", f"{PROJECTS}/auth", {"status": "archived"}).json["status"] == "archived"


@pytest.mark.item("coqui-62", "coqui-85")
def test_todos_of_a_session(shared: Served) -> None:
    """All runs of a session have the same todos."""
    session = shared("POST", "/api/v1/sessions", {}).json["id"]
    loop = start(shared, "APPROVED", session_id=session)["loop"]["id"]
    of_session, of_run = f"/api/v1/sessions/{session}/todos", f"/api/v1/runs/{loop}/todos"
    made = shared("POST", of_session, {"title": "Write the test", "priority": "high"})
    assert made.status == 201
    [found] = shared("GET", of_run).json["todos"]
    assert (found["id"], found["status"]) == (made.json["id"], "pending")
    done = shared("PATCH", f"{of_run}/{found['id']}", {"status": "completed"}).json
    assert (done["status"], done["version"]) == ("completed", 2)
    assert shared("GET", f"{of_session}?status=pending").json["todos"] == []
    assert shared("DELETE", f"{of_session}/{found['id']}").json == {
        "deleted": True,
        "id": found["id"],
    }
    until(shared, loop, "completed")


@pytest.mark.item("coqui-59", "coqui-79", "coqui-85")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"{PROJECTS}?status=done", None, 400),
        ("GET", f"{PROJECTS}?colour=red", None, 400),
        ("GET", f"{PROJECTS}/none", None, 404),
        ("POST", PROJECTS, {}, 400),
        ("POST", PROJECTS, {"title": " "}, 400),
        ("POST", PROJECTS, {"title": "x", "owner": "me"}, 400),
        ("PATCH", f"{PROJECTS}/none", {"status": "active"}, 404),
        ("GET", f"{SPRINTS}?status=done", None, 400),
        ("PATCH", f"{SPRINTS}/none", {"status": "done"}, 400),
        ("PATCH", f"{SPRINTS}/none", {"status": "review"}, 404),
        ("GET", "/api/v1/sessions/none/todos", None, 404),
        ("POST", "/api/v1/runs/run_none/todos", {"title": "x"}, 404),
    ],
)
def test_refusals_have_an_error_and_a_code(
    shared: Served, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    """In the shape of the system that trackers come from."""
    reply = shared(method, path, body)
    assert reply.status == status, reply.body
    assert {"error", "code"} <= reply.json.keys()
