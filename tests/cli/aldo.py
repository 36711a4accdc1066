"""Agents of this dialect as files, and a model on a local wire that answers by a script."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireScript, WireServer
from tests.cli.conftest import Place

MODEL = "model:local/fake"
DONE = "<task-complete>"


def agent(name: str = "coder", **blocks: Any) -> dict[str, Any]:
    """An agent that loops until it says that it is done; a block of None is left out."""
    spec: dict[str, Any] = {
        "apiVersion": "aldo-ai/agent.v1",
        "kind": "Agent",
        "identity": {"name": name, "version": "0.1.0", "description": "Works.", "owner": "me"},
        "role": {"team": "delivery", "pattern": "worker"},
        "model_policy": {
            "privacy_tier": "public",
            "primary": {"capability_class": "local-reasoning"},
            "budget": {"usd_per_run": 0},
        },
        "prompt": {"system_file": "prompt.md", "variables": {"who": "Ada"}},
        "tools": {
            "native": [{"ref": "fs.list"}, {"ref": "fs.write"}],
            "permissions": {"filesystem": "repo-readwrite"},
        },
        "iteration": {
            "max_cycles": 4,
            "context_window": 100_000,
            "summary_strategy": "rolling-window",
            "termination_conditions": [{"kind": "text-includes", "text": DONE}],
        },
    }
    return {key: value for key, value in {**spec, **blocks}.items() if value is not None}


def write(lw: Place, **blocks: Any) -> str:
    """An agent and its prompt in the workspace; the name of its file."""
    spec = agent(**blocks)
    file = f"{spec['identity']['name']}.yaml"
    lw.write(file, json.dumps(spec))
    lw.write("prompt.md", "You are {{who}}.")
    return file


@contextmanager
def model(monkeypatch: pytest.MonkeyPatch, *turns: ScriptedTurn) -> Iterator[WireServer]:
    """A model that says these things, one after the other, and nothing that was not asked."""
    with WireServer(WireScript(turns=turns)) as wires:
        monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{wires.url}/v1")
        yield wires
    assert wires.refused == []


def asks(tool: str, text: str = "", **args: Any) -> ScriptedTurn:
    """A turn that asks for a tool, by the name that the wire has for it."""
    return ScriptedTurn(text=text, calls=(ScriptedCall(name=tool.replace(".", "_"), args=args),))


def says(text: str) -> ScriptedTurn:
    return ScriptedTurn(text=text)
