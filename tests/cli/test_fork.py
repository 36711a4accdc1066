"""`fork`: going on from a finished place, with something different."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Place
from tests.person import ME


def made(lw: Place) -> str:
    file = lw.loop(lw.probe(), max=4, memory="previous-output", at_cap="exhaust")
    run: str = lw("run", file, "--json").json["run"]
    return run


@pytest.mark.item("aldo-48", "aldo-49")
def test_a_fork_continues_from_an_iteration(lw: Place) -> None:
    """Only the iterations after it are made, the next one is told the words; both runs are
    whole.
    """
    run = made(lw)
    before = lw.events(run)
    told = lw("fork", run, "--at", "main.1", "--edit", "Use the old parser", "--json")
    assert (told.code, told.json["status"], told.json["iterations"]) == (4, "exhausted", 4)
    new = told.json["run"]
    assert new != run
    assert lw.events(run) == before
    calls = lw.calls()
    assert [call["env"]["LOOPWRIGHT_ITERATION"] for call in calls] == list("123434")
    assert [call["env"]["LOOPWRIGHT_RUN"] for call in calls] == [run] * 4 + [new] * 2
    assert "Use the old parser" in calls[4]["prompt"]
    assert "Use the old parser" not in calls[5]["prompt"]
    shown = lw("show", new, "--json").json
    assert shown["forked"] == {"run": run, "at": "main.1"}
    assert f"from {run} after iteration 2" in lw("show", new).out
    assert lw("show", run, "--json").json["forked"] is None
    assert lw("doctor", "--deep", "--json").json["ok"] is True


def test_only_what_is_new_is_reported(lw: Place) -> None:
    """On stderr and as events: first that it was forked, then what follows."""
    run = made(lw)
    told = lw("fork", run, "--at", "main.2", "--jsonl")
    kinds = [json.loads(line)["kind"] for line in told.out.splitlines()]
    assert kinds[:2] == ["run.forked", "iteration.started"]
    assert f"forked by {ME} from {run} after iteration 3" in told.err
    assert "iteration 3/" not in told.err


def test_another_agent_and_another_folder(lw: Place) -> None:
    """The calls of the fork are made of the other agent, in the other folder."""
    run = made(lw)
    (lw.folder / "elsewhere").mkdir()
    agent = lw.probe({"say": "from the other"}, name="others")
    told = lw("fork", run, "--at", "main.2", "--agent", agent, "--workspace", "elsewhere", "--json")
    assert told.json["output"] == "from the other"
    [call] = lw.calls("others")
    assert call["env"]["LOOPWRIGHT_WORKSPACE"] == str(lw.folder / "elsewhere")
    assert lw("show", told.json["run"], "--json").json["workspace"].endswith("elsewhere")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param([], 2, "say where: --at PATH", id="nowhere"),
        pytest.param(["--at", "main.9"], 2, "has no place 'main.9'", id="unknown place"),
        pytest.param(["--at", "main"], 8, "it did not complete", id="not completed"),
        pytest.param(["--at", "main.3"], 8, "nothing follows main.3", id="nothing left"),
        pytest.param(["--at", "main.1", "--model", "a/b"], 2, "no agent of this run", id="model"),
        pytest.param(["--at", "main.1", "--model", " "], 2, "--model names none", id="no model"),
        pytest.param(["--at", "main.1", "--agent", "x=claude"], 2, "no agent 'x'", id="agent"),
        pytest.param(["--at", "main.1", "--edit", ""], 2, "--edit cannot be that", id="no words"),
        pytest.param(
            ["--at", "main.1", "--workspace", "x"], 2, "x is not a folder", id="no folder"
        ),
        pytest.param(["--at", "main.1", "--json", "--jsonl"], 2, "--jsonl", id="two forms"),
    ],
)
def test_refusals(lw: Place, words: list[str], code: int, told: str) -> None:
    """Each says what to do, and no run is made."""
    run = made(lw)
    said = lw("fork", run, *words)
    assert said.code == code
    assert told in said.err + said.out
    if "--at" not in words or "main.9" in words:
        assert "main.0, main.1, main.2, main.3" in said.err
    assert len(lw("ls", "--json").json["runs"]) == 1


@pytest.mark.parametrize("at", ["main.1", "2"])
def test_an_iteration_by_its_number(lw: Place, at: str) -> None:
    """A number alone counts passes as people do; what it is called in events is told."""
    told = lw("fork", made(lw), "--at", at, "--json")
    assert lw("show", told.json["run"], "--json").json["forked"]["at"] == "main.1"


@pytest.mark.parametrize(("most", "made_now"), [("3", 3), ("6", 6)])
def test_show_names_the_limit_of_a_fork(lw: Place, most: str, made_now: int) -> None:
    """Also after its loop has ended, and when it begins again."""
    told = lw("fork", made(lw), "--at", "2", "--max", most, "--json")
    assert (told.json["status"], told.json["iterations"]) == ("exhausted", made_now)
    run = told.json["run"]
    assert lw("show", run, "--json").json["max"] == made_now
    assert f"{most} iterations" in lw("show", run).out
    again = lw("resume", run, "--restart", "--json")
    assert again.json["iterations"] == made_now


def test_a_fork_starts_when_it_is_made(lw: Place) -> None:
    """`show`, `ls` and `ls --since` have its own time; the data is found to be in order."""
    parent = made(lw)
    run = lw("fork", parent, "--at", "2", "--max", "3", "--json").json["run"]
    at = next(event["at"] for event in lw.events(run) if event["kind"] == "run.forked")
    before = lw("show", parent, "--json").json["started_at"]
    shown = lw("show", run, "--json").json["started_at"]
    assert shown == at != before
    rows = {row["run"]: row["started_at"] for row in lw("ls", "--json").json["runs"]}
    assert rows == {run: shown, parent: before}
    since = lw("ls", "--json", "--since", shown).json["runs"]
    assert [row["run"] for row in since] == [run]
    assert lw("doctor", "--deep", "--json").json["ok"] is True


def test_an_iteration_that_is_none(lw: Place) -> None:
    """The names of those that there are come with what they mean."""
    told = lw("fork", made(lw), "--at", "9")
    assert told.code == 2
    assert "no iteration 9 that completed" in told.err
    assert "main.0 is iteration 1; there are: main.0, main.1" in told.err


def test_no_such_run(lw: Place) -> None:
    """As everywhere."""
    assert lw("fork", "run_nothing", "--at", "main").code == 2
