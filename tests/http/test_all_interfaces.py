"""One registry for all interfaces: a run started by one can be read, answered and ended by all."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Served, served
from tests.http.talking import tab, talk
from tests.http.test_assistants import made

__all__ = ["lw"]
LOOPS = "/api/v1/loops"
MANUAL = {"type": "manual", "value": ""}
ASKS = {"name": "asks", "goal": "Do it.", "repeat": {"max": 3, "until": {"person": True}}}
BLOCKED = {"when": {"agent": "plan"}, "text": "STATUS: BLOCKED\nNo keys."}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a home, which the command line of that home talks to."""
    with served(tmp_path_factory.mktemp("doors"), held=True) as one:
        yield one


class Doors:
    """A server with everybody who comes to it. Every door starts, sees, approves and stops."""

    def __init__(self, server: Served, lw: Place) -> None:
        self.ask, self.lw = server, lw
        work = server.script(*["some work"] * 40, name="work.json")
        (server.folder / "asks.json").write_text(json.dumps({**ASKS, "agent": work}))
        after = [{"when": {"agent": one}, "text": "APPROVED"} for one in ("coder", "reviewer")]
        self.blocked = server.script(BLOCKED, *after, name="blocked.json")
        loops = RoleLoops(
            here=server.context.here,
            settings=server.context.settings,
            cwd=server.folder,
            agents=[self.blocked],
        )
        self.tools = LoopTools(loops=loops, answers=True)

    def command(self, *args: str) -> Any:
        told = self.lw(*args, "--data-dir", str(self.ask.folder / "home"))
        assert told.code in (0, 5), told.err
        return told

    def said(self, event: str, data: dict[str, Any]) -> Any:
        answers: list[Any] = []

        async def go() -> None:
            async with tab(self.ask) as one:
                answers.append(await one.say(event, data))

        talk(go())
        assert answers[0]["ok"], answers
        return answers[0]

    def tool(self, name: str, **given: Any) -> str:
        work = asyncio.run_coroutine_threadsafe(self.tools.answer(name, given), self.ask.loop)
        outcome = work.result(SECONDS)
        assert not outcome.error, outcome.text
        return outcome.text

    def good(self, method: str, path: str, body: object = None) -> Any:
        reply = self.ask(method, path, body, headers={"Accept": "application/json"})
        assert 200 <= reply.status < 300, (path, reply.body)
        return reply.json

    # -- starting

    def start(self, door: str) -> tuple[str, str]:
        """Start a loop by a door; the run and the gate that it comes to."""
        run = _STARTS[door](self)
        self.ask.until(run, "waiting")
        return run, self.ask("GET", f"/api/v1/runs/{run}").json["gates"][0]["id"]

    def assistant(self) -> str:
        agent = made(self.ask, loopCriteria=MANUAL)
        self.good("POST", f"/api/agents/{agent}/loop/start", {"message": "Do it."})
        return str(self.good("GET", f"/api/agents/{agent}/loop/status")["data"]["run"])

    def loop(self) -> str:
        body = {"definition": "harness", "goal": "g", "agent": self.blocked}
        return str(self.good("POST", LOOPS, body)["loop"]["id"])

    def run(self) -> str:
        return self.ask.start((self.ask.folder / "asks.json").read_text())

    def socket(self) -> str:
        agent = made(self.ask, loopCriteria=MANUAL)
        return str(self.said("loop:start", {"agentId": agent, "message": "Do it."})["run"])

    def cli(self) -> str:
        file = str(self.ask.folder / "asks.json")
        return str(self.command("run", file, "--no-wait", "--json").json["run"])

    def mcp(self) -> str:
        told = self.tool("loop_start", definition="harness", goal="g")
        return str(json.loads(told)["loop_id"])


_STARTS: dict[str, Callable[[Doors], str]] = {
    "assistant": Doors.assistant,
    "loops": Doors.loop,
    "runs": Doors.run,
    "socket": Doors.socket,
    "cli": Doors.cli,
    "mcp": Doors.mcp,
}


