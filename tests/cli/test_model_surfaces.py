"""What people and scripts see of chat models, and what they say before a run and in the middle."""

import sys

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedTurn, ScriptedUsage
from tests.cli.conftest import MODEL, Place, Serve
from tests.cli.test_models import calc, edit, read

MEET = """
import sys, time
from pathlib import Path

mine, other = map(Path, sys.argv[1:])
mine.touch()
end = time.monotonic() + 50
while not other.exists():
    if time.monotonic() > end:
        sys.exit("nobody came")
    time.sleep(0.01)
print("met")
"""


def native(lw: Place, **agent: object) -> str:
    """A native definition with one call of a chat model."""
    return lw.loop(
        "coder", name="work.json", top={"agents": {"coder": {"use": MODEL, **agent}}}, max=1
    )


@pytest.mark.item("aldo-11")
def test_tools_of_one_turn_are_done_side_by_side(lw: Place, serve: Serve) -> None:
    """Two programs that wait for each other both come to their end."""
    lw.write("meet.py", MEET)
    python = sys.executable
    calls = tuple(
        ScriptedCall(name="shell_exec", args={"argv": [python, "meet.py", one, other]})
        for one, other in (("a", "b"), ("b", "a"))
    )
    server = serve(ScriptedTurn(calls=calls), ScriptedTurn(text="They met."))
    file = native(lw, tools=["shell.exec"], options={"commands": {"allow": [python]}})
    told = lw.real("run", file, "--json")
    assert told.json["output"] == "They met.", told.err
    results = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "tool"]
    assert ["met" in result for result in results] == [True, True], results


@pytest.mark.item("aldo-50")
def test_a_tool_that_is_stopped_at(lw: Place, serve: Serve) -> None:
    """With `--ask` each call of a tool waits and shows what is next; one answer is one step, and
    with `--remember` the rest goes on.
    """
    file = calc(lw)
    serve(
        ScriptedTurn(text="First.", calls=(edit("a - b", "a + b"),)),
        ScriptedTurn(text="Second.", calls=(edit("a + b", "b + a"),)),
        ScriptedTurn(text="Third.", calls=(edit("b + a", "a + b"),)),
        ScriptedTurn(text="Done."),
    )
    told = lw.real("run", native(lw), "--ask", "fs.edit", "--json")
    assert (told.code, told.json["status"]) == (5, "waiting")
    [gate] = lw("inbox", "--json").json["gates"]
    assert "fs.edit" in gate["message"]
    assert "a - b" in file.read_text()
    told = lw.real("approve", gate["id"], "--json")
    assert (told.code, file.read_text()) == (5, "def add(a, b): return a + b\n")
    [gate] = lw("inbox", "--json").json["gates"]
    told = lw.real("approve", gate["id"], "--remember", "--json")
    assert (told.code, told.json["output"]) == (0, "Done.")
    assert file.read_text() == "def add(a, b): return a + b\n"


@pytest.mark.item("aldo-55")
def test_what_was_used_adds_up(lw: Place, serve: Serve) -> None:
    """The sum of a run is that of its calls, however often it is looked at."""
    calc(lw)
    serve(
        ScriptedTurn(calls=(read(),), usage=ScriptedUsage(input=100, output=10)),
        ScriptedTurn(text="Done.", usage=ScriptedUsage(input=130, output=20)),
    )
    told = lw.real("run", native(lw), "--json").json
    used = {
        "input_tokens": 230,
        "output_tokens": 30,
        "usd": 0.0,
        "unpriced_calls": 0,
        "cost": "$0.00",
    }
    assert told["usage"] == used
    events = lw("events", told["run"]).lines
    calls = [f["usage"] for f in events if f["kind"] == "effect.done" and "usage" in f]
    assert sum(one["input_tokens"] for one in calls) == 230
    assert lw("show", told["run"], "--json").json["usage"] == used
    assert lw("ls", "--json").json["runs"][0]["usage"] == used


@pytest.mark.item("aldo-59")
def test_without_a_terminal_there_are_lines_for_scripts(lw: Place, serve: Serve) -> None:
    """Events as JSON lines from the start to the end, and an exit code that tells how it went."""
    calc(lw)
    serve(ScriptedTurn(calls=(read(),)), ScriptedTurn(text="Done."))
    told = lw.real("run", native(lw), "--jsonl")
    kinds = [line["kind"] for line in told.lines]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.finished")
    assert kinds.count("turn.taken") == 2
    assert told.code == 0
    empty = lw.real("run", native(lw), "", "--jsonl")
    assert (empty.code, empty.out) == (2, "")


@pytest.mark.item("aldo-60")
@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        pytest.param((), {"fs_read", "fs_list"}, id="as written"),
        pytest.param(("--deny", "fs.list"), {"fs_read"}, id="narrowed"),
        pytest.param(("--allow", "shell.exec"), {"fs_read", "fs_list"}, id="never widened"),
    ],
)
def test_flags_only_narrow(
    lw: Place, serve: Serve, flags: tuple[str, ...], offered: set[str]
) -> None:
    """No option gives an agent a tool that its definition does not."""
    server = serve(ScriptedTurn(text="Done."))
    lw.real("run", native(lw, tools=["fs.read", "fs.list"]), *flags)
    names = {tool["function"]["name"] for tool in server.requests[0].body["tools"]}
    assert names - {"result_more"} == offered


