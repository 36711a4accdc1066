"""Every interface reports the same number of iterations: those of loops, never turns of a model."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.testing.wires import ScriptedCall, ScriptedTurn
from tests.cli.conftest import MODEL, Serve, lw, serve
from tests.http.served import Served
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw", "serve"]


@dataclass(frozen=True)
class Case:
    """A definition, what its agents say, and how many iterations its loops make."""

    definition: dict[str, Any]
    replies: list[Any]
    iterations: int
    file: str = "d.yaml"
    unit: str = "iteration"
    status: str = ""
    inner: int = 0  # iterations of loops inside of loops, which are not in the number of the run


def archon(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"name": "w", "description": "d", "nodes": list(nodes)}


def looped(name: str, *after: str) -> dict[str, Any]:
    loop = {"prompt": "Do it.", "until": "DONE", "max_iterations": 5}
    return {"id": name, "depends_on": list(after), "loop": loop}


CASES = {
    "native loop": Case(
        {"name": "w", "agents": {"a": {}}, "agent": "a", "goal": "Do it.",
         "repeat": {"max": 5, "until": {"contains": "DONE"}}},
        ["one", "two", "DONE"], 3,
    ),
    "native loop at its cap": Case(
        {"name": "w", "agents": {"a": {}}, "agent": "a", "goal": "Do it.", "repeat": {"max": 2}},
        ["one", "two"], 2,
    ),
    "native steps without a loop": Case(
        {"name": "w", "agents": {"a": {}}, "steps": [{"id": "x", "agent": "a", "prompt": "Do."}]},
        ["one"], 0,
    ),
    "loop of an assistant": Case(
        {"name": "w", "persona": "You work.", "loopEnabled": True, "maxIterations": 5,
         "loopCriteria": {"type": "regex", "value": "DONE"}},
        ["one", "DONE"], 2,
    ),
    "loop of roles": Case(
        {"name": "w", "description": "d",
         "roles": [{"role": "coder", "prompt": "Do it."}, {"role": "reviewer", "prompt": "Look."}],
         "termination_condition": {"type": "evaluation_bound", "value": {"criteria": "It works"}}},
        ["code", "Needs changes: no test", "code", "APPROVED"], 2, file="d.json",
    ),
    "one loop node": Case(archon(looped("a")), ["one", "DONE"], 2),
    "two loop nodes": Case(
        archon(looped("a"), looped("b", "a")), ["one", "DONE", "one", "two", "DONE"], 5
    ),
    "a loop step": Case(
        {"name": "w", "steps": [{"id": "a", "instructions": "Do it.",
         "loop": {"maxIterations": 2}}]},
        ["one", "two"], 2,
    ),
    "a loop over a list": Case(
        {"name": "w", "steps": [{"id": "a", "instructions": "Do it.",
         "loop": {"forEach": ["x", "y", "z"]}}]},
        ["one", "two", "three"], 3, unit="item",
    ),
    "native loop that fails": Case(
        {"name": "w", "agents": {"a": {}}, "agent": "a", "goal": "Do it.",
         "repeat": {"max": 5, "until": {"contains": "DONE"}}},
        ["one", {"fail": "no space"}], 2, status="failed",
    ),
    "loop of an assistant at its limit": Case(
        {"name": "w", "persona": "You work.", "loopEnabled": True, "maxIterations": 2,
         "loopCriteria": {"type": "regex", "value": "DONE"}},
        ["one", "two"], 2, status="completed",
    ),
    "loop of an assistant that fails": Case(
        {"name": "w", "persona": "You work.", "loopEnabled": True, "maxIterations": 5,
         "loopCriteria": {"type": "regex", "value": "DONE"}},
        ["one", "two", {"fail": "no space"}], 3, status="failed",
    ),
    "loop node at its limit": Case(archon(looped("a")), ["one"] * 5, 5, status="failed"),
    "native list with an inner loop": Case(
        {"name": "w", "agents": {"a": {}}, "steps": [{"id": "each", "repeat": {
            "for_each": {"items": ["x", "y"]}, "steps": [{"id": "work", "repeat": {
                "max": 2, "agent": "a", "prompt": "Do {{item}}."}}]}}]},
        ["one", "two", "three", "four"], 2, unit="item", inner=4,
    ),
    "loop with an inner loop": Case(
        {"name": "w", "steps": [{"id": "a", "loop": {"maxIterations": 2, "steps": [
            {"id": "b", "instructions": "Do it.", "loop": {"maxIterations": 3}}]}}]},
        ["text"] * 6, 2, inner=6,
    ),
}  # fmt: skip


def as_tool(shared: Served, run: str) -> Any:
    context = shared.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=shared.folder, by="agent")
    told = shared.as_admin(LoopTools(loops=loops).answer("loop_status", {"id": run}))
    assert not told.error, told.text
    return json.loads(told.text)


def finished_iterations(events: list[dict[str, Any]]) -> list[str]:
    """Iterations in the log; one in which a model took a turn is a part of a call."""
    turns = {one["path"] for one in events if one["kind"] == "turn.taken"}
    ends = [one["path"] for one in events if one["kind"] == "iteration.finished"]
    return [path for path in ends if path not in turns]


def outermost(paths: list[str]) -> list[str]:
    """Those that are not inside of another iteration."""
    return [one for one in paths if not any(one.startswith(f"{other}.") for other in paths)]


def shown_iterations(page: str) -> int:
    """The iterations of the outermost loops that `show` lists for people."""
    return len(re.findall(r"^\S (?:step \S+, (?:iteration|item) )?\d+  ", page, re.MULTILINE))


def last_of_dialect(events: list[dict[str, Any]]) -> int:
    """The last iteration in the events of an assistant's own format."""
    [ended] = [one["payload"] for one in events if one["type"] in ("completed", "failed")]
    return int(ended.get("totalIterations", ended.get("iteration")))


