"""What agents did, on the command line: recorded by each kind of agent, shown by each command."""

import gzip
import json
import os
import re
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from loopwright.engine import activity
from loopwright.testing.wires import ScriptedCall, ScriptedTurn
from tests.cli.conftest import MODEL, Place, Serve, until
from tests.cli.terminal import PATIENCE_S

SECRET = "correct-horse-battery-staple"


def reporting(lw: Place, *lines: object, then: str = "") -> str:
    """A program that prints these JSON lines and then does something."""
    listed = json.dumps([json.dumps(line) for line in lines])
    lw.write(
        "agent.py", f"import os, time\nfor line in {listed}: print(line, flush=True)\n{then}\n"
    )
    return f"jsonl:{sys.executable} -I -S {lw.folder / 'agent.py'}"


def tool(name: str, args: object = None, **more: object) -> dict[str, object]:
    return {"type": "tool", "name": name, "args": args, **more}


WORK = (
    tool("Bash", {"command": "make test"}, exit_code=2, duration_ms=1_240, result="2 errors"),
    tool("Edit", {"file_path": "src/a.py"}, ok=True),
    tool("WebFetch", {"url": "https://docs.example.org/x"}),
    tool("think", text="about it", kind="status"),
    {"type": "result", "text": "done"},
)


def entries(lw: Place, *more: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = lw("logs", "last", "--tools", *more, "--json").json["entries"]
    return found


def events_of(entry: dict[str, object]) -> tuple[object, ...]:
    names = ("number", "kind", "tool", "target", "ok", "code", "ms")
    return tuple(entry[name] for name in names)


@pytest.mark.item("rec-6")
def test_a_program_of_json_lines_reports_what_it_does(lw: Place) -> None:
    """Tool lines become entries with kind, target, result and duration, whatever they leave out."""
    lw("run", lw.loop(reporting(lw, *WORK), max=1))
    found = entries(lw)
    assert [events_of(one) for one in found] == [
        (1, "command", "Bash", "make test", False, 2, 1_240),
        (2, "edit", "Edit", "src/a.py", True, None, None),
        (3, "fetch", "WebFetch", "docs.example.org", None, None, None),
        (4, "status", "think", "", None, None, None),
    ]
    assert (found[0]["arguments"], found[0]["result"]) == ('{"command":"make test"}', "2 errors")
    assert {(one["agent"], one["iteration"]) for one in found} == {("jsonl", 1)}


@pytest.mark.item("rec-6")
def test_a_last_line_without_an_end_is_recorded(lw: Place) -> None:
    """A program that ends in the middle of a line has used that tool too."""
    agent = reporting(lw, then=f"print({json.dumps(json.dumps(WORK[1]))}, end='', flush=True)")
    lw("run", lw.loop(agent, max=1))
    assert [one["tool"] for one in entries(lw)] == ["Edit"]


@pytest.mark.item("rec-6")
@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "tool", "name": "Bash", "args": {"command": "cat a"}, "result": "\\ud83d"}',
        b'{"type": "tool", "name": "Bash", "args": {"command": "cat a"}, "result": "caf\xe9"}',
        b'{"type": "tool", "name": "Bash", "args": {"command": "cat a"}, "result": "'
        + b"r" * 3_000_000
        + b'"}',
    ],
    ids=["surrogate", "latin-1", "3-mb"],
)
def test_no_line_of_a_program_hides_a_tool(lw: Place, line: bytes) -> None:
    """Broken characters are replaced, and a line may have megabytes; usage after it counts."""
    lw.folder.joinpath("lines").write_bytes(
        line + b'\n{"type": "usage", "usd": 0.5}\n{"type": "result", "text": "done"}\n'
    )
    lw("run", lw.loop(f"jsonl:cat {lw.folder / 'lines'}", max=1))
    [found] = entries(lw)
    assert events_of(found) == (1, "command", "Bash", "cat a", None, None, None)
    assert found["result"]
    assert lw("show", "last", "--json").json["usage"]["usd"] == 0.5


@pytest.mark.item("rec-6")
def test_usage_in_the_middle_of_much_output_counts(lw: Place) -> None:
    """Output beyond its limit is not stored, but the usage lines in it are counted."""
    lines = ["x" * 6_000_000, '{"type": "usage", "usd": 0.25}', "y" * 6_000_000]
    lw.write("lines", "\n".join(lines) + "\n")
    lw("run", lw.loop(f"jsonl:cat {lw.folder / 'lines'}", max=1))
    assert lw("show", "last", "--json").json["usage"]["usd"] == 0.25


