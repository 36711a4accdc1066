"""`inbox`, `approve`, `reject` and `continue`: deciding, once."""

import json
from typing import Any

import msgspec
import pytest

from loopwright.cli.gate_prompts import explain_choices
from loopwright.kernel.events import GateOpened
from tests.cli.conftest import Place, until
from tests.cli.terminal import PATIENCE_S
from tests.person import ME


def waiting(lw: Place, *replies: str) -> Any:
    file = lw.loop(lw.script(*(replies or ("one", "two", "three"))), until={"person": True})
    return lw("run", file, "--json").json


def test_the_inbox(lw: Place) -> None:
    """Everything that waits for a person is listed with what it is about."""
    assert lw("inbox", "--json").json == {"gates": []}
    run = waiting(lw)
    [gate] = lw("inbox", "--json").json["gates"]
    assert gate["id"] == run["gates"][0]["id"]
    assert (gate["run"], gate["path"]) == (run["run"], "main.0")
    assert gate["digest"] == run["gates"][0]["digest"]
    told = lw("inbox")
    assert gate["id"] in told.out
    assert "Review iteration 1. Accept?" in told.out


@pytest.mark.parametrize("by", ["gate", "prefix", "run"])
def test_approving_drives_the_run_on(lw: Place, by: str) -> None:
    """A gate is named by its id, the beginning of it, or its run; the run goes on here."""
    run = waiting(lw, "good")
    gate = run["gates"][0]["id"]
    told = lw("approve", {"gate": gate, "prefix": gate[:12], "run": run["run"]}[by], "--json")
    assert (told.code, told.json["status"], told.json["reason"]) == (0, "completed", "approved")
    assert told.json["output"] == "good"


def test_rejecting_fails_the_run(lw: Place) -> None:
    """A rejection fails with what the person said."""
    run = waiting(lw)
    told = lw("reject", run["run"], "not good", "--json")
    assert (told.code, told.json["status"], told.json["reason"]) == (3, "failed", "rejected")


def test_continuing_makes_another_pass(lw: Place) -> None:
    """The feedback reaches the next iteration, which is asked about in its turn."""
    agent = lw.probe({"say": "x"})
    file = lw.loop("command:false", until={"person": True}, memory="progress-log")
    run = lw("run", file, "--agent", agent, "--json").json
    told = lw("continue", run["run"], "shorter, please", "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (5, "waiting", 2)
    assert "shorter, please" in lw.calls()[1]["prompt"]
    assert told.json["gates"][0]["id"] != run["gates"][0]["id"]


def test_who_decided_is_shown(lw: Place) -> None:
    """Every answer stands in `show`, in order, with who gave it and what they wrote."""
    run = waiting(lw)["run"]
    assert lw("show", run, "--json").json["decisions"] == []
    lw("continue", run, "shorter,\nplease")
    lw("approve", run)
    first, second = lw("show", run, "--json").json["decisions"]
    assert (first["decision"], first["by"], first["path"]) == ("continue", ME, "main.0")
    assert (first["text"], second["decision"]) == ("shorter,\nplease", "approve")
    assert (second["text"], second["path"]) == ("", "main.1")
    shown = lw("show", run).out
    assert f"continued by {ME} in iteration 1, {first['at']}: shorter, please\n" in shown
    assert f"approved by {ME} in iteration 2, {second['at']}\n" in shown


def test_an_answer_counts_once(lw: Place) -> None:
    """The second answer leaves with 8 and says who was first; the wrong state with 8 too."""
    run = waiting(lw, "good")
    gate = run["gates"][0]["id"]
    assert lw("approve", gate).code == 0
    again = lw("reject", gate)
    assert again.code == 8
    assert f"already answered: approve by {ME}" in again.err
    by_run = lw("approve", run["run"], "--json")
    assert (by_run.code, by_run.json["status"]) == (8, 409)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["approve", "gate_nothing"], 2, id="unknown gate"),
        pytest.param(["approve", "run_nothing"], 2, id="unknown run"),
        pytest.param(["continue", "gate_nothing"], 2, id="continue without text"),
        pytest.param(["continue", "gate_nothing", "  "], 2, id="continue with blanks"),
        pytest.param(["approve"], 2, id="nothing named"),
    ],
)
def test_answers_to_nothing(lw: Place, words: list[str], code: int) -> None:
    """What cannot be answered is refused with the reason."""
    assert lw(*words).code == code


