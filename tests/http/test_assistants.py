"""Assistants and their loops over HTTP, one test for each promise of their document."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from loopwright.http.compat import rondoflow as shapes
from loopwright.http.context import RequestLimits
from tests.http.served import Reply, Served, served

BASE = "/api/agents"
STAYS = {"text": "at work", "delay": 60}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all, which does not mind how often it is asked."""
    limits = RequestLimits(requests_per_second=10_000)
    with served(tmp_path_factory.mktemp("assistants"), limits=limits) as one:
        yield one


def made(own: Served, *replies: Any, **fields: Any) -> str:
    """An assistant with looping on, and a scripted agent behind it."""
    agent = own.script(*(replies or ["some work"] * 9), name=f"{fields.get('name', 'a')}.yaml")
    body = {"name": "a", "loopEnabled": True, "agent": agent, **fields}
    reply = own("POST", BASE, body)
    assert reply.status == 201, reply.body
    return str(reply.json["data"]["id"])


def start(own: Served, agent: str, message: Any = "Do it.", **how: Any) -> Reply:
    return own("POST", f"{BASE}/{agent}/loop/start", {"message": message}, **how)


def status(own: Served, agent: str, **how: Any) -> dict[str, Any]:
    reply = own("GET", f"{BASE}/{agent}/loop/status", **how)
    assert reply.status == 200
    msgspec.convert(reply.json, shapes.StatusAnswer)
    return dict(reply.json["data"])


def waiting(own: Served, agent: str) -> dict[str, Any]:
    """The status once a review is pending."""
    run = status(own, agent)["run"]
    own.until(run, "waiting")
    return status(own, agent)


def ended(own: Served, agent: str) -> dict[str, Any]:
    own.until(status(own, agent)["run"], "completed", "failed", "cancelled", "exhausted")
    return status(own, agent)


def refused(reply: Reply) -> tuple[int, str]:
    """Every refusal has the one envelope."""
    assert set(reply.json) == {"success", "error", "code"}
    assert reply.json["success"] is False
    return reply.status, str(reply.json["code"])


def people(own: Served, role: Any, name: str = "") -> str:
    """The token of somebody with a role."""
    return own.context.access.new_token(f"a {role} {name}", role, by="test").text


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-5")
def test_a_fresh_assistant(own: Served) -> None:
    """Looping is off, there is no criterion, and the cap is ten."""
    reply = own("POST", BASE, {"name": "fresh"})
    assert reply.status == 201
    data = reply.json["data"]
    assert (data["loopEnabled"], data["loopCriteria"], data["maxIterations"]) == (False, None, 10)
    msgspec.convert(reply.json, shapes.WrittenAssistant)
    assert reply.json["warnings"] == []
    assert own("GET", f"{BASE}/{data['id']}").json == {"success": True, "data": data}
    assert own("GET", BASE).json["data"] == [data]


@pytest.mark.item("rondoflow-1", "rondoflow-2", "rondoflow-3", "rondoflow-4", "rondoflow-63")
@pytest.mark.parametrize(
    ("settings", "good"),
    [
        ({"maxIterations": 0}, False),
        ({"maxIterations": 101}, False),
        ({"maxIterations": 2.5}, False),
        ({"maxIterations": 1}, True),
        ({"maxIterations": 100}, True),
        ({"loopCriteria": {"type": "vibes", "value": ""}}, False),
        ({"loopCriteria": {"type": "manual"}}, True),
        ({"loopCriteria": {"type": "max_iterations"}}, True),
        ({"loopCriteria": {"type": "regex"}}, False),
        ({"loopCriteria": {"type": "test_pass"}}, False),
        ({"loopCriteria": {"type": "manual", "value": ""}}, True),
        ({"loopCriteria": None}, True),
        ({"loopCriteria": {"type": "test_pass", "value": "npm test"}}, True),
        *(
            ({"loopCriteria": {"type": "test_pass", "value": f"a {sign} b"}}, True)
            for sign in ("&&", "|", ";", '"', "'", "$X", ":", "x::y", "--ci=true")
        ),
        ({"loopCriteria": {"type": "test_pass", "value": ""}}, False),
        ({"loopCriteria": {"type": "regex", "value": "x" * 501}}, False),
        ({"loopCriteria": {"type": "regex", "value": "(["}}, True),
        ({"loopCriteria": {"type": "regex", "value": ""}}, True),
        ({"loopCriteria": {"type": "regex", "value": "(?<=a)b"}}, True),
        ({"loopEnabled": "yes"}, False),
        ({"somethingElse": 1}, True),
        ({"maxIteration": 3}, False),
        ({"loopEnabeld": True}, False),
        ({"loopCriteria": "manual"}, False),
        ({"loopCriteria": '{"type": "vibes"}'}, False),
    ],
    ids=str,
)
def test_settings_of_a_loop(shared: Served, settings: dict[str, Any], good: bool) -> None:
    """The same settings are taken or refused when an assistant is made and when it is changed."""
    new = shared("POST", BASE, {"name": "new", **settings})
    agent = made(shared)
    changed = shared("PATCH", f"{BASE}/{agent}", settings)
    if not good:
        assert refused(new)[0] == refused(changed)[0] == 400
        return
    assert (new.status, changed.status) == (201, 200)
    for data in (new.json["data"], shared("GET", f"{BASE}/{agent}").json["data"]):
        assert {name: data[name] for name in settings} == settings