@pytest.mark.item("rec-47")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_interface_reports_the_same_number(both: Both, shared: Served, case: Case) -> None:
    """`run`, `show`, `ls`, the final line, events, HTTP and MCP agree."""
    both.lw.write(case.file, json.dumps(case.definition))
    agent = both.lw.script(*case.replies)
    compare(both, shared, case, agent)


def compare(both: Both, shared: Served, case: Case, agent: str) -> None:
    began = both.here("run", case.file, "Do it.", "--agent", agent, "--json")
    ran = began.json
    assert "run" in ran, ran
    run = ran["run"]
    assert case.status in ("", ran["status"])
    finished = finished_iterations(both.here("events", run).lines)
    assert len(finished) - len(outermost(finished)) == case.inner
    seen = {
        "run": ran["iterations"],
        "show": both.here("show", run, "--json").json["iterations"],
        "ls": next(
            one["iterations"]
            for one in both.here("ls", "--json", "--all").json["runs"]
            if one["run"] == run
        ),
        "http": shared("GET", f"/api/v1/runs/{run}").json["iterations"],
        "http list": next(
            one["iterations"]
            for one in shared("GET", "/api/v1/runs?limit=100").json["runs"]
            if one["run"] == run
        ),
        "mcp": as_tool(shared, run)["iterations"],
        "events": len(outermost(finished)),
        "show for people": shown_iterations(both.here("show", run).out),
        "steps": sum(one["iterations"] for one in ran["steps"].values()),
    }
    named = re.search(rf"(\d+) {case.unit}s?\b|iteration (\d+) of", ran["summary"])
    if named is not None:
        seen["final line"] = int(named[1] or named[2])
    if case.definition.get("loopEnabled"):
        seen["dialect"] = last_of_dialect(both.here("events", run, "--dialect").lines)
    table = next(line for line in both.here("ls", "--all").out.splitlines() if run in line)
    seen["table"] = int(re.split(r"\s{2,}", table.strip())[2].partition("/")[0])
    assert seen == dict.fromkeys(seen, case.iterations), began.err


LISTING = ScriptedTurn(calls=(ScriptedCall("fs.list", {"path": "."}),))


@pytest.mark.item("rec-47")
@pytest.mark.parametrize(
    ("body", "turns", "count"),
    [
        (
            {"repeat": {"max": 2}},
            [LISTING, ScriptedTurn(text="one"), LISTING, ScriptedTurn(text="two")],
            2,
        ),
        ({}, [LISTING, LISTING, ScriptedTurn(text="one")], 0),
    ],
    ids=["in a loop", "without a loop"],
)
def test_turns_of_a_model_are_not_iterations(
    both: Both,
    shared: Served,
    serve: Serve,
    body: dict[str, Any],
    turns: list[ScriptedTurn],
    count: int,
) -> None:
    """A chat model that calls tools takes several turns for one iteration, or for none."""
    definition = {"name": "w", "agents": {"a": {"tools": ["fs.list"]}}, "agent": "a", "goal": "Do."}
    case = Case({**definition, **body}, [], count)
    both.lw.write(case.file, json.dumps(case.definition))
    serve(*turns)
    compare(both, shared, case, MODEL)


