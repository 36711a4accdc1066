"""The real programs: what the parsers expect is what they print."""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.operations.agents.programs import is_signed_out, look
from loopwright.ports import EffectFailure, EffectSuccess
from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    WireRequest,
    WireScript,
    read_script,
)
from tests.real_clis.conftest import Lab, Labs, needs

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DRIVEN = ["claude", "codex", "opencode", "gemini"]
every_cli = pytest.mark.parametrize("cli", DRIVEN)
TRICKY = "-- say 'hi' $(id) `id` \"x\"\nand a second line"


def talking(text: str) -> WireScript:
    return WireScript(otherwise=ScriptedTurn(text=text))


@every_cli
def test_text_usage_and_session(labs: Labs, cli: str) -> None:
    """A turn of text comes back with what it used; the prompt arrives as it was written."""
    needs(cli)
    lab = labs(talking("All done."))
    answer, here = lab.ask(cli, TRICKY, system="Be brief.")
    assert isinstance(answer, EffectSuccess), answer
    assert (answer.output, answer.code) == ("All done.", 0)
    assert here.said() == "All done."
    assert answer.session
    assert answer.usage is not None
    assert answer.usage.input_tokens > 0
    assert any(TRICKY in request.user_text for request in lab.wires.asked)
    told = [f"{request.system_text}{request.user_text}" for request in lab.wires.asked]
    assert any("Be brief." in text for text in told)
    assert lab.wires.refused == []


@every_cli
def test_a_session_continues_and_a_lost_one_begins_anew(labs: Labs, cli: str) -> None:
    """The second call knows the first; a session that never was is noticed and replaced."""
    needs(cli)
    lab = labs(talking("Yes."))
    first, _ = lab.ask(cli, "Remember the word plum.")
    second, _ = lab.ask(cli, "Which word?", session=first.session, session_used=first.usage)
    assert isinstance(second, EffectSuccess), second
    assert second.session == first.session
    assert "plum" in json.dumps(lab.wires.asked[-1].body)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.output_tokens <= first.usage.output_tokens + 5
    lost = "ses_lost" if cli == "opencode" else "99999999-9999-4999-8999-999999999999"
    third, _ = lab.ask(cli, "Hello?", session=lost)
    assert isinstance(third, EffectSuccess), third
    assert "was gone and a new one was begun" in third.note


def test_claude_writes_a_file(labs: Labs) -> None:
    """A tool of the real program changes the workspace, and is seen."""
    needs("claude")
    turns = (
        ScriptedTurn(
            calls=(ScriptedCall(name="Write", args={"file_path": "a.txt", "content": "hi\n"}),)
        ),
    )
    lab = labs(WireScript(turns=turns, otherwise=ScriptedTurn(text="Written.")))
    answer, here = lab.ask("claude")
    assert isinstance(answer, EffectSuccess), answer
    assert (lab.work / "a.txt").read_text() == "hi\n"
    assert here.said("tool").startswith("Write ")


def test_claude_is_confined_to_its_tools(labs: Labs) -> None:
    """The named tools exist for the model, and none that could change anything."""
    needs("claude")
    lab = labs(talking("ok"))
    lab.ask("claude", tools=("Read", "Grep"))
    offered = set(lab.wires.asked[-1].tools)
    assert {"Read", "Grep"} <= offered
    assert not offered & {"Bash", "Edit", "NotebookEdit", "Write", "WebFetch"}


@pytest.mark.parametrize(
    ("more", "turn", "kind"),
    [
        ({}, ScriptedTurn(fault=ScriptedFault(status=401)), "not_signed_in"),
        ({}, ScriptedTurn(fault=ScriptedFault(status=429, retry_after=3_600)), "rate_limited"),
        ({}, ScriptedTurn(fault=ScriptedFault(status=529)), "overloaded"),
        (
            {"max_turns": 1},
            ScriptedTurn(calls=(ScriptedCall(name="Glob", args={"pattern": "*"}),)),
            "turn_limit",
        ),
        (
            {"max_usd": 0.0001},
            ScriptedTurn(calls=(ScriptedCall(name="Glob", args={"pattern": "*"}),)),
            "budget_limit",
        ),
    ],
    ids=["401", "429", "529", "turns", "budget"],
)
def test_troubles_of_claude(
    labs: Labs, more: dict[str, object], turn: ScriptedTurn, kind: str
) -> None:
    """Each trouble of the real program is the failure that it should be."""
    needs("claude")
    answer, _ = labs(WireScript(otherwise=turn)).ask("claude", **more)
    assert isinstance(answer, EffectFailure), answer
    assert answer.error.type == kind