@pytest.mark.item("rondoflow-71")
def test_a_row_of_the_original_is_accepted_as_it_is(shared: Served) -> None:
    """Fields of relations and of later versions are kept, with a warning that names them, and a
    criterion that is a JSON text is decoded.
    """
    relations = ("mcpAssignments", "participations", "moderatedTables", "sessions")
    row = {
        **{"id": "clx1", "name": "new", "persona": "You work.", "loopEnabled": True},
        **{"loopCriteria": '{"type": "regex", "value": "DONE"}', "maxIterations": 3},
        **{name: [] for name in relations},
        **{"agentId": "clx1", "user": {"id": "u"}, "colour": "red"},
    }
    new = shared("POST", BASE, row)
    assert new.status == 201, new.body
    data = new.json["data"]
    assert data["id"] != "clx1"
    assert data["loopCriteria"] == {"type": "regex", "value": "DONE"}
    assert (data["colour"], data["user"]) == ("red", {"id": "u"})
    said = [one["message"] for one in new.json["warnings"]]
    assert "colour: no such field of an assistant; it has no effect" in said


@pytest.mark.item("rondoflow-69")
def test_switching_the_loop_off_clears_the_criterion(shared: Served) -> None:
    """And switching it on again leaves the number of iterations alone as its end."""
    agent = made(shared, loopCriteria={"type": "regex", "value": "DONE"}, maxIterations=7)
    off = shared("PATCH", f"{BASE}/{agent}", {"loopEnabled": False}).json["data"]
    assert (off["loopEnabled"], off["loopCriteria"], off["maxIterations"]) == (False, None, 7)
    on = {"loopEnabled": True, "loopCriteria": {"type": "manual"}}
    data = shared("PATCH", f"{BASE}/{agent}", on).json["data"]
    assert (data["loopEnabled"], data["loopCriteria"]) == (True, {"type": "manual"})


@pytest.mark.item("rondoflow-70")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"maxIterations": 3}),
        ("DELETE", "", None),
        ("POST", "/loop/start", {"message": "Do it."}),
        ("POST", "/loop/stop", None),
        ("GET", "/loop/status", None),
        ("POST", "/loop/approve", {"loopId": "x", "approved": True}),
    ],
)
def test_an_unknown_assistant_is_not_found(
    shared: Served, method: str, path: str, body: dict[str, Any] | None
) -> None:
    """Every route says so, in the envelope of all answers."""
    reply = shared(method, f"{BASE}/agent_nobody{path}", body)
    assert refused(reply) == (404, "no-assistant")


