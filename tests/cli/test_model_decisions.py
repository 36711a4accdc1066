"""Decisions, forks and resumed conversations of a chat model, over a real wire."""

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.model.actions import ModelCycle, Repeat, Step
from loopwright.model.checks import Contains
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.testing.wires import ScriptedCall, ScriptedFault, ScriptedTurn, WireServer
from tests.cli.conftest import MODEL, Place, Serve, Told
from tests.cli.planting import first_event, plant
from tests.person import ME

CODER = Agent(
    spec=MODEL,
    system="You code.",
    tools=("fs.read", "fs.edit"),
    approvals={"fs.edit": "always"},
)
LOOP = Repeat(
    body=ModelCycle(agent="coder"),
    max=4,
    until=Contains(text="DONE"),
    memory=ConversationHistory(window=16_000),
)
PLAN = Plan(name="coder", steps=(Step(id="main", action=LOOP),), agents={"coder": CODER})


def edit(new: str = "a + b", path: str = "calc.py") -> ScriptedCall:
    return ScriptedCall(name="fs_edit", args={"path": path, "old": "a - b", "new": new})


def calc(lw: Place, name: str = "calc.py") -> Path:
    return lw.write(name, "def add(a, b): return a - b\n")


def run(lw: Place, name: str = "run_one") -> Told:
    """Drive a run of the plan as far as it goes by itself."""
    plant(PLAN, [first_event(PLAN, name, str(lw.folder))])
    return lw("resume", name, "--json")


def results(server: WireServer) -> list[Any]:
    """What the model was told about its calls, in its newest request."""
    messages = server.requests[-1].body["messages"]
    return [json.loads(m["content"]) for m in messages if m["role"] == "tool"]


def said_by_users(server: WireServer) -> list[str]:
    return [m["content"] for m in server.requests[-1].body["messages"] if m["role"] == "user"]