@pytest.mark.item("K5")
def test_nobody_is_asked_without_a_terminal(lw: Place) -> None:
    """Off a terminal nothing waits for keys: a gate leaves with 5, a missing text with 2."""
    file = lw.loop(lw.script("x"), until={"person": True})
    told = lw.real("run", file, stdin=b"a\n")
    assert told.code == 5
    assert "loopwright approve gate_" in told.err
    assert "[a]pprove" not in told.err
    missing = lw.real("continue", "run_", stdin=b"better\n")
    assert missing.code == 2
    assert "TEXT" in missing.err


def test_the_hint_names_what_a_gate_takes(lw: Place) -> None:
    """Only answers that the gate takes are offered; others are wrong usage."""
    told = lw("run", lw.loop(lw.script("x"), until={"person": True}))
    assert "   (or reject, or continue with a text)\n" in told.err
    asks = {"id": "a", "gate": {"message": "Ship?"}}
    lw.write("asks.yaml", json.dumps({"name": "asks", "steps": [asks]}))
    told = lw("run", "asks.yaml")
    gate = lw("inbox", "--json").json["gates"][-1]["id"]
    assert f"  loopwright approve {gate}   (or reject)\n" in told.err
    refused = lw("continue", gate, "more")
    assert (refused.code, f"loopwright approve {gate}" in refused.err) == (2, True)


def test_several_gates_need_a_name(lw: Place) -> None:
    """A run that waits at two gates is answered gate by gate."""
    steps = [{"id": name, "gate": {"message": f"{name}?"}} for name in ("a", "b")]
    lw.write("two.yaml", json.dumps({"name": "two", "steps": steps}))
    run = lw("run", "two.yaml", "--json").json
    assert len(run["gates"]) == 2
    told = lw("approve", run["run"])
    assert told.code == 2
    assert all(gate["id"] in told.err for gate in run["gates"])
    assert lw("approve", run["gates"][0]["id"]).code == 5
    assert lw("approve", run["gates"][1]["id"]).code == 0


def test_only_recording(lw: Place) -> None:
    """--no-drive records the answer and leaves the run to whoever resumes it."""
    run = waiting(lw, "good")
    told = lw("approve", run["run"], "--no-drive", "--json")
    assert (told.code, told.json["status"]) == (0, "running")
    [item] = lw("ls", "--json").json["runs"]
    assert item["left_behind"]
    assert lw("resume", run["run"], "--json").json["status"] == "completed"


def test_a_run_that_another_process_drives(lw: Place) -> None:
    """An answer reaches the process that drives the run, and this one does not drive it too."""
    steps = [{"id": "ask", "gate": {"message": "go?"}}, {"id": "work", "agent": "slow"}]
    go = lw.folder / "go"
    slow = lw.probe({"wait_for": str(go), "say": "worked"})
    value = {"name": "two", "steps": steps, "agents": {"slow": {"use": slow}}}
    lw.write("two.yaml", json.dumps(value))
    other = lw.start("run", "two.yaml", "go", "--json")
    until(lambda: bool(lw("inbox", "--json").json["gates"]))
    told = lw("approve", "run_")
    assert told.code == 0
    assert f"is running in process {other.pid}" in told.err
    go.touch()
    out, _ = other.communicate(timeout=PATIENCE_S)
    assert (other.returncode, json.loads(out)["status"]) == (0, "completed")


# -- on a terminal ---------------------------------------------------------------------------------


def test_a_terminal_is_asked_right_there(lw: Place) -> None:
    """On a terminal the person sees what is decided and answers; the run goes on in place."""
    file = lw.loop(lw.script("a poem\x1b[2J", "a better poem"), until={"person": True})
    with lw.terminal("run", file) as screen:
        seen = screen.wait_for("[l]eave it: ")
        assert "Review iteration 1. Accept?" in seen
        assert "  a poem" in seen
        assert "digest" not in seen
        assert "\x1b[2J" not in seen
        screen.type("c\n")
        screen.wait_for("what should be different? ")
        screen.type("rhyme\n")
        screen.wait_for("a better poem")
        screen.wait_for("[l]eave it: ", times=2)
        screen.type("a good\n")
        assert screen.leave() == 0
    [event] = [f for f in lw.events("run_") if f.get("decision") == "approve"]
    assert (event["text"], event["by"]) == ("good", ME)


