"""`loopwright tell`: messages to the agents of a run that another process drives."""

import os
import signal
import sys

import pytest

from tests.cli.conftest import Place, until

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
    assert ["Message from tester: Keep the old API" in one for one in prompts] == [
        False,
        True,
        False,
    ]
    kinds = lw.kinds(run)
    assert (kinds.count("message.sent"), kinds.count("message.delivered")) == (1, 1)
    assert "message from tester" in lw("logs", run).out
    assert "(delivered to main.1): Keep the old API" in lw("show", run).out


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
    assert "heard: tester says hurry" in detail["output"]


@pytest.mark.item("rec-35")
@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        pytest.param(["DONE", "x"], 8, "has ended (completed)", id="ended"),
        pytest.param(["CAPPED", "x"], 8, "loopwright resume", id="ended, can be resumed"),
        pytest.param(["OPEN", " "], 2, "1 to 262,144 bytes", id="empty"),
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