def seen(doors: Doors, door: str, run: str, gate: str) -> bool:
    """Whether a door shows a run, with the gate where it shows gates."""
    good = doors.good
    match door:
        case "assistant":
            told = good("GET", f"/api/agents/{run}/loop/status")["data"]
            return (told["run"], told["active"], told["pending"]["loopId"]) == (run, True, gate)
        case "loops":
            told = good("GET", f"{LOOPS}/{run}")
            listed = [one["id"] for one in good("GET", LOOPS)["loops"]]
            assert good("GET", f"{LOOPS}/{run}/live")["loop"]["status"] == "blocked"
            assert good("GET", f"{LOOPS}/{run}/metrics")["current_iteration"] == 1
            (first,) = good("GET", f"{LOOPS}/{run}/iterations")["iterations"]
            again = good("GET", f"{LOOPS}/{run}/iterations/{first['id']}")["iteration"]
            # The iteration has not finished, so its duration grows from one look to the next.
            assert again.pop("duration_seconds") >= first.pop("duration_seconds")
            assert again == first
            assert good("GET", f"{LOOPS}/{run}/history")["count"] == 1
            return told["loop"]["escalation"]["gate"] == gate and run in listed
        case "approvals":
            (one,) = good("GET", f"/v1/runs/{run}/approvals")["approvals"]
            assert good("GET", f"/v1/runs/{run}/events")["events"]
            assert good("GET", f"/v1/runs/{run}/tree")["loops"]
            return bool(one["gateId"] == gate)
        case "runs":
            inbox = [one["id"] for one in good("GET", "/api/v1/gates")["gates"]]
            return good("GET", f"/api/v1/runs/{run}")["status"] == "waiting" and gate in inbox
        case "socket":
            return bool(doors.said("subscribe", {"run": run})["snapshot"]["run"] == run)
        case "cli":
            return gate in doors.command("inbox").out and run in doors.command("ls").out
        case _:
            told = json.loads(doors.tool("loop_status", id=run))
            assert run in doors.tool("loop_list")
            return told["status"] == "blocked" and gate in doors.tool("gate_list")


def approve(doors: Doors, door: str, run: str, gate: str) -> None:
    """Approve what a run waits for."""
    match door:
        case "assistant":
            body = {"loopId": gate, "approved": True}
            doors.good("POST", f"/api/agents/{run}/loop/approve", body)
        case "loops":  # it has no route for this: gates are answered where they are listed
            doors.good("POST", f"/api/v1/gates/{gate}/approve", {})
        case "approvals":
            doors.good("POST", f"/v1/runs/{run}/approve", {"callId": gate})
        case "runs":
            doors.good("POST", f"/api/v1/gates/{gate}/approve", {})
        case "socket":
            doors.said("loop:approve", {"agentId": run, "loopId": gate, "approved": True})
        case "cli":
            doors.command("approve", gate)
        case _:
            doors.tool("gate_answer", id=gate, decision="approve")


def stop(doors: Doors, door: str, run: str) -> None:
    """End a run."""
    match door:
        case "assistant":
            doors.good("POST", f"/api/agents/{run}/loop/stop")
        case "loops":
            assert doors.good("POST", f"{LOOPS}/{run}/pause")["status"] == "paused"
            assert doors.good("POST", f"{LOOPS}/{run}/resume")["id"] == run
            doors.good("POST", f"{LOOPS}/{run}/stop")
        case "approvals" | "runs":
            doors.good("POST", f"/api/v1/runs/{run}/stop")
        case "socket":
            doors.said("loop:stop", {"agentId": run})
        case "cli":
            doors.command("stop", run)
        case _:
            doors.tool("loop_control", action="stop", id=run)


@pytest.fixture
def doors(shared: Served, lw: Place) -> Doors:
    return Doors(shared, lw)


@pytest.mark.parametrize("starter", _STARTS)
def test_every_interface_sees_answers_and_ends(doors: Doors, starter: str) -> None:
    """A loop of any door is in the lists of every other, which answers and ends it."""
    for door in ("assistant", "loops", "approvals", "runs", "socket", "cli", "mcp"):
        run, gate = doors.start(starter)
        assert seen(doors, door, run, gate), door
        approve(doors, door, run, gate)
        assert gate not in [one["id"] for one in doors.good("GET", "/api/v1/gates")["gates"]]
        again, _ = doors.start(starter)
        stop(doors, door, again)
        doors.ask.until(again, "cancelled")
        doors.ask("POST", f"/api/v1/runs/{run}/stop")


def test_what_has_no_stages(doors: Doors) -> None:
    """Trying a stage again or leaving it out is refused, and so is another goal."""
    run, gate = doors.start("runs")
    for verb in ("skip-stage", f"iterations/{run}.1/retry"):
        reply = doors.ask("POST", f"{LOOPS}/{run}/{verb}")
        assert (reply.status, reply.json["code"]) == (409, "conflict")
        assert "no stages" in reply.json["error"]
    reply = doors.ask("PATCH", f"{LOOPS}/{run}", {"goal": "x"})
    assert (reply.status, reply.json["details"]["reason"]) == (409, "not-editable")
    told = doors.good("GET", f"{LOOPS}/{run}")
    assert (told["stages"], told["loop"]["project_id"], told["loop"]["definition_name"]) == (
        [],
        None,
        "asks",
    )
    doors.good("POST", f"/api/v1/gates/{gate}/approve", {})
    doors.ask.until(run, "completed")
    stream = doors.ask("GET", f"{LOOPS}/{run}/events").body.decode()
    assert "event: connected" in stream
    assert "event: done" in stream
    assert doors.good("DELETE", f"{LOOPS}/{run}") == {"deleted": True, "id": run}
