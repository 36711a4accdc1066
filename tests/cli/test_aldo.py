"""Agents of the aldo dialect from the command line, with a model on a local wire."""

import json
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedCall, ScriptedFault, ScriptedTurn
from tests.cli.aldo import DONE, MODEL, agent, asks, model, says, write
from tests.cli.conftest import Place
from tests.person import ME


def told(lw: Place, run: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a run in the words of the dialect."""
    return [(one["type"], one["payload"]) for one in lw("events", run, "--dialect").lines]


def only(events: list[tuple[str, dict[str, Any]]], kind: str) -> list[dict[str, Any]]:
    return [payload for name, payload in events if name == kind]


def ends(events: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """What ended each loop, with what belongs to the reason."""
    return [(one["reason"], one["detail"]) for one in only(events, "run.terminated_by")]


@pytest.mark.item("aldo-7", "aldo-9", "aldo-13", "aldo-15", "aldo-21")
def test_a_run_is_reported_in_the_words_of_its_document(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event of a loop with a tool has the document's name, in its order, with its fields."""
    file = write(lw)
    with model(monkeypatch, asks("fs.list", "looking", path="."), says(f"All done {DONE}")):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    events = told(lw, done.json["run"])
    cycle = ["checkpoint", "cycle.start", "usage", "model.response", "message"]
    tools = ["tool_call", "tool_result", "tool.results"]
    last = ["run.terminated_by", "run.completed"]
    assert [name for name, _ in events] == ["run.started", *cycle, *tools, *cycle, *last]
    starts = only(events, "cycle.start")
    assert [(one["cycle"], one["maxCycles"]) for one in starts] == [(1, 4), (2, 4)]
    first, last = only(events, "model.response")
    assert first["textLength"] == len("looking")
    assert [one["tool"] for one in first["toolCalls"]] == ["fs.list"]
    assert (first["finishReason"], last["finishReason"]) == ("tool_use", "stop")
    (result,) = only(events, "tool_result")
    assert (result["tool"], result["isError"]) == ("fs.list", False)
    assert only(events, "tool.results")[0]["cycle"] == 1
    assert ends(events) == [("text-includes", {"trigger": DONE})]
    (completed,) = only(events, "run.completed")
    assert completed["output"] == f"All done {DONE}"
    assert (completed["terminatedBy"], completed["cycles"]) == ("text-includes", 2)


@pytest.mark.item("aldo-6", "aldo-8", "aldo-10", "aldo-12")
def test_what_the_model_sees(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has the filled prompt, all tools, and after a turn its calls with results."""
    both = ScriptedTurn(
        text="both",
        calls=(
            ScriptedCall(name="fs_list", args={"path": "."}, id="c1"),
            ScriptedCall(name="fs_list", args={"path": "no"}, id="c2"),
        ),
    )
    file = write(lw)
    with model(monkeypatch, both, says(DONE)) as wires:
        assert lw("run", file, "Do it.", "--agent", MODEL).code == 0
        first, second = wires.asked
    for request in (first, second):
        assert "You are Ada." in request.system_text
        assert set(request.tools) - {"result_more"} == {"fs_list", "fs_write"}
    assert "Do it." in first.user_text
    assert second.calls == ["c1", "c2"]
    assert sorted(second.results_of) == ["c1", "c2"]


@pytest.mark.item("aldo-16", "aldo-17", "W17")
def test_the_ceiling_of_cycles(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that only talks is nudged, and stopped after the last cycle, which is told."""
    file = write(lw)
    turns = [says(f"thinking {n}") for n in range(4)]
    with model(monkeypatch, *turns) as wires:
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
        assert "use your tools" in wires.asked[1].user_text
    assert (done.code, done.json["status"]) == (4, "exhausted")
    assert done.json["output"] == "thinking 3"
    events = told(lw, done.json["run"])
    assert ends(events) == [("maxCycles", {"cycles": 4})]
    assert only(events, "run.completed")[0]["terminatedBy"] == "maxCycles"


@pytest.mark.item("aldo-20")
def test_a_model_that_fails(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never comes is the end of the run, as failed, with one error event."""
    file = write(lw)
    broken = ScriptedTurn(fault=ScriptedFault(status=400, message="no such model"))
    with model(monkeypatch, broken):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    assert (done.code, done.json["status"]) == (3, "failed")
    names = [name for name, _ in told(lw, done.json["run"])]
    assert names[-1] == "error"
    assert names.count("error") == 1


@pytest.mark.item("aldo-32", "aldo-34", "aldo-35")
def test_a_gated_call_waits_and_is_rejected(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call waits with its arguments; rejected, the model reads why and the loop goes on."""
    tools = agent()["tools"] | {"approvals": {"fs.write": "always"}}
    file = write(lw, tools=tools)
    wants = asks("fs.write", path="a.txt", content="x")
    with model(monkeypatch, wants, says(DONE)) as wires:
        waiting = lw("run", file, "Do it.", "--agent", MODEL, "--json", "--no-wait")
        assert (waiting.code, waiting.json["status"]) == (5, "waiting")
        run, (gate,) = waiting.json["run"], waiting.json["gates"]
        (pending,) = only(told(lw, run), "tool.pending_approval")
        assert (pending["runId"], pending["tool"], pending["reason"]) == (run, "fs.write", None)
        assert pending["args"] == {"path": "a.txt", "content": "x"}
        done = lw("reject", gate["id"], "not today", "--json")
        assert "not today" in json.dumps(wires.asked[-1].body)
    assert lw("show", run, "--json").json["status"] == "completed", done.err
    assert not (lw.folder / "a.txt").exists()
    events = told(lw, run)
    (resolved,) = only(events, "tool.approval_resolved")
    assert (resolved["kind"], resolved["approver"]) == ("rejected", ME)
    assert resolved["reason"] == "not today"
    (result,) = only(events, "tool_result")
    assert result["isError"] is True
    assert result["result"] == {"rejected": True, "reason": "not today", "approver": ME}


@pytest.mark.item("aldo-47")
def test_events_from_a_number_on(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late reader gets the same events, and `--after` leaves out those of earlier events."""
    file = write(lw)
    with model(monkeypatch, says(DONE)):
        run = lw("run", file, "Do it.", "--agent", MODEL, "--json").json["run"]
    everything = lw("events", run, "--dialect").lines
    assert lw("events", run, "--dialect", "--follow").lines == everything
    assert lw("events", run, "--dialect", "--json").json == {"run": run, "events": everything}
    middle = everything[3]["seq"]
    late = lw("events", run, "--dialect", "--after", str(middle)).lines
    assert late == [one for one in everything if one["seq"] > middle]


def test_a_dialect_without_events_says_so(lw: Place) -> None:
    """A native run has events and no other events."""
    run = lw("run", lw.loop(lw.script("DONE"), until={"signal": "DONE"}), "--json").json["run"]
    refused = lw("events", run, "--dialect")
    assert refused.code == 2
    assert "native has no events of its own" in refused.err
    assert f"loopwright events {run}" in refused.err


@pytest.mark.item("aldo-52", "aldo-56")
def test_a_composite_runs_its_children(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children with loops of their own run as loops, and the composite is drawn with them."""
    write(lw, name="one")
    write(lw, name="two")
    composite = {"strategy": "sequential", "subagents": [{"agent": "one"}, {"agent": "two"}]}
    file = write(lw, name="both", iteration=None, composite=composite)
    turns = (asks("fs.list", path="."), says(f"first {DONE}"), says(f"second {DONE}"))
    with model(monkeypatch, *turns) as wires:
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
        assert "first" in wires.asked[2].user_text
    assert (done.json["status"], done.json["output"]) == ("completed", f"second {DONE}")
    names = [name for name, _ in told(lw, done.json["run"])]
    assert names.count("composite.child_completed") == 2
    assert names.count("cycle.start") == 3
    drawn = lw("show", done.json["run"]).out
    assert "one" in drawn
    assert "iteration 2/4" in drawn


def test_validate_gathers_the_files(lw: Place) -> None:
    """Prompts and children are looked for beside the agent, and a missing one is told there."""
    file = write(
        lw,
        name="both",
        iteration=None,
        composite={
            "strategy": "sequential",
            "subagents": [{"agent": "one"}],
        },
    )
    refused = lw("validate", file)
    assert refused.code == 2
    assert "there is no agent one: no file one.yaml" in refused.err
    write(lw, name="one")
    assert lw("validate", file).code == 0
    assert lw("validate", file, "--json").json["files"][0]["dialect"] == "aldo"


DRAWN = """\
coder (aldo): a dry run, nothing is called

· main                                        up to 4 iterations, agent coder, until contains <task…

How it can end
  if everything works        ✓ completed  contains        1 iteration, 1 call
  if no check ever passes    ◼ exhausted  max_iterations  4 iterations, 4 calls
  if a person rejects        ◼ exhausted  max_iterations  4 iterations, 4 calls
  if a person asks for more  ✓ completed  contains        1 iteration, 1 call
  if main fails              ✗ failed     error           1 iteration, 1 call
  if the budget runs out     ◼ exhausted  budget          1 iteration, 1 call

at worst   4 iterations, 4 calls of agents, every retry counted (coder 4)
spending   $0.75 at most
snapshots  none are taken of the workspace
sandbox    guard, or stricter where a role or an agent asks for it
"""


def test_a_dry_run_of_cycles(lw: Place) -> None:
    """The loop is drawn, every ending is told, and the worst case has its price."""
    base = agent()
    tools = base["tools"] | {"approvals": {"fs.write": "always"}}
    policy = base["model_policy"] | {"budget": {"usd_per_run": 0.5, "usd_grace": 0.25}}
    told = lw.real(
        "run", write(lw, tools=tools, model_policy=policy), "--dry-run", env={"LANG": "C.UTF-8"}
    )
    assert told.code == 0, told.err
    assert [line.rstrip() for line in told.out.splitlines()] == DRAWN.splitlines()


@pytest.mark.item("aldo-23")
def test_a_text_rule_minds_case_and_the_cycle(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other letters do not match, and what an earlier cycle said does not count again."""
    rules = [
        {"kind": "tool-result", "tool": "list", "match": {"contains": "no such word"}},
        {"kind": "text-includes", "text": DONE},
    ]
    loop = agent()["iteration"] | {"termination_conditions": rules}
    turns = (says(DONE.upper()), asks("fs.list", "going on", path="."), says(f"now {DONE}"))
    with model(monkeypatch, *turns):
        done = lw("run", write(lw, iteration=loop), "Do it.", "--agent", MODEL, "--json")
    assert (done.json["status"], done.json["iterations"]) == ("completed", 3)


@pytest.mark.item("aldo-24", "aldo-25")
def test_a_tool_result_rule(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short name stands for the tool, every result of the cycle is looked at, and the event
    names the one that matched.
    """
    rule = {"kind": "tool-result", "tool": "list", "match": {"contains": "needle"}}
    loop = agent()["iteration"] | {"termination_conditions": [rule]}
    lw.write("needle.txt", "")
    both = ScriptedTurn(
        calls=(
            ScriptedCall(name="fs_list", args={"path": "no"}, id="c1"),
            ScriptedCall(name="fs_list", args={"path": "."}, id="c2"),
        )
    )
    with model(monkeypatch, both):
        done = lw("run", write(lw, iteration=loop), "Do it.", "--agent", MODEL, "--json")
    assert (done.json["status"], done.json["reason"]) == ("completed", "tool-result")
    (ended,) = only(told(lw, done.json["run"]), "run.terminated_by")
    assert ended["detail"] == {"tool": "fs.list", "callId": "c2", "match": {"contains": "needle"}}


@pytest.mark.item("aldo-32", "aldo-33")
def test_two_held_calls_need_two_decisions(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits alone while the free one runs, and who decided what is told."""
    tools = agent()["tools"] | {"approvals": {"write": "always"}}
    wants = ScriptedTurn(
        calls=(
            ScriptedCall(name="fs_write", args={"path": "a.txt", "content": "a"}, id="c1"),
            ScriptedCall(name="fs_list", args={"path": "."}, id="c2"),
            ScriptedCall(name="fs_write", args={"path": "b.txt", "content": "b"}, id="c3"),
        )
    )
    with model(monkeypatch, wants, says(DONE)):
        waiting = lw(
            "run", write(lw, tools=tools), "Do it.", "--agent", MODEL, "--json", "--no-wait"
        )
        first, second = waiting.json["gates"]
        run = waiting.json["run"]
        assert [one["callId"] for one in only(told(lw, run), "tool_result")] == ["c2"]
        lw("approve", first["id"])
        assert not (lw.folder / "b.txt").exists()
        lw("reject", second["id"], "one is enough")
    assert lw("show", run, "--json").json["status"] == "completed"
    assert not (lw.folder / "b.txt").exists()
    resolved = only(told(lw, run), "tool.approval_resolved")
    assert [(one["callId"], one["kind"], one["approver"]) for one in resolved] == [
        ("c1", "approved", ME),
        ("c3", "rejected", ME),
    ]


@pytest.mark.item("aldo-54")
def test_at_most_eight_children_at_once(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten children side by side eight are asked at once, all are waited for, and the outputs
    stand in the order in which they were written.
    """
    write(lw, name="child")
    subagents = [{"agent": "child", "as": f"child-{n}"} for n in range(10)]
    composite = {"strategy": "parallel", "subagents": subagents}
    file = write(lw, name="team", iteration=None, tools=None, composite=composite)
    with model(monkeypatch, ScriptedTurn(text=DONE, times=10)):
        done = lw("run", file, "Do it.", "--agent", MODEL, "--json")
    assert done.json["status"] == "completed", done.err
    assert json.loads(done.json["output"]) == [DONE] * 10
    most, open_calls = 0, set()
    for event in lw.events(done.json["run"]):
        if event["kind"] == "effect.requested" and event["call"]["do"] == "model":
            open_calls.add(event["effect"])
        elif event["kind"] == "effect.done":
            open_calls.discard(event["effect"])
        most = max(most, len(open_calls))
    assert most == 8


@pytest.mark.item("aldo-36")
def test_an_approved_call_is_done(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person lets through from another process is done, once."""
    tools = agent()["tools"] | {"approvals": {"fs.write": "always"}}
    wants = asks("fs.write", path="a.txt", content="a")
    with model(monkeypatch, wants, says(DONE)):
        waiting = lw(
            "run", write(lw, tools=tools), "Do it.", "--agent", MODEL, "--json", "--no-wait"
        )
        lw("approve", waiting.json["gates"][0]["id"])
    assert (lw.folder / "a.txt").read_text() == "a"
