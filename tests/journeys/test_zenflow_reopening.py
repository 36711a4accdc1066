"""ZenFlow workflows that failed and go on, from the command line."""

from collections import Counter

import pytest

from tests.cli.conftest import Place
from tests.journeys.flows import flow
from tests.journeys.test_zenflow_crashes import Stage
from tests.person import ME

FLOW = flow("""
  - {id: plan, agent: w, instructions: Plan it.}
  - id: dev
    dependsOn: [plan]
    loop:
      maxIterations: 3
      steps:
        - {id: code, agent: w, instructions: Write it.}
        - {id: review, agent: w, instructions: Review it., dependsOn: [code]}
  - {id: ship, agent: w, instructions: Ship it., dependsOn: [dev]}
  - {id: aside, agent: w, instructions: Something else.}
""")


@pytest.fixture
def stage(lw: Place) -> Stage:
    return Stage(lw)


def fail_at(stage: Stage, path: str) -> None:
    """Let the agent fail at a place, once."""
    (stage.folder / "fail-here").write_text(path)


@pytest.mark.item("zenflow-68")
@pytest.mark.parametrize("verb", ["resume", "continue"])
def test_a_failed_workflow_continues(lw: Place, stage: Stage, verb: str) -> None:
    """Steps that completed are not called again, the loop continues in the iteration that did not
    finish, the run keeps its id, and what completed before is shown to what follows."""
    file = lw.write("flow.yaml", FLOW)
    fail_at(stage, "dev.1.review")
    first = lw("run", str(file), "Go.", "--agent", stage.agent, "--json")
    assert first.json["status"] == "failed"
    assert first.json["steps"]["plan"]["status"] == "completed"
    assert first.json["steps"]["ship"]["status"] == "cancelled"
    told = lw(verb, first.json["run"], "--json")
    assert told.code == 0, told.err
    assert (told.json["run"], told.json["status"]) == (first.json["run"], "completed")
    assert told.json["steps"]["plan"] == first.json["steps"]["plan"]
    assert told.json["steps"]["dev"]["iterations"] == 3
    calls = Counter(stage.calls)
    assert calls["plan"] == calls["aside"] == calls["ship"] == 1
    places = [f"dev.{n}.{name}" for n in range(3) for name in ("code", "review")]
    assert [path for path in stage.calls if path.startswith("dev")] == [
        *places[:4],
        *places[3:],
    ]
    kinds = lw.kinds(first.json["run"])
    assert kinds.count("run.reopened") == 1
    assert kinds[-1] == "run.finished"


@pytest.mark.item("zenflow-68")
def test_an_unknown_run_is_an_error(lw: Place) -> None:
    """It is named, and nothing is made."""
    for verb in ("resume", "continue"):
        told = lw(verb, "run_00000000")
        assert (told.code, "no run 'run_00000000'" in told.err) == (2, True)


def test_a_kill_in_the_second_opening(lw: Place, stage: Stage) -> None:
    """The run goes on inside the iteration where it was; it is not reopened a second time."""
    file = lw.write("flow.yaml", FLOW)
    fail_at(stage, "dev.1.review")
    assert lw("run", str(file), "Go.", "--agent", stage.agent).code == 3
    stage.stop_at("dev.2.review")
    stage.kill_there(lw.start("resume", "run_"))
    told = lw("resume", "run_", "--json")
    assert (told.code, told.json["status"]) == (0, "completed")
    assert {path: n for path, n in Counter(stage.calls).items() if n > 1} == {
        "dev.1.review": 2,
        "dev.2.review": 2,
    }
    assert lw.kinds("run_").count("run.reopened") == 1
    assert lw("doctor", "--deep", "--json").json["ok"] is True


def test_a_run_that_completed_or_was_stopped(lw: Place) -> None:
    """Neither goes on; what to do instead is said."""
    agent = lw.script("ok", "ok")
    file = lw.write("flow.yaml", flow("  - {id: a, agent: w, instructions: Go.}"))
    lw("run", str(file), "Go.", "--agent", agent)
    told = lw("resume", "run_")
    assert (told.code, "start a new run" in told.err) == (8, True)
    assert lw("continue", "run_").code == 8


def test_another_agent_may_continue(lw: Place) -> None:
    """What stood behind the agents was wrong: the run is not lost."""
    file = lw.write("flow.yaml", FLOW)
    one = lw.script({"text": "planned"}, {"text": "else"}, name="one.yaml")
    assert lw("run", str(file), "Go.", "--agent", one).code == 3
    other = lw.script(*(["fine"] * 7), name="other.yaml")
    told = lw("resume", "run_", "--agent", other, "--json")
    assert (told.code, told.json["status"]) == (0, "completed")
    assert told.json["steps"]["plan"]["output"] in ("planned", "else")


def test_a_spent_budget_may_grow(lw: Place) -> None:
    """What was spent stays spent; with more the run continues, without it is refused."""
    reply = {"text": "ok", "usage": {"input_tokens": 60, "output_tokens": 0, "usd": 0}}
    file = lw.write(
        "flow.yaml", flow("  - {id: a, agent: w}\n  - {id: b, agent: w, dependsOn: [a]}")
    )
    agent = lw.script(reply, reply)
    assert lw("run", str(file), "Go.", "--agent", agent, "--budget", "tokens=50").code in (3, 4)
    plain = lw("resume", "run_")
    assert (plain.code, "used up its budget: used 60 of 50 tokens" in plain.err) == (8, True)
    assert "--budget tokens=120" in plain.err
    less = lw("resume", "run_", "--budget", "tokens=55")
    assert (less.code, "has already used 60 of 55 tokens" in less.err) == (2, True)
    told = lw("resume", "run_", "--budget", "tokens=500", "--json")
    assert (told.json["status"], told.json["usage"]["input_tokens"]) == ("completed", 120)


def test_an_open_run_takes_no_changes(lw: Place) -> None:
    """Agents and budget are for a run that is reopened; so is one run at a time."""
    lw(
        "run",
        lw.loop(lw.script("a", "b", "c"), until={"person": True}),
        "--no-wait",
    )
    told = lw("resume", "run_", "--budget", "tokens=5")
    assert (told.code, "has not ended" in told.err) == (8, True)
    assert lw("resume", "all", "--budget", "tokens=5").code == 2
    assert lw("continue", "run_").code == 2


def test_show_says_how_to_continue(lw: Place, stage: Stage) -> None:
    """A failed run names the command; after that it is told that it went on."""
    file = lw.write("flow.yaml", FLOW)
    fail_at(stage, "plan")
    lw("run", str(file), "Go.", "--agent", stage.agent)
    assert "loopwright resume run_" in lw("show", "run_").out
    told = lw("resume", "run_")
    assert f"resumed at step plan by {ME}" in told.err
    assert "loopwright resume run_" not in lw("show", "run_").out