@pytest.mark.item("rondoflow-71")
def test_an_exported_assistant_is_taken_with_warnings(shared: Served) -> None:
    """Fields that have no effect are kept and named; those that the server sets are its own."""
    exported = {
        "id": "5f1a",
        "name": "Exported",
        "persona": "You fix.",
        "avatar": "https://example.org/a.png",
        "scope": [],
        "allowedTools": [],
        "memoryEnabled": False,
        "provider": "claude-code",
        "providerConfig": None,
        "permissionMode": "full",
        "status": "running",
        "skills": [{"skill": {"name": "review"}, "priority": 0, "enabled": True}],
        "canvasX": 120.5,
        "canvasY": 0,
        "createdAt": "2026-01-01T00:00:00Z",
        "loopEnabled": True,
        "loopCriteria": {"type": "max_iterations", "value": None},
        "maxIterations": 3,
    }
    reply = shared("POST", BASE, exported)
    assert reply.status == 201, reply.body
    data = reply.json["data"]
    assert data["id"].startswith("agent_")
    assert (data["avatar"], data["canvasX"]) == (exported["avatar"], 120.5)
    assert data["createdAt"] != exported["createdAt"]
    codes = {one["code"]: one["message"] for one in reply.json["warnings"]}
    assert codes["field-not-applied"].startswith("skills:")
    assert codes["ignored-field"].startswith("avatar, permissionMode, canvasX:")


@pytest.mark.item("rondoflow-25")
def test_a_test_program_that_does_not_exist(shared: Served) -> None:
    """The start is refused with its name, and nothing is run."""
    criteria = {"type": "test_pass", "value": "no-such-program-here --ci"}
    agent = made(shared, loopCriteria=criteria)
    reply = start(shared, agent)
    assert reply.status == 400, reply.body
    words = "step main: check `no-such-program-here --ci`: no-such-program-here is not on PATH"
    assert re.search(rf"assistant '[^']+': {re.escape(words)}", reply.json["error"])
    assert "--agent" not in reply.json["error"]
    assert not status(shared, agent)["active"]


def test_deleting(shared: Served) -> None:
    """An assistant is gone when it is deleted, but not from under its loop."""
    agent = made(shared, STAYS)
    start(shared, agent)
    assert refused(shared("DELETE", f"{BASE}/{agent}")) == (409, "already-running")
    shared("POST", f"{BASE}/{agent}/loop/stop")
    assert shared("DELETE", f"{BASE}/{agent}").json == {"success": True, "data": {"id": agent}}
    assert refused(shared("GET", f"{BASE}/{agent}")) == (404, "no-assistant")
    actions = [row.action for row in shared.context.records.audited(subject=agent)]
    assert actions == ["assistant.deleted", "assistant.created"]


# -- start -----------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-6", "rondoflow-58")
@pytest.mark.parametrize(
    "body", [{}, {"message": ""}, {"message": 1}, {"message": "  \n"}], ids=str
)
def test_a_message_is_needed(shared: Served, body: dict[str, Any]) -> None:
    """Without words nothing is started."""
    agent = made(shared)
    assert refused(shared("POST", f"{BASE}/{agent}/loop/start", body))[0] == 400
    assert status(shared, agent)["run"] is None


@pytest.mark.item("rondoflow-7")
def test_who_cannot_loop(shared: Served) -> None:
    """An assistant that is not there and one with looping off are refused differently."""
    off = made(shared, loopEnabled=False)
    assert refused(start(shared, "agent_nobody")) == (404, "no-assistant")
    assert refused(start(shared, off)) == (400, "loop-disabled")


@pytest.mark.item("rondoflow-8", "rondoflow-39")
def test_starting_is_answered_at_once(shared: Served) -> None:
    """The answer is 202 while the first process is at work."""
    agent = made(shared, STAYS)
    reply = start(shared, agent)
    assert reply.status == 202
    assert reply.json == {"success": True, "data": {"agentId": agent, "status": "started"}}
    now = status(shared, agent)
    assert now["active"] is True
    assert now["state"]["status"] == "running"
    assert now["state"]["progressLog"] == []


@pytest.mark.item("rondoflow-9", "rondoflow-10")
def test_one_loop_for_each_assistant(shared: Served) -> None:
    """Of many starts at once one is taken; another assistant loops beside it."""
    agent, other = made(shared, STAYS), made(shared, STAYS, name="b")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: start(shared, agent), range(8)))
    assert sorted(reply.status for reply in replies) == [202, *[409] * 7]
    assert {refused(one)[1] for one in replies if one.status == 409} == {"already-running"}
    assert start(shared, other).status == 202
    assert status(shared, agent)["active"]
    assert status(shared, other)["active"]


