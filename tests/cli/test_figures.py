"""`show --metrics`: what every round, stage and role took and cost, as figures and as a picture."""

from xml.etree import ElementTree

import pytest

from loopwright.cli.charts import bar
from loopwright.cli.formats import fine_duration
from tests.cli.conftest import Place

FLOW = """
name: polish
agents: {writer: {}, critic: {}}
steps:
  - id: polish
    repeat:
      max: 4
      until: {result_field: approved}
      steps:
        - {id: write, agent: writer, prompt: Write it.}
        - id: review
          agent: critic
          prompt: Review it.
          needs: [write]
          schema:
            type: object
            required: [approved, findings]
            properties: {approved: {type: boolean}, findings: {type: array}}
"""
REPLIES = """
replies:
  - {when: {agent: writer}, text: one, usage: {input_tokens: 100, output_tokens: 20, usd: 0.5}}
  - {when: {agent: critic}, text: no, data: {approved: false, findings: [<b>slow</b>, wrong name]}}
  - {when: {agent: writer}, text: two, usage: {input_tokens: 300, output_tokens: 80, usd: 1.25}}
  - {when: {agent: critic}, text: yes, data: {approved: true, findings: [wrong name]}}
"""


@pytest.fixture
def polished(lw: Place) -> Place:
    """A place with a run of two review rounds in it."""
    (lw.folder / "flow.yaml").write_text(FLOW, encoding="utf-8")
    (lw.folder / "replies.yaml").write_text(REPLIES, encoding="utf-8")
    told = lw("run", "flow.yaml", "Polish", "--agent", "script:replies.yaml", "--json")
    assert told.code == 0, told
    return lw


def test_figures_for_programs(polished: Place) -> None:
    """Every round, stage and role with its calls, tokens and money, and the findings of rounds."""
    told = polished("show", "last", "--metrics", "--json").json
    rounds = told["rounds"]
    assert [one["number"] for one in rounds] == [1, 2]
    assert [one["spent"]["usd"] for one in rounds] == [0.5, 1.25]
    assert [one["spent"]["calls"] for one in rounds] == [2, 2]
    assert [one["compared"]["open"] for one in rounds] == [2, 1]
    assert [one["compared"]["gone"] for one in rounds] == [0, 1]
    assert [one["done"] for one in rounds] == [False, True]
    assert told["trends"] == {"polish": "converging"}
    stages = {one["name"]: one for one in told["stages"]}
    assert {name: one["calls"] for name, one in stages.items()} == {
        "polish.write": 2,
        "polish.review": 2,
    }
    assert stages["polish.write"]["input_tokens"] == 400
    roles = {one["name"]: one["usd"] for one in told["roles"]}
    assert roles == {"writer": 1.75, "critic": 0.0}
    assert told["total"]["usd"] == 1.75
    assert told["total"]["output_tokens"] == 100


def test_figures_for_people(polished: Place) -> None:
    """A table with bars, and where the rounds lead."""
    told = polished("show", "last", "--metrics").out
    assert "iterations of polish: converging" in told
    assert "2 (2 new, 0 back)" in told
    assert "$1.25" in told
    assert "writer" in told
    assert "in all" in told


def test_the_picture(polished: Place) -> None:
    """The picture is well-formed, draws every round, and shows texts as texts."""
    told = polished("show", "last", "--svg", "polish.svg")
    assert told.code == 0
    root = ElementTree.fromstring((polished.folder / "polish.svg").read_text(encoding="utf-8"))
    space = "{http://www.w3.org/2000/svg}"
    bars = [one.get("class") for one in root.iter(f"{space}rect")]
    assert bars.count("open") == 2
    assert bars.count("bar") == 2
    assert len(list(root.iter(f"{space}circle"))) == 2
    assert not list(root.iter(f"{space}script"))
    heights = [float(one.get("height", "")) for one in root.iter(f"{space}rect")]
    assert all(height >= 0 for height in heights)
    assert polished("show", "last", "--svg", "-").out.startswith("<svg")


def test_a_run_without_rounds(lw: Place) -> None:
    """A run that repeats nothing has figures too."""
    (lw.folder / "one.yaml").write_text("name: one\nagent: script:r.yaml\ngoal: Go\n")
    (lw.folder / "r.yaml").write_text("replies: [{text: done}]\n")
    assert lw("run", "one.yaml").code == 0
    told = lw("show", "last", "--metrics", "--json").json
    assert told["rounds"] == []
    assert told["total"]["calls"] == 1
    assert lw("show", "last", "--svg", "-").out.startswith("<svg")


def test_calls_are_those_that_spend_counts(lw: Place) -> None:
    """Checks have a column of their own and no cost, snapshots are left out, and every row has a
    name.
    """
    agent = lw.probe({"say": "x"})
    told = lw("loop", "Go", "--agent", agent, "--max", "2", "--until-command", "false", "--json")
    run = told.json["run"]
    figures = lw("show", run, "--metrics", "--json").json
    row = lw("spend", "--json").json["total"]
    assert figures["total"]["calls"] == row["calls"] == 2
    assert figures["total"]["unpriced_calls"] == 2
    assert figures["total"]["usd"] is None
    assert [one["spent"]["calls"] for one in figures["rounds"]] == [1, 1]
    assert [one["spent"]["commands"] for one in figures["rounds"]] == [1, 1]
    assert [one["name"] for one in figures["stages"]] == ["main"]
    roles = {one["name"]: (one["calls"], one["commands"]) for one in figures["roles"]}
    assert roles == {"worker": (2, 0), "checks and commands": (0, 2)}
    lines = lw("show", run, "--metrics").out.splitlines()
    assert any(line.startswith("in all  2 calls, 2 commands, ") for line in lines)
    assert lines[-1].endswith(", unknown")
    (checks,) = [line for line in lines if line.startswith("checks and commands")]
    assert checks.endswith("–")


@pytest.mark.parametrize(
    ("share", "signs", "drawn"),
    [
        (0.0, True, ""),
        (0.001, True, "▏"),
        (0.5, True, "█████"),
        (0.55, True, "█████▌"),
        (2.0, True, "██████████"),
        (0.001, False, "#"),
        (0.0, False, ""),
        (1.0, False, "##########"),
    ],
)
def test_bars(share: float, signs: bool, drawn: str) -> None:
    """Something is never drawn as nothing, and nothing never as something."""
    assert bar(share, signs=signs, cells=10) == drawn


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1_000, "1.0s"),
        (9_999, "9.9s"),
        (10_000, "10s"),
        (61_000, "1m01s"),
    ],
)
def test_a_moment_is_not_nothing(ms: int, shown: str) -> None:
    """What took less than a second is told in milliseconds, and a few seconds with a tenth."""
    assert fine_duration(ms) == shown


def test_figures_have_parts_of_seconds(polished: Place) -> None:
    """Rounds of a moment are not shown as 0s."""
    assert " ms" in polished("show", "last", "--metrics").out
