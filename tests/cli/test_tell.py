"""`loopwright tell`: messages to the agents of a run that another process drives."""

import json
import os
import signal
import sys

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedTurn
from tests.cli.conftest import MODEL, Place, Serve, until
from tests.person import ME

AGENT = """
import json, os, sys
sys.stdin.read()
print(json.dumps({"type": "tool", "name": "read_inbox", "args": {"wait": 60}}), flush=True)
with open(os.environ["LOOPWRIGHT_INBOX"]) as inbox:
    told = json.loads(inbox.readline())
words = "; ".join(f"{m['from']} says {m['text']}" for m in told.get("messages", []))
print(json.dumps({"type": "text", "text": f"heard: {words} DONE"}), flush=True)
"""


def started(lw: Place, *behaviour: dict[str, object]) -> str:
    """A run in the background that waits in its first call."""
    file = lw.loop(lw.probe(*behaviour), until={"signal": "DONE"})
    run = lw.real("run", file, "--detach").out.strip()
    until(lambda: len(lw.calls()) == 1)
    return run


@pytest.mark.item("rec-35")
def test_the_next_iteration_reads_the_message(lw: Place) -> None:
    """Once, with who sent it; `logs`, `show` and `events` have it, and its delivery."""
    go = lw.folder / "go"
    run = started(lw, {"wait_for": str(go)}, {"say": "tried"}, {"say": "DONE"})
    told = lw("tell", run, "Keep the old API", "--json")
    assert (told.code, told.json) == (
        0,
        {"run": run, "message": "m1", "to": "*", "when": "next-call"},
    )
    assert "(waiting): Keep the old API" in lw("show", run).out
    go.touch()
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    prompts = [call["prompt"] for call in lw.calls()]
    assert [f"Message from {ME}: Keep the old API" in one for one in prompts] == [
        False,
        True,
        False,
    ]
    kinds = lw.kinds(run)
    assert (kinds.count("message.sent"), kinds.count("message.delivered")) == (1, 1)
    assert f"message from {ME}" in lw("logs", run).out
    assert "(delivered to iteration 2): Keep the old API" in lw("show", run).out


@pytest.mark.item("rec-35")
def test_a_message_survives_kill_9(lw: Place) -> None:
    """The call that read it is made again with the message; it is recorded as delivered once."""
    go, later = lw.folder / "go", lw.folder / "later"
    run = started(lw, {"wait_for": str(go)}, {"wait_for": str(later), "say": "DONE"})
    assert lw("tell", run, "Mind the gap").code == 0
    go.touch()
    until(lambda: len(lw.calls()) == 2)
    os.kill(lw("show", run, "--json").json["driver"], signal.SIGKILL)
    later.touch()
    assert lw.real("resume", run).code == 0
    prompts = [call["prompt"] for call in lw.calls()]
    assert ["Mind the gap" in one for one in prompts] == [False, True, True]
    assert lw.kinds(run).count("message.delivered") == 1


@pytest.mark.item("rec-35")
def test_a_program_that_reads_its_inbox_gets_it_at_once(lw: Place) -> None:
    """A `jsonl:` agent that waits for messages is woken by one from another process."""
    lw.write("agent.py", AGENT)
    file = lw.loop(f"jsonl:{sys.executable} agent.py", until={"contains": "DONE"})
    run = lw.real("run", file, "--detach").out.strip()
    until(lambda: "effect.requested" in lw.kinds(run))
    assert lw("tell", run, "hurry").code == 0
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    detail = lw("show", run, "--json").json
    assert detail["iterations"] == 1
    assert f"heard: {ME} says hurry" in detail["output"]


@pytest.mark.item("rec-35")
@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        pytest.param(["DONE", "x"], 8, "has ended (completed)", id="ended"),
        pytest.param(["CAPPED", "x"], 8, "loopwright resume", id="ended, can be resumed"),
        pytest.param(["OPEN", " "], 2, "the message is empty", id="empty"),
        pytest.param(["OPEN", "x", "--to", "nobody"], 2, "there are: main", id="unknown step"),
        pytest.param(["run_none", "x"], 2, "loopwright ls", id="unknown run"),
    ],
)
def test_a_message_that_nobody_would_read_is_refused(
    lw: Place, args: list[str], code: int, words: str
) -> None:
    """The refusal says why and what to do; nothing is recorded."""
    makes = {
        "DONE": (lw.script("DONE", name="a.yaml"), {"until": {"signal": "DONE"}}),
        "CAPPED": (lw.script("x", name="b.yaml"), {"until": {"signal": "DONE"}, "max": 1}),
        "OPEN": (lw.script("x", name="c.yaml"), {"until": {"person": True}}),
    }
    if args[0] in makes:
        agent, repeat = makes[args[0]]
        args = [lw("run", lw.loop(agent, **repeat), "--json").json["run"], *args[1:]]
    told = lw("tell", *args)
    assert (told.code, words in told.err) == (code, True), told.err
    assert "message.sent" not in lw.kinds("last") if lw("ls").out else True