@pytest.mark.item("aldo-32", "aldo-36")
def test_an_approved_call_is_run(lw: Place, serve: Serve) -> None:
    """Nothing happens before the decision; afterwards the tool has run, once."""
    file = calc(lw)
    serve(ScriptedTurn(text="I mend.", calls=(edit(),)), ScriptedTurn(text="DONE"))
    told = run(lw)
    assert (told.code, told.json["status"]) == (5, "waiting"), told.err
    assert told.json["gates"][0]["call"]["tool"] == "fs.edit"
    assert "a - b" in file.read_text()
    told = lw("approve", told.json["run"], "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told.err
    assert "a + b" in file.read_text()


@pytest.mark.item("aldo-36", "W29")
def test_edited_arguments_are_what_runs(lw: Place, serve: Serve) -> None:
    """The person's path is written, the model's is not, and the model is told what was done."""
    file, other = calc(lw), calc(lw, "other.py")
    serve(ScriptedTurn(text="I mend.", calls=(edit(),)), ScriptedTurn(text="DONE"))
    name = run(lw).json["run"]
    given = json.dumps({"path": "other.py", "old": "a - b", "new": "b + a"})
    assert lw("approve", name, "--arguments", given, "--json").json["status"] == "completed"
    assert "a - b" in file.read_text()
    assert "b + a" in other.read_text()


def test_edited_arguments_are_checked_like_any(lw: Place, serve: Serve) -> None:
    """Ones that do not fit the tool are refused and the gate stays open; ones that lead out of the
    workspace are an error for the model.
    """
    file = calc(lw)
    outside = lw.folder.parent / "outside.py"
    outside.write_text("a - b")
    server = serve(
        ScriptedTurn(text="I mend.", calls=(edit(), edit("b + a"))),
        ScriptedTurn(text="DONE"),
        ScriptedTurn(text="DONE"),
    )
    name = run(lw).json["run"]
    first, second = (gate["id"] for gate in lw("inbox", "--json").json["gates"])
    away = json.dumps({"path": "../outside.py", "old": "a - b", "new": "x"})
    told = lw("approve", first, "--arguments", '{"file": "calc.py"}', "--no-drive")
    assert (told.code, "do not fit fs.edit" in told.err) == (2, True)
    assert len(lw("inbox", "--json").json["gates"]) == 2
    missing = json.dumps({"path": "no.py", "old": "a", "new": "b"})
    assert lw("approve", first, "--arguments", missing, "--no-drive").code == 0
    told = lw("approve", second, "--arguments", away, "--json")
    assert told.json["status"] == "completed", told.err
    nowhere, astray = map(str, results(server))
    assert "not-found" in nowhere
    assert "leads out" in astray
    assert "a - b" in file.read_text()
    assert outside.read_text() == "a - b"
    assert lw("show", name, "--json").json["status"] == "completed"


@pytest.mark.item("aldo-35")
def test_the_model_is_reported_why_not(lw: Place, serve: Serve) -> None:
    """The reason and who gave it are the result of the call, and the loop goes on."""
    file = calc(lw)
    server = serve(ScriptedTurn(text="I mend.", calls=(edit(),)), ScriptedTurn(text="DONE"))
    name = run(lw).json["run"]
    told = lw("reject", name, "Not on a Friday", "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told.err
    [result] = results(server)
    assert result == {"rejected": True, "reason": "Not on a Friday", "approver": ME}
    assert "a - b" in file.read_text()


def test_a_tool_that_is_remembered(lw: Place, serve: Serve) -> None:
    """It is not asked about again in this run; another run asks."""
    file = calc(lw)
    turns = (
        ScriptedTurn(text="I mend.", calls=(edit("a * b"),)),
        ScriptedTurn(
            text="Again.",
            calls=(ScriptedCall(name="fs_edit", args={"path": "calc.py", "old": "*", "new": "+"}),),
        ),
        ScriptedTurn(text="DONE"),
    )
    serve(*turns)
    name = run(lw).json["run"]
    assert lw("approve", name, "--remember", "--json").json["status"] == "completed"
    assert "a + b" in file.read_text()
    serve(*turns)
    assert run(lw, "run_two").json["status"] == "waiting"


@pytest.mark.item("aldo-48", "aldo-49", "aldo-66", "W12")
def test_a_fork_with_another_model_and_words(lw: Place, serve: Serve) -> None:
    """The other model is asked, knows the turns before, and is told what the person says."""
    calc(lw)
    look = ScriptedCall(name="fs_read", args={"path": "calc.py"})
    serve(
        ScriptedTurn(text="I look.", calls=(look,)),
        ScriptedTurn(text="Hm."),
        ScriptedTurn(text="DONE"),
    )
    name = run(lw).json["run"]
    before = lw.events(name)
    server = serve(ScriptedTurn(text="DONE, too"))
    words = "Look at the sign."
    told = lw("fork", name, "--at", "main.0", "--model", "local/large", "--edit", words, "--json")
    assert (told.code, told.json["status"]) == (0, "completed"), told.err
    assert (told.json["output"], told.json["iterations"]) == ("DONE, too", 2)
    [request] = server.requests
    assert request.body["model"] == "large"
    assert [m["role"] for m in request.body["messages"]] == [
        "system", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert said_by_users(server)[-1] == words
    assert lw.events(name) == before


@pytest.mark.item("aldo-49")
def test_a_fork_has_the_cycles_that_were_left(lw: Place, serve: Serve) -> None:
    """Four in all: forked after the second there are two."""
    serve(ScriptedTurn(text="more", times=None))
    name = run(lw).json["run"]
    server = serve(ScriptedTurn(text="more", times=None))
    told = lw("fork", name, "--at", "main.1", "--json")
    assert (told.json["reason"], told.json["iterations"]) == ("max_iterations", 4)
    assert len(server.requests) == 2


@pytest.mark.item("aldo-48", "aldo-66")
def test_a_conversation_that_failed_is_resumed(lw: Place, serve: Serve) -> None:
    """The next turn is asked with all turns before it, and cycles are not handed out again."""
    serve(
        ScriptedTurn(text="one"),
        ScriptedTurn(text="two"),
        ScriptedTurn(fault=ScriptedFault(status=401), times=None),
    )
    told = run(lw)
    assert (told.code, told.json["status"]) == (3, "failed")
    server = serve(ScriptedTurn(text="more", times=None))
    told = lw("resume", told.json["run"], "--json")
    assert (told.json["reason"], told.json["iterations"]) == ("max_iterations", 4)
    assert len(server.requests) == 2
    spoken = [m["content"] for m in server.requests[0].body["messages"] if m["role"] == "assistant"]
    assert spoken == ["one", "two"]
