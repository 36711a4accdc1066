"""What failed is named: the step, in every dialect, and the place in a loop within a loop."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Place

NESTED = {
    "name": "work",
    "agents": {"a": {}},
    "repeat": {"max": 2},
    "steps": [
        {
            "id": "inner",
            "agent": "a",
            "prompt": "Go.",
            "repeat": {"max": 5, "until": {"contains": "third"}},
        }
    ],
}
REPLIES = ["first", "second", "third"]

FAILING: dict[str, tuple[str, dict[str, Any]]] = {
    "native": (
        "d.yaml",
        {
            "name": "work",
            "agents": {"a": {}},
            "steps": [
                {"id": "plan", "agent": "a", "prompt": "Plan."},
                {"id": "build", "agent": "a", "prompt": "Build.", "needs": ["plan"]},
            ],
        },
    ),
    "native, in a loop": (
        "d.yaml",
        {
            "name": "work",
            "agents": {"a": {}},
            "repeat": {"max": 3},
            "steps": [
                {"id": "plan", "agent": "a", "prompt": "Plan."},
                {"id": "build", "agent": "a", "prompt": "Build.", "needs": ["plan"]},
            ],
        },
    ),
    "archon": (
        "d.yaml",
        {
            "name": "work",
            "description": "d",
            "nodes": [
                {"id": "plan", "prompt": "Plan."},
                {"id": "build", "prompt": "Build.", "depends_on": ["plan"]},
            ],
        },
    ),
    "zenflow": (
        "d.yaml",
        {
            "name": "work",
            "steps": [
                {"id": "plan", "instructions": "Plan."},
                {"id": "build", "instructions": "Build.", "dependsOn": ["plan"]},
            ],
        },
    ),
    "coqui": (
        "d.json",
        {
            "name": "work",
            "roles": [
                {"name": "plan", "role": "plan", "prompt": "Plan."},
                {"name": "build", "role": "coder", "prompt": "Build."},
            ],
            "termination_condition": {"type": "iteration_bound", "value": 2},
        },
    ),
}


@pytest.mark.item("rec-47")
@pytest.mark.parametrize(("file", "definition"), FAILING.values(), ids=FAILING.keys())
def test_the_step_that_failed_is_named(lw: Place, file: str, definition: dict[str, Any]) -> None:
    """By the line at the end, by `show` and by the JSON of `run` and `show`."""
    lw.write(file, json.dumps(definition))
    agent = lw.script("planned", {"fail": "no space left"})
    done = lw("run", file, "Do it.", "--agent", agent, "--json")
    words = "step 'build' failed: no space left"
    assert done.json["status"] == "failed"
    assert done.json["error"]["detail"] == words
    assert words in done.json["summary"]
    run = done.json["run"]
    assert lw("show", run, "--json").json["error"]["detail"] == words
    assert words in lw("show", run).out


@pytest.mark.item("rec-47")
def test_iterations_of_a_loop_in_a_loop_are_shown_with_both_numbers(lw: Place) -> None:
    """The limit of the outer loop is never shown beside a number of the inner one."""
    lw.write("d.json", json.dumps(NESTED))
    done = lw("run", "d.json", "Do it.", "--agent", lw.script(*REPLIES, *REPLIES))
    lines = [line.partition(": ")[0] for line in done.err.splitlines()]
    assert "iteration 2/2, step inner, iteration 3" in lines
    assert "iteration 2/2" in lines
    assert not [line for line in lines if "3/2" in line]