CLAUDE = """#!{python} -IS
import json, os, sys
def put(**event): print(json.dumps({{"session_id": "s1", **event}}), flush=True)
def result(text):
    used = {{"m": {{"inputTokens": 10, "outputTokens": 1, "costUSD": 0.25}}}}
    put(type="result", subtype="success", is_error=False, result=text,
        model_usage_since_last_result=used)
first = json.loads(sys.stdin.readline())
prompt = first["message"]["content"][0]["text"]
with open({calls!r}, "a") as calls: calls.write(json.dumps({{"prompt": prompt}}) + chr(10))
put(type="system", subtype="init", model="m")
if "hurry" not in prompt:
    message = json.loads(sys.stdin.readline())
    said = message["message"]["content"][0]["text"]
    if {stays}: sys.stdin.read()
    if {late}: result("first result")
    put(type="user", uuid=message["uuid"], isReplay=True, message=message["message"])
    result(f"heard: {{said}} DONE")
else:
    result("DONE")
"""


def with_claude(lw: Place, *, late: bool = False, stays: bool = False) -> str:
    """A run of a program that reads messages while it works, as Claude Code does."""
    bin_folder, calls = lw.folder.parent / "bin", str(lw.folder / "prompts")
    bin_folder.mkdir()
    program = bin_folder / "claude"
    program.write_text(CLAUDE.format(python=sys.executable, calls=calls, late=late, stays=stays))
    program.chmod(0o755)
    lw.env["PATH"] = f"{bin_folder}:{lw.env['PATH']}"
    lw.env["ANTHROPIC_API_KEY"] = "any"
    file = lw.loop("claude", until={"contains": "DONE"})
    started = lw.real("run", file, "--detach")
    assert started.code == 0, started.err
    until(lambda: len(prompts(lw)) == 1)
    return started.out.strip()


def prompts(lw: Place) -> list[str]:
    file = lw.folder / "prompts"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["prompt"] for line in lines]


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("late", [False, True], ids=["in-the-turn", "after-its-last-request"])
def test_claude_gets_a_message_while_it_works(lw: Place, late: bool) -> None:
    """Recorded as delivered to the call under way; a turn that it begins counts and costs."""
    run = with_claude(lw, late=late)
    told = lw("tell", run, "hurry", "--json")
    assert (told.code, told.json["when"]) == (0, "now")
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    detail = lw("show", run, "--json").json
    assert (detail["iterations"], len(prompts(lw))) == (1, 1)
    assert detail["output"] == f"heard: Message from {ME}: hurry DONE"
    assert detail["usage"]["usd"] == (0.5 if late else 0.25)
    [delivered] = [event for event in lw.events(run) if event["kind"] == "message.delivered"]
    assert (delivered["effect"], delivered["messages"]) == ("main.0/agent#1", ["m1"])


@pytest.mark.item("rec-35")
def test_a_message_that_claude_was_given_survives_kill_9(lw: Place) -> None:
    """The repeated call has it in its prompt; it is recorded as delivered once."""
    run = with_claude(lw, stays=True)
    assert lw("tell", run, "hurry").code == 0
    until(lambda: "message.delivered" in lw.kinds(run))
    os.kill(lw("show", run, "--json").json["driver"], signal.SIGKILL)
    assert lw.real("resume", run).code == 0
    assert [f"Message from {ME}: hurry" in one for one in prompts(lw)] == [False, True]
    assert lw.kinds(run).count("message.delivered") == 1


@pytest.mark.item("rec-35")
def test_a_chat_model_reads_a_message_before_its_next_turn(lw: Place, serve: Serve) -> None:
    """What is sent during a request is in the next one, after the tool call between them."""
    call = ScriptedCall(name="fs_list", args={"path": "."})
    wires = serve(
        ScriptedTurn(text="Let me look at it.", calls=(call,), stall_after=1),
        ScriptedTurn(text="DONE"),
    )
    file = lw.loop(MODEL, until={"contains": "DONE"})
    run = lw.real("run", file, "--detach", "--allow", "all").out.strip()
    until(lambda: len(wires.requests) == 1)
    told = lw("tell", run, "hurry", "--json")
    assert told.json["when"] == "next-turn"
    wires.release()
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    asked = [json.dumps(request.body) for request in wires.requests]
    assert [f"Message from {ME}: hurry" in one for one in asked] == [False, True]
    [delivered] = [event for event in lw.events(run) if event["kind"] == "message.delivered"]
    assert (delivered["path"], delivered["messages"]) == ("main.0.1", ["m1"])
