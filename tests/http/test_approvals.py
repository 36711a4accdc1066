"""Runs of models with tools over HTTP: approvals, events, trees, and going on elsewhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.http.context import RequestLimits
from loopwright.operations import run_tail
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireScript, WireServer
from tests.cli.aldo import DONE, MODEL, agent, asks, says
from tests.http.served import Served, served
from tests.http.test_events import Stream

ASKS = {"approvals": {"fs.write": "always"}}
WANTS = asks("fs.write", path="a.txt", content="x")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as one:
        yield one


def started(
    own: Served, *turns: ScriptedTurn, monkeypatch: pytest.MonkeyPatch, **blocks: Any
) -> Any:
    """A run of an agent whose model says these things; and the wire that it says them on."""
    wires = WireServer(WireScript(turns=turns))
    wires.__enter__()
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{wires.url}/v1")
    files = {"prompt.md": "You are {{who}}."}
    more = {"message": "Do it.", "agent": MODEL, "files": files}
    return own.start(json.dumps(agent(**blocks)), **more), wires


def kinds(own: Served, run: str, after: int = 0) -> list[str]:
    path = f"/v1/runs/{run}/events?after={after}"
    reply = own("GET", path, headers={"Accept": "application/json"})
    assert reply.status == 200, reply.body
    return [event["type"] for event in reply.json["events"]]


def gated(own: Served, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any, str]:
    tools = agent()["tools"] | ASKS
    run, wires = started(own, WANTS, says(DONE), monkeypatch=monkeypatch, tools=tools)
    own.until(run, "waiting")
    (one,) = own("GET", f"/v1/runs/{run}/approvals").json["approvals"]
    assert (one["runId"], one["tool"], one["reason"]) == (run, "fs.write", None)
    assert one["args"] == {"path": "a.txt", "content": "x"}
    return run, wires, one["callId"]


@pytest.mark.item("aldo-39", "aldo-34", "aldo-36")
def test_an_approval(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is listed, approved once with who and when, and then run."""
    run, wires, call = gated(home, monkeypatch)
    reply = home("POST", f"/v1/runs/{run}/approve", {"callId": call, "reason": "fine"})
    assert reply.status == 200
    told = reply.json
    assert {name: told[name] for name in ("runId", "callId", "kind", "approver", "reason")} == {
        "runId": run,
        "callId": call,
        "kind": "approved",
        "approver": "first-start",
        "reason": "fine",
    }
    home.until(run, "completed")
    assert (home.folder / "a.txt").read_text() == "x"
    assert "tool.approval_resolved" in kinds(home, run)
    again = home("POST", f"/v1/runs/{run}/approve", {"callId": call})
    assert (again.status, again.json["error"]["code"]) == (404, "approval_not_found")
    assert home("GET", f"/v1/runs/{run}/approvals").json == {"approvals": []}
    wires.__exit__(None, None, None)