@pytest.mark.item("rondoflow-11", "rondoflow-41", "rondoflow-62")
def test_who_may(shared: Served) -> None:
    """Viewers look, editors act on anybody's loop, strangers and shut-out people do nothing."""
    agent = made(shared, STAYS)
    viewer, editor = people(shared, "viewer"), people(shared, "editor")
    assert refused(start(shared, agent, token="")) == (401, "not-signed-in")
    denied = start(shared, agent, token=viewer)
    assert refused(denied) == (403, "POLICY_ERROR")
    assert denied.json["error"] == "Your role does not permit running or modifying workflows"
    assert start(shared, agent).status == 202
    assert status(shared, agent, token=viewer)["active"]
    for verb in ("stop", "approve"):
        body = {"loopId": "x", "approved": True} if verb == "approve" else None
        reply = shared("POST", f"{BASE}/{agent}/loop/{verb}", body, token=viewer)
        assert refused(reply) == (403, "POLICY_ERROR")
    assert shared("POST", f"{BASE}/{agent}/loop/stop", token=editor).status == 200
    assert start(shared, agent, token=editor).status == 202


# -- status and control ----------------------------------------------------------------------------


@pytest.mark.item("rondoflow-39")
def test_status_of_an_assistant_that_never_had_a_loop(shared: Served) -> None:
    """It is not active and has no state."""
    found = status(shared, made(shared))
    assert (found["active"], found["state"]) == (False, None)


@pytest.mark.item("rondoflow-39", "rondoflow-40", "rondoflow-20")
def test_status_grows(shared: Served) -> None:
    """The log has one line for each iteration that was made; the session is always empty."""
    agent = made(shared, "one", "two", "three", loopCriteria={"type": "manual", "value": ""})
    start(shared, agent)
    first = waiting(shared, agent)
    assert first["state"] == {
        "agentId": agent,
        "sessionId": "",
        "iteration": 1,
        "maxIterations": 10,
        "criteria": {"type": "manual", "value": ""},
        "status": "running",
        "progressLog": ["one"],
    }
    gate = first["pending"]["loopId"]
    assert shared("POST", f"/api/v1/gates/{gate}/continue", {"text": "More."}).status == 200
    second = waiting(shared, agent)
    assert second["state"]["progressLog"] == ["one", "two"]
    assert first["state"]["progressLog"] == ["one"]


@pytest.mark.item("rondoflow-28", "rondoflow-29", "rondoflow-30")
@pytest.mark.parametrize("approved", [True, False])
def test_a_review(shared: Served, approved: bool) -> None:
    """The review has the output and an id; the answer completes or fails the loop, once."""
    agent = made(shared, loopCriteria={"type": "manual", "value": ""})
    start(shared, agent)
    review = waiting(shared, agent)["pending"]
    assert (review["iteration"], review["output"]) == (1, "some work")
    approve = f"{BASE}/{agent}/loop/approve"
    assert refused(shared("POST", approve, {"loopId": "gate_0", "approved": True})) == (
        404,
        "no-review",
    )
    assert refused(shared("POST", approve, {"loopId": "", "approved": True}))[0] == 400
    assert refused(shared("POST", approve, {"loopId": review["loopId"]}))[0] == 400
    assert waiting(shared, agent)["pending"] == review
    body = {"loopId": review["loopId"], "approved": approved}
    reply = shared("POST", approve, body)
    assert (reply.status, reply.json) == (200, {"success": True, "data": {"resolved": True}})
    end = ended(shared, agent)
    assert end["active"] is False
    if approved:
        assert (end["state"]["status"], end["output"]) == ("completed", "some work")
    else:
        assert end["state"]["status"] == "failed"
        assert end["error"] == "Manual approval was rejected by user"
    assert refused(shared("POST", approve, body)) == (400, "no-loop")


@pytest.mark.item("rondoflow-34", "rondoflow-35", "rondoflow-36", "rondoflow-38")
def test_stopping(shared: Served) -> None:
    """A loop is stopped at once, also at a review; with none there is nothing to stop."""
    agent = made(shared, loopCriteria={"type": "manual", "value": ""})
    stop = f"{BASE}/{agent}/loop/stop"
    assert refused(shared("POST", stop)) == (400, "no-loop")
    start(shared, agent)
    review = waiting(shared, agent)["pending"]
    reply = shared("POST", stop)
    assert reply.json == {"success": True, "data": {"agentId": agent, "status": "stopped"}}
    body = {"loopId": review["loopId"], "approved": True}
    assert refused(shared("POST", f"{BASE}/{agent}/loop/approve", body)) == (400, "no-loop")
    after = status(shared, agent)
    assert (after["active"], after["pending"], after["state"]["status"]) == (False, None, "failed")
    assert start(shared, agent).status == 202


