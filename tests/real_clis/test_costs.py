"""Cost of the real programs: known, or refused before anything starts, and limited live."""

import json
import subprocess
import sys
from typing import Any

import pytest

from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedTurn,
    ScriptedUsage,
    WireRequest,
    WireScript,
)
from tests.real_clis.conftest import Lab, Labs, needs

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(600)]

SPENDS = ScriptedUsage(input=20_000, output=4_000)
PRICE = "input = 1.0\noutput = 10.0\n"


def loop(lab: Lab, spec: str, *words: str, prices: str = "") -> tuple[int, dict[str, Any]]:
    """`loop` with an agent, as a person starts it: its exit code and its JSON."""
    if prices:
        (lab.work / "loopwright.toml").write_text(prices, encoding="utf-8")
    passed = [word for name in lab.credentials for word in ("--env", name)]
    env = {**lab.env, "LOOPWRIGHT_HOME": str(lab.folder / "data")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loopwright", "loop", "Do it.", "--agent", spec),
            *("--max", "3", "--json", *passed, *words),
        ],
        env=env,
        cwd=lab.work,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, told


# By name: the program, its agent (None: that of the lab), a price, whether the cost is known.
COSTS: dict[str, tuple[str, str | None, str, bool]] = {
    "claude": ("claude", None, "", True),
    "codex": ("codex", None, "", False),
    "codex with a model": ("codex", "-m gpt-5", "", True),
    "codex with a price": ("codex", None, f"[prices.codex]\n{PRICE}", True),
    "opencode": ("opencode", None, "", True),
    "gemini": ("gemini", None, "", True),
    "gemini with an unlisted model": ("gemini", "gemini:-m nobody", "", False),
    "acp claude": ("claude-agent-acp", "acp:claude-agent-acp", "", True),
    "acp gemini": ("gemini", "acp:gemini --acp", "", False),
    "acp opencode": ("opencode", "acp:opencode acp", "", True),
}


@pytest.mark.item("rec-23", "rec-24")
@pytest.mark.parametrize("name", COSTS)
def test_cost_is_known_or_the_start_is_refused(labs: Labs, name: str) -> None:
    """With a budget in USD a program either starts, and its cost is recorded, or is refused."""
    cli, given, prices, known = COSTS[name]
    needs(cli)
    lab = labs(
        WireScript(
            otherwise=ScriptedTurn(text="All done.", usage=ScriptedUsage(input=1_000, output=100))
        )
    )
    spec = lab.spec(given) if given and given.startswith("acp:") else lab.spec(cli)
    if given and not given.startswith("acp:"):
        spec = given if ":" in given else f"{spec} {given}"
    code, told = loop(lab, spec, "--budget", "usd=5", "--max", "1", prices=prices)
    if known:
        assert code == 0, told
        assert told["usage"]["usd"] > 0
        assert told["usage"]["unpriced_calls"] == 0
    else:
        assert code == 2, told
        assert told["type"].endswith(":unknown-cost")
        assert lab.wires.requests == []


def working(request: WireRequest) -> ScriptedTurn:
    """A model that never ends its work; titles and summaries get a word."""
    if not request.tools and request.wire != "responses":
        return ScriptedTurn(text="Title.", usage=ScriptedUsage(input=10, output=2))
    name, args = _HARMLESS[request.wire]
    return ScriptedTurn(calls=(ScriptedCall(name=name, args=args),), usage=SPENDS)


_HARMLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("Glob", {"pattern": "*"}),
    "chat": ("glob", {"pattern": "*"}),
}


@pytest.mark.item("rec-25")
@pytest.mark.parametrize("cli", ["claude", "opencode"])
def test_call_is_ended_when_it_exceeds_the_budget(labs: Labs, cli: str) -> None:
    """A model that would work forever is cut off; what it used counts, and the run is exhausted."""
    needs(cli)
    lab = labs(choose=working)
    code, told = loop(lab, lab.spec(cli), "--budget", "usd=0.3", "--permission", "all")
    assert (code, told["status"], told["reason"]) == (4, "exhausted", "budget"), told
    assert 0.3 <= told["usage"]["usd"] < 1.0
    assert len(lab.wires.requests) < 20


@pytest.mark.item("rec-25")
def test_codex_ends_after_the_turn_that_exceeds_the_budget(labs: Labs) -> None:
    """It reports usage when a call ends: that call completes, and no other one begins."""
    needs("codex")
    lab = labs(
        WireScript(
            otherwise=ScriptedTurn(text="More.", usage=ScriptedUsage(input=400_000, output=100))
        )
    )
    spec = f"{lab.spec('codex')} -m gpt-5"
    code, told = loop(lab, spec, "--budget", "usd=0.1", "--until-signal", "NEVER")
    assert (code, told["status"], told["reason"]) == (4, "exhausted", "budget"), told
    assert (told["iterations"], told["usage"]["usd"] > 0.1) == (1, True)
