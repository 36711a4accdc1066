"""The corpus is the contract: what the dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`; a folder in `files/valid` begins at
`main.yaml` and has its plan in `plan.json`. To renew the plans after a change that is meant, run
the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand in the
file, one comment `# expect: CODE LINE:COLUMN` each (with the file before the line where there are
several). In a valid file they are warnings. Single files have their prompt in `prompt.md`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import aldo, archon, native, rondoflow, zenflow
from loopwright.model.plan import Plan, decode_plan, encode_plan
from loopwright.syntax import read
from tests.dialects.aldo.cases import CORPUS, gathered, lowered

RENEW = bool(os.environ.get("LOOPWRIGHT_RENEW_CORPUS"))
DIALECTS = (aldo, archon, native, rondoflow, zenflow)


def cases(kind: str) -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted((CORPUS / kind).glob("*.yaml"))]


def folders(kind: str) -> list[Any]:
    return [
        pytest.param(path, id=path.name) for path in sorted((CORPUS / "files" / kind).iterdir())
    ]


def expected(path: Path) -> list[str]:
    """The findings that a file promises, in order."""
    rows = path.read_text(encoding="utf-8").splitlines()
    lines = [row.removeprefix("# expect: ") for row in rows if row.startswith("# expect: ")]
    return [" ".join(reversed(line.split())) for line in lines]


def is_the_plan(plan: Plan | None, beside: Path) -> None:
    """The plan is the one that stands in a file, and survives being written down."""
    assert plan is not None
    if RENEW:
        text = json.dumps(
            json.loads(encode_plan(plan)), indent=2, sort_keys=True, ensure_ascii=False
        )
        beside.write_text(f"{text}\n", encoding="utf-8")
    assert plan == decode_plan(beside.read_bytes())
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("path", cases("valid"))
def test_valid_agents_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert {one.severity for one in problems} <= {"warning"}
    is_the_plan(plan, path.with_name(f"{path.stem}.plan.json"))


@pytest.mark.item("aldo-3")
@pytest.mark.parametrize("path", cases("invalid"))
def test_invalid_agents_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert plan is None


@pytest.mark.parametrize("path", folders("valid"))
def test_files_that_belong_together_make_one_plan(path: Path) -> None:
    """An agent with its prompt, its schema and its subagents lowers to the plan in its folder."""
    plan, problems = gathered(path)
    assert problems == []
    is_the_plan(plan, path / "plan.json")


@pytest.mark.parametrize("path", folders("invalid"))
def test_files_that_do_not_fit_are_refused_as_promised(path: Path) -> None:
    """Each finding names the file it is about, and the first file comes first."""
    plan, problems = gathered(path)
    found = [f"{one.file}:{one.line}:{one.column} {one.code}" for one in problems]
    assert found == expected(path / "main.yaml")
    assert plan is None


OWN = [
    *cases("valid"),
    *(pytest.param(one.values[0] / "main.yaml", id=one.id) for one in folders("valid")),
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
