"""Agents of ALDO as people write them, from the command line, with a model on a local wire."""

import json
import os
import stat
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedFault, ScriptedTurn, ScriptedUsage
from tests.cli.aldo import DONE, MODEL, agent, asks, model, says, write
from tests.cli.conftest import Place
from tests.cli.test_aldo import ends, only, told

MCP = {
    "mcp": [
        {"server": "aldo-fs", "allow": ["fs.read", "fs.write", "fs.mkdir"]},
        {"server": "aldo-shell", "allow": ["shell.exec"]},
    ],
    "permissions": {"network": "none", "filesystem": "repo-readwrite"},
}


def loop(*conditions: dict[str, Any], cycles: int = 4) -> dict[str, Any]:
    return agent()["iteration"] | {"max_cycles": cycles, "termination_conditions": [*conditions]}


COMPILED = {
    "kind": "tool-result",
    "tool": "shell.exec",
    "match": {"exit_code": 0, "contains": "tsc"},
}


@pytest.fixture
def tsc(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place with a compiler that is called `tsc` and says nothing."""
    folder = lw.folder.parent / "bin"
    folder.mkdir()
    for name in ("tsc", "lint"):
        program = folder / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    lw.env["PATH"] = os.environ["PATH"]
    return lw


@pytest.mark.item("aldo-71", "aldo-72", "aldo-87")
@pytest.mark.parametrize(
    "args",
    [
        {"argv": ["tsc", "--noEmit"]},
        {"command": "tsc", "args": ["--noEmit"]},
        {"cmd": "tsc --noEmit"},
    ],
    ids=["ours", "command and args", "line"],
)
def test_the_first_condition_of_the_document_fires(
    tsc: Place, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any]
) -> None:
    """`tsc` ends with 0 and its result names it: the loop is done, whichever form the call has."""
    file = write(tsc, tools=MCP, iteration=loop(COMPILED))
    with model(monkeypatch, asks("shell.exec", "compiling", **args)):
        done = tsc("run", file, "Do it.", "--agent", MODEL, "--json")
    assert (done.code, done.json["status"], done.json["iterations"]) == (0, "completed", 1)
    events = told(tsc, done.json["run"])
    ((reason, detail),) = ends(events)
    assert (reason, detail["match"]) == ("tool-result", {"exit_code": 0, "contains": "tsc"})
    (result,) = only(events, "tool_result")
    assert result["result"]["argv"] == ["tsc", "--noEmit"]


@pytest.mark.item("aldo-72")
def test_a_program_is_allowed_at_the_start(tsc: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on the list is refused to the model, until the person who starts allows it."""
    passed = COMPILED | {"match": {"exit_code": 0}}
    file = write(tsc, tools=MCP, iteration=loop(passed, cycles=1))
    with model(monkeypatch, asks("shell.exec", argv=["lint"])):
        refused = tsc("run", file, "Do it.", "--agent", MODEL, "--json")
    (result,) = only(told(tsc, refused.json["run"]), "tool_result")
    assert (refused.json["status"], result["isError"]) == ("exhausted", True)
    assert "'lint' is not allowed here" in result["result"]["error"]
    with model(monkeypatch, asks("shell.exec", argv=["lint"])):
        allowed = tsc(
            "run", file, "Do it.", "--agent", MODEL, "--allow", "shell.exec:lint", "--json"
        )
    assert (allowed.code, allowed.json["status"]) == (0, "completed")


@pytest.mark.item("aldo-72")
def test_programs_are_allowed_of_the_shell_only(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tool has no programs, and an agent without the shell starts none."""
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
    with_shell = write(lw, tools=MCP)
    refused = lw("run", with_shell, "Do it.", "--agent", MODEL, "--allow", "fs.read:x")
    assert refused.code == 2
    assert "only programs of shell.exec are allowed by name" in refused.err
    without = write(lw, name="other")
    refused = lw("run", without, "Do it.", "--agent", MODEL, "--allow", "shell.exec:tsc")
    assert refused.code == 2
    assert "no agent here has shell.exec" in refused.err


@pytest.mark.item("aldo-71")
def test_a_line_with_operators_is_not_run(tsc: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no shell: two programs in a line are refused, and the model reads why."""
    file = write(tsc, tools=MCP, iteration=loop(COMPILED, cycles=1))
    with model(monkeypatch, asks("shell.exec", cmd="tsc && rm -rf src")):
        done = tsc("run", file, "Do it.", "--agent", MODEL, "--json")
    events = told(tsc, done.json["run"])
    (result,) = only(events, "tool_result")
    assert (done.json["status"], result["isError"]) == ("exhausted", True)
    assert only(events, "tool_call")[0]["args"] == {"cmd": "tsc && rm -rf src"}


@pytest.mark.item("aldo-74")
@pytest.mark.parametrize("reports", [True, False], ids=["usage", "no usage"])
def test_a_local_model_with_a_budget_costs_nothing(
    lw: Place, monkeypatch: pytest.MonkeyPatch, *, reports: bool
) -> None:
    """It runs, at 0 USD and with a warning, also where it does not count its tokens."""
    budget = agent()["model_policy"] | {"budget": {"usd_per_run": 0.5}}
    file = write(lw, model_policy=budget)
    with model(monkeypatch, ScriptedTurn(text=DONE, report_usage=reports)):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    assert (done.code, done.json["usage"]["usd"]) == (0, 0.0)
    assert done.json["usage"]["unpriced_calls"] == 0
    assert "local/fake runs on this machine and costs 0 USD" in done.err
    assert '[prices."local/fake"]' in done.err


@pytest.mark.item("aldo-74", "aldo-26")
def test_a_price_of_the_settings_counts(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a price the same model spends money, and the budget ends the loop."""
    lw.write("loopwright.toml", '[prices."local/fake"]\ninput = 0\noutput = 1000\n')
    budget = agent()["model_policy"] | {"budget": {"usd_per_run": 0.5}}
    file = write(lw, model_policy=budget, iteration=loop({"kind": "budget-exhausted"}))
    costly = ScriptedTurn(text="thinking", usage=ScriptedUsage(input=10, output=600))
    with model(monkeypatch, costly):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    assert "costs 0 USD" not in done.err
    assert ends(told(lw, done.json["run"])) == [("budget-exhausted", {"usd": 0.6, "cap": 0.5})]


@pytest.mark.item("aldo-75", "aldo-26", "aldo-77", "aldo-78")
def test_a_budget_of_nothing_fires_at_once(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 USD are spent after the first cycle: a ceiling, which is ok, with its output."""
    file = write(lw, iteration=loop({"kind": "budget-exhausted"}))
    checked = lw("validate", file)
    assert "fires after the first cycle" in checked.err
    with model(monkeypatch, says("thinking")):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json", "--exit-codes", "dialect")
    assert (done.code, done.json["status"], done.json["iterations"]) == (0, "exhausted", 1)
    events = told(lw, done.json["run"])
    (ended,) = only(events, "run.terminated_by")
    assert (ended["reason"], ended["detail"]) == ("budget-exhausted", {"usd": 0.0, "cap": 0.0})
    for payload in (ended, only(events, "run.completed")[0]):
        assert (payload["ok"], payload["output"]) == (True, "thinking")
        assert (payload["usage"]["provider"], payload["usage"]["model"]) == ("local", "fake")
        assert payload["usage"]["tokensOut"] > 0


@pytest.mark.item("aldo-75")
def test_a_budget_of_nothing_asks_no_model_that_costs_money(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start is refused with what the file can change."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    file = write(lw)
    refused = lw("run", file, "Do it.", "--agent", "model:openai/gpt-5")
    assert refused.code == 2
    assert "agent 'coder' may spend nothing (usd_per_run is 0)" in refused.err


@pytest.mark.item("aldo-77", "aldo-78", "aldo-85")
@pytest.mark.parametrize(
    ("codes", "code"), [("loopwright", 4), ("dialect", 0)], ids=["ours", "dialect"]
)
def test_the_ceiling_of_cycles_is_ok(
    lw: Place, monkeypatch: pytest.MonkeyPatch, codes: str, code: int
) -> None:
    """After the last cycle the run is ok with its last text; every interface counts the cycles."""
    file = write(lw, iteration=loop(cycles=2))
    with model(monkeypatch, says("one"), says("two")):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json", "--exit-codes", codes)
    assert done.code == code
    run = done.json["run"]
    (completed,) = only(told(lw, run), "run.completed")
    assert (completed["ok"], completed["output"], completed["cycles"]) == (True, "two", 2)
    assert done.json["iterations"] == 2
    assert lw("show", run, "--json").json["iterations"] == 2
    assert lw("ls", "--json").json["runs"][0]["iterations"] == 2
    assert lw("eval", run, "--json").json["cycles"] == 2


@pytest.mark.item("aldo-77")
def test_a_failure_is_1_with_the_codes_of_the_dialect(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that answers nothing fails the run, in either set of codes."""
    file = write(lw)
    with model(monkeypatch, ScriptedTurn(fault=ScriptedFault(status=400, message="no such model"))):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--exit-codes", "dialect", "--json")
    assert (done.code, done.json["status"]) == (1, "failed")


@pytest.mark.item("aldo-76", "aldo-32", "aldo-33")
def test_one_word_holds_every_call(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tools.approvals: always` holds all calls, each for a decision of its own."""
    file = write(lw, tools=agent()["tools"] | {"approvals": "always"})
    both = ScriptedTurn(
        calls=(
            ScriptedCall(name="fs_list", args={"path": "."}, id="c1"),
            ScriptedCall(name="fs_write", args={"path": "a.txt", "content": "x"}, id="c2"),
        )
    )
    with model(monkeypatch, both, says(DONE)):
        waiting = lw("run", file, "Do it.", "--agent", MODEL, "--json", "--no-wait")
        assert (waiting.code, len(waiting.json["gates"])) == (5, 2)
        first, second = waiting.json["gates"]
        lw("approve", first["id"])
        assert not (lw.folder / "a.txt").exists()
        lw("reject", second["id"], "no files")
    run = waiting.json["run"]
    kinds = [one["kind"] for one in only(told(lw, run), "tool.approval_resolved")]
    assert kinds == ["approved", "rejected"]
    assert lw("show", run, "--json").json["status"] == "completed"


@pytest.mark.item("aldo-79")
def test_the_arguments_of_a_refused_call_are_kept(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is not run is told with what the model wanted, known tool or not."""
    file = write(lw)
    turns = (asks("fs.write", path="a.txt"), asks("no.tool", why="x"), says(DONE))
    with model(monkeypatch, *turns):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    calls = only(told(lw, done.json["run"]), "tool_call")
    assert [one["args"] for one in calls] == [{"path": "a.txt"}, {"why": "x"}]


@pytest.mark.item("aldo-86")
def test_tools_that_are_not_here_are_left_out(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent with servers that nobody has described runs with the tools that there are."""
    tools = {
        "mcp": [
            {"server": "repo-fs", "allow": ["fs.read"]},
            {"server": "github", "allow": ["pr.read", "pr.comment"]},
            {"server": "aldo-memory", "allow": ["memory.read"]},
        ],
        "native": [{"ref": "fs.stat"}],
        "permissions": {"network": "none", "filesystem": "repo-readonly"},
    }
    file = write(lw, tools=tools)
    checked = lw("validate", file)
    assert checked.code == 0
    assert "pr.read, pr.comment: tools of the MCP server github" in checked.err
    assert "there is no tool fs.stat" in checked.err
    with model(monkeypatch, says(DONE)) as wires:
        assert lw("run", file, "Do it.", "--agent", MODEL).code == 0
        assert set(wires.asked[0].tools) - {"result_more"} == {"fs_read"}


@pytest.mark.item("aldo-83", "aldo-84")
def test_teams_in_folders_side_by_side(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lead names agents of another team; they run with the prompts of their own folder. A link
    to another folder beside them is not followed and not an error.
    """
    (lw.folder / "elsewhere").symlink_to(lw.folder.parent)
    for team in ("delivery", "support"):
        (lw.folder / team / "prompts").mkdir(parents=True)
    lead = agent(
        "lead",
        iteration=None,
        composite={
            "strategy": "sequential",
            "subagents": [
                {"agent": "reviewer", "as": "review", "input_map": {"diff": "input.diff"}},
                {
                    "agent": "auditor",
                    "input_map": {"diff": "input.diff", "notes": "outputs.review.summary"},
                },
            ],
        },
    )
    lw.write("delivery/lead.yaml", json.dumps(lead))
    lw.write("delivery/prompt.md", "You lead.")
    for name in ("reviewer", "auditor"):
        lw.write(
            f"support/{name}.yaml",
            json.dumps(agent(name, prompt={"system_file": f"prompts/{name}.md"})),
        )
        lw.write(f"support/prompts/{name}.md", f"You are the {name}.")
    said = json.dumps({"summary": "two typos", "done": DONE})
    with model(monkeypatch, says(said), says(f"fine {DONE}")) as wires:
        task = json.dumps({"diff": "+x", "author": "ada"})
        done = lw("run", "delivery/lead.yaml", task, "--agent", MODEL, "--json")
        first, second = wires.asked
    assert (done.code, done.json["output"]) == (0, f"fine {DONE}")
    assert "You are the reviewer." in first.system_text
    assert '{"diff":"+x"}' in first.user_text
    assert "You are the auditor." in second.system_text
    assert '{"diff":"+x","notes":"two typos"}' in second.user_text


@pytest.mark.item("aldo-80", "aldo-42")
@pytest.mark.parametrize("counted", [1, 9_000_000], ids=["too few", "too many"])
def test_a_count_that_cannot_be_right_is_not_believed(
    lw: Place, monkeypatch: pytest.MonkeyPatch, counted: int
) -> None:
    """History is compressed at 80 % of the window by our own estimate, and not before."""
    lw.write("long.txt", "word " * 4_000)
    tools = {"native": [{"ref": "fs.read"}], "permissions": {"filesystem": "repo-readonly"}}
    window = {"context_window": 14_000, "max_cycles": 4}
    file = write(lw, tools=tools, iteration=loop(COMPILED) | window)
    usage = ScriptedUsage(input=counted, output=1)
    reads = [
        ScriptedTurn(calls=(ScriptedCall(name="fs_read", args={"path": "long.txt"}),), usage=usage)
        for _ in range(4)
    ]
    with model(monkeypatch, *reads):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    cuts = only(told(lw, done.json["run"]), "history.compressed")
    assert [one["cycle"] for one in cuts] == [3]
