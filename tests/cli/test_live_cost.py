"""A call whose live usage exceeds what is left is ended: coding CLIs, ACP agents, chat models."""

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.model.record import JsonValue
from loopwright.testing.wires import ScriptedTurn
from tests.agents.clis import events as e
from tests.agents.fake_cli import FakeCli
from tests.cli.conftest import Place, Serve

ACP = Path(__file__).parents[1] / "agents" / "acp_agent.py"
LINGERS_S = 60


def fake(lw: Place) -> FakeCli:
    cli = FakeCli(lw.folder.parent / "fake").install(*CLIS)
    lw.env["PATH"] = f"{cli.folder / 'bin'}:{os.environ['PATH']}"
    return cli


def claude(lw: Place, serve: Serve) -> str:
    """Messages with usage, as Claude Code prints them while it works."""
    used: JsonValue = {"input_tokens": 100_000, "output_tokens": 100_000}
    messages = [
        e.claude_says(
            message={
                "id": f"msg_{number}",
                "role": "assistant",
                "model": e.MODEL,
                "content": [{"type": "text", "text": "x"}],
                "usage": used,
            }
        )
        for number in range(3)
    ]
    fake(lw).says([e.CLAUDE_INIT, *messages], linger=LINGERS_S)
    return "claude"


def opencode(lw: Place, serve: Serve) -> str:
    steps = [e.opencode_step("tool-calls", cost=0.6) for _ in range(2)]
    fake(lw).says(steps, linger=LINGERS_S)
    return "opencode"


def acp(lw: Place, serve: Serve) -> str:
    programs = lw.folder.parent / "programs"
    programs.mkdir()
    file = programs / "claude-agent-acp"
    file.write_text(f"#!/bin/sh\nexec {sys.executable} -I {ACP}\n")
    file.chmod(0o755)
    lw.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    return "acp:claude-agent-acp"


def chat(lw: Place, serve: Serve) -> str:
    """A model that writes much more than the budget pays for, and then says nothing."""
    serve(ScriptedTurn(text="word " * 400_000, chunk=4_000, stall_after=400, times=None))
    return "model:openai/gpt-4o"


@pytest.mark.item("rec-25")
@pytest.mark.parametrize("agent", [claude, opencode, acp, chat])
def test_call_is_ended_when_its_live_usage_exceeds_the_budget(
    lw: Place, serve: Serve, agent: Callable[[Place, Serve], str]
) -> None:
    """The call does not run to its end, its usage counts, and the run is exhausted."""
    spec = agent(lw, serve)
    words = ["--max", "2", "--budget", "usd=1", "--json", "--permission", "all"]
    told = lw.real("loop", "spend it", "--agent", spec, *words)
    assert (told.code, told.json["status"], told.json["reason"]) == (4, "exhausted", "budget")
    assert told.json["usage"]["usd"] > 1
    assert told.json["usage"]["unpriced_calls"] == 0
    [failed] = [one for one in lw.events(told.json["run"]) if one["kind"] == "effect.failed"]
    assert (failed["error"]["type"], failed["error"]["outer"]) == ("budget_limit", True)
    began = next(o for o in lw.events(told.json["run"]) if o["kind"] == "effect.requested")
    took = datetime.fromisoformat(failed["at"]) - datetime.fromisoformat(began["at"])
    assert took.total_seconds() < LINGERS_S


@pytest.mark.item("rec-25")
@pytest.mark.parametrize(
    ("settings", "most"),
    [("", 2.0), ("[budget]\nusd_per_day = 0.5\n", 0.5)],
    ids=["run", "day"],
)
def test_claude_is_given_the_smallest_budget(lw: Place, settings: str, most: float) -> None:
    """`--max-budget-usd` is what is left of the run or of the day, whichever is less."""
    cli = fake(lw).says(e.CLAUDE_WRITES)
    lw.write("loopwright.toml", settings)
    told = lw.real("loop", "go", "--agent", "claude", "--max", "1", "--budget", "usd=2", "--json")
    assert told.json["status"] == "completed", told.err
    argv = json.loads(json.dumps(cli.calls[0]["argv"]))
    assert float(argv[argv.index("--max-budget-usd") + 1]) == pytest.approx(most)