def test_codex_is_not_signed_in(labs: Labs) -> None:
    """A refused key is told with its cure."""
    needs("codex")
    answer, _ = labs(WireScript(otherwise=ScriptedTurn(fault=ScriptedFault(status=401)))).ask(
        "codex"
    )
    assert isinstance(answer, EffectFailure)
    assert answer.error.type == "not_signed_in"
    assert "codex login" in answer.error.detail


def test_gemini_without_a_key(labs: Labs) -> None:
    """That it is not signed in, it says at once."""
    needs("gemini")
    lab = labs(talking("x"))
    with patch.object(Lab, "credentials", {}):
        answer, _ = lab.ask("gemini")
    assert isinstance(answer, EffectFailure), answer
    assert answer.error.type == "not_signed_in"


def test_the_doctor_reads_the_real_programs(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions and sign-in are shown, without a request to any model."""
    for name in DRIVEN:
        needs(name)
    lab = labs(talking("x"))
    # Programs in the current folder are not asked, and the clone has those of this test.
    monkeypatch.chdir(lab.folder)
    plain = {name: lab.env[name] for name in ("PATH", "HOME", "LANG")}
    found = {one.cli.name: one for one in look(plain)}
    assert all(one.version for one in found.values())
    assert found["claude"].signed_in == found["codex"].signed_in == "no"
    assert {one.signed_in for one in look(lab.env) if one.cli.name == "claude"} == {"yes"}
    assert lab.wires.asked == []


@pytest.mark.item("rec-33")
@pytest.mark.parametrize("cli", ["claude", "codex", "gemini"])
def test_a_program_that_is_not_signed_in_is_known(labs: Labs, cli: str) -> None:
    """Without a request to any model; a key in the environment counts as signed in."""
    needs(cli)
    lab = labs(talking("x"))
    plain = {name: lab.env[name] for name in ("PATH", "HOME", "LANG")}
    assert is_signed_out(CLIS[cli], plain, str(lab.folder))
    known = {**plain, CLIS[cli].credentials[0]: "k"}
    assert not is_signed_out(CLIS[cli], known, str(lab.folder))
    assert lab.wires.requests == []


def test_the_demo_with_the_real_claude(labs: Labs) -> None:
    """`loopwright demo --agent claude` repairs the project in three iterations."""
    needs("claude")
    lab = labs(read_script(ROOT / "examples" / "wire.yml"))
    env = {
        **lab.env,
        "PATH": f"{Path(sys.executable).parent}:{lab.env['PATH']}",
        "NO_COLOR": "1",
        "TMPDIR": str(lab.folder),
    }
    done = subprocess.run(
        [sys.executable, "-m", "loopwright", "demo", "--agent", "claude"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Completed in 3 iterations" in done.stdout
    assert lab.wires.refused == []


@pytest.mark.parametrize("name", ["claude-agent-acp", "opencode"])
def test_a_real_acp_agent_asks_before_it_writes(labs: Labs, name: str) -> None:
    """The question is a gate in the log; another process approves; the agent writes once."""
    needs(name)
    claude = name != "opencode"
    given = {"file_path" if claude else "filePath": "", "content": "hi\n"}

    def choose(request: WireRequest) -> ScriptedTurn:
        if not request.tools or request.results:
            return ScriptedTurn(text="Written.")
        return ScriptedTurn(calls=(ScriptedCall(name="Write" if claude else "write", args=given),))

    lab = labs(choose=choose)
    given["file_path" if claude else "filePath"] = str(lab.work / "a.txt")
    lab.asks_before_edits()
    spec = "acp:claude-agent-acp" if claude else "acp:opencode acp"
    passed = ["ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"]
    agents = {"w": {"use": spec, "pass_env": passed}}
    plan = {"name": "t", "goal": "go", "agent": "w", "agents": agents, "repeat": {"max": 1}}
    file = lab.folder / "plan.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    env = {**lab.env, "LOOPWRIGHT_HOME": str(lab.folder / "data")}

    def lw(*args: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [sys.executable, "-m", "loopwright", *args, "--json"],
            env=env,
            cwd=lab.work,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.stdout, done.stderr.decode()
        return done.returncode, json.loads(done.stdout)

    code, run = lw("run", str(file))
    assert (code, run["status"]) == (5, "waiting"), run
    assert not (lab.work / "a.txt").exists()
    code, run = lw("approve", str(run["run"]))
    assert (code, run["status"], run["output"]) == (0, "completed", "Written."), run
    assert (lab.work / "a.txt").read_text() == "hi\n"
