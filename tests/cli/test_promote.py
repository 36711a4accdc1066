"""`promote`: nothing is promoted that has not shown what it can."""

import json
from typing import Any

import pytest

from tests.cli.aldo import DONE, MODEL, model, says, write
from tests.cli.conftest import Place


def gated(lw: Place, *suites: tuple[str, float], must: bool = True) -> str:
    required = [{"suite": name, "min_score": least} for name, least in suites]
    return write(lw, eval_gate={"required_suites": required, "must_pass_before_promote": must})


def suite(lw: Place, name: str, *wanted: str, definition: str = "../coder.yaml") -> None:
    """A suite that asks once for each of these words."""
    cases = [{"input": f"Say {word}.", "evaluators": [{"contains": word}]} for word in wanted]
    (lw.folder / "evals").mkdir(exist_ok=True)
    lw.write(f"evals/{name}.yaml", json.dumps({"definition": definition, "cases": cases}))


def promoted(lw: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lw("promote", "--json").json["promotions"]
    return found


@pytest.mark.item("aldo-70")
def test_every_suite_reached_its_score(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promoted is what reached every least score; the record is of the very text that was tried."""
    file = gated(lw, ("basics", 1.0), ("style", 0.5))
    suite(lw, "basics", "red")
    suite(lw, "style", "blue", "green")
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
    assert lw("run", file, "Go.", "--promoted", "--agent", MODEL).code == 6
    with model(monkeypatch, says(f"red {DONE}"), says(f"blue {DONE}"), says(f"no {DONE}")):
        done = lw("promote", file, "--model", MODEL)
    assert done.code == 0, done
    assert "style with model:local/fake: 0.50 (at least 0.50)" in done.out
    (record,) = promoted(lw)
    assert [(one["suite"], one["score"]) for one in record["results"]] == [
        ("basics", 1.0),
        ("style", 0.5),
    ]
    assert all(lw("show", run).code == 0 for one in record["results"] for run in one["runs"])
    with model(monkeypatch, says(f"fine {DONE}")):
        assert lw("run", file, "Go.", "--promoted", "--agent", MODEL).code == 0
    lw.write("prompt.md", "You are somebody else.")
    changed = lw("run", file, "Go.", "--promoted", "--agent", MODEL, "--json")
    assert (changed.code, changed.json["type"]) == (6, "urn:loopwright:problem:not-promoted")


@pytest.mark.item("aldo-70")
def test_below_one_threshold(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One suite below its score is enough, whatever the others reached."""
    file = gated(lw, ("basics", 1.0), ("style", 0.9))
    suite(lw, "basics", "red")
    suite(lw, "style", "blue", "green")
    with model(monkeypatch, says(f"red {DONE}"), says(f"blue {DONE}"), says(f"no {DONE}")):
        told = lw("promote", file, "--model", MODEL)
    assert told.code == 6
    assert "not promoted: style with model:local/fake 0.50 of 0.90" in told.err
    assert promoted(lw) == []


@pytest.mark.item("aldo-70")
def test_every_model_counts(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite is run with every model, and each has to reach the score."""
    file = gated(lw, ("basics", 1.0))
    suite(lw, "basics", "red")
    good, bad = "model:local/good", "model:local/bad"
    with model(monkeypatch, says(f"red {DONE}"), says(f"blue {DONE}")):
        told = lw("promote", file, "--model", good, "--model", bad)
    assert told.code == 6
    assert f"not promoted: basics with {bad} 0.00 of 1.00" in told.err
    assert promoted(lw) == []


@pytest.mark.item("aldo-70")
@pytest.mark.parametrize(
    ("suites", "written", "code", "told"),
    [
        pytest.param((), {}, 6, "names no suites", id="no suites"),
        pytest.param((("basics", 1.0),), {}, 2, "no suite 'basics'", id="not there"),
        pytest.param(
            (("basics", 1.0),), {"definition": "other.yaml"}, 2, "not coder.yaml", id="of another"
        ),
    ],
)
def test_refused_before_anything_is_spent(
    lw: Place, suites: tuple[tuple[str, float], ...], written: dict[str, str], code: int, told: str
) -> None:
    """Without suites nothing was shown; what is missing is told before a model is asked."""
    file = gated(lw, *suites)
    if written:
        suite(lw, "basics", "red", **written)
    said = lw("promote", file, "--model", MODEL)
    assert said.code == code, said
    assert told in said.err
    assert lw("ls", "--json").json["runs"] == []
    assert promoted(lw) == []


def test_a_gate_that_only_tells(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the author says that it need not be passed, the score is told and nothing is held."""
    file = gated(lw, ("basics", 1.0), must=False)
    suite(lw, "basics", "red")
    with model(monkeypatch, says(f"blue {DONE}")):
        told = lw("promote", file, "--model", MODEL)
    assert told.code == 0
    assert "basics with model:local/fake: 0.00 (at least 1.00)" in told.out
    assert len(promoted(lw)) == 1
