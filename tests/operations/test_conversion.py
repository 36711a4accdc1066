"""`convert`: every plan of every dialect becomes a native text that reads back as that plan."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loopwright.errors import LoopwrightError
from loopwright.model.actions import CallAgent, FailStep, Repeat, Step
from loopwright.model.plan import Agent, Plan, decode_plan, unplaced
from loopwright.model.policy import Limits
from loopwright.operations.definition_checks import native_text
from loopwright.operations.dialects import ParsedDefinition, dialect, parse_definition

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
# Clauses that its system cannot read are kept as comparisons that no person may write.
UNREADABLE = "archon/valid/bad-conditions.plan.json"
# A provider that no agent stands for has no name in the native language.
UNNAMED = "archon/valid/unknown-provider.plan.json"
# A node whose file is missing has nothing that could be converted.
MISSING = "archon/valid/missing-*.plan.json"


def plans() -> list[Any]:
    found = [*CORPUS.glob("*/valid/*.plan.json"), *CORPUS.glob("*/files/valid/*/plan.json")]
    named = [one for one in sorted(found) if not (one.match(UNNAMED) or one.match(MISSING))]
    return [pytest.param(one, id=one.relative_to(CORPUS).as_posix()) for one in named]


def definition(plan: Plan) -> ParsedDefinition:
    return ParsedDefinition(plan=plan, dialect=plan.dialect, digest="", file="flow.yaml")


@pytest.mark.parametrize("path", plans())
def test_nothing_is_lost(path: Path) -> None:
    """The text is YAML, reads back as the same plan, and converts to itself."""
    plan = decode_plan(path.read_bytes())
    text = native_text(definition(plan))
    assert not text.startswith("{")
    again = parse_definition(text.encode(), file="native.yaml")
    assert again.dialect == "native"
    assert again.plan == unplaced(plan)
    assert native_text(again) == text


@pytest.mark.parametrize("path", [one for one in plans() if one.id != UNREADABLE])
def test_editors_take_what_was_converted(path: Path) -> None:
    """A converted definition fits the JSON Schema of the native language."""
    made = dialect("native").export(decode_plan(path.read_bytes()))  # type: ignore[attr-defined]
    jsonschema.Draft7Validator(dialect("native").json_schema()).validate(made)


def test_what_yaml_would_read_otherwise_is_written_as_json() -> None:
    """A text that YAML cannot hold as it is survives by way of JSON."""
    call = CallAgent(agent="a", prompt=())
    plan = Plan(
        name="x", steps=(Step(id="b", action=call),), agents={"a": Agent(system="a\x7f\u2028b")}
    )
    text = native_text(definition(plan))
    assert parse_definition(text.encode(), file="x").plan == plan


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        pytest.param(
            Plan(
                name="x",
                steps=(
                    Step(
                        id="a",
                        action=Repeat(
                            body=CallAgent(agent="a"), max=1, limits=Limits(no_progress=3)
                        ),
                    ),
                ),
                agents={"a": Agent()},
            ),
            "a limit on passes without progress",
            id="no-words",
        ),
        pytest.param(
            Plan(name="x", steps=(Step(id="a", action=FailStep(reason="no command b")),)),
            "a step that cannot run (a: no command b)",
            id="missing-file",
        ),
        pytest.param(
            Plan(
                name="x",
                steps=(Step(id="a", action=Repeat(body=CallAgent(agent="a"), max=5_000)),),
                agents={"a": Agent()},
                dialect="zenflow",
            ),
            "max must be a whole number from 1 to 1000, not 5000",
            id="out-of-range",
        ),
        pytest.param(
            Plan(
                name="x",
                steps=(Step(id="a", action=CallAgent(agent="a")),),
                agents={
                    "a": Agent(system="x" * 99_999),
                    "b": Agent(system="y" * 99_999),
                    "c": Agent(system="z" * 99_999),
                },
            ),
            "262,144",
            id="too-large",
        ),
    ],
)
def test_what_cannot_be_said_is_named(plan: Plan, says: str) -> None:
    """The error says which part it is, and that the file itself can be run."""
    with pytest.raises(LoopwrightError) as caught:
        native_text(definition(plan))
    assert caught.value.code == "not-expressible"
    assert says in caught.value.message
    assert "loopwright run flow.yaml" in (caught.value.hint or "")


def test_plans_are_compared_without_places() -> None:
    """Where a step was written does not count, what it does does."""
    text = (CORPUS / "archon/valid/group.plan.json").read_text()
    plan = decode_plan(text)
    assert json.dumps(json.loads(text)).count('"origin"') > 1
    assert unplaced(plan) != plan
    assert unplaced(unplaced(plan)) == unplaced(plan)