CYCLES = {
    "apiVersion": "aldo-ai/agent.v1",
    "kind": "Agent",
    "identity": {"name": "worker", "version": "0.1.0", "description": "Works.", "owner": "me"},
    "role": {"team": "delivery", "pattern": "worker"},
    "model_policy": {
        "privacy_tier": "public",
        "primary": {"capability_class": "local-reasoning"},
        "budget": {"usd_per_run": 1},
    },
    "prompt": {"system_file": "prompt.md"},
    "tools": {"native": [{"ref": "fs.list"}], "permissions": {"filesystem": "repo-readonly"}},
    "iteration": {
        "max_cycles": 4,
        "context_window": 128000,
        "summary_strategy": "rolling-window",
        "termination_conditions": [{"kind": "text-includes", "text": "<done>"}],
    },
}


@pytest.mark.item("rec-47")
@pytest.mark.parametrize(
    ("turns", "count"),
    [
        ([LISTING, ScriptedTurn(text="one"), ScriptedTurn(text="<done>")], 3),
        ([ScriptedTurn(text="one")] * 4, 4),
    ],
    ids=["condition", "ceiling"],
)
def test_cycles_are_iterations(
    both: Both, shared: Served, serve: Serve, turns: list[ScriptedTurn], count: int
) -> None:
    """A cycle of an Aldo agent is an iteration of its loop, also in the events of the dialect."""
    both.lw.write("d.yaml", json.dumps(CYCLES))
    serve(*turns)
    began = both.here("run", "d.yaml", "Do it.", "--agent", MODEL, "--json")
    run = began.json["run"]
    told = both.here("events", run, "--dialect").lines
    by_type = {one["type"]: one["payload"] for one in told}
    seen = {
        "run": began.json["iterations"],
        "show": both.here("show", run, "--json").json["iterations"],
        "ls": next(
            one["iterations"]
            for one in both.here("ls", "--json", "--all").json["runs"]
            if one["run"] == run
        ),
        "http": shared("GET", f"/api/v1/runs/{run}").json["iterations"],
        "mcp": as_tool(shared, run)["iterations"],
        "cycles": sum(one["type"] == "cycle.start" for one in told),
        "last cycle": by_type["cycle.start"]["cycle"],
        "run.completed": by_type["run.completed"]["cycles"],
        "final line": int(re.findall(r"(\d+) iterations", began.json["summary"])[0]),
    }
    assert seen == dict.fromkeys(seen, count), began.err
    assert f"iteration {count}/4" in began.err


LEAF = {key: value for key, value in CYCLES.items() if key != "iteration"}


@pytest.mark.item("rec-47", "aldo-5")
def test_turns_of_an_agent_without_iteration_are_not_iterations(
    both: Both, shared: Served, serve: Serve
) -> None:
    """An Aldo agent without `iteration` is one call of a model, as a native agent is."""
    both.lw.write("d.yaml", json.dumps(LEAF))
    serve(LISTING, LISTING, ScriptedTurn(text="one"))
    compare(both, shared, Case(LEAF, [], 0), MODEL)


@pytest.mark.item("rec-47")
def test_the_limit_of_an_agent_without_iteration_is_named_in_turns(
    both: Both, serve: Serve
) -> None:
    """The final line and the steps of a run at `termination.max_turns` do not name iterations."""
    both.lw.write("d.yaml", json.dumps({**LEAF, "termination": {"max_turns": 2}}))
    serve(LISTING, LISTING, LISTING, LISTING)
    ended = both.here("run", "d.yaml", "Do it.", "--agent", MODEL)
    assert "Stopped at the limit of 2 turns" in ended.err
    run = re.findall(r"run_\w+", ended.err)[0]
    assert both.here("show", run, "--json").json["steps"]["main"]["iterations"] == 0
    resumed = both.here("resume", run, "--max", "4")
    assert "at turn 3 of 4" in resumed.err
    assert "Stopped at the limit of 4 turns" in resumed.err
