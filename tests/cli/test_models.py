"""Chat models from the command line, over a real wire: turns, tools, results, crashes, limits."""

import os
import signal
from pathlib import Path

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedFault, ScriptedTurn, ScriptedUsage
from tests.cli.conftest import MODEL, Place, Serve, until

FLOW = """
name: work
agents:
  coder:
    description: codes
    prompt: You write code.
    {more}
steps:
  - id: fix
    agent: coder
    instructions: Mend calc.py
"""


def flow(lw: Place, more: str = "") -> str:
    file = lw.folder / "work.yaml"
    file.write_text(FLOW.replace("{more}", more))
    return str(file)


def edit(old: str = "a - b", new: str = "a + b", path: str = "calc.py") -> ScriptedCall:
    return ScriptedCall(name="fs_edit", args={"path": path, "old": old, "new": new})


def read(path: str = "calc.py") -> ScriptedCall:
    return ScriptedCall(name="fs_read", args={"path": path})


def calc(lw: Place) -> Path:
    file = lw.folder / "calc.py"
    file.write_text("def add(a, b): return a - b\n")
    return file


@pytest.mark.item("aldo-8", "aldo-10", "aldo-12")
def test_a_model_works_in_the_workspace(lw: Place, serve: Serve) -> None:
    """Two calls of one turn are done, each result is under its id, and the file is mended."""
    file = calc(lw)
    server = serve(
        ScriptedTurn(text="I look.", calls=(read(), ScriptedCall(name="fs_list", args={}))),
        ScriptedTurn(text="I mend.", calls=(edit(),)),
        ScriptedTurn(text="It adds now."),
    )
    told = lw.real("run", flow(lw), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert (told.code, told.json["status"], told.json["output"]) == (0, "completed", "It adds now.")
    assert file.read_text() == "def add(a, b): return a + b\n"
    assert told.json["iterations"] == 0 or told.json["usage"]["input_tokens"] > 0
    last = server.requests[-1].body
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    ids = [call["id"] for call in last["messages"][2]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in last["messages"][3:5]]
    offered = {tool["function"]["name"] for tool in server.requests[0].body["tools"]}
    assert {"fs_read", "fs_edit", "fs_write", "fs_list", "fs_search"} <= offered
    assert "shell_exec" in offered, "the bash of these workflows"


def test_turns_are_reported_as_they_come(lw: Place, serve: Serve) -> None:
    """Each turn is a line with its words and its tools; the log has what each tool said."""
    calc(lw)
    serve(ScriptedTurn(text="I look.", calls=(read(),)), ScriptedTurn(text="Fine."))
    told = lw.real("run", flow(lw), "go", "--allow", "all", "--agent", MODEL)
    assert "turn 1: I look. [fs.read calc.py]" in told.err
    assert "turn 2: Fine." in told.err
    run = lw("ls", "--json").json["runs"][0]["run"]
    log = lw.real("logs", run).out
    assert 'fs.read {"path":"calc.py"}' in log
    assert "return a - b" in log


@pytest.mark.item("aldo-28", "aldo-30")
def test_what_goes_wrong_is_reported_to_the_model(lw: Place, serve: Serve) -> None:
    """A tool that is not there, arguments that do not fit, a path outside: results, no failures."""
    server = serve(
        ScriptedTurn(
            calls=(
                ScriptedCall(name="fs_reed", args={"path": "a"}),
                ScriptedCall(name="fs_read", args={"file": "a"}),
                ScriptedCall(name="fs_read", raw='{"path": '),
                ScriptedCall(name="fs_read", args={"path": "../../etc/passwd"}),
                ScriptedCall(name="shell_spawn", args={"argv": ["ls"]}),
            )
        ),
        ScriptedTurn(text="I see."),
    )
    told = lw.real("run", flow(lw), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert told.json["status"] == "completed"
    results = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
    assert len(results) == 5
    for words, result in zip(
        ("there is no tool", "do not fit", "not JSON", "leads out", "there is no tool"),
        results,
        strict=True,
    ):
        assert words in result


@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-responses"])
def test_a_result_with_a_form_on_each_wire(lw: Place, serve: Serve, wire: str) -> None:
    """A result that does not fit is refused by its reason, and the next one counts."""
    more = "resultSchema: {type: object, properties: {n: {type: integer}}, required: [n]}"
    server = serve(
        ScriptedTurn(calls=(ScriptedCall(name="submit_result", args={"n": "three"}),)),
        ScriptedTurn(calls=(ScriptedCall(name="submit_result", args={"n": 3}),)),
    )
    told = lw.real(
        "run", flow(lw, more), "go", "--allow", "all", "--agent", f"model:{wire}/tiny", "--json"
    )
    assert told.code == 0, told.err
    assert told.json["steps"]["fix"]["result"] == {"n": 3}
    assert len(server.requests) == 2


def test_a_result_that_never_comes(lw: Place, serve: Serve) -> None:
    """Words alone are asked once more for the result, with no other tool; then the step fails."""
    more = "resultSchema: {type: object, properties: {n: {type: integer}}, required: [n]}"
    server = serve(ScriptedTurn(text="Done!", times=None))
    told = lw.real("run", flow(lw, more), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert (told.code, told.json["status"]) == (3, "failed")
    assert told.json["steps"]["fix"]["error"]["type"] == "bad_result"
    forced = [tool["function"]["name"] for tool in server.requests[-1].body["tools"]]
    assert (len(server.requests), forced) == (2, ["submit_result"])


def test_a_judge_and_a_loop(lw: Place, serve: Serve) -> None:
    """A chat model works and another judges; each iteration is a conversation of its own."""
    file = lw.folder / "loop.yaml"
    file.write_text(
        """
name: judged
agents:
  coder: {description: codes}
  judge:
    description: judges
    resultSchema: {type: object, required: [done], properties: {done: {type: boolean}}}
steps:
  - id: work
    agent: coder
    instructions: Write it.
    loop: {maxIterations: 3, untilAgent: judge}
"""
    )
    serve(
        ScriptedTurn(text="First."),
        ScriptedTurn(
            calls=(ScriptedCall(name="submit_result", args={"done": False, "reason": "thin"}),)
        ),
        ScriptedTurn(text="Second."),
        ScriptedTurn(calls=(ScriptedCall(name="submit_result", args={"done": True}),)),
    )
    told = lw.real("run", str(file), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told.err
    assert told.json["output"] == "Second."
    assert told.json["steps"]["work"]["iterations"] == 2


@pytest.mark.item("aldo-20")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param(ScriptedFault(status=401), "not_signed_in", id="key"),
        pytest.param(ScriptedFault(status=404), "not_found", id="model"),
    ],
)
def test_a_model_that_cannot_be_asked(
    lw: Place, serve: Serve, fault: ScriptedFault, words: str
) -> None:
    """The run fails by a name that says what to do, and not by a trace."""
    serve(ScriptedTurn(fault=fault, times=None))
    told = lw.real("run", flow(lw), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert told.code == 3
    assert told.json["steps"]["fix"]["error"]["type"] == words
    assert "Traceback" not in told.err


@pytest.mark.item("rec-24")
def test_model_without_price_when_usd_is_limited_is_refused(lw: Place) -> None:
    """A model whose price nobody knows is not asked where money is limited: fail closed."""
    lw.env["OPENROUTER_API_KEY"] = "x"
    words = ["--agent", "model:openrouter/nobody/unlisted", "--max", "2", "--budget", "usd=1"]
    told = lw.real("loop", "write", *words)
    assert told.code == 2, told.err
    assert "--allow-unknown-cost" in told.err
    assert "tokens=" in told.err


@pytest.mark.item("rec-23")
def test_local_model_costs_nothing(lw: Place, serve: Serve) -> None:
    """A model that runs on this machine costs 0, and that is known."""
    calc(lw)
    serve(ScriptedTurn(text="Hi.", usage=ScriptedUsage(input=10, output=2)))
    told = lw.real("run", flow(lw), "go", "--allow", "all", "--agent", MODEL, "--json")
    assert told.json["usage"] == {
        "input_tokens": 10,
        "output_tokens": 2,
        "usd": 0.0,
        "unpriced_calls": 0,
        "cost": "$0.00",
    }


def test_killed_in_the_middle_of_a_turn(lw: Place, serve: Serve) -> None:
    """What was done is not done again: the file is mended once, and the model goes on."""
    file = calc(lw)
    server = serve(
        ScriptedTurn(text="I mend.", calls=(edit(),)),
        ScriptedTurn(text="", stall_after=0),
        ScriptedTurn(text="It adds now."),
    )
    process = lw.start("run", flow(lw), "go", "--allow", "all", "--agent", MODEL)
    until(lambda: len(server.requests) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    server.release()
    told = lw.real("resume", "all", "--json")
    assert told.code == 0, told.err
    assert file.read_text() == "def add(a, b): return a + b\n"
    run = lw("ls", "--json").json["runs"][0]
    assert run["status"] == "completed"
    events = lw("events", run["run"]).lines
    asked = [f["effect"] for f in events if f["kind"] == "effect.requested"]
    assert len(asked) == len(set(asked))
    assert sum(f["call"]["do"] == "tool" for f in events if f["kind"] == "effect.requested") == 1


EXEC = ScriptedCall(name="shell_exec", args={"argv": ["touch", "made"]})


@pytest.mark.item("zenflow-71")
@pytest.mark.parametrize(
    ("flags", "reads", "runs"),
    [
        pytest.param((), False, False, id="nothing said"),
        pytest.param(("--allow", "fs.read"), True, False, id="one"),
        pytest.param(("--allow", "all"), True, True, id="all"),
        pytest.param(("--allow", "fs.read,exec"), True, True, id="two, by short name"),
        pytest.param(("--allow", "all", "--deny", "shell.exec"), True, False, id="denied"),
        pytest.param(("--file-tools-only",), True, False, id="sandbox"),
    ],
)
def test_away_from_a_terminal_tools_are_denied(
    lw: Place, serve: Serve, flags: tuple[str, ...], reads: bool, runs: bool
) -> None:
    """Where a definition asks about every tool and nobody is there, only what was allowed runs."""
    calc(lw)
    server = serve(ScriptedTurn(calls=(read(), EXEC)), ScriptedTurn(text="I see."))
    file = lw.folder / "flow.yaml"
    file.write_text(FLOW.replace("{more}", "tools: [fs.read, shell.exec]"))
    told = lw.real("run", str(file), "go", "--agent", MODEL, "--json", *flags)
    assert told.json["status"] == "completed"
    one, two = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
    assert ("return a - b" in one) == reads
    assert ("denied" in one and "--allow fs.read" in one) != reads
    assert (lw.folder / "made").exists() == runs
    assert ('"exit_code":0' in two) == runs


def test_a_sandbox_excludes_allowing(lw: Place) -> None:
    """One of the two was not meant, and which is not guessed."""
    told = lw.real(
        "run", flow(lw), "go", "--agent", "command:x", "--file-tools-only", "--allow", "all"
    )
    assert (told.code, "exclude each other" in told.err) == (2, True)


@pytest.mark.item("zenflow-71")
def test_at_a_terminal_a_person_is_asked(lw: Place, serve: Serve) -> None:
    """Each call is a question; the answer lets this one run."""
    calc(lw)
    serve(ScriptedTurn(calls=(read(),)), ScriptedTurn(text="I see."))
    with lw.terminal("run", flow(lw), "go", "--agent", MODEL) as screen:
        seen = screen.wait_for("[l]eave it: ")
        assert "Run fs.read?" in seen
        assert "calc.py" in seen
        screen.type("a\n")
        screen.wait_for("I see.")
        assert screen.leave() == 0


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        pytest.param("model:tiny", 2, "model:PROVIDER/NAME", id="no provider"),
        pytest.param("model:nobody/x", 2, "names no model", id="unknown provider"),
    ],
)
def test_a_spec_that_is_wrong(lw: Place, spec: str, code: int, words: str) -> None:
    """Told before anything begins, with the fix."""
    told = lw.real("run", flow(lw), "go", "--agent", spec)
    assert told.code == code
    assert words in told.err


def test_a_tool_that_is_not_there(lw: Place, serve: Serve) -> None:
    """A definition that names it is refused before the run, with the nearest one."""
    serve()
    told = lw.real("run", flow(lw, "tools: [fs.reed]"), "go", "--allow", "all", "--agent", MODEL)
    assert told.code == 2
    assert "did you mean fs.read?" in told.err


@pytest.mark.item("zenflow-73", "zenflow-74")
def test_tool_names_of_other_systems_and_denied_tools(lw: Place, serve: Serve) -> None:
    """A model is offered what the names mean, without what is denied; a command runs if allowed."""
    server = serve(
        ScriptedTurn(calls=(ScriptedCall(name="shell_exec", args={"argv": ["cat", "calc.py"]}),)),
        ScriptedTurn(text="Read."),
    )
    calc(lw)
    told = lw.real(
        "run", flow(lw, "tools: [bash, read]"), "go", "--allow", "bash", "--agent", MODEL
    )
    assert (told.code, told.out.strip()) == (0, "Read.")
    first, last = server.requests[0].body, server.requests[-1].body
    offered = {one["function"]["name"] for one in first["tools"]}
    assert offered == {"shell_exec", "fs_read", "result_more"}
    assert "def add" in str(last["messages"][-1]) or "no sandbox" in str(last["messages"][-1])
    other = serve(ScriptedTurn(text="Thought."))
    more = "disallowedTools: [bash, write, grep]"
    told = lw.real("run", flow(lw, more), "go", "--allow", "all", "--agent", MODEL)
    assert told.code == 0
    offered = {one["function"]["name"] for one in other.requests[0].body["tools"]}
    assert offered == {"fs_read", "fs_list", "result_more"}