@pytest.mark.item("aldo-39", "aldo-35")
def test_a_rejection(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason is needed, the model is told it, and the loop goes on."""
    run, wires, call = gated(home, monkeypatch)
    reject = f"/v1/runs/{run}/reject"
    for body in ({"callId": call}, {"callId": call, "reason": ""}, {"reason": "x"}):
        assert home("POST", reject, body).status == 400
    assert home("POST", reject, {"callId": call, "reason": "  "}).status == 400
    assert home("POST", reject, {"callId": "nope", "reason": "x"}).status == 404
    assert home("POST", "/v1/runs/run_0/reject", {"callId": call, "reason": "x"}).status == 404
    assert home("POST", reject, {"callId": call, "reason": "not today"}).json["kind"] == "rejected"
    home.until(run, "completed")
    assert not (home.folder / "a.txt").exists()
    assert "not today" in json.dumps(wires.asked[-1].body)
    wires.__exit__(None, None, None)


@pytest.mark.item("aldo-76", "aldo-88", "aldo-33", "aldo-85")
def test_one_word_holds_two_calls_of_a_cycle(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tools.approvals: always`: each call is resolved by a request of its own, and the end of the
    run has the number of its cycles everywhere.
    """
    both = ScriptedTurn(
        calls=(
            ScriptedCall(name="fs_list", args={"path": "."}, id="c1"),
            ScriptedCall(name="fs_write", args={"path": "a.txt", "content": "x"}, id="c2"),
        )
    )
    tools = agent()["tools"] | {"approvals": "always"}
    run, wires = started(home, both, says(DONE), monkeypatch=monkeypatch, tools=tools)
    home.until(run, "waiting")
    waiting = home("GET", f"/v1/runs/{run}/approvals").json["approvals"]
    assert {one["callId"] for one in waiting} == {"c1", "c2"}
    assert home("POST", f"/v1/runs/{run}/approve", {"callId": "c1"}).json["kind"] == "approved"
    left = home("GET", f"/v1/runs/{run}/approvals").json["approvals"]
    assert [one["callId"] for one in left] == ["c2"]
    reject = {"callId": "c2", "reason": "no files"}
    assert home("POST", f"/v1/runs/{run}/reject", reject).json["kind"] == "rejected"
    home.until(run, "completed")
    path = f"/v1/runs/{run}/events"
    events = home("GET", path, headers={"Accept": "application/json"}).json["events"]
    payload = events[-1]["payload"]
    assert (payload["ok"], payload["cycles"], payload["usage"]["provider"]) == (True, 2, "local")
    assert home("GET", f"/api/v1/runs/{run}").json["iterations"] == 2
    wires.__exit__(None, None, None)


@pytest.mark.item("aldo-51", "aldo-47")
def test_events_and_the_tree(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late comer reads the stored order, from any number on; the tree has every cycle."""
    turns = [asks("fs.list", "looking", path="."), says(f"All done {DONE}")]
    run, wires = started(home, *turns, monkeypatch=monkeypatch)
    home.until(run, "completed")
    cycle = ["checkpoint", "cycle.start", "usage", "model.response", "message"]
    tools = ["tool_call", "tool_result", "tool.results"]
    ends = ["run.terminated_by", "run.completed"]
    wanted = ["run.started", *cycle, *tools, *cycle, *ends]
    assert kinds(home, run) == wanted
    streamed = home("GET", f"/v1/runs/{run}/events").body.decode()
    lines = streamed.splitlines()
    assert [line[7:] for line in lines if line.startswith("event: ")] == wanted
    ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
    assert ids == sorted(ids)
    for after in ids:
        rest = home("GET", f"/v1/runs/{run}/events", headers={"Last-Event-ID": str(after)}).body
        found = [int(line[4:]) for line in rest.decode().splitlines() if line.startswith("id: ")]
        assert found == [one for one in ids if one > after]
    (loop,) = home("GET", f"/v1/runs/{run}/tree").json["loops"]
    assert [(one["cycle"], one["text"]) for one in loop["cycles"]] == [
        (1, "looking"),
        (2, f"All done {DONE}"),
    ]
    assert loop["cycles"][0]["toolCalls"][0]["tool"] == "fs.list"
    assert loop["cycles"][0]["results"][0]["isError"] is False
    assert loop["terminatedBy"]["reason"] == "text-includes"
    wires.__exit__(None, None, None)


@pytest.mark.item("G4")
def test_events_end_for_who_is_shut_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is revoked stops this stream too, however seldom it beats."""
    monkeypatch.setattr(run_tail, "POLL_S", 60.0)  # nothing else wakes it
    limits = RequestLimits(recheck_seconds=0.05, heartbeat_seconds=60.0)
    with served(tmp_path, limits=limits) as one:
        run, wires, _ = gated(one, monkeypatch)
        with Stream(one, run, "/v1/runs") as stream:
            events = iter(stream)
            while next(events).get("event") != "tool.pending_approval":
                pass
            one.call(lambda: one.context.access.revoke(one.token.split("_")[1], by="tester"))
            assert all("comment" in event or "id" in event for event in events)
        wires.__exit__(None, None, None)


@pytest.mark.item("aldo-48", "aldo-49")
def test_going_on_elsewhere(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other words or another model from a checkpoint are a new run; the first stays as it was."""
    turns = [asks("fs.list", "looking", path="."), says(f"one {DONE}"), says(f"two {DONE}")]
    run, wires = started(home, *turns, says(f"three {DONE}"), monkeypatch=monkeypatch)
    home.until(run, "completed")
    before = home("GET", f"/v1/runs/{run}/tree").json
    body = {"newText": "Look again.", "checkpointId": "main.1"}
    edited = home("POST", f"/v1/runs/{run}/edit-and-resume", body).json
    assert edited["place"] == "main.0"
    assert home.until(edited["newRunId"], "completed")["output"] == f"two {DONE}"
    assert "Look again." in wires.asked[-1].user_text
    body = {"model": "local/other", "checkpointId": "main.1"}
    swapped = home("POST", f"/v1/runs/{run}/swap-model", body).json
    assert home.until(swapped["newRunId"], "completed")["output"] == f"three {DONE}"
    assert wires.asked[-1].body["model"] == "other"
    assert home("GET", f"/v1/runs/{run}/tree").json == before
    assert home("GET", f"/v1/runs/{edited['newRunId']}/tree").json["parentRunId"] == run
    wires.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"newText": ""}, 400),
        ({"newText": "x", "checkpointId": "main.0"}, 409),
        ({"newText": "x", "checkpointId": "nowhere"}, 404),
        ({"newText": "x", "checkpointId": "main.77"}, 404),
        ({"newText": "x", "more": 1}, 400),
    ],
    ids=str,
)
def test_where_nothing_can_continue(shared: Served, body: dict[str, Any], status: int) -> None:
    """A checkpoint must be there, with something before it."""
    run, _ = shared.gated()
    reply = shared("POST", f"/v1/runs/{run}/edit-and-resume", body)
    assert reply.status == status, reply.body
    assert set(reply.json) == {"error"}


def test_a_run_without_events_of_its_own(shared: Served) -> None:
    """Its events are told as they are, unless words of its own are insisted on."""
    run, gate = shared.gated()
    assert kinds(shared, run)[0] == "run.started"
    assert kinds(shared, run)[-1] == "gate.opened"
    plain = {"Accept": "application/json"}
    reply = shared("GET", f"/v1/runs/{run}/events?own=true", headers=plain)
    assert (reply.status, reply.json["error"]["code"]) == (400, "no-events")
    (loop,) = shared("GET", f"/v1/runs/{run}/tree").json["loops"]
    assert [(one["cycle"], one["path"]) for one in loop["cycles"]] == [(1, "main.0")]
    shared("POST", f"/v1/runs/{run}/approve", {"callId": gate})
    shared.until(run, "completed")
    (loop,) = shared("GET", f"/v1/runs/{run}/tree").json["loops"]
    assert loop["cycles"][0]["text"] == "some work"
    assert loop["terminatedBy"]["reason"] == "approved"


PLAIN = {"Accept": "application/json"}


@pytest.mark.item("aldo-51")
def test_pages_of_what_happened(home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has as many events as were asked for, though one event is told by several; a cursor is
    of its run alone.
    """
    run, wires = started(home, says(DONE), monkeypatch=monkeypatch)
    home.until(run, "completed")
    wires.__exit__(None, None, None)
    base = f"/v1/runs/{run}/events"
    everything = home("GET", base, headers=PLAIN).json
    assert everything["next"] is None
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        more = f"&cursor={cursor}" if cursor else ""
        page = home("GET", f"{base}?limit=2{more}", headers=PLAIN).json
        assert 0 < len(page["events"]) <= 2
        seen += page["events"]
        cursor, last = page["next"], cursor
    assert seen == everything["events"]
    other, _ = home.gated()
    refusal = home("GET", f"/v1/runs/{other}/events?cursor={last}", headers=PLAIN)
    assert (refusal.status, refusal.json["error"]["code"]) == (400, "bad-cursor")


@pytest.mark.item("aldo-51")
def test_where_a_stream_begins(home: Served) -> None:
    """A number that is ahead is told; after the end there is nothing, and a browser stays away."""
    run, gate = home.gated()
    base = f"/v1/runs/{run}/events"
    ahead = home("GET", f"{base}?after=99").body.decode()
    assert "event: resync" in ahead
    assert "id: " not in ahead
    home("POST", f"/v1/runs/{run}/approve", {"callId": gate})
    home.until(run, "completed")
    last = home("GET", base, headers=PLAIN).json["seq"]
    assert home("GET", base, headers={"Last-Event-ID": str(last)}).status == 204
    assert b"run.finished" in home("GET", f"{base}?after={last - 1}").body


def test_what_is_not_there(shared: Served) -> None:
    """It is refused in the shape of this family."""
    assert shared("GET", "/v1/runs/run_0/events").status == 404
    assert shared("GET", "/v1/nothing").json["error"]["code"] == "not-found"


@pytest.mark.item("zenflow-79")
def test_a_run_whose_events_are_flat(shared: Served, tmp_path: Path) -> None:
    """The fields of an event stand beside its type, in pages and in a stream alike."""
    text = (
        "name: x\nagents: {w: {description: Works.}}\nsteps: [{id: a, agent: w, dependsOn: []}]\n"
    )
    body = {"definition": text, "dialect": "zenflow", "message": "Go.", "agent": "command:cat"}
    run = shared("POST", "/api/v1/runs", {**body, "workspace": str(tmp_path)}).json["run"]
    shared.until(run, "completed")
    plain = {"Accept": "application/json"}
    events = shared("GET", f"/v1/runs/{run}/events?own=true", headers=plain).json["events"]
    told = [one["type"] for one in events if one["type"] != "agent_turn"]
    assert told == ["workflow_start", "step_start", "step_end", "workflow_end"]
    assert events[1]["stepId"] == "a"
    assert {one["runId"] for one in events} == {run}
