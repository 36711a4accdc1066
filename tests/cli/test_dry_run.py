"""`run --dry-run` and the drawing of `show`, from the command line."""

import pytest

from tests.cli.conftest import Place
from tests.journeys.flows import flow

FLOW = flow("""
  - {id: plan, agent: w, instructions: Plan it.}
  - id: dev
    dependsOn: [plan]
    loop:
      maxIterations: 3
      until: "steps.review.content.contains('LGTM')"
      steps:
        - {id: code, agent: w, instructions: Write it.}
        - {id: review, agent: w, instructions: Review it., dependsOn: [code]}
  - {id: ship, agent: w, instructions: Ship it., dependsOn: [dev]}
""")

PAGE = """\
journey (zenflow): a dry run, nothing is called

· plan                                        agent w
│
· dev                                         up to 3 iterations, until expr steps.review.content.c…
│   · code                                    agent w
│   │
│   · review                                  agent w
│
· ship                                        agent w

How it can end
  if everything works      ✓ completed  done     1 iteration, 4 calls
  if no check ever passes  ✗ failed     partial  3 iterations, 7 calls
  if no check can be run   ✗ failed     partial  3 iterations, 7 calls
  if plan fails            ✗ failed     error    0 iterations, 1 call
  if code fails            ✗ failed     partial  1 iteration, 2 calls
  if review fails          ✗ failed     partial  1 iteration, 3 calls
  if ship fails            ✗ failed     partial  1 iteration, 4 calls

at worst   3 iterations, 24 calls of agents, every retry counted (w 24)
spending   $5.00 at most
snapshots  none are taken of the workspace
sandbox    guard, or stricter where a role or an agent asks for it
"""


def test_a_dry_run_reports_everything_and_does_nothing(lw: Place) -> None:
    """Plan, exits and worst case are printed; no agent is needed, no run is made."""
    file = lw.write("flow.yaml", FLOW)
    told = lw("run", str(file), "--dry-run", "--budget", "usd=5")
    lines = [line for line in told.out.splitlines() if "budget runs out" not in line]
    assert told.code == 0, told.err
    assert "\n".join(lines) + "\n" == PAGE
    assert lw("ls", "--json").json["runs"] == []


def test_a_dry_run_for_programs(lw: Place) -> None:
    """One object with the same events."""
    file = lw.write("flow.yaml", FLOW)
    told = lw("run", str(file), "--dry-run", "--json").json
    assert [ending["outcome"] for ending in told["endings"]][:2] == ["completed", "failed"]
    assert told["worst"] == {
        "iterations": 3,
        "calls": {"w": 24},
        "complete": True,
        "usd": None,
        "tokens": None,
        "wall_ms": None,
    }
    assert [node["id"] for node in told["graph"]] == ["plan", "dev", "ship"]


def test_a_dry_run_refuses_what_a_run_would_refuse(lw: Place) -> None:
    """A bad definition is told in the same way."""
    file = lw.write("flow.yaml", flow("  - {id: a, agent: nobody}"))
    assert lw("run", str(file), "--dry-run").code == 2


def test_a_dry_run_of_a_loop_without_a_file(lw: Place) -> None:
    """What would end it, and how often it would go round."""
    told = lw(
        "loop", "Fix it.", "--until-command", "pytest -q", "--max", "7", "--dry-run", "--json"
    )
    assert told.code == 0, told.err
    reasons = {ending["story"]: ending["reason"] for ending in told.json["endings"]}
    assert reasons["no check ever passes"] == "max_iterations"
    assert told.json["worst"]["iterations"] == 7


DRAWN = """\

✓ plan                             completed  agent w
│
✗ dev                              failed     iteration 3/3, until expr steps.review.content.contai…
│   ✓ code                         completed  agent w
│   │
│   ✓ review                       completed  agent w
│
– ship                             cancelled  agent w

"""


def test_show_draws_the_steps(lw: Place) -> None:
    """Signs and words say how far each has come; a loop has its iterations and its inner steps."""
    file = lw.write("flow.yaml", FLOW)
    lw("run", str(file), "Go.", "--agent", lw.script(*["no"] * 7))
    told = lw("show", "run_")
    assert DRAWN in told.out
    assert "\x1b" not in told.out
    graph = lw("show", "run_", "--json").json["graph"]
    assert [(node["id"], node["status"]) for node in graph] == [
        ("plan", "completed"),
        ("dev", "failed"),
        ("ship", "cancelled"),
    ]


def test_one_step_is_not_drawn(lw: Place) -> None:
    """A plain loop has nothing to draw: its iterations say it all."""
    lw("run", lw.loop(lw.script("a", "b", "c")))
    assert "agent" not in lw("show", "run_").out.partition("started")[2]


def test_colour_and_width_follow_the_terminal(lw: Place) -> None:
    """On a terminal of 80 columns there is colour and no line is wider; NO_COLOR has none."""
    file = lw.write("flow.yaml", FLOW)
    with lw.terminal("run", str(file), "--dry-run") as terminal:
        assert terminal.leave() == 0
        assert "\x1b[32m" in terminal.seen
    with lw.terminal("run", str(file), "--dry-run", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.leave() == 0
        assert "\x1b" not in terminal.seen
        assert max(map(len, terminal.seen.splitlines())) <= 80


@pytest.mark.parametrize("words", [["--worktree"], []], ids=["worktree", "none"])
def test_a_dry_run_names_the_worktree(lw: Place, words: list[str]) -> None:
    """The worktree is shown where one would be made, and in JSON."""
    told = lw("loop", "Fix it.", "--agent", "command:true", "--max", "2", "--dry-run", *words)
    assert told.code == 0, told.err
    assert ("on the branch loopwright/RUN" in told.out) == bool(words)
