"""The examples of the RondoFlow document about loops, as they are printed there."""

import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.http.context import RequestLimits
from loopwright.operations.loops.loop_disconnects import departures
from tests.http.served import Served, served
from tests.http.talking import tab, talk
from tests.http.test_assistants import BASE, made, refused, start, status, waiting

CURL = """\
# Start a loop on an Assistant
curl -X POST http://localhost:3001/api/agents/AGENT_ID/loop/start \\
  -H 'Content-Type: application/json' \\
  -d '{ "message": "Make the failing test suite pass." }'
"""
CRITERIA = [
    {"type": "max_iterations"},
    {"type": "regex", "value": "DONE|COMPLETE|SUCCESS"},
    {"type": "test_pass", "value": "npm test"},
    {"type": "manual"},
]
EVENTS = {
    "iteration": {"iteration", "maxIterations", "output"},
    "progress": {"iteration", "learning"},
    "manual_approval_required": {"iteration", "output", "loopId"},
    "completed": {"totalIterations", "finalOutput"},
    "failed": {"iteration", "error"},
}
JSON = {"Accept": "application/json"}
STATE = {"agentId", "sessionId", "iteration", "maxIterations", "criteria", "status", "progressLog"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = RequestLimits(requests_per_second=10_000)
    with served(tmp_path_factory.mktemp("document"), limits=limits) as one:
        yield one


@pytest.mark.item("rondoflow-73", "rondoflow-75", "rondoflow-8")
def test_the_curl_command_starts_a_loop(shared: Served) -> None:
    """With the address and the id of this server, and a token, it is accepted; without a token it
    is refused and starts nothing.
    """
    agent = made(shared, "at work", "at work", maxIterations=2)
    text = CURL.replace("http://localhost:3001", f"http://127.0.0.1:{shared.port}")
    text = text.replace("AGENT_ID", agent).replace("\\\n", "")
    words = shlex.split(text, comments=True)
    words += ["-s", "-w", "%{http_code}"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.endswith('"code":"not-signed-in"}401')
    assert status(shared, agent)["run"] is None
    words += ["-H", f"Authorization: Bearer {shared.token}"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said == f'{{"success":true,"data":{{"agentId":"{agent}","status":"started"}}}}202'
    run = status(shared, agent)["run"]
    shared.until(run, "completed")
    begun = shared.context.service.events(run)[0].event
    assert begun.message == "Make the failing test suite pass."  # type: ignore[union-attr]


@pytest.mark.item("rondoflow-73", "rondoflow-63")
@pytest.mark.parametrize("criteria", CRITERIA, ids=lambda one: str(one["type"]))
def test_each_criterion_is_taken(shared: Served, criteria: dict[str, str]) -> None:
    """Two have a value, two have none; switching the loop off clears the criterion."""
    agent = made(shared, loopEnabled=False)
    settings = {"loopEnabled": True, "loopCriteria": criteria, "maxIterations": 100}
    data = shared("PATCH", f"{BASE}/{agent}", settings).json["data"]
    assert {name: data[name] for name in settings} == settings
    off = shared("PATCH", f"{BASE}/{agent}", {"loopEnabled": False}).json["data"]
    assert (off["loopEnabled"], off["loopCriteria"]) == (False, None)


@pytest.mark.item("rondoflow-73", "rondoflow-12", "rondoflow-13", "rondoflow-14")
def test_the_messages_of_three_iterations(shared: Served) -> None:
    """The first is the message verbatim; later ones have the progress log under its heading and
    say which iteration of how many it is.
    """
    agent = made(shared, agent="command:/bin/cat", maxIterations=3)
    start(shared, agent, "Fix  it.")
    run = status(shared, agent)["run"]
    shared.until(run, "completed")
    events = shared("GET", f"/v1/runs/{run}/events", headers=JSON).json["events"]
    first, second, third = (
        one["payload"]["output"] for one in events if one["type"] == "iteration"
    )
    assert first == "Fix  it."
    assert second.startswith("Fix  it.\n")
    for text, number in ((second, 2), (third, 3)):
        assert "## Progress Log" in text
        assert f"Iteration {number} of 3" in text
        assert text.count("\n- Iteration ") == number - 1


@pytest.mark.item("rondoflow-73", "rondoflow-68", "rondoflow-72")
@pytest.mark.parametrize("approved", [True, False])
def test_a_manual_loop_over_the_socket(shared: Served, approved: bool) -> None:
    """Each event that a client may send and each that it gets has the fields of the tables."""
    agent = made(shared, "a draft", loopCriteria={"type": "manual"}, maxIterations=10)
    seen: dict[str, dict[str, Any]] = {}

    async def go() -> None:
        async with tab(shared) as one:
            assert (await one.say("loop:start", {"agentId": agent, "message": "Write."}))["ok"]
            note = await one.first("notification", level="action_required", agentId=agent)
            assert note["actions"] == ["approve", "reject"]
            answer = {"agentId": agent, "loopId": note["loopId"], "approved": approved}
            reply = await one.say("loop:approve", answer)
            assert reply["ok"], reply
            await one.first("agent:status", agentId=agent, status="idle" if approved else "error")
            for name, data in one.got:
                if data.get("agentId", agent) == agent:  # not of a loop of another test
                    seen.setdefault(name, data)
            nothing = await one.say("loop:stop", {"agentId": agent})
            assert (nothing["ok"], nothing["code"]) == (False, "no-loop")

    talk(go())
    ring = {"agentId": agent, "iteration": 1, "maxIterations": 10}
    assert seen["agent:loop_iteration"] == ring
    last = "completed" if approved else "failed"
    for name in ("iteration", "progress", "manual_approval_required", last):
        assert seen[name].keys() - {"agentId", "run"} == EVENTS[name], name
    if approved:
        assert seen["completed"]["finalOutput"] == "a draft"
    else:
        assert seen["failed"]["error"] == "Manual approval was rejected by user"


@pytest.mark.item("rondoflow-73", "rondoflow-39")
def test_the_routes_of_a_loop(shared: Served) -> None:
    """Start, status with a live state, approve and stop; one loop for each assistant."""
    agent = made(shared, "a draft", "another", loopCriteria={"type": "manual"}, maxIterations=10)
    assert start(shared, agent, "Write.").status == 202
    assert refused(start(shared, agent, "Write."))[1] == "already-running"
    found = waiting(shared, agent)
    assert found["active"] is True
    assert found["state"].keys() == STATE
    assert (found["state"]["sessionId"], found["state"]["status"]) == ("", "running")
    assert found["state"]["progressLog"] == ["a draft"]
    body = {"loopId": found["pending"]["loopId"], "approved": True}
    assert shared("POST", f"{BASE}/{agent}/loop/approve", body).json["data"] == {"resolved": True}
    shared.until(found["run"], "completed")
    assert start(shared, agent, "Write.").status == 202
    assert shared("POST", f"{BASE}/{agent}/loop/stop").json["data"]["status"] == "stopped"


@pytest.mark.item("rondoflow-73")
def test_the_output_of_a_loop_that_reaches_its_cap(shared: Served) -> None:
    """It completes with the learning of its last iteration; the iteration events have the rest."""
    long = "x" * 900
    agent = made(shared, long, maxIterations=1)

    async def go() -> None:
        async with tab(shared) as one:
            await one.say("loop:start", {"agentId": agent, "message": "Write."})
            done = await one.first("completed", agentId=agent)
            assert (done["totalIterations"], done["finalOutput"]) == (1, "x" * 300)
            (iteration,) = one.all("iteration")
            assert iteration["output"] == long

    talk(go())


@pytest.mark.item("rondoflow-73", "rondoflow-72")
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (True, 60_000)),
        ({"RONDOFLOW_TEARDOWN_ON_DISCONNECT": "0"}, (False, 60_000)),
        ({"RONDOFLOW_TEARDOWN_GRACE_MS": "60000"}, (True, 60_000)),
    ],
)
def test_the_variables_of_teardown(env: dict[str, str], expected: tuple[bool, int]) -> None:
    """On by default, off with 0, after a minute."""
    found = departures(env)
    assert (found.enabled, found.grace_ms) == expected


@pytest.mark.item("rondoflow-73", "rondoflow-68")
def test_the_events_of_a_run_under_their_own_names(shared: Served) -> None:
    """The engine events of a finished run, in their order, with exactly their fields."""
    criteria = {"type": "regex", "value": "DONE|COMPLETE|SUCCESS"}
    agent = made(shared, "at it", "success", loopCriteria=criteria)
    start(shared, agent)
    run = status(shared, agent)["run"]
    shared.until(run, "completed")
    page = shared("GET", f"/v1/runs/{run}/events", headers=JSON)
    assert page.status == 200, page.body
    events = page.json["events"]
    names = [one["type"] for one in events]
    assert names == ["iteration", "progress", "iteration", "progress", "completed"]
    assert all(one["payload"].keys() == EVENTS[one["type"]] for one in events)
    assert events[-1]["payload"] == {"totalIterations": 2, "finalOutput": "success"}
