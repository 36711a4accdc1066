"""Stored definitions: ETags, and those from elsewhere that would start programs."""

import json

import pytest

from loopwright.operations import api_types
from tests.http.served import Served
from tests.http.test_runs import fits

BASE = "/api/v1/definitions"


def text(agent: str = "model:test/x") -> str:
    return json.dumps({"name": "work", "agent": agent, "goal": "g", "repeat": {"max": 1}})


@pytest.mark.item("E10")
def test_a_change_needs_what_was_seen(own: Served) -> None:
    """A definition is made, read with its ETag, and changed by who has the newest one only."""
    made = own("PUT", f"{BASE}/mine", {"text": text()})
    assert (made.status, made.headers["etag"]) == (201, '"1"')
    fits(made.json, api_types.DefinitionItem)
    bare = own("PUT", f"{BASE}/mine", {"text": text()})
    assert (bare.status, bare.code) == (428, "if-match-needed")
    seen = own("GET", f"{BASE}/mine").headers["etag"]
    changed = own("PUT", f"{BASE}/mine", {"text": text("codex")}, headers={"If-Match": seen})
    assert (changed.status, changed.headers["etag"]) == (200, '"2"')
    for stale in (seen, '"9"', "x", '""', '"\u00b2"'):
        reply = own("PUT", f"{BASE}/mine", {"text": text()}, headers={"If-Match": stale})
        assert (reply.status, reply.code) == (412, "stale")
    assert own("GET", f"{BASE}/mine").json["text"] == text("codex")
    assert own("GET", BASE).json["definitions"][0]["text"] is None
    assert own("DELETE", f"{BASE}/mine").status == 204
    assert own("GET", f"{BASE}/mine").status == 404


def test_a_stored_definition_is_started(own: Served) -> None:
    """A run may be started by the name of a definition."""
    own("PUT", f"{BASE}/mine", {"text": text(own.script("said"))})
    reply = own("POST", "/api/v1/runs", {"stored": "mine"})
    assert own.until(reply.json["run"], "completed")["output"] == "said"


@pytest.mark.item("A30")
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(text("command:/bin/cat"), id="command"),
        pytest.param(text("acp:agent --stdio"), id="acp"),
        pytest.param(text("claude"), id="coding-cli"),
        pytest.param(
            json.dumps(
                {
                    "name": "w",
                    "agent": "script:x.yaml",
                    "goal": "g",
                    "repeat": {"max": 1, "until": {"command": ["make", "test"]}},
                }
            ),
            id="check",
        ),
    ],
)
def test_programs_from_elsewhere_wait_for_an_admin(own: Served, given: str) -> None:
    """An imported definition that starts programs is stored, disabled, and is not started before
    an admin has approved exactly this text.
    """
    editor = own.made("editor")
    reply = own("POST", f"{BASE}/import", {"name": "theirs", "text": given}, token=editor)
    assert (reply.status, reply.json["enabled"]) == (202, False)
    digest = reply.json["digest"]
    assert reply.json["detail"] == f"needs admin approval of digest {digest}"
    started = own("POST", "/api/v1/runs", {"stored": "theirs"}, token=editor)
    assert (started.status, started.code) == (403, "needs-approval")
    approve = f"{BASE}/theirs/approve"
    assert own("POST", approve, {"digest": digest}, token=editor).status == 403
    wrong = own("POST", approve, {"digest": "0" * 32})
    assert (wrong.status, wrong.code) == (409, "changed-since-shown")
    assert own("POST", approve, {"digest": digest}).json["enabled"] is True
    assert own("POST", f"{BASE}/import", {"name": "theirs", "text": given}).code == "name-taken"
    rows = own("GET", "/api/v1/audit?subject=theirs").json["rows"]
    assert [row["action"] for row in rows] == ["definition.approved", "definition.imported"]


def test_what_starts_nothing_is_ready_at_once(own: Served) -> None:
    """A definition from elsewhere that only asks a chat model is enabled."""
    reply = own("POST", f"{BASE}/import", {"name": "theirs", "text": text()})
    assert (reply.status, reply.json["enabled"], reply.json["programs"]) == (201, True, [])


@pytest.mark.parametrize(
    ("name", "given", "status", "code"),
    [
        ("Upper", text(), 422, "bad-definition-name"),
        ("a" * 101, text(), 422, "bad-definition-name"),
        ("fine", "name: [", 422, "bad-definition"),
        ("fine", "", 422, "bad-definition"),
        ("fine", "x" * 300_000, 422, "bad-definition"),
    ],
)
def test_definitions_that_cannot_be(
    shared: Served, name: str, given: str, status: int, code: str
) -> None:
    """What is not a definition is not kept."""
    reply = shared("PUT", f"{BASE}/{name}", {"text": given})
    assert (reply.status, reply.code) == (status, code)
    assert shared("GET", BASE).json["definitions"] == []
