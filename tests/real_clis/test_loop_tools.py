"""Real coding CLIs with the loop tools of an agent: they start a child run and look at it."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.model.record import JsonValue
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest
from tests.real_clis.conftest import Lab, Labs, needs

pytestmark = [
    pytest.mark.real_cli,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
    ),
]

TOOLS = {
    "claude": ("mcp__loopwright__{}", None),
    "codex": ("{}", "mcp__loopwright"),
    "gemini": ("mcp_loopwright_{}", None),
    "opencode": ("loopwright_{}", None),
}
"""How each CLI names a tool of an MCP server to its model, and the namespace of the tool."""
TASK = "Start the loop of the team."
START: dict[str, JsonValue] = {"definition": "team", "goal": "Write it.", "max_iterations": 1}
TEAM: JsonValue = {
    "name": "team",
    "description": "One coder",
    "roles": [{"name": "work", "role": "coder", "prompt": "Do it."}],
    "termination_condition": {"type": "iteration_bound", "max_iterations": 1},
}
CHILD = re.compile(r"loop_id\W+(run_\w{26})")


class Model:
    """The model of the agent: it starts a loop and waits for it. In the child run it is done."""

    def __init__(self, cli: str) -> None:
        self._cli = cli
        self._name, self._namespace = TOOLS[cli]
        self._left = ["loop_start", "loop_status"]
        self.child = ""
        self.last = ""  # the newest request

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        body = request.raw.decode()
        is_title = self._cli == "opencode" and not request.tools
        if not self._left or is_title or TASK not in body:
            return ScriptedTurn(text="Done.")
        self.last = body
        found = CHILD.search(body)
        self.child = found[1] if found else ""
        arguments: dict[str, dict[str, JsonValue]] = {
            "loop_start": START,
            "loop_status": {"id": self.child, "wait_seconds": 50},
        }
        name = self._left.pop(0)
        called = self._name.format(name)
        return ScriptedTurn(
            calls=(ScriptedCall(name=called, args=arguments[name], namespace=self._namespace),)
        )


def run_json(lab: Lab, *words: str) -> Any:
    """What a command of a person prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "loopwright", *words, "--data-dir", str(lab.folder / "data")],
        cwd=lab.work,
        env={**os.environ, **lab.env},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


@pytest.mark.item("bnd-p6")
@pytest.mark.parametrize("cli", TOOLS)
def test_a_real_cli_starts_a_child_run_with_its_loop_tools(labs: Labs, cli: str) -> None:
    """At guard, with `--loop-tools`: the child run completes, and its events name the agent."""
    needs(cli)
    model = Model(cli)
    lab = labs(choose=model)
    definitions = lab.work / ".loopwright" / "loops"
    definitions.mkdir(parents=True)
    (definitions / "team.json").write_text(json.dumps(TEAM), encoding="utf-8")
    words = ("loop", TASK, "--agent", lab.spec(cli), "--max", "1", "--json")
    ended = run_json(lab, *words, "--loop-tools", "start", "--loop-tools", "look")
    statuses = {one["run"]: one["status"] for one in run_json(lab, "ls", "--json")["runs"]}
    assert statuses == {ended["run"]: "completed", model.child: "completed"}, model.last[-2000:]
    first = run_json(lab, "events", model.child, "--json")["events"][0]
    assert (first["parent"], first["by"]) == (ended["run"], f"agent:worker of {ended['run']}")
