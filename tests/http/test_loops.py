"""Loops of roles over HTTP, in the shapes of their own system, and through every other door."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from loopwright.engine.services import SystemClock
from loopwright.errors import StorageError
from loopwright.http.context import RequestLimits
from loopwright.kernel.events import IterationStarted
from loopwright.operations.preflight import LOOPS, TASKS, Pulse
from tests.http.served import Reply, Served, served, wait_for
from tests.http.talking import tab, talk
from tests.http.test_events import Stream

BASE = "/api/v1/loops"
ROLES = ["plan", "coder", "reviewer"]
DEFINITION = {
    "description": "Two stages",
    "roles": [
        {"role": "coder", "prompt": "Write {{what}}."},
        {"role": "reviewer", "prompt": "Review it."},
    ],
    "parameters": [{"name": "what", "description": "What to write"}],
    "termination_condition": {"type": "evaluation_bound", "value": {"criteria": "It is good"}},
}


def agent(server: Served, *reviews: str, name: str = "stages.json", **slow: float) -> str:
    """A scripted agent: what the reviewer says in each round, and who takes how long."""
    replies = []
    for number, review in enumerate(reviews, start=1):
        for role, text in zip(ROLES, ("The plan.", "The work.", review), strict=True):
            delay = {"delay": slow[role]} if role in slow else {}
            when = {"agent": role, "iteration": number}
            said = {"fail": text[5:]} if text.startswith("fail:") else {"text": text}
            replies.append({"when": when, **said, **delay})
    (server.folder / name).write_text(json.dumps({"replies": replies}))
    return f"script:{server.folder / name}"


def start(server: Served, *reviews: str, slow: dict[str, float] | None = None, **more: Any) -> Any:
    """Start a harness; the answer."""
    name = f"stages-{start_count()}.json"
    body = {"definition": "harness", "goal": "Build a cache", **more}
    body.setdefault("agent", agent(server, *reviews, name=name, **(slow or {})))
    reply = server("POST", BASE, body)
    assert reply.status == 201, reply.body
    return reply.json


_COUNT = iter(range(1_000_000))


def start_count() -> int:
    return next(_COUNT)


def until(server: Served, loop: str, *statuses: str) -> Any:
    """Wait until a loop has one of these statuses."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = [server("GET", f"{BASE}/{loop}").json]
        return found[0]["loop"]["status"] in statuses

    wait_for(is_there, lambda: found)
    return found[0]


def held_in(server: Served, iteration: int) -> tuple[str, Callable[[], None]]:
    """An agent whose second round is approved, and which does nothing in one of them until it is
    told to go on.
    """
    go = server.folder / f"go-{start_count()}"
    program = go.with_suffix(".sh")
    held = f'[ "$LOOPWRIGHT_ITERATION" = {iteration} ] && [ ! -e {go} ]'
    said = '[ "$LOOPWRIGHT_ITERATION" = 1 ] && echo Rejected || echo APPROVED'
    program.write_text(f"#!/bin/sh\ncat >/dev/null\nwhile {held}; do sleep 0.02; done\n{said}\n")
    program.chmod(0o755)
    return f"command:{program}", go.touch


