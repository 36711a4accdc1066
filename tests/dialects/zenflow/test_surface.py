"""How the dialect is told apart, what editors know of it, and how long it takes."""

import time
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import zenflow
from loopwright.dialects.zenflow.surface import milliseconds, prose_problem
from tests.dialects.zenflow.cases import lowered


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        pytest.param([], 0, 0, id="list"),
        pytest.param({"name": "x"}, 0, 0, id="no-steps"),
        pytest.param({"steps": 5}, 0, 0, id="steps-no-list"),
        pytest.param({"steps": [{"id": "a"}]}, 11, 49, id="bare-steps"),
        pytest.param({"steps": [5]}, 0, 0, id="no-step"),
        pytest.param({"steps": [{"id": "a", "instructions": "x"}]}, 51, 99, id="instructions"),
        pytest.param({"steps": [{"id": "a", "loop": {}}]}, 51, 99, id="loop"),
        pytest.param({"steps": [{"id": "a"}], "options": {}}, 51, 99, id="options"),
        pytest.param(
            {"steps": [{"id": "a"}], "agents": {"b": {"description": "B."}}}, 51, 99, id="agents"
        ),
        pytest.param({"steps": [{"id": "a"}], "agents": []}, 11, 49, id="agents-no-mapping"),
        pytest.param({"steps": [{"id": "a", "needs": ["b"], "prompt": "x"}]}, 0, 0, id="native"),
        pytest.param(
            {"agents": {"a": {"use": "claude"}}, "steps": [{"id": "a", "agent": "a"}]},
            0,
            0,
            id="native-agents",
        ),
        pytest.param({"goal": "x", "steps": [{"id": "a"}]}, 0, 0, id="native-goal"),
        pytest.param({"nodes": [], "steps": [{"id": "a"}]}, 0, 0, id="nodes"),
        pytest.param(
            {"steps": [{"id": "a", "dependsOn": [], "instructions": "x", "prompt": "y"}]},
            51,
            99,
            id="mostly-its-own",
        ),
    ],
)
def test_recognise(value: object, least: int, most: int) -> None:
    """Its own words make it sure, words of others keep it away."""
    assert least <= zenflow.recognise(value) <= most


@pytest.mark.parametrize(
    "value",
    [
        {"name": "x"},
        {"name": "", "steps": [{"id": "a"}]},
        {"name": "x", "steps": []},
        {"name": "x", "version": 2, "steps": [{"id": "a"}]},
        {"name": "x", "steps": [{"id": "a", "loop": {}}]},
        {"name": "x", "steps": [{"id": "a.b"}]},
        {"name": "x", "steps": [{"id": "a", "timeout": "5"}]},
        {"name": "x", "steps": [{"id": "a", "retries": -1}]},
        {"name": "x", "steps": [{"id": "a", "more": 1}]},
    ],
)
def test_editors_see_mistakes(value: dict[str, Any]) -> None:
    """The JSON Schema refuses what the dialect refuses, as far as a schema can say it."""
    validator = jsonschema.Draft7Validator(zenflow.json_schema())
    assert not validator.is_valid(value)


def test_the_json_schema_is_one() -> None:
    """It is a schema itself, and its example fits."""
    schema = zenflow.json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    examples = schema["examples"]
    assert isinstance(examples, list)
    jsonschema.Draft7Validator(schema).validate(examples[0])


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1h30m", 5_400_000),
        ("45s", 45_000),
        ("0s", 0),
        ("1h0m1s", 3_601_000),
        ("", None),
        ("h", None),
        ("5", None),
        ("1m1h", None),
        ("1.5h", None),
        ("5ms", None),
        ("-5s", None),
        ("\u0665s\n", None),
        (5, None),
        (None, None),
    ],
)
def test_durations(text: object, length: int | None) -> None:
    """Whole hours, minutes and seconds, in this order."""
    assert milliseconds(text) == length


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("Two\nlines\tand a tab\r\n", True),
        ("soft\u00adhyphen, joined\u200dsigns", True),
        ("a\u202eb", False),
        ("a\u2067b", False),
        ("a\u0000b", False),
        ("a\u009bb", False),
    ],
)
def test_hidden_characters_in_texts(text: str, fine: bool) -> None:
    """A text may join letters, but not turn their order around or drive a terminal."""
    assert (prose_problem(text) is None) is fine


def big_flow() -> str:
    """A hundred steps, each with a condition, and a loop now and then."""
    rows = ["name: big", "agents: {one: {description: Works.}}", "steps:", "  - {id: s0}"]
    for n in range(1, 100):
        condition = f"steps.s{n - 1}.status == 'completed' && steps.s0.content != '{n}'"
        rows += [f"  - id: s{n}", "    agent: one", f"    instructions: Do part {n}."]
        rows += [f"    dependsOn: [s{n - 1}]", f'    condition: "{condition}"']
        if n % 5 == 0:
            rows.append(f"    loop: {{maxIterations: 3, until: \"content.contains('ok {n}')\"}}")
    return "\n".join(rows) + "\n"


def test_a_hundred_steps_load_quickly() -> None:
    """Reading and validating 100 steps with 119 expressions is a matter of milliseconds."""
    text = big_flow()
    lowered("name: warm\nsteps: [{id: a, condition: 'true'}]\n")  # the evaluator is loaded once
    begun = time.process_time()
    plan, problems = lowered(text)
    took = time.process_time() - begun
    assert problems == []
    assert plan is not None
    assert took < 0.5  # ten times the promise: tracing is slow too; the benchmark measures
