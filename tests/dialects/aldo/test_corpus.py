"""The corpus is the contract: what the dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`; a folder in `files/valid` begins at
`main.yaml` and has its plan in `plan.json`. To renew the plans after a change that is meant, run
the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand in the
file, one comment `# expect: CODE LINE:COLUMN` each (with the file before the line where there are
several). In a valid file they are warnings. Single files have their prompt in `prompt.md`.
"""

from pathlib import Path

import jsonschema
import pytest

from loopwright.dialects import aldo, archon, native, rondoflow, zenflow
from loopwright.syntax.readers import read
from tests.dialects.aldo.cases import CORPUS, gathered, lowered
from tests.dialects.corpora import (
    definitions,
    folders,
    is_refused,
    is_refused_by_file,
    makes_its_plan,
    makes_one_plan,
)

DIALECTS = (aldo, archon, native, rondoflow, zenflow)
VALID = definitions(CORPUS / "valid")


@pytest.mark.parametrize("path", VALID)
def test_valid_agents_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    makes_its_plan(lowered(path.read_bytes(), file=path.name), path)


@pytest.mark.item("aldo-3")
@pytest.mark.parametrize("path", definitions(CORPUS / "invalid"))
def test_invalid_agents_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    is_refused(lowered(path.read_bytes(), file=path.name), path)


@pytest.mark.parametrize("path", folders(CORPUS, "valid"))
def test_files_that_belong_together_make_one_plan(path: Path) -> None:
    """An agent with its prompt, its schema and its subagents lowers to the plan in its folder."""
    makes_one_plan(gathered(path), path)


@pytest.mark.parametrize("path", folders(CORPUS, "invalid"))
def test_files_that_do_not_fit_are_refused_as_promised(path: Path) -> None:
    """Each finding names the file it is about, and the first file comes first."""
    is_refused_by_file(gathered(path), path)


OWN = [
    *VALID,
    *(pytest.param(one.values[0] / "main.yaml", id=one.id) for one in folders(CORPUS, "valid")),
]


@pytest.mark.parametrize("path", OWN)
def test_the_dialect_knows_its_own(path: Path) -> None:
    """Of all dialects, the right one is the surest about a valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    sure = {one.NAME: one.recognise(document.value) for one in DIALECTS}
    assert max(sure, key=lambda name: sure[name]) == aldo.NAME


@pytest.mark.parametrize("path", sorted(CORPUS.parent.glob("*/valid/*.yaml")), ids=str)
def test_the_dialect_leaves_others_alone(path: Path) -> None:
    """It is sure of none of the definitions of others."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    assert bool(aldo.recognise(document.value)) is (path.parents[1].name == aldo.NAME)


@pytest.mark.parametrize("path", OWN)
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    jsonschema.Draft7Validator(aldo.json_schema()).validate(document.value)


def test_the_json_schema_has_a_good_example() -> None:
    """Its example fits it, and is an agent."""
    schema = aldo.json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    [example] = schema["examples"]
    jsonschema.Draft7Validator(schema).validate(example)
    both = {**example, "composite": {"strategy": "parallel", "subagents": [{"agent": "a"}]}}
    assert not jsonschema.Draft7Validator(schema).is_valid(both)


@pytest.mark.parametrize("value", [None, [], "text", {"iteration": 1}], ids=str)
def test_what_is_no_agent_is_not_taken_for_one(value: object) -> None:
    """The dialect is sure of nothing else; two of its blocks are enough to tell what is missing."""
    assert aldo.recognise(value) == 0
    assert aldo.recognise({"identity": {}, "iteration": {}}) == 80