@pytest.mark.item("rondoflow-37", "rondoflow-38")
def test_every_interface_has_the_same_loop(shared: Served) -> None:
    """A loop that was started as a run is the assistant's, and can be paused as a run."""
    agent = made(shared, loopCriteria={"type": "manual", "value": ""})
    document = {"id": agent, "name": "a", "loopEnabled": True, "loopCriteria": None}
    run = shared.start(
        json.dumps(document), message="Do it.", agent=shared.script(STAYS, name="s.yaml")
    )
    assert status(shared, agent)["run"] == run
    again = start(shared, agent)
    assert refused(again) == (409, "already-running")
    assert status(shared, agent)["run"] in again.json["error"]
    shared("POST", f"/api/v1/runs/{run}/pause")
    assert status(shared, agent)["state"]["status"] == "paused"
    assert shared("POST", f"{BASE}/{agent}/loop/stop").status == 200
    assert shared.until(run, "cancelled")["reason"] == "stopped"


@pytest.mark.item("rondoflow-31")
def test_a_loop_that_fails(shared: Served) -> None:
    """The error names the iteration, and the assistant is free again."""
    agent = made(shared, {"fail": {"type": "crashed", "detail": "exit 3"}})
    start(shared, agent)
    end = ended(shared, agent)
    assert (end["active"], end["state"]["status"]) == (False, "failed")
    assert end["error"].startswith("Iteration 1")
    assert start(shared, agent).status == 202


@pytest.mark.item("rondoflow-18")
def test_an_edit_reaches_the_next_iteration(shared: Served) -> None:
    """Persona and model are seen by the next iteration; the cap and the criterion are not
    touched.
    """
    agent = made(shared, loopCriteria={"type": "manual", "value": ""}, maxIterations=5)
    start(shared, agent)
    first = waiting(shared, agent)
    edit = {"persona": "Be brief.", "model": "m2", "maxIterations": 1, "loopCriteria": None}
    assert shared("PATCH", f"{BASE}/{agent}", edit).status == 200
    agents = shared.context.service.state(first["run"]).plan.agents
    assert [(one.system, one.model) for one in agents.values()] == [("Be brief.", "m2")]
    assert status(shared, agent)["state"]["criteria"]["type"] == "manual"
    assert status(shared, agent)["state"]["maxIterations"] == 5


# -- the shape of answers --------------------------------------------------------------------------


@pytest.mark.item("rondoflow-59", "rondoflow-60")
def test_one_envelope_for_everything(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown paths, wrong methods, broken bodies and faults inside look alike and tell nothing."""
    agent = made(own)
    assert refused(own("GET", f"{BASE}/{agent}/no/such"))[0] == 404
    assert refused(own("PUT", f"{BASE}/{agent}", {}))[0] == 405
    assert refused(own("POST", BASE, raw=b"{"))[0] == 400
    assert refused(own("POST", BASE, raw=b"{}", headers={"Content-Type": "text/plain"}))[0] == 415

    def broken(*_: object, **__: object) -> None:
        raise ValueError("the secret of the house")

    monkeypatch.setattr("loopwright.operations.loops.assistants.Assistants.all", broken)
    reply = own("GET", BASE)
    assert refused(reply)[0] == 500
    assert b"secret" not in reply.body


@pytest.mark.usefixtures("full_once")
@pytest.mark.item("rondoflow-61")
def test_too_many_requests(tmp_path: Any) -> None:
    """Whoever asks too often is told to wait, in the same envelope."""
    with served(tmp_path, limits=RequestLimits(requests_per_second=5)) as own:
        replies = [own("GET", BASE) for _ in range(12)]
    assert [one.status for one in replies] == [200] * 5 + [429] * 7
    told = replies[5:]
    assert refused(told[0]) == (429, "too-many-requests")
    assert told[0].headers["retry-after"] == "1"


def test_assistants_outlive_the_server(tmp_path: Any) -> None:
    """What was made is there after a restart, with the loop that waits."""
    with served(tmp_path) as own:
        agent = made(own, loopCriteria={"type": "manual", "value": ""})
        start(own, agent)
        before, token = waiting(own, agent), own.token
    with served(tmp_path) as own:
        own.token = token
        assert status(own, agent) == before
