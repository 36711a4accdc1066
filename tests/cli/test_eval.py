"""`eval`: runs against what was expected of them."""

import json
from typing import Any

import pytest

from loopwright.testing.wires import ScriptedTurn
from tests.cli.aldo import DONE, MODEL, agent, asks, model, says, write
from tests.cli.conftest import Place

TEXT = "The build is green. score: 3"


def one_run(lw: Place, text: str = TEXT) -> str:
    lw.write(
        "flow.yaml",
        json.dumps({"name": "x", "goal": "Build it.", "agent": "worker", "agents": {"worker": {}}}),
    )
    done = lw("run", "flow.yaml", "--agent", lw.script(text), "--json")
    assert done.code == 0, done.err
    return str(done.json["run"])


def expect(lw: Place, *evaluators: dict[str, Any], **more: Any) -> str:
    lw.write("expect.yaml", json.dumps({"evaluators": evaluators, **more}))
    return "expect.yaml"


@pytest.mark.item("aldo-67")
def test_result_of_a_run(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, final tool result, cycles and terminator are read off the events, and the composed text
    shows a last tool that failed beside a claim that all is well.
    """
    file = write(lw)
    with model(monkeypatch, asks("fs.list", path="no-such-folder"), says(f"All is well {DONE}")):
        run = lw("run", file, "Do it.", "--agent", MODEL, "--json").json["run"]
    came = lw("eval", run, "--json").json
    assert came["text"] == f"All is well {DONE}"
    assert (came["cycles"], came["terminatedBy"]) == (2, "text-includes")
    assert "no-such-folder" in came["finalToolResult"]
    claim = expect(lw, {"contains": "All is well"}, {"not_contains": "final tool result: failed"})
    judged = lw("eval", run, "--expect", claim, "--json")
    assert judged.code == 1
    assert [one["passed"] for one in judged.json["evaluators"]] == [True, False]
    alone = expect(
        lw, {"not_contains": "failed", "on": "text"}, {"contains": "no-such", "on": "tool"}
    )
    assert lw("eval", run, "--expect", alone).code == 0


@pytest.mark.item("aldo-67")
@pytest.mark.parametrize(
    ("evaluator", "passed"),
    [
        pytest.param({"contains": "green"}, True, id="contains"),
        pytest.param({"contains": "Green"}, False, id="contains-case"),
        pytest.param({"not_contains": "red"}, True, id="not-contains"),
        pytest.param({"regex": r"score: \d"}, True, id="regex"),
        pytest.param({"regex": r"score: \d\d"}, False, id="regex-fails"),
        pytest.param({"exact": f"  {TEXT}\n"}, True, id="exact-trims"),
        pytest.param({"exact": "The build"}, False, id="exact-is-all"),
        pytest.param({"json_schema": {"type": "object"}}, False, id="schema-without-json"),
    ],
)
def test_evaluators(lw: Place, evaluator: dict[str, Any], passed: bool) -> None:
    """Each evaluator says whether the text is what it wants, and why not."""
    told = lw("eval", one_run(lw), "--expect", expect(lw, evaluator), "--json")
    assert told.code == (0 if passed else 1)
    (one,) = told.json["evaluators"]
    assert one["passed"] is passed
    assert bool(one["detail"]) is not passed


def test_a_schema_is_held_against_the_json_in_the_answer(lw: Place) -> None:
    """The last object of the text is looked at, and what is wrong with it is told."""
    run = one_run(lw, 'Here: {"score": 3}')
    wanted = {"type": "object", "properties": {"score": {"type": "string"}}}
    told = lw("eval", run, "--expect", expect(lw, {"json_schema": wanted}))
    assert told.code == 1
    assert "json_schema (text): score: 3 is not of type 'string'" in told.out


@pytest.mark.item("aldo-67")
@pytest.mark.parametrize(
    ("reply", "passed", "detail"),
    [
        pytest.param("It is fine.\nYES", True, "", id="yes"),
        pytest.param("NO", False, "the judge answered NO", id="no"),
        pytest.param("SCORE: 0.9", True, "", id="score"),
        pytest.param("SCORE: 0.79", False, "0.79 is below 0.8", id="below"),
        pytest.param("Maybe.", False, "neither YES, NO nor SCORE", id="unparsable"),
    ],
)
def test_a_judge_is_asked(lw: Place, reply: str, passed: bool, detail: str) -> None:
    """A rubric is answered by an agent in a run of its own; what it says is scored."""
    run = one_run(lw)
    judge = lw.script(reply, name="judge.yaml")
    wanted = expect(lw, {"rubric": "Is the build green?"})
    told = lw("eval", run, "--expect", wanted, "--judge", judge, "--json")
    assert told.code == (0 if passed else 1), told.err
    (one,) = told.json["evaluators"]
    assert detail in one["detail"]
    asked = lw("show", one["run"], "--json").json
    assert asked["name"] == "judge"
    assert "Is the build green?" in asked["goal"]
    assert "What was asked\n\nBuild it." in asked["goal"]
    assert TEXT in asked["goal"]


def test_a_judge_of_ones_own_words(lw: Place) -> None:
    """`llm_judge` is the author's prompt; what is filled in is not filled again."""
    run = one_run(lw, "green {{expected}}")
    judge = lw.script("YES", name="judge.yaml")
    wanted = expect(lw, {"llm_judge": "{{input}}|{{expected}}|{{output}}"}, expected="all green")
    told = lw("eval", run, "--expect", wanted, "--judge", judge, "--json")
    asked = lw("show", told.json["evaluators"][0]["run"], "--json").json
    assert asked["goal"] == "Build it.|all green|green {{expected}}"


def test_a_judge_that_fails_is_no_iteration(lw: Place) -> None:
    """An answer that never came counts as not passed, and why is told."""
    judge = lw.script({"fail": "no more quota"}, name="judge.yaml")
    wanted = expect(lw, {"rubric": "Is it?"})
    told = lw("eval", one_run(lw), "--expect", wanted, "--judge", judge)
    assert told.code == 1
    assert "the judge failed" in told.out


CASES: dict[str, Any] = {
    "name": "smoke",
    "definition": "coder.yaml",
    "cases": [
        {"id": "greets", "input": "Say hello.", "evaluators": [{"contains": "hello"}]},
        {
            "input": "Say goodbye.",
            "evaluators": [{"contains": "goodbye"}, {"not_contains": "hello"}],
        },
    ],
}


@pytest.mark.item("aldo-67")
def test_every_case_is_run(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is a run of its own; one that does not pass says what was missing, and the exit
    code tells it.
    """
    write(lw)
    lw.write("cases.yaml", json.dumps(CASES))
    with model(monkeypatch, says(f"hello {DONE}"), says(f"hello again {DONE}")):
        told = lw("eval", "cases.yaml", "--agent", MODEL)
    assert told.code == 1
    assert "greets  completed  text-includes  1 cycle  1 of 1 evaluators" in told.out
    assert "case-2  completed  text-includes  1 cycle  0 of 2 evaluators" in told.out
    assert "contains (composed): 'goodbye' is not in it" in told.out
    assert "1 of 2 cases passed" in told.out
    assert len(lw("ls", "--json").json["runs"]) == 2


def test_all_cases_pass(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json it is one object, and 0 is the code when nothing is amiss."""
    write(lw)
    lw.write("cases.yaml", json.dumps(CASES | {"agent": MODEL}))
    with model(monkeypatch, says(f"hello {DONE}"), says(f"goodbye {DONE}")):
        told = lw("eval", "cases.yaml", "--json")
    assert told.code == 0, told.err
    assert (told.json["passed"], told.json["total"]) == (2, 2)
    assert [one["case"] for one in told.json["cases"]] == ["greets", "case-2"]


def test_a_case_that_waits_for_a_person_has_not_passed(
    lw: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked in an evaluation: the case is told as waiting."""
    write(lw, tools=agent()["tools"] | {"approvals": {"fs.write": "always"}})
    lw.write("cases.yaml", json.dumps(CASES | {"cases": CASES["cases"][:1]}))
    turn: ScriptedTurn = asks("fs.write", path="a", content="b")
    with model(monkeypatch, turn):
        told = lw("eval", "cases.yaml", "--agent", MODEL)
    assert told.code == 1
    assert "it is waiting: a person has to decide" in told.out


def test_a_run_that_has_not_ended(lw: Place) -> None:
    """There is nothing to evaluate yet, and how to wait for it is told."""
    lw.write("flow.yaml", json.dumps({"name": "x", "steps": [{"id": "ask", "gate": True}]}))
    run = lw("run", "flow.yaml", "--no-wait", "--json").json["run"]
    told = lw("eval", run)
    assert told.code == 2
    assert f"{run} is waiting" in told.err


def test_a_failed_run_has_not_passed(lw: Place) -> None:
    """Whatever its text is, a run that failed is no iteration, and why it failed is told."""
    lw.write("flow.yaml", json.dumps({"name": "x", "goal": "go", "agents": {"w": {}}}))
    run = lw("run", "flow.yaml", "--agent", lw.script({"fail": "it broke"}), "--json").json["run"]
    told = lw("eval", run, "--expect", expect(lw, {"not_contains": "x"}))
    assert told.code == 1
    assert "it broke" in told.out


@pytest.mark.parametrize(
    ("evaluator", "says"),
    [
        pytest.param({"contain": "x"}, "contain (did you mean contains?)", id="unknown"),
        pytest.param({"regex": "(["}, "expect.yaml:1:27: bad-regex", id="regex"),
        pytest.param({"contains": "a", "exact": "b"}, "are two evaluators", id="two"),
        pytest.param({"on": "text"}, "an evaluator is one of contains", id="none"),
        pytest.param({"json_schema": {"type": "objct"}}, "bad-schema", id="schema"),
        pytest.param({"contains": "a", "on": "output"}, "unknown-value", id="subject"),
        pytest.param({"rubric": "?"}, "give --judge SPEC", id="no-judge"),
    ],
)
def test_bad_expectations_are_refused(lw: Place, evaluator: dict[str, Any], says: str) -> None:
    """What is wrong with an evaluator is told with its place and a way out; nothing is judged."""
    told = lw("eval", one_run(lw), "--expect", expect(lw, evaluator))
    assert told.code == 2
    assert says in told.err


def test_a_definition_is_no_file_of_cases(lw: Place) -> None:
    """One sentence says so, in the place of a list of unknown keys; other files have theirs."""
    told = lw("eval", lw.loop(lw.script("x")))
    assert told.code == 2
    assert told.err.startswith("error: loop.yaml is a definition (native), not a file of cases\n")
    assert "definition: loop.yaml" in told.err
    lw.write("other.yaml", "some: thing\n")
    assert "cases is required" in lw("eval", "other.yaml").err


def test_bad_cases_are_refused(lw: Place) -> None:
    """Two cases of a name, a case without an input, no definition: all are told at once."""
    case = {"id": "a", "input": "x", "evaluators": [{"contains": "x"}]}
    lw.write("cases.yaml", json.dumps({"cases": [case, case, {"evaluators": []}]}))
    told = lw("eval", "cases.yaml")
    assert told.code == 2
    for problem in ("definition is required", "two cases are called a", "input is required"):
        assert problem in told.err
    assert lw("eval", "no-such.yaml").code == 2
    assert lw("eval", "cases.yaml", "--expect", "x.yaml").code == 2
    assert lw("eval", "run_x", "--agent", "claude").code == 2
