"""Each way of ending, resumed through HTTP, Socket.IO and the tools for other agents."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.http.served import SECONDS, Served
from tests.http.talking import tab, talk

FAIL = {"fail": {"type": "crashed", "detail": "lost"}}
USED = {"input_tokens": 40, "output_tokens": 0, "usd": 0}
DONE = {"until": {"signal": "DONE"}}

# By ending: what the definition has, the replies, the options of the resume, where it continues.
ENDINGS: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any], str]] = {
    "failure": ({}, ["one", FAIL, "two", "three"], {}, "iteration 2 of 3"),
    "budget": (
        {"budget": {"tokens": 50}},
        [{"text": str(n), "usage": USED} for n in range(3)],
        {"budget": "tokens=500"},
        "iteration 3 of 3",
    ),
    "cap": ({"repeat": {"max": 2, **DONE}}, ["1", "2", "DONE"], {"max": 3}, "iteration 3 of 3"),
    "stop": ({}, ["one", {"text": "two", "delay": 30}, "three", "four"], {}, "iteration 2 of 3"),
    "restart": ({}, ["one", FAIL, "1", "2", "3"], {"restart": True}, "iteration 1"),
}


def ended(server: Served, ending: str) -> tuple[str, dict[str, Any], str]:
    """A run that ended so, the options that resume it, and the words that say where."""
    more, replies, options, point = ENDINGS[ending]
    agent = server.script(*replies, name=f"{ending}.yaml")
    document = {"name": "work", "agent": agent, "goal": "Do it.", "repeat": {"max": 3}, **more}
    run = server.start(json.dumps(document))
    if ending == "stop":
        server.until(run, "running")
        wait_for_iteration(server, run, 2)
        assert server("POST", f"/api/v1/runs/{run}/stop").status == 200
    server.until(run, "failed", "exhausted", "cancelled")
    word = "restarted" if ending == "restart" else "resumed"
    return run, options, f"{run} {word} at {point}"


def wait_for_iteration(server: Served, run: str, number: int) -> None:
    for _ in range(500):
        if server("GET", f"/api/v1/runs/{run}").json["iterations"] >= number:
            return
    raise AssertionError("it never came to that")


class RefusedResume(Exception):
    """What an interface answers instead of resuming."""


def over_http(server: Served, run: str, options: dict[str, Any]) -> str:
    reply = server("POST", f"/api/v1/runs/{run}/resume", options)
    if reply.status != 200:
        raise RefusedResume(reply.body.decode())
    return ""


def over_socket(server: Served, run: str, options: dict[str, Any]) -> str:
    said: list[str] = []

    async def go() -> None:
        async with tab(server) as one:
            answer = await one.say("run:resume", {"run": run, **options})
            said.append(answer.get("message") or answer["error"])

    talk(go())
    if " at " not in said[0] or "--max" in said[0]:
        raise RefusedResume(said[0])
    return said[0]


def as_tool(server: Served, run: str, options: dict[str, Any]) -> str:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, by="agent")
    tools = LoopTools(loops=loops)
    given = {"action": "resume", "id": run, **options}
    work = asyncio.run_coroutine_threadsafe(tools.answer("loop_control", given), server.loop)
    said = work.result(SECONDS)
    if said.error:
        raise RefusedResume(said.text)
    return said.text


INTERFACES: dict[str, Callable[[Served, str, dict[str, Any]], str]] = {
    "http": over_http,
    "socket.io": over_socket,
    "mcp": as_tool,
}


@pytest.mark.item("rec-5")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("interface", INTERFACES)
def test_a_run_is_resumed_the_same_way(shared: Served, interface: str, ending: str) -> None:
    """It continues at the same iteration, with the same options, and completes."""
    run, options, words = ended(shared, ending)
    said = INTERFACES[interface](shared, run, options)
    assert said.partition(" (spent")[0] in ("", words)
    assert shared.until(run, "completed")["iterations"] == 3
    events = shared("GET", f"/api/v1/runs/{run}/events", headers={"Accept": "application/json"})
    ends = [one for one in events.json["events"] if one["kind"] == "iteration.finished"]
    made = [one["iteration"] for one in ends if one.get("status", "completed") == "completed"]
    assert made == ([1, 1, 2, 3] if ending == "restart" else [1, 2, 3])


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_refusal_names_the_option(shared: Served, interface: str) -> None:
    """A run that has made all its iterations needs more of them."""
    run, _, _ = ended(shared, "cap")
    with pytest.raises(RefusedResume, match="--max 4"):
        INTERFACES[interface](shared, run, {})