@pytest.mark.parametrize(
    ("flags", "agent", "words"),
    [
        pytest.param(("--deny", "fs.wirte"), MODEL, "did you mean fs.write?", id="mistyped"),
        pytest.param(("--ask", "zzz"), MODEL, "there is no tool 'zzz'", id="no tool"),
        pytest.param(("--deny", "fs.read"), "command:true", "chat models alone", id="a program"),
        pytest.param(
            ("--file-tools-only",), "script:none.yaml", "chat models alone", id="a script"
        ),
        pytest.param(
            ("--file-tools-only",), "command:touch made", "chat models alone", id="sandbox"
        ),
    ],
)
def test_rights_that_cannot_be_kept(
    lw: Place, flags: tuple[str, ...], agent: str, words: str
) -> None:
    """A right that nobody could be held to, or that names nothing, is refused before the run."""
    lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = "http://127.0.0.1:9/v1"
    told = lw.real("loop", "hi", "--agent", agent, "--max", "1", *flags)
    assert (told.code, words in told.err) == (2, True), told.err
    assert not (lw.folder / "made").exists()


def test_rights_outlast_a_change_of_agent(lw: Place, serve: Serve) -> None:
    """What a start denied, and what the definition asks about, holds for whoever comes later."""
    serve(
        ScriptedTurn(
            calls=(ScriptedCall(name="fs_write", args={"path": "a.txt", "content": "hi"}),)
        ),
        ScriptedTurn(text="done"),
    )
    lw.write(
        "flow.yaml",
        "name: z\nagents: {coder: {description: d}}\nsteps:\n"
        "  - {id: a0, agent: coder, instructions: go}\n",
    )
    assert lw.real("run", "flow.yaml", "go", "--agent", "command:false").code == 3
    told = lw.real("resume", "last", "--agent", MODEL, "--no-wait", "--json")
    assert told.json["status"] == "completed"
    assert not (lw.folder / "a.txt").exists()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"unknown_price": {"input_usd": -3, "output_usd": -15}}, id="negative"),
        pytest.param({"unknown_price": {"input": 3, "output": 15}}, id="other words"),
        pytest.param({"unknown_price": {"input_usd": "3", "output_usd": "15"}}, id="texts"),
        pytest.param({"unknown_price": "alow"}, id="mistyped"),
        pytest.param({"tool_limits": {"fs.list": {"seconds": -5}}}, id="time"),
        pytest.param({"tool_limits": {"fs.list": {"secs": 5}}}, id="word"),
        pytest.param({"tool_limits": 5}, id="no limits"),
    ],
)
def test_options_that_switch_a_limit_off(lw: Place, serve: Serve, options: object) -> None:
    """They are refused before the run: a budget that counts nothing is none."""
    serve()
    told = lw.real("run", native(lw, options=options))
    assert (told.code, "options." in told.err) == (2, True), told.err


def test_a_service_that_does_not_count(lw: Place, serve: Serve) -> None:
    """Where tokens are limited it is asked once, and then the run fails by that limit."""
    server = serve(ScriptedTurn(text="hm", calls=(read(),), report_usage=False, times=None))
    told = lw.real("run", native(lw), "--budget", "tokens=1k", "--json")
    assert told.json["error"]["type"] == "budget_limit"
    assert len(server.requests) == 1
    assert lw.real("run", native(lw, max_turns=2), "--json").json["error"]["type"] != "budget_limit"


def test_a_server_that_is_not_there(lw: Place, serve: Serve) -> None:
    """A model is not asked without the tools that its author gave it."""
    server = serve(ScriptedTurn(text="I have created the issue."))
    lw.write("loopwright.toml", '[mcp.issues]\ncommand = ["no-such-program-xyz"]\n')
    told = lw.real("run", native(lw, tools=["issues.create"]), "--json")
    assert (told.code, told.json["error"]["type"]) == (3, "not_found")
    assert "no-such-program-xyz" in told.json["error"]["detail"]
    assert server.requests == []


@pytest.mark.item("aldo-62")
def test_a_terminal_shows_turns_as_they_come(lw: Place, serve: Serve) -> None:
    """Turns with their tools in order, then what it all came to, with tokens."""
    calc(lw)
    serve(
        ScriptedTurn(text="I look.", calls=(read(),), usage=ScriptedUsage(input=1_000, output=10)),
        ScriptedTurn(text="I mend.", calls=(edit(),), usage=ScriptedUsage(input=1_000, output=10)),
        ScriptedTurn(
            text="It adds.", usage=ScriptedUsage(input=1_000, output=10), first_token_ms=600
        ),
    )
    with lw.terminal("run", native(lw), size=(30, 100)) as screen:
        screen.wait_for("turn 1: I look. [fs.read calc.py]")
        screen.wait_for("turn 2: I mend. [fs.edit calc.py]")
        screen.wait_for("tokens")
        screen.wait_for("turn 3: It adds.")
        screen.leave()
    order = [screen.seen.index(f"turn {number}:") for number in (1, 2, 3)]
    assert order == sorted(order)