@pytest.mark.item("rec-9")
def test_counts_are_those_of_all_entries(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of a call, totals are true and `logs --tools` names what is missing."""
    monkeypatch.setattr(activity, "MOST_ENTRIES", 3)
    many = (
        *(tool("Bash", {"command": "make"}, exit_code=number % 2) for number in range(8)),
        *(tool("Edit", {"file_path": f"src/{number % 3}.py"}, ok=True) for number in range(6)),
        tool("wait", text="rate limit", kind="status"),
    )
    lw("run", lw.loop(reporting(lw, *many), max=1))
    totals = "14 tool calls, 3 files edited, 8 commands (4 failed)"
    assert totals in lw("show", "last").out
    assert totals in lw("logs", "last").out
    *stored, last = lw("logs", "last", "--tools").out.splitlines()
    assert len(stored) == 6  # three commands, and each edited file once
    assert last == "main.0/agent#1: 9 more were not stored"
    assert lw("logs", "last", "--tools", "-f").out.splitlines()[-1] == last
    assert lw("logs", "last", "--tools", "--iteration", "2").out == ""
    assert lw("logs", "last", "--tools", "--json").json["dropped"] == {"main.0/agent#1": 9}


@pytest.mark.item("rec-6")
def test_a_scripted_agent_reports_its_tools(lw: Place) -> None:
    """Tools of a reply are entries, also when the answer comes at once."""
    tools = [
        {"name": "Bash", "args": {"command": "ls"}, "result": "a", "code": 0, "ms": 3},
        {"name": "fs.write", "args": {"path": "a"}, "ok": False, "delay": 0.01},
    ]
    lw("run", lw.loop(lw.script({"text": "x", "tools": tools[:1]}, {"tools": tools}), max=2))
    assert [(one["iteration"], *events_of(one)) for one in entries(lw)] == [
        (1, 1, "command", "Bash", "ls", True, 0, 3),
        (2, 1, "command", "Bash", "ls", True, 0, 3),
        (2, 2, "edit", "fs.write", "a", False, None, None),
    ]


@pytest.mark.item("rec-6")
def test_a_chat_model_reports_its_tools(lw: Place, serve: Serve) -> None:
    """Each tool call of a chat model is an entry of its own effect, with what came of it."""
    calls = (
        ScriptedCall(name="fs_write", args={"path": "a.txt", "content": "hello"}),
        ScriptedCall(name="fs_read", args={"path": "gone.txt"}),
    )
    serve(ScriptedTurn(calls=calls), ScriptedTurn(text="done"))
    told = lw("run", lw.loop(MODEL, max=1), "--allow", "all")
    assert told.code == 0, told.err
    found = sorted(entries(lw), key=lambda one: str(one["target"]))
    assert [(one["kind"], one["tool"], one["target"], one["ok"]) for one in found] == [
        ("edit", "fs.write", "a.txt", True),
        ("read", "fs.read", "gone.txt", False),
    ]
    assert all(isinstance(one["ms"], int) for one in found)
    assert {one["iteration"] for one in found} == {1}
    assert "gone.txt" in str(found[1]["result"])


@pytest.mark.item("rec-9")
def test_logs_show_tools_line_by_line_and_count_them(lw: Place) -> None:
    """`logs` counts, `logs --tools` has a line for each entry, of one iteration where asked."""
    lw("run", lw.loop(reporting(lw, *WORK), max=2))
    assert (
        "agent jsonl, 3 tool calls, 1 file edited, 1 command (1 failed)" in lw("logs", "last").out
    )
    lines = lw("logs", "last", "--tools").out.splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #1 jsonl  Bash make test  exit 2  1.2s", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d  #2 jsonl  Edit src/a.py  ok", lines[5])
    assert lw("logs", "last", "--tools", "--iteration", "2").out.splitlines() == lines[4:]
    assert lw("logs", "last", "--tools", "-f").out.splitlines() == lines
    assert lw("logs", "last", "--iteration", "2").out.startswith("── iteration 2: agent jsonl,")
    assert "iteration 1" not in lw("logs", "last", "--iteration", "2").out
    found = lw("logs", "last", "--iteration", "1", "--json").json["entries"]
    assert {one["iteration"] for one in found} == {1}


@pytest.mark.item("rec-9")
def test_show_and_events_have_the_activity(lw: Place) -> None:
    """`show` sums each iteration up and names failed commands; `events` has the whole entries."""
    run = lw("run", lw.loop(reporting(lw, *WORK), max=1), "--json").json["run"]
    told = lw("show", run).out
    assert "3 tool calls, 1 file edited, 1 command (1 failed)" in told
    assert "edited src/a.py" in told
    assert "failed make test (exit 2)" in told
    [seen] = lw("show", run, "--json").json["passes"]
    assert seen["activity"]["files"] == ["src/a.py"]
    [event] = [logged for logged in lw.events(run) if logged["kind"] == "effect.activity"]
    assert (event["effect"], event["path"], event["iteration"]) == ("main.0/agent#1", "main.0", 1)
    assert [one["kind"] for one in event["entries"]] == ["command", "edit", "fetch", "status"]
    assert re.match(r"20\d\d-.*Z$", event["entries"][0]["at"])


@pytest.mark.item("rec-9")
def test_the_live_view_shows_the_newest_activity(lw: Place) -> None:
    """While a call runs its last tool stands beside the agent."""
    agent = reporting(lw, WORK[0], then="time.sleep(1)")
    with lw.terminal("run", lw.loop(agent, max=1), size=(24, 100)) as screen:
        screen.wait_for("agent jsonl: Bash make test")
        assert screen.leave() == 0


@pytest.mark.item("rec-8")
@pytest.mark.parametrize("kind", ["jsonl", "command"])
def test_the_output_of_an_agent_is_an_artifact(lw: Place, kind: str) -> None:
    """What the program printed can be listed and read for each iteration, and is not removable."""
    agent = reporting(lw, *WORK).replace("jsonl:", f"{kind}:")
    lw("run", lw.loop(agent, max=2))
    ending = "jsonl" if kind == "jsonl" else "txt"
    listed = lw("artifact", "ls", "last", "--json").json["artifacts"]
    names = [f"iteration-{number}/{kind}.{ending}.gz" for number in (1, 2)]
    assert [one["name"] for one in listed] == names
    for name in (names[1], listed[1]["id"]):
        file = lw.folder / f"{kind}.gz"
        file.unlink(missing_ok=True)
        assert lw("artifact", "get", "last", name, "-o", str(file)).code == 0
        said = gzip.decompress(file.read_bytes()).decode().splitlines()
        assert [json.loads(line) for line in said] == list(WORK)
    assert lw("artifact", "rm", "last", listed[0]["id"]).code == 8
    assert bool(entries(lw)) == (kind == "jsonl")


def stored(lw: Place) -> bytes:
    """Everything that the data directory holds."""
    home = Path(lw.env["LOOPWRIGHT_HOME"])
    with sqlite3.connect(home / "loopwright.db") as db:
        blobs = [row[0] for row in db.execute("SELECT CAST(body AS BLOB) FROM blob")]
        segments = [row[0] for row in db.execute("SELECT CAST(body AS BLOB) FROM segment")]
    unpacked = [gzip.decompress(one) for one in blobs if one[:2] == b"\x1f\x8b"]
    return b"".join([*blobs, *segments, *unpacked])


@pytest.mark.item("rec-7")
def test_a_variable_that_an_agent_is_given_is_not_stored(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of a passed variable is in neither the log nor the output of the program."""
    monkeypatch.setenv("DEPLOY_PHRASE", SECRET)
    lw.write(
        "leak.py",
        "import json, os\nvalue = os.environ['DEPLOY_PHRASE']\n"
        "print(json.dumps({'type': 'tool', 'name': 'Bash', 'args': {'command': 'use ' + value},"
        " 'result': value * 900}))\nprint(json.dumps({'type': 'result', 'text': 'done'}))\n",
    )
    agent = {"use": f"jsonl:{sys.executable} leak.py", "pass_env": ["DEPLOY_PHRASE"]}
    file = lw.loop("worker", max=1, top={"agents": {"worker": agent}})
    told = lw("run", file)
    assert told.code == 0, told.err
    [entry] = entries(lw)
    assert entry["target"] == "use [DEPLOY_PHRASE]"
    assert entry["result"] == "[DEPLOY_PHRASE]" * 900
    assert SECRET.encode() not in stored(lw)


@pytest.mark.item("rec-7")
def test_activity_survives_kill_9_in_the_middle_of_a_call(lw: Place) -> None:
    """What was flushed is there after the kill; the repeated call counts on, without duplicates."""
    agent = reporting(lw, *WORK[:2], then="time.sleep(60)")
    process = lw.start("run", lw.loop(agent, max=1))
    until(lambda: "Edit" in lw("logs", "last", "--tools").out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert [one["tool"] for one in entries(lw)] == ["Bash", "Edit"]
    reporting(lw, *WORK)
    assert lw("resume", "last").code == 0
    found = entries(lw)
    assert [one["number"] for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one["tool"] for one in found][2:] == ["Bash", "Edit", "WebFetch", "think"]
    assert lw("doctor", "--deep").code == 0


@pytest.mark.item("rec-8")
def test_pruning_takes_activity_and_output_along_and_nothing_else(lw: Place) -> None:
    """Content that only one run names goes with it; content that another run names too stays."""
    same = tool("Read", {"path": "x"}, result="s" * 3_000)
    for own in ("a", "b"):
        agent = reporting(lw, same, tool("Read", {"path": own}, result=own * 3_000))
        lw("run", lw.loop(agent, max=1))
    [newer, older] = [one["run"] for one in lw("ls", "--json").json["runs"]]
    assert lw("fork", newer, "--at", "main.0", "--max", "2").code == 0
    told = lw("prune", "--older", "1ms", "--keep", "2")
    assert told.code == 0, told.err
    assert older not in [one["run"] for one in lw("ls", "--json").json["runs"]]
    kept = stored(lw)
    assert b"a" * 3_000 not in kept
    assert b"b" * 3_000 in kept
    assert b"s" * 3_000 in kept
    assert lw("doctor", "--deep").code == 0


@pytest.mark.item("rec-45")
@pytest.mark.parametrize("kind", ["command", "jsonl"])
def test_standard_error_of_an_agent_that_succeeds_is_recorded(lw: Place, kind: str) -> None:
    """It is stored bounded and without secrets, and shown by `logs` and `show`, but not live."""
    lines = "".join(f"print('line {n}', file=sys.stderr)\n" for n in range(30))
    lw.write(
        "agent.py",
        "import json, os, sys\n"
        f"{lines}print('used ' + os.environ['API_KEY'], file=sys.stderr)\n"
        "print('last', file=sys.stderr)\n"
        "print(json.dumps({'type': 'result', 'text': 'done'}))\n",
    )
    spec = f"{kind}:{sys.executable} -I -S {lw.folder / 'agent.py'}"
    told = lw("run", lw.loop(spec, max=1), "--env", f"API_KEY={SECRET}")
    assert "line 29" not in told.err
    found = [one for one in entries(lw) if one["kind"] == "stderr"]
    assert [(one["text"], str(one["result"]).splitlines()[0]) for one in found] == [
        ("last", "line 0")
    ]
    assert "used [API_KEY]" in str(found[0]["result"])
    logs = lw("logs", "last").out
    assert f"agent {kind}: standard error" in logs
    assert "(22 lines before; `logs --tools --json` has them)\nline 22\n" in logs
    assert "standard error: last" in lw("show", "last").out
    assert lw("show", "last", "--json").json["activity"]["stderr"] == ["last"]
    assert SECRET not in "".join(str(one) for one in lw.events("last"))


@pytest.mark.item("rec-45")
def test_long_standard_error_is_cut_at_a_line(lw: Place) -> None:
    """The end is stored; a secret at the cut is not stored in part."""
    lw.write(
        "agent.py",
        "import os, sys\n"
        "sys.stderr.write((os.environ['API_KEY'] + '\\n') * 4_000 + 'x' * 100_000 + '\\nend\\n')\n"
        "print('done')\n",
    )
    spec = f"command:{sys.executable} -I -S {lw.folder / 'agent.py'}"
    lw("run", lw.loop(spec, max=1), "--env", f"API_KEY={SECRET}")
    (found,) = (one for one in entries(lw) if one["kind"] == "stderr")
    assert found["result"] == "end"


@pytest.mark.item("rec-45")
def test_no_entry_without_standard_error_or_for_a_failed_call(lw: Place) -> None:
    """Silence is not recorded, and the failure of a call has the text already."""
    lw.write("quiet.py", "print(1)")
    lw("run", lw.loop(f"command:{sys.executable} {lw.folder / 'quiet.py'}", max=1))
    assert entries(lw) == []
    code = "import sys; sys.stderr.write('boom'); sys.exit(3)"
    lw.write("bad.py", code)
    lw("run", lw.loop(f"command:{sys.executable} {lw.folder / 'bad.py'}", max=1))
    assert entries(lw) == []
    assert "boom" in lw("show", "last").out
