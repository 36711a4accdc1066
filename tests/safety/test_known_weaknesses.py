"""Known weaknesses of other loop tools, which a run must not have."""

import json
from pathlib import Path

import pytest

from loopwright.kernel.events import GateOpened, TurnTaken
from loopwright.model.actions import ModelCycle, Repeat, Step
from loopwright.model.checks import NoCalls
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.model.record import literal
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest, WireScript, WireServer
from tests.cli.aldo import DONE, MODEL, agent, asks, model, says, write
from tests.cli.conftest import Place, lw
from tests.safety.stage import call, doing, furnish, play, ungated

__all__ = ["lw"]


def one_loop(coder: Agent) -> Plan:
    loop = Repeat(
        body=ModelCycle(agent="coder", prompt=literal("Work."), nudge="Go on."),
        max=6,
        until=NoCalls(),
        memory=ConversationHistory(window=100_000),
    )
    return Plan(name="work", steps=(Step(id="work", action=loop),), agents={"coder": coder})


def in_turn(*turns: ScriptedTurn) -> "Scripted":
    return Scripted(list(turns))


class Scripted:
    """Turns one after the other."""

    def __init__(self, turns: list[ScriptedTurn]) -> None:
        self.turns = turns

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        return self.turns.pop(0)


@pytest.mark.item("W1", "W3", "aldo-8")
def test_every_request_offers_the_tools(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their schemas, in each cycle, under names that hosted services allow."""
    with model(monkeypatch, asks("fs.list", path="."), says(DONE)) as wires:
        assert lw("run", write(lw), "Do it.", "--agent", MODEL).code == 0
        for request in wires.asked:
            tools = request.body["tools"]
            assert isinstance(tools, list)
            found = {one["function"]["name"]: one["function"]["parameters"] for one in tools}
            assert found["fs_write"]["required"] == ["path", "content"]
            assert request.complaints() == []


@pytest.mark.item("W11", "W30")
@pytest.mark.parametrize("window", [3_000, 100_000])
def test_the_command_line_compresses(lw: Place, window: int) -> None:
    """The window that the file names counts for a run; a large one changes nothing."""
    lw.write("long.txt", "a line of the house\n" * 90)
    tools = {"native": [{"ref": "fs.read"}], "permissions": {"filesystem": "repo-readonly"}}
    loop = agent()["iteration"] | {"context_window": window, "max_cycles": 14}
    file = write(lw, tools=tools, iteration=loop)
    turns = (*[asks("fs.read", path="long.txt")] * 12, says(DONE))
    with WireServer(WireScript(turns=turns, window=window)) as wires:
        lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = f"{wires.url}/v1"
        done = lw.real("run", file, "Do it.", "--agent", MODEL, "--json")
        assert (done.code, done.json["status"]) == (0, "completed"), done.err
        assert {request.status for request in wires.asked} == {200}
    events = lw("events", done.json["run"], "--dialect").lines
    assert any(one["type"] == "history.compressed" for one in events) == (window == 3_000)


@pytest.mark.item("W16", "W17")
@pytest.mark.parametrize("text", ["I am done.", ""])
def test_a_model_that_simply_finishes(
    lw: Place, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """With `no-tool-calls` a turn that asks for nothing is the end, and no cycle is burnt."""
    loop = agent()["iteration"] | {"termination_conditions": [{"kind": "no-tool-calls"}]}
    with model(monkeypatch, says(text)) as wires:
        done = lw("run", write(lw, iteration=loop), "Do it.", "--agent", MODEL, "--json")
        assert len(wires.asked) == 1
    assert done.json["status"] == "completed"


@pytest.mark.item("W18")
def test_a_call_that_was_cut_off_is_not_run(tmp_path: Path) -> None:
    """A turn that ends at its length may have half a call in it, even if that can be read; a call
    whose arguments are not JSON is not run either. The model is told both times.
    """
    scene = furnish(tmp_path)
    cut = ScriptedTurn(
        text="I write.",
        calls=(
            call("fs_write", path="whole.txt", content="whole"),
            call("fs_write", path="cut.txt", content="half of"),
        ),
        finish="length",
    )
    broken = ScriptedTurn(
        calls=(ScriptedCall(name="fs_write", raw='{"path": "broken.txt", "content": "x'),)
    )
    coder = Agent(spec="model:local/tiny", tools=("fs.write",))
    played = play(scene, one_loop(coder), in_turn(cut, broken, ScriptedTurn(text="Done.")))
    written = {path.name for path in scene.work.glob("*.txt")}
    assert {"whole.txt"} == written & {"whole.txt", "cut.txt", "broken.txt"}
    said = [m["content"] for m in played.requests[-1].body["messages"] if m["role"] == "tool"]  # type: ignore[union-attr,index,call-overload]
    assert "cut off" in said[1]
    assert "not JSON" in said[2]


@pytest.mark.item("W19", "W2", "aldo-33")
def test_calls_with_the_same_id(tmp_path: Path) -> None:
    """Two calls of a turn with one id are two calls: two questions, two decisions, two results,
    and the next turn may use the id once more.
    """
    scene = furnish(tmp_path)

    def same(*contents: str) -> ScriptedTurn:
        calls = [
            ScriptedCall(name="fs_write", args={"path": f"{c}.txt", "content": c}, id="x")
            for c in contents
        ]
        return ScriptedTurn(text="I write.", calls=tuple(calls))

    coder = Agent(spec="model:local/tiny", tools=("fs.write",), approvals={"fs.write": "always"})
    played = play(
        scene,
        one_loop(coder),
        in_turn(same("one", "two"), same("three"), ScriptedTurn(text="Done.")),
        people=lambda gate: "reject" if "two" in str(gate.output) else "approve",
    )
    assert played.status == "completed"
    assert ungated(played.events) == []
    assert sum(isinstance(event, GateOpened) for event in played.events) == 3
    made = {path.stem for path in scene.work.glob("*.txt")} & {"one", "two", "three"}
    assert made == {"one", "three"}
    last = played.requests[-1]
    assert len(set(last.calls)) == len(last.results_of) == 3
    results = [m for m in last.body["messages"] if m["role"] == "tool"]  # type: ignore[union-attr,index,call-overload]
    assert ["rejected" in str(one["content"]) for one in results] == [False, True, False]


@pytest.mark.item("W20", "aldo-51")
def test_any_number_of_readers(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader gets all events, in the order in which they happened, whenever it comes."""
    turns = [asks("fs.list", path=".") for _ in range(3)]
    with model(monkeypatch, *turns, says(DONE)):
        run = lw("run", write(lw), "Do it.", "--agent", MODEL, "--json").json["run"]
    readers = [lw.real("events", run, "--follow") for _ in range(2)] + [lw("events", run)]
    assert len({one.out for one in readers}) == 1
    numbers = [json.loads(line)["seq"] for line in readers[0].out.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.item("W5", "aldo-29")
def test_what_a_server_says_about_a_failure_reaches_the_model(tmp_path: Path) -> None:
    """Over the wire, and not as nothing."""
    scene = furnish(tmp_path)
    coder = Agent(spec="model:local/tiny", tools=("bench.fail",))
    played = play(
        scene,
        one_loop(coder),
        in_turn(doing(call("bench_fail", reason="no luck today")), ScriptedTurn(text="I see.")),
    )
    shown = played.requests[-1].raw.decode()
    assert "no luck today" in shown
    [first, _] = [event for event in played.events if isinstance(event, TurnTaken)]
    assert first.calls[0].problem == ""


@pytest.mark.item("I-5", "W13")
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_stream_that_is_cut_in_the_middle_of_a_call(tmp_path: Path, after: int) -> None:
    """The attempt has failed and is made once more; nothing of the half call is done."""
    scene = furnish(tmp_path)
    write = call("fs_write", path="made.txt", content="once, and in the end it is whole")
    half = ScriptedTurn(text="I write.", calls=(write,), cut_after=after)
    coder = Agent(spec="model:local/tiny", tools=("fs.write",))
    whole = ScriptedTurn(text="I write.", calls=(write,))
    played = play(scene, one_loop(coder), in_turn(half, whole, ScriptedTurn(text="Done.")))
    assert played.status == "completed"
    assert [name for name, _ in played.tool_calls()] == ["fs.write"]
    assert (scene.work / "made.txt").read_text() == "once, and in the end it is whole"
    assert len(played.requests) == 3