def refused(reply: Reply, status: int, code: str) -> None:
    """Every refusal has `error` and `code`."""
    assert (reply.status, reply.json.get("code")) == (status, code), reply.body
    assert reply.json["error"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that does not count how quick these tests are."""
    limits = RequestLimits(requests_per_second=10_000)
    with served(tmp_path_factory.mktemp("served"), limits=limits) as one:
        yield one


@pytest.fixture
def held(shared: Served) -> Iterator[str]:
    """A loop whose first stage takes its time; it is ended afterwards."""
    loop = str(start(shared, "APPROVED", slow={"plan": 600})["loop"]["id"])
    yield loop
    shared("POST", f"{BASE}/{loop}/stop")


# -- starting --------------------------------------------------------------------------------------


def test_a_start_returns_the_warnings_of_its_definition(shared: Served) -> None:
    """What is done differently than a definition says is in the answer, without a path."""
    folder = shared.folder / "workspace" / "loops"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": "once", "roles": [{"role": "coder", "prompt": "Do it."}]})
    (folder / "once.json").write_text(text)
    made = start(shared, definition="once")
    [warning] = made["warnings"]
    assert warning.startswith("once:1:1: warning: no-termination: without termination_condition")
    until(shared, made["loop"]["id"], "completed", "failed")
    (folder / "once.json").unlink()


@pytest.mark.item("coqui-16")
def test_a_loop_is_started_and_seen_through(shared: Served) -> None:
    """201 with loop, iteration and stages; then the rounds until the reviewer approves."""
    made = start(shared, "Needs changes: no test", "APPROVED")
    loop = made["loop"]
    assert (loop["status"], loop["current_iteration"], loop["origin"]) == ("running", 1, "headless")
    assert (made["iteration"]["iteration_number"], made["iteration"]["status"]) == (1, "running")
    assert [one["role"] for one in made["stages"]] == ROLES
    assert loop["metadata"]["dispatch"]["status"] in ("pending", "dispatched")
    end = until(shared, loop["id"], "completed")
    assert (end["loop"]["outcome"], end["loop"]["reason"]) == ("completed", "approved")
    assert end["iteration"]["iteration_number"] == 2
    assert [one["status"] for one in end["stages"]] == ["completed"] * 3
    assert end["stages"][2]["result_summary"] == "APPROVED"
    assert end["loop"]["completed_at"] >= end["loop"]["started_at"]


@pytest.mark.item("coqui-16")
def test_sessions(shared: Served) -> None:
    """A loop in a session that nobody knows is 404, in a closed one 409, in an open one fine."""
    wanted = {"definition": "harness", "goal": "g", "agent": agent(shared, "APPROVED")}
    refused(shared("POST", BASE, {**wanted, "session_id": "none"}), 404, "session_not_found")
    made = shared("POST", "/api/v1/sessions", {"title": "Caching"})
    assert (made.status, made.json["status"]) == (201, "open")
    session = made.json["id"]
    loop = start(shared, "APPROVED", session_id=session)["loop"]
    assert (loop["session_id"], loop["origin"]) == (session, "conversation")
    assert shared("POST", f"/api/v1/sessions/{session}/close", {}).json["status"] == "closed"
    refused(shared("POST", BASE, {**wanted, "session_id": session}), 409, "session_closed")
    assert shared("GET", f"/api/v1/sessions/{session}").json["closed_at"] is not None
    assert session in [one["id"] for one in shared("GET", "/api/v1/sessions").json["sessions"]]
    assert shared("POST", f"/api/v1/sessions/{session}/close", {}).status == 409
    assert shared("GET", "/api/v1/sessions/none").status == 404


@pytest.mark.item("coqui-12", "coqui-59")
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"definition": None}, 400, "missing_field"),
        ({"goal": None}, 400, "missing_field"),
        ({"goal": ""}, 400, "validation_error"),
        ({"parameters": {"a": {"b": 1}}}, 400, "validation_error"),
        ({"parameters": {"a": [1]}}, 400, "validation_error"),
        ({"parameters": "a=1"}, 400, "validation_error"),
        ({"max_iterations": 0}, 400, "validation_error"),
        ({"max_iterations": -3}, 400, "validation_error"),
        ({"max_iterations": 1_001}, 400, "validation_error"),
        ({"colour": "red"}, 400, "validation_error"),
        ({"project_id": "a", "project_slug": "b"}, 400, "validation_error"),
        ({"project_id": "none"}, 404, "not_found"),
        ({"definition": "none"}, 404, "not_found"),
        ({"definition": "../harness"}, 404, "not_found"),
    ],
    ids=str,
)
def test_what_cannot_be_started(
    shared: Served, change: dict[str, Any], status: int, code: str
) -> None:
    """It is refused with `error` and `code`, and nothing is created."""
    before = shared("GET", BASE).json["count"]
    there = agent(shared, "APPROVED", name="never.json")
    body = {"definition": "harness", "goal": "g", "agent": there, **change}
    given = {name: value for name, value in body.items() if value is not None}
    refused(shared("POST", BASE, given), status, code)
    assert shared("GET", BASE).json["count"] == before


@pytest.mark.item("coqui-57", "coqui-59")
def test_refusals_have_one_shape(shared: Served) -> None:
    """Whatever is wrong, before and behind the route."""
    refused(shared("GET", BASE, token=""), 401, "unauthorized")
    refused(shared("POST", BASE, raw=b"{"), 400, "invalid_format")
    refused(
        shared("POST", BASE, raw=b"{}", headers={"Content-Type": "text/plain"}),
        *(415, "unsupported_media_type"),
    )
    large = {"Content-Length": "1100000"}
    refused(shared("POST", BASE, raw=b"{}", headers=large), 413, "payload_too_large")
    refused(shared("PUT", BASE, {}), 405, "method_not_allowed")
    refused(shared("GET", f"{BASE}/a/b/c/d"), 404, "not_found")
    refused(shared("POST", BASE, {}, token=shared.made("viewer")), 403, "forbidden")


@pytest.mark.item("coqui-18", "coqui-57")
def test_health(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask; whatever last went round more than 15 s ago is not ready."""

    def managers() -> Any:
        return shared("GET", "/api/v1/health", token="").json["managers"]

    told = shared("GET", "/api/v1/health", token="").json
    assert (told["status"], len(told["workspace_id"])) == ("ok", 16)
    assert all(one["ready"] for one in managers().values())
    pulse, now = shared.context.pulse, shared.context.clock.now_ms()
    monkeypatch.setattr(Pulse, "beat", lambda *_: None)  # else it beats while we look
    beats = dict(pulse.beats)
    pulse.beats[LOOPS] = now - 16_000
    found = managers()
    assert (found["loops"]["ready"], found["tasks"]["ready"]) == (False, True)
    assert shared("GET", "/readyz", token="").status == 503
    pulse.beats[LOOPS] = shared.context.clock.now_ms()
    assert managers()["loops"]["ready"]
    assert pulse.is_ready(LOOPS, pulse.beats[LOOPS] + 15_000)
    assert not pulse.is_ready(LOOPS, pulse.beats[LOOPS] + 15_001)
    pulse.beats |= beats
    assert pulse.is_ready("young", pulse.began + 9_999)
    assert not pulse.is_ready("young", pulse.began + 10_000)
    assert TASKS in beats


# -- lists and looking -----------------------------------------------------------------------------


@pytest.mark.item("coqui-48", "coqui-49", "coqui-79")
def test_lists(shared: Served, held: str) -> None:
    """By status; `active` counts what is running and nothing else."""
    done = start(shared, "APPROVED", session_id=shared("POST", "/api/v1/sessions", {}).json["id"])
    until(shared, done["loop"]["id"], "completed")
    running = f"{BASE}?status=running"  # loops of other tests may be at their last stage
    wait_for(lambda: [one["id"] for one in shared("GET", running).json["loops"]] == [held])
    told = shared("GET", running).json
    assert (told["count"], told["active"]) == (1, 1)
    ended = shared("GET", f"{BASE}?status=completed").json
    assert done["loop"]["id"] in [one["id"] for one in ended["loops"]]
    assert ended["active"] == 1
    for odd in ("status=nonsense", "headless=maybe", "colour=red"):
        refused = shared("GET", f"{BASE}?{odd}")
        assert (refused.status, refused.json["code"]) == (400, "validation_error")
    with_session = shared("GET", f"{BASE}?headless=false").json["loops"]
    assert {one["origin"] for one in with_session} == {"conversation"}
    shared("POST", f"{BASE}/{held}/pause")
    assert shared("GET", f"{BASE}/active/count").json == {"active": 0}
    shared("POST", f"{BASE}/{held}/resume")
    assert shared("GET", f"{BASE}/active/count").json == {"active": 1}


def test_pages(shared: Served) -> None:
    """A list goes on where it ended."""
    for _ in range(2):
        start(shared, "APPROVED")
    everything = [one["id"] for one in shared("GET", BASE).json["loops"]]
    seen, cursor = [], ""
    while cursor is not None:
        page = shared("GET", f"{BASE}?limit=1{f'&cursor={cursor}' if cursor else ''}").json
        seen += [one["id"] for one in page["loops"]]
        cursor = page["next"]
    assert seen == everything
    refused(shared("GET", f"{BASE}?cursor=x"), 400, "validation_error")


@pytest.mark.item("coqui-50", "coqui-51", "coqui-52")
def test_history_and_figures(shared: Served) -> None:
    """History, iterations and figures agree; an iteration belongs to its loop alone."""
    loop = start(shared, "Rejected", "APPROVED")["loop"]["id"]
    other = start(shared, "APPROVED")["loop"]["id"]
    until(shared, loop, "completed")
    until(shared, other, "completed")
    told = shared("GET", f"{BASE}/{loop}/history").json
    assert (told["count"], told["loop"]["id"]) == (2, loop)
    assert [one["status"] for one in told["history"]] == ["needs_rework", "completed"]
    assert [len(one["stages"]) for one in told["history"]] == [3, 3]
    assert (
        told["history"][0]["outcome_summary"].splitlines()[2] == "- reviewer [completed]: Rejected"
    )
    figures = shared("GET", f"{BASE}/{loop}/metrics").json
    assert figures["iterations"]["total"] == 2
    assert figures["stages"]["by_role"] == {"plan": 2, "coder": 2, "reviewer": 2}
    spent = [one["duration_seconds"] for one in told["history"]]
    assert figures["timings"]["total_iteration_seconds"] == sum(spent)
    listed = shared("GET", f"{BASE}/{loop}/iterations").json
    first = listed["iterations"][0]["id"]
    assert [one["id"] for one in told["history"]] == [one["id"] for one in listed["iterations"]]
    one = shared("GET", f"{BASE}/{loop}/iterations/{first}").json
    assert [stage["iteration_id"] for stage in one["stages"]] == [first] * 3
    refused(shared("GET", f"{BASE}/{other}/iterations/{first}"), 404, "not_found")


@pytest.mark.item("coqui-50", "coqui-51")
def test_a_running_iteration_takes_the_time_since_its_start(
    shared: Served, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record of an iteration that has not finished has the same duration."""
    until(shared, held, "running")
    wait_for(lambda: shared("GET", f"{BASE}/{held}/history").json["count"] == 1)
    service = shared.context.service
    events = [one.event for one in service.events(held)]
    began = next(one.at for one in events if isinstance(one, IterationStarted))
    stopped = SystemClock(wall=lambda: began + 90_500, steady=lambda: 0)
    monkeypatch.setattr(service, "clock", stopped)
    told = shared("GET", f"{BASE}/{held}/history").json["history"][0]
    listed = shared("GET", f"{BASE}/{held}/iterations").json["iterations"][0]
    timings = shared("GET", f"{BASE}/{held}/metrics").json["timings"]
    assert (told["status"], told["completed_at"]) == ("running", None)
    assert told["duration_seconds"] == listed["duration_seconds"] == 90.5
    assert timings["iteration_timings"][0]["duration_seconds"] == 90.5
    assert timings["total_iteration_seconds"] == 90.5


@pytest.mark.item("coqui-47", "coqui-69")
def test_unknown_loops(shared: Served) -> None:
    """404 in the shape of the family on every route, also for runs that repeat nothing."""
    once = {"name": "once", "agent": shared.script("done"), "goal": "Do it."}
    other = shared.start(json.dumps(once))
    routes = [f"GET {BASE}/{{}}{tail}" for tail in ("", "/history", "/metrics", "/iterations")]
    routes += [f"GET {BASE}/{{}}/{tail}" for tail in ("events", "iterations/x")]
    routes += [f"POST {BASE}/{{}}/{tail}" for tail in ("pause", "resume", "stop")]
    routes += [f"DELETE {BASE}/{{}}", f"GET {BASE}/{{}}/live", f"POST {BASE}/{{}}/skip-stage"]
    routes += [f"POST {BASE}/{{}}/iterations/x/retry"]
    assert other not in [one["id"] for one in shared("GET", BASE).json["loops"]]
    for route in routes:
        for loop in ("none", "run_0", "last", other, "a%20b"):
            method, _, path = route.format(loop).partition(" ")
            refused(shared(method, path), 404, "not_found")


# -- steering --------------------------------------------------------------------------------------


@pytest.mark.item("coqui-43", "coqui-44", "coqui-45", "coqui-56")
def test_steering(shared: Served, held: str) -> None:
    """What does not fit the state is 409 and changes nothing; what has ended can be deleted."""
    for verb, status in (("resume", "running"), ("pause", "paused"), ("pause", "paused")):
        reply = shared("POST", f"{BASE}/{held}/{verb}")
        if verb == "resume" or reply.status == 409:
            refused(reply, 409, "conflict")
        else:
            assert reply.json == {"id": held, "status": "paused"}
        assert shared("GET", f"{BASE}/{held}").json["loop"]["status"] == status
    refused(shared("DELETE", f"{BASE}/{held}"), 409, "conflict")
    assert shared("POST", f"{BASE}/{held}/resume").json == {"id": held, "status": "running"}
    refused(shared("DELETE", f"{BASE}/{held}"), 409, "conflict")
    assert shared("POST", f"{BASE}/{held}/stop").json == {"id": held, "status": "cancelled"}
    for verb in ("stop", "pause", "resume"):
        refused(shared("POST", f"{BASE}/{held}/{verb}"), 409, "conflict")
    assert shared("DELETE", f"{BASE}/{held}").json == {"deleted": True, "id": held}
    refused(shared("GET", f"{BASE}/{held}"), 404, "not_found")
    rows = shared("GET", "/api/v1/audit").json["rows"]
    assert ("run.forgotten", held) in [(one["action"], one["subject"]) for one in rows]


@pytest.mark.item("coqui-54")
def test_changes_under_way(shared: Served) -> None:
    """Goal, cap, metadata and labels; what is no change is refused, and so is a change too late."""
    program, go_on = held_in(shared, 1)
    loop = start(shared, agent=program)["loop"]["id"]
    place = f"{BASE}/{loop}"
    change = {
        "goal": "Build a faster cache",
        "max_iterations": 4,
        "metadata": {"team": {"name": "a"}},
        "labels": ["x", "y", "x"],
    }
    told = shared("PATCH", place, change).json["loop"]
    assert (told["goal"], told["max_iterations"]) == ("Build a faster cache", 4)
    assert told["metadata"]["team"] == {"name": "a"}
    assert told["labels"] == ["x", "y"]
    more = shared("PATCH", place, {"metadata": {"team": {"size": 2}}}).json["loop"]
    assert more["metadata"]["team"] == {"name": "a", "size": 2}
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "missing_field"),
        ({"colour": 1}, "validation_error"),
        ({"goal": ""}, "validation_error"),
        ({"goal": " "}, "missing_field"),
        ({"max_iterations": 0}, "validation_error"),
        ({"metadata": [1]}, "validation_error"),
        ({"metadata": {"dispatch": {"status": "done"}, "mine": 1}}, "validation_error"),
        ({"labels": [""]}, "validation_error"),
    ]
    for body, code in bad:
        refused(shared("PATCH", place, body), 400, code)
    go_on()
    until(shared, loop, "completed")
    refused(shared("PATCH", place, {"goal": "later"}), 409, "conflict")
    refused(shared("PATCH", f"{BASE}/none", {"goal": "later"}), 404, "not_found")


@pytest.mark.item("coqui-54")
def test_a_cap_below_what_was_begun(shared: Served) -> None:
    """Nobody can have made fewer rounds than they have."""
    program, go_on = held_in(shared, 2)
    loop = start(shared, agent=program)["loop"]["id"]
    place = f"{BASE}/{loop}"
    wait_for(lambda: shared("GET", place).json["iteration"]["iteration_number"] == 2)
    refused(shared("PATCH", place, {"max_iterations": 1}), 409, "conflict")
    assert shared("PATCH", place, {"max_iterations": 2}).status == 200
    go_on()
    until(shared, loop, "completed")


def test_a_failed_loop_is_tried_again_or_continues_without_the_stage(shared: Served) -> None:
    """Only its newest iteration, and only where something has stopped it."""
    loop = start(shared, "Rejected", "fail:out of paper")["loop"]["id"]
    until(shared, loop, "failed")
    refused(shared("POST", f"{BASE}/{loop}/iterations/{loop}.1/retry"), 409, "conflict")
    refused(shared("POST", f"{BASE}/{loop}/iterations/{loop}.9/retry"), 404, "not_found")
    told = shared("POST", f"{BASE}/{loop}/iterations/{loop}.2/retry", {"note": "There is paper"})
    assert (told.status, told.json["id"]) == (200, loop)
    until(shared, loop, "failed")
    assert shared("POST", f"{BASE}/{loop}/skip-stage").status == 200

    def is_left_out() -> bool:
        stages = shared("GET", f"{BASE}/{loop}/history").json["history"][1]["stages"]
        return bool(stages[2]["status"] == "completed")

    wait_for(is_left_out)
    done = start(shared, "APPROVED")["loop"]["id"]
    until(shared, done, "completed")
    refused(shared("POST", f"{BASE}/{done}/skip-stage"), 409, "conflict")
    refused(shared("POST", f"{BASE}/none/skip-stage"), 404, "not_found")


BLOCKED = "STATUS: BLOCKED\nNo keys."


@pytest.mark.item("coqui-65")
@pytest.mark.parametrize("verb", ["skip-stage", "retry"])
def test_a_blocked_loop_that_was_paused_continues(shared: Served, verb: str) -> None:
    """Whoever wants its stage again, or to do without it, wants the loop to go on."""
    replies = [
        {"when": {"agent": "plan"}, "text": BLOCKED},
        {"when": {"agent": "plan"}, "text": "The plan."},
        {"when": {"agent": "coder"}, "text": "The work."},
        {"when": {"agent": "reviewer"}, "text": "APPROVED"},
    ]
    (shared.folder / f"{verb}.json").write_text(json.dumps({"replies": replies}))
    loop = start(shared, agent=f"script:{shared.folder / f'{verb}.json'}")["loop"]["id"]
    until(shared, loop, "blocked")
    assert shared("POST", f"{BASE}/{loop}/pause").json["status"] == "paused"
    place = "skip-stage" if verb == "skip-stage" else f"iterations/{loop}.1/retry"
    assert shared("POST", f"{BASE}/{loop}/{place}", {"note": "Go."}).status == 200
    assert until(shared, loop, "completed")["loop"]["reason"] == "approved"


def test_what_cannot_be_tried_again(shared: Served, held: str) -> None:
    """A loop that is only paused has nothing to try again, and one that a person stopped has ended
    for good; both are told so.
    """
    retry, skip = f"{BASE}/{held}/iterations/{held}.1/retry", f"{BASE}/{held}/skip-stage"
    shared("POST", f"{BASE}/{held}/pause")
    for path in (retry, skip):
        refused(shared("POST", path), 409, "conflict")
    assert shared("GET", f"{BASE}/{held}").json["loop"]["status"] == "paused"
    shared("POST", f"{BASE}/{held}/stop")
    for path in (retry, skip):
        reply = shared("POST", path)
        refused(reply, 409, "conflict")
        assert "no stage of it has failed" in reply.json["error"]


@pytest.mark.item("coqui-70")
def test_live(shared: Served) -> None:
    """What was spent is the sum over stages; one that tells nothing counts nothing."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    replies = [
        {"when": {"agent": "plan"}, "text": "p", "usage": usage},
        {"when": {"agent": "coder"}, "text": "c"},
        {"when": {"agent": "reviewer"}, "text": "APPROVED", "usage": usage},
    ]
    (shared.folder / "paid.json").write_text(json.dumps({"replies": replies}))
    loop = start(shared, agent=f"script:{shared.folder / 'paid.json'}")["loop"]["id"]
    until(shared, loop, "completed")
    told = shared("GET", f"{BASE}/{loop}/live").json
    assert [one["tokens"] for one in told["stages"]] == [15, 0, 15]
    assert told["budget"]["tokens"] == sum(one["tokens"] for one in told["stages"])
    assert told["budget"]["iterations"] == {"used": 1, "max": 5}
    assert (told["current_stage"], len(told["recent_events"]) <= 50) == (None, True)
    seqs = [one["seq"] for one in told["recent_events"]]
    assert seqs == sorted(seqs, reverse=True)


# -- definitions -----------------------------------------------------------------------------------


@pytest.mark.item("coqui-1", "coqui-68")
def test_definitions(shared: Served) -> None:
    """Made with If-None-Match, changed with If-Match, and refused without or with an old one."""
    names = [one["name"] for one in shared("GET", f"{BASE}/definitions").json["definitions"]]
    assert {"harness", "research", "goal-driven"} <= set(names)
    place = f"{BASE}/definitions/pair"
    refused(shared("PUT", place, DEFINITION), 409, "precondition_required")
    first = {"If-None-Match": "*"}
    new = shared("PUT", place, DEFINITION, headers=first)
    assert (new.status, new.json["valid"], new.json["builtin"]) == (201, True, False)
    assert new.headers["etag"] == f'"{new.json["version"]}"'
    refused(
        shared("PUT", place, DEFINITION, headers={"If-None-Match": "*"}), 409, "version_conflict"
    )
    changed = {**DEFINITION, "description": "Two stages, better"}
    newer = shared("PUT", place, changed, headers={"If-Match": new.headers["etag"]})
    assert (newer.status, newer.json["description"]) == (200, "Two stages, better")
    stale = shared("PUT", place, DEFINITION, headers={"If-Match": new.headers["etag"]})
    refused(stale, 409, "version_conflict")
    assert new.json["version"] in stale.json["error"]
    assert newer.json["version"] in stale.json["error"]
    assert shared("GET", place).headers["etag"] == newer.headers["etag"]
    unknown = f"{BASE}/definitions/nobody"
    refused(shared("PUT", unknown, DEFINITION, headers={"If-Match": '"x"'}), 404, "not_found")
    refused(shared("DELETE", place, headers={"If-Match": '"x"'}), 409, "version_conflict")
    assert shared("DELETE", place).json == {"deleted": True, "id": "pair"}
    refused(shared("GET", place), 404, "not_found")
    rows = shared.context.records.audited(subject="pair")
    assert [row.action for row in rows] == [
        "loop-definition.deleted",
        "loop-definition.saved",
        "loop-definition.saved",
    ]
    refused(shared("DELETE", f"{BASE}/definitions/harness"), 409, "conflict")


def test_no_definition_is_written_without_its_record(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the record cannot be written, the file is not either."""
    full = StorageError("the disk is full", code="full")

    def refuse(*_: object, **__: object) -> None:
        raise full

    place = f"{BASE}/definitions/unwritten"
    body = {**DEFINITION, "description": "x"}
    with monkeypatch.context() as patch:
        patch.setattr(shared.context.here.log, "change", refuse)
        assert shared("PUT", place, body, headers={"If-None-Match": "*"}).status >= 500
    refused(shared("GET", place), 404, "not_found")


@pytest.mark.item("coqui-68")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pair", {"version": "1"}),
        ("pair", {"builtin": True}),
        ("pair", {"roles": []}),
        ("pair", {"roles": [{"role": "coder", "prompt": ""}]}),
        ("pair", {"name": "another"}),
        ("pair", {"termination_condition": {"type": "whenever"}}),
        ("Foo%20Bar", {}),
        ("..%2Fx", {}),
        ("%2e%2e", {}),
        ("../x", {}),
        ("x%5Cy", {}),
        (".hidden", {}),
    ],
    ids=str,
)
def test_definitions_that_are_none(shared: Served, name: str, change: dict[str, Any]) -> None:
    """What the server owns, what is not valid, and names that lead elsewhere: 422."""
    body = {**DEFINITION, **change}
    reply = shared("PUT", f"{BASE}/definitions/{name}", body, headers={"If-None-Match": "*"})
    refused(reply, 422, "validation_error")
    assert not list(shared.folder.rglob("pair.json"))


# -- events ----------------------------------------------------------------------------------------


def frames(body: bytes) -> list[tuple[str, Any, str]]:
    """The events of a stream: name, data and number."""
    found = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"]), lines.get("id", "")))
    return found


@pytest.mark.item("coqui-69")
def test_events(shared: Served) -> None:
    """Connected, every move of a stage, done with the status, and then the end of the stream."""
    loop = start(shared, "Rejected", "APPROVED", slow={"plan": 0.05})["loop"]["id"]
    told = frames(shared("GET", f"{BASE}/{loop}/events").body)  # ends by itself
    assert (told[0][0], told[0][1]["loop_id"]) == ("connected", loop)
    assert (told[-1][0], told[-1][1]["status"]) == ("done", "completed")
    moves = [
        (one["iteration"], one["stage_index"], one["status"])
        for name, one, _ in told
        if name == "stage_changed"
    ]
    wanted = [(n, stage, s) for n in (1, 2) for stage in range(3) for s in ("running", "completed")]
    assert moves == wanted
    places = [number for name, _, number in told if name == "stage_changed"]
    again = frames(
        shared("GET", f"{BASE}/{loop}/events", headers={"Last-Event-ID": places[5]}).body
    )
    assert [number for name, _, number in again if name == "stage_changed"] == places[6:]


@pytest.mark.item("coqui-69")
def test_events_of_a_loop_that_is_deleted(shared: Served, held: str) -> None:
    """Whoever listens is told that it is over."""
    with Stream(shared, held, BASE) as listening:
        shared("POST", f"{BASE}/{held}/stop")
        shared("DELETE", f"{BASE}/{held}")
        last = frames(listening.reply.read())[-1]
    assert (last[0], last[1]["status"]) == ("done", "cancelled")


# -- every other door ------------------------------------------------------------------------------


def test_one_loop_through_every_interface(shared: Served, held: str) -> None:
    """A loop of this family is a run: seen, followed and steered as one, and the reverse."""
    run = shared("GET", f"/api/v1/runs/{held}").json
    assert (run["run"], run["status"]) == (held, "running")
    assert held in [one["run"] for one in shared("GET", "/api/v1/runs").json["runs"]]

    async def follow() -> None:
        async with tab(shared) as one:
            answer = await one.say("subscribe", {"run": held})
            assert answer["ok"]
            shared("POST", f"/api/v1/runs/{held}/pause")
            await one.until(lambda: "run.paused" in json.dumps(one.got))

    talk(follow())
    assert shared("GET", f"{BASE}/{held}").json["loop"]["status"] == "paused"
    assert shared("POST", f"{BASE}/{held}/resume").json["status"] == "running"
    shared("POST", f"/api/v1/runs/{held}/stop")
    assert until(shared, held, "cancelled")["loop"]["reason"] == "stopped"
    text = json.dumps({"name": "pair", **DEFINITION})
    made = shared.start(
        text, message="g", inputs={"what": "it"}, agent=agent(shared, "APPROVED", name="pair.yaml")
    )
    assert until(shared, made, "completed")["loop"]["definition_name"] == "pair"


def command(server: Served, *args: str) -> str:
    """What the command line says, in the home of the server."""
    env = {**os.environ, "LOOPWRIGHT_HOME": str(server.folder / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "loopwright", *args],
        capture_output=True,
        env=env,
        cwd=server.folder,
        timeout=60,
        check=True,
        text=True,
    )
    return done.stdout


def test_the_command_line_steers_a_loop_of_the_server(shared: Served, held: str) -> None:
    """It is in its list, paused by it, and stopped by it."""
    assert held in command(shared, "ls")
    command(shared, "pause", held)
    assert shared("GET", f"{BASE}/{held}").json["loop"]["status"] == "paused"
    command(shared, "stop", held)
    assert until(shared, held, "cancelled")["loop"]["reason"] == "stopped"


def test_loops_of_other_agents(shared: Served, held: str) -> None:
    """Over MCP the loops of the server are steered, and the server steers those of MCP."""
    script = agent(shared, "APPROVED", name="mcp.json", plan=30)
    place = StdioServerParameters(
        command=sys.executable,
        args=["-m", "loopwright", "mcp", "--agent", script, "--session", "talk"],
        env={**os.environ, "LOOPWRIGHT_HOME": str(shared.folder / "home")},
        cwd=shared.folder,
    )

    async def go() -> None:
        async with stdio_client(place) as streams, ClientSession(*streams) as session:
            await session.initialize()

            async def say(tool: str, **given: str) -> str:
                result = await session.call_tool(tool, given)
                assert not result.is_error, result.content
                return str(result.content[0].text)  # type: ignore[union-attr]

            assert json.loads(await say("loop_status", id=held))["status"] == "running"
            await say("loop_control", action="pause", id=held)
            assert shared("GET", f"{BASE}/{held}").json["loop"]["status"] == "paused"
            theirs = json.loads(await say("loop_start", definition="harness", goal="g"))["loop_id"]
            seen = shared("GET", f"{BASE}/{theirs}").json["loop"]
            assert (seen["session_id"], seen["status"]) == ("talk", "running")
            assert shared("GET", "/api/v1/sessions/talk").json["status"] == "open"
            ended = await asyncio.to_thread(shared, "POST", f"{BASE}/{theirs}/stop")
            assert ended.json == {"id": theirs, "status": "cancelled"}

    asyncio.run(asyncio.wait_for(go(), 60))