@pytest.mark.item("rec-40")
def test_a_question_mark_explains_the_choices(lw: Place) -> None:
    """`?` says what each answer does at this gate, and the person is asked again."""
    file = lw.loop(lw.script("a poem"), until={"person": True})
    with lw.terminal("run", file) as screen:
        screen.wait_for("[l]eave it: ")
        screen.type("?\n")
        seen = screen.wait_for("[l]eave it: ", times=2)
        assert "a, approve TEXT   accept the result of this iteration" in seen
        assert "c, continue TEXT  run another iteration; TEXT tells the agent" in seen
        screen.type("foo bar\n")
        seen = screen.wait_for("[l]eave it: ", times=3)
        assert "'foo' is not an answer here; the answers are:" in seen
        assert seen.count("a, approve TEXT   accept the result of this iteration") == 2
        screen.type("a\n")
        assert screen.leave() == 0


def test_ctrl_c_at_a_gate_ends_the_line_first(lw: Place) -> None:
    """What is printed after Ctrl-C does not continue the line of the prompt."""
    file = lw.loop(lw.script("a poem"), until={"person": True})
    with lw.terminal("run", file) as screen:
        screen.wait_for("[l]eave it: ")
        screen.press_ctrl_c()
        assert screen.leave() == 130
        after = screen.seen.rpartition("[l]eave it: ")[2]
    first, *others = after.splitlines()
    assert first.strip() in ("", "^C")
    assert any("Waiting for a decision" in line for line in others), after


@pytest.mark.item("rec-40")
@pytest.mark.parametrize("about", ["pass", "step", "cap", "blocked"])
def test_every_kind_of_gate_has_an_explanation(about: Any) -> None:
    """Each answer of a gate is explained once, and so is leaving."""
    gate = GateOpened(
        at=1,
        path="main",
        gate="g",
        digest="d",
        message="?",
        answers=("approve", "reject", "continue"),
        about=about,
    )
    lines = explain_choices(gate)
    assert [line.split(",")[0].strip() for line in lines[:4]] == ["a", "r", "c", "l"]
    call = explain_choices(msgspec.structs.replace(gate, about="tool", call=1))
    assert any(line.startswith("e, edit JSON") for line in call)


def test_a_person_may_leave_the_question(lw: Place) -> None:
    """Leaving the question leaves with 5 and the run waiting, as does --no-wait at once."""
    file = lw.loop(lw.script("x"), until={"person": True})
    with lw.terminal("run", file) as screen:
        screen.wait_for("[l]eave it: ")
        screen.type("nonsense\n")
        screen.type("l\n")
        assert screen.leave() == 5
    with lw.terminal("run", file, "--no-wait") as screen:
        assert screen.leave() == 5
        assert "[l]eave" not in screen.seen
    assert len(lw("inbox", "--json").json["gates"]) == 2


def test_an_answer_from_elsewhere_ends_the_question(lw: Place) -> None:
    """While a terminal asks, another one may answer; the run goes on in the first."""
    file = lw.loop(lw.script("x"), until={"person": True})
    with lw.terminal("run", file) as screen:
        screen.wait_for("[l]eave it: ")
        told = lw("approve", "run_", "--json")
        assert told.code == 0
        screen.wait_for("answered in another place")
        assert screen.leave() == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["approve"], f"approved by {ME}"),
        (["continue", "also fix mul"], f"sent back by {ME}: also fix mul"),
        (["reject", "no"], f"rejected by {ME}: no"),
    ],
    ids=["approved", "sent-back", "rejected"],
)
def test_show_and_certificate_name_who_decided(lw: Place, words: list[str], line: str) -> None:
    """A decision of a person is not shown as a failure of a check."""
    run = waiting(lw)["run"]
    assert lw(words[0], run, *words[1:]).code in (0, 3, 5)
    page = lw("show", run).out
    assert f"     {line}\n" in page
    assert "person failed" not in page
    certified = lw("show", run, "--certificate").out
    assert f"{line.partition(':')[0]} (iteration 1" in certified
