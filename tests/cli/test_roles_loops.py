"""Loops of roles on the command line: by name, with parameters, to each of their ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Place, until


def script(lw: Place, *rounds: dict[str, str], name: str = "replies.yaml") -> str:
    """What each agent says in each round; the last round again and again."""
    replies = [
        {"when": {"agent": agent, "iteration": number}, "text": text}
        for number, said in enumerate(rounds, start=1)
        for agent, text in said.items()
    ]
    (lw.folder / name).write_text(yaml.safe_dump({"replies": replies}), encoding="utf-8")
    return f"script:{name}"


def round_of(review: str, **others: str) -> dict[str, str]:
    return {"plan": "The plan.", "coder": "The code.", "reviewer": review, **others}


def definition(lw: Place, file: str, /, **changes: Any) -> None:
    folder = lw.folder / ".loopwright" / "loops"
    folder.mkdir(parents=True, exist_ok=True)
    value = {
        "name": file,
        "description": "A loop",
        "roles": [
            {"role": "coder", "prompt": "Write about {{topic}}."},
            {"role": "reviewer", "prompt": "Read it."},
        ],
        "parameters": [{"name": "topic", "description": "What", "default": "tea"}],
        "termination_condition": {"type": "evaluation_bound", "value": "It is about {{topic}}"},
        **changes,
    }
    (folder / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")


UNHELD = [
    {"role": "coder", "prompt": "Write about {{topic}}."},
    {"name": "review", "role": "coder", "prompt": "Read it."},
]
"""Roles that let a program write down how it was called."""


@pytest.mark.item("coqui-29", "coqui-30")
def test_the_harness_runs_until_the_reviewer_approves(lw: Place) -> None:
    """A rejected round is followed by another with new stages, an approval ends it."""
    agent = script(lw, round_of("NEEDS CHANGES — no test"), round_of("APPROVED"))
    told = lw("run", "harness", "Build a cache", "--agent", agent, "--json")
    assert (told.code, told.json["status"], told.json["reason"]) == (0, "completed", "approved")
    assert told.json["iterations"] == 2
    started = [one["path"] for one in lw.events(told.json["run"]) if one["kind"] == "step.started"]
    assert started == ["main"] + [
        f"main.{n}.{stage}" for n in (0, 1) for stage in ("plan", "implement", "evaluate")
    ]
    assert "· reviewer approved" in lw("show", "last").out


@pytest.mark.parametrize(
    "flags", [(), ("--detach",), ("--detach", "--here")], ids=["here", "detach", "detach here"]
)
def test_a_loop_of_roles_has_a_project_wherever_it_is_driven(
    lw: Place, flags: tuple[str, ...]
) -> None:
    """A start in the background makes the project that a start in the foreground makes."""
    agent = script(lw, round_of("APPROVED"))
    told = lw.real("run", "harness", "Build a cache", "--agent", agent, *flags, "--json")
    run = told.json["run"]
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    assert lw.events(run)[0]["project"]


@pytest.mark.item("coqui-34")
def test_the_limit_is_distinguished_from_an_approval(lw: Place) -> None:
    """Rounds that were never approved end as exhausted, for another reason."""
    agent = script(lw, *[round_of("Rejected")] * 2)
    told = lw("run", "harness", "x", "--agent", agent, "--max", "2", "--json")
    assert (told.code, told.json["status"]) == (4, "exhausted")
    assert told.json["reason"] == "max_iterations"


@pytest.mark.item("coqui-33")
def test_so_many_iterations_and_no_more(lw: Place) -> None:
    """A loop that is bound by its iterations completes with the last."""
    definition(lw, "twice", termination_condition={"type": "iteration_bound", "value": 2})
    agent = script(lw, *[round_of("Rejected")] * 3)
    told = lw("run", "twice", "x", "--agent", agent, "--json")
    assert (told.json["status"], told.json["iterations"]) == ("completed", 2)


def test_a_goal_is_reached(lw: Place) -> None:
    """The evaluator is asked after each round, in its own words."""
    said = {"plan": "p", "coder": "c"}
    agent = script(
        lw, {**said, "evaluator": "NOT ACHIEVED\nHalf."}, {**said, "evaluator": "ACHIEVED\nAll."}
    )
    told = lw("run", "goal-driven", "x", "--agent", agent, "--json")
    assert (told.json["status"], told.json["reason"]) == ("completed", "goal")
    assert told.json["iterations"] == 2


@pytest.mark.item("coqui-10", "coqui-11", "coqui-21")
def test_parameters_reach_the_prompts(lw: Place) -> None:
    """A default stands in the prompt, a given value wins, and the goal is filled too."""
    definition(lw, "writer", roles=UNHELD)
    agent = lw.probe({"say": "APPROVED"})
    lw("run", "writer", "On {{topic}} and {{other}}", "--agent", agent)
    lw("run", "writer", "On {{topic}}", "--agent", agent, "--input", "topic=milk")
    first, second, third, _ = (call["prompt"] for call in lw.calls())
    assert "## Goal\n\nOn tea and {{other}}\n" in first
    assert "Write about tea." in first
    assert "## Acceptance Criteria\n\nIt is about tea" in first
    assert "## Parameters\n\n- topic: tea" in first
    assert "### Stage 1: coder\n\nAPPROVED" in second
    assert "Write about milk." in third
    assert "On milk" in third


def test_research_takes_its_rounds_from_a_parameter(lw: Place) -> None:
    """A number that comes from a parameter is looked at before anything runs."""
    agent = script(lw, {"explorer": "e", "coder": "c", "reviewer": "Rejected"})
    command = ("run", "research", "x", "--agent", agent, "--json", "--input")
    told = lw(*command, "max_review_rounds=1")
    assert (told.json["reason"], told.json["iterations"]) == ("max_iterations", 1)
    assert lw(*command, "max_review_rounds=none").code == 2


@pytest.mark.item("coqui-8", "coqui-9")
def test_what_cannot_be_started_is_not(lw: Place) -> None:
    """No goal, no such definition, a missing parameter: each is told, and no run is made."""
    definition(lw, "asks", parameters=[{"name": "topic", "description": "What"}])
    assert "no message" in lw("run", "harness", "--agent", "claude").err
    unknown = lw("run", "harnes", "x", "--agent", "claude")
    assert unknown.code == 2
    assert "did you mean harness? there are asks, goal-driven, harness, research" in unknown.err
    assert "missing input: topic" in lw("run", "asks", "x", "--agent", "claude").err
    assert lw("ls", "--json").json["runs"] == []


@pytest.mark.item("coqui-7")
def test_a_run_keeps_the_definition_it_began_with(lw: Place) -> None:
    """Editing or deleting the file while it waits changes nothing in it."""
    gate = {"max_rework_attempts": 1}
    definition(lw, "kept", **gate)
    agent = script(lw, round_of("Rejected"), round_of("APPROVED"))
    run = lw("run", "kept", "x", "--agent", agent, "--no-wait", "--json").json["run"]
    definition(lw, "kept", termination_condition={"type": "iteration_bound", "value": 1})
    (lw.folder / ".loopwright" / "loops" / "kept.json").unlink()
    assert lw("continue", run, "Again").code == 0
    told = lw("show", run, "--json").json
    assert (told["status"], told["reason"], told["iterations"]) == ("completed", "approved", 2)


@pytest.mark.item("coqui-1", "coqui-3")
def test_the_list_of_definitions(lw: Place) -> None:
    """Chain, end and parameters of each; what is wrong stands below, with its place."""
    definition(lw, "writer")
    definition(lw, "broken", roles=[])
    told = lw("definitions")
    assert "harness      builtin  plan → coder → reviewer      evaluation_bound" in told.out
    assert "writer       project  coder → reviewer" in told.out
    assert "cannot be used" in told.out
    assert "roles must be a list" in told.err
    listed = lw("definitions", "--json").json
    assert listed["count"] == 5
    assert [one["name"] for one in listed["definitions"] if not one["valid"]] == ["broken"]


def test_one_definition_in_words(lw: Place) -> None:
    """Its stages, its end, its parameters; its file to copy; how it differs."""
    definition(lw, "writer")
    shown = lw("definitions", "show", "writer")
    assert "stage 1    coder (coder)" in shown.out
    assert "parameter  topic: What (default tea)" in shown.out
    assert "ends       evaluation_bound  It is about {{topic}}" in shown.out
    assert lw("definitions", "show", "writer", "--json").json["valid"]
    source = lw("definitions", "show", "harness", "--source").out
    assert json.loads(source)["name"] == "harness"
    assert "as it is built in" in lw("definitions", "diff", "harness").err
    folder = lw.folder / ".loopwright" / "loops"
    (folder / "harness.json").write_text(source.replace("5", "4"), encoding="utf-8")
    assert '+      "max_review_rounds": 4' in lw("definitions", "diff", "harness").out
    assert lw("definitions", "diff", "harness", "--json").json["diff"]
    assert "hides: builtin" in lw("definitions", "show", "harness").out
    assert lw("definitions", "validate").code == 0
    definition(lw, "broken", name="Foo Bar")
    assert lw("definitions", "validate", "broken").code == 2
    assert lw("definitions", "validate", "--json").code == 2
    assert lw("definitions", "show", "broken").code == 2


@pytest.mark.item("coqui-25")
def test_all_that_a_stage_said_can_be_read(lw: Place) -> None:
    """A long output is whole in the log, and the next prompt names the command that shows it."""
    definition(lw, "writer", roles=UNHELD)
    long = "begin " + "x" * 40_000 + " end"
    agent = lw.probe({"say": long}, {"say": "APPROVED"})
    run = lw("run", "writer", "x", "--agent", agent, "--json").json["run"]
    prompt = lw.calls()[1]["prompt"]
    assert f"`loopwright show {run} --output main.0.coder` shows all of it" in prompt
    assert "begin " in prompt
    assert " end\n" in prompt
    assert len(prompt) < 40_000
    assert lw("show", run, "--output", "main.0.coder").out == f"{long}\n"
    assert lw("show", run, "--output", "main.0.coder", "--json").json["output"] == long
    wrong = lw("show", run, "--output", "main.0.codr")
    assert (wrong.code, "did you mean main.0.coder?" in wrong.err) == (2, True)


def test_a_number_of_iterations_is_for_one_loop(lw: Place) -> None:
    """`--max` is refused where there is no loop, or more than one."""
    (lw.folder / "plain.yaml").write_text("name: x\ngoal: g\nagent: claude\n", encoding="utf-8")
    told = lw("run", "plain.yaml", "--max", "3")
    assert "--max is for a definition that is one loop" in told.err
