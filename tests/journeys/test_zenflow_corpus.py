"""Workflows as people write them: each loads, and runs to the end that its table expects; so does
the native definition that `convert` makes of it.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from loopwright.kernel.events import IterationStarted
from loopwright.model.policy import WorkspacePolicy
from loopwright.operations.definition_checks import native_text
from loopwright.operations.dialects import ParsedDefinition, parse_definition, read_definition
from loopwright.ports import EffectJob
from tests.journeys.flows import Played, Words, failure, named, play
from tests.support.tables import read_table

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "zenflow" / "runs"
CASES: dict[str, dict[str, Any]] = read_table(CORPUS / "cases.yaml")
LONG = "x" * 40_000


def file_of(name: str) -> Path:
    path = CORPUS / name
    return path / "main.yaml" if path.is_dir() else path


def scripted(says: dict[str, Any]) -> Any:
    """Agents that say what the table has for their place."""
    left = {place: [*said] if isinstance(said, list) else None for place, said in says.items()}

    def speak(job: EffectJob) -> Words:
        place = named(job)
        said = says.get(place, "ok")
        rest = left.get(place)
        if rest is not None:
            said = rest.pop(0)
        if said == "!fail":
            return failure()
        return LONG if said == "!long" else said

    return speak


def played(definition: ParsedDefinition, case: dict[str, Any]) -> Played:
    plan = replace(definition.plan, workspace=WorkspacePolicy())  # there is no Git here
    return play(plan, scripted(case.get("says", {})))


def holds(found: Played, case: dict[str, Any]) -> None:
    """The run came to what the table says."""
    assert found.end.outcome == case.get("outcome", "completed"), found.ended
    expected = {step.id: "completed" for step in found.plan.steps} | case.get("steps", {})
    assert found.top == expected
    assert len(found.calls) == case["calls"], found.calls
    if "output" in case:
        assert found.process.service.read_text(found.end.output) == case["output"]
    for place, words in case.get("error", {}).items():
        assert [one for one in words if one not in found.error(place)] == []
    assert found.cast.peak <= case.get("peak", 100)


def test_every_workflow_of_the_corpus_has_a_case() -> None:
    """At least forty files, none of them without an expected end."""
    names = {path.name for path in CORPUS.iterdir() if path.name != "cases.yaml"}
    assert names == set(CASES)
    files = [one for one in CORPUS.rglob("*") if one.suffix in (".yaml", ".json")]
    assert len(files) - 1 >= 40


@pytest.mark.item("zenflow-82", "zenflow-85")
@pytest.mark.parametrize("name", CASES)
def test_workflows_run_to_their_expected_end(name: str) -> None:
    """With the warnings that are expected, and no others."""
    case = CASES[name]
    definition = read_definition(file_of(name))
    assert definition.dialect == "zenflow"
    assert list(dict.fromkeys(one.code for one in definition.warnings)) == case.get("warnings", [])
    assert definition.plan.workspace.worktree is case.get("worktree", False)
    found = played(definition, case)
    holds(found, case)
    for place, words in case.get("shown", {}).items():
        prompt = found.prompt(place)
        assert [one for one in words if one not in prompt] == []
    numbers = [event.iteration for event in found.events if isinstance(event, IterationStarted)]
    assert all(number is not None and number >= 1 for number in numbers)


@pytest.mark.item("zenflow-83")
@pytest.mark.parametrize("name", CASES)
def test_converted_workflows_run_to_the_same_end(name: str) -> None:
    """The native definition makes the same calls and ends the same way."""
    case = CASES[name]
    definition = read_definition(file_of(name))
    text = native_text(definition)
    native = parse_definition(text.encode(), file="native.yaml", force="native")
    first, second = played(definition, case), played(native, case)
    holds(second, case)
    assert (sorted(second.calls), second.ended) == (sorted(first.calls), first.ended)
