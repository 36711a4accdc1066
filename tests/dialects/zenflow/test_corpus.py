"""The corpus is the contract: what the dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`; a folder in `files/valid` begins at
`main.yaml` and has its plan in `plan.json`. To renew the plans after a change that is meant, run
the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand in the
file, one comment `# expect: CODE LINE:COLUMN` each (with the file before the line where there are
several), or for JSON in `X.expect`. In a valid file they are warnings.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import native, rondoflow, zenflow
from loopwright.model.plan import Plan, decode_plan, encode_plan
from loopwright.syntax import read
from tests.dialects.zenflow.cases import CORPUS, gathered, lowered

RENEW = bool(os.environ.get("LOOPWRIGHT_RENEW_CORPUS"))
OTHERS = CORPUS.parent


def cases(folder: Path) -> list[Any]:
    return [
        pytest.param(path, id=path.relative_to(OTHERS).as_posix())
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".yaml") and not path.name.endswith(".plan.json")
    ]


def folders(kind: str) -> list[Any]:
    return [
        pytest.param(path, id=path.name) for path in sorted((CORPUS / "files" / kind).iterdir())
    ]


def expected(path: Path) -> list[str]:
    """The findings that a file promises, in order."""
    if path.suffix == ".json":
        sidecar = path.with_suffix(".expect")
        lines = sidecar.read_text(encoding="utf-8").splitlines() if sidecar.exists() else []
    else:
        rows = path.read_text(encoding="utf-8").splitlines()
        lines = [row.removeprefix("# expect: ") for row in rows if row.startswith("# expect: ")]
    return [" ".join(reversed(line.split())) for line in lines]


def is_the_plan(plan: Plan | None, beside: Path) -> None:
    """The plan is the one that stands in a file, and survives being written down."""
    assert plan is not None
    made = json.loads(encode_plan(plan))
    if RENEW:
        text = json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False)
        beside.write_text(f"{text}\n", encoding="utf-8")
    assert made == json.loads(beside.read_text(encoding="utf-8"))
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("path", cases(CORPUS / "valid"))
def test_valid_workflows_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert {one.severity for one in problems} <= {"warning"}
    is_the_plan(plan, path.with_name(f"{path.stem}.plan.json"))


@pytest.mark.parametrize("path", cases(CORPUS / "invalid"))
def test_invalid_workflows_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert plan is None


@pytest.mark.parametrize("path", folders("valid"))
def test_files_that_belong_together_make_one_plan(path: Path) -> None:
    """A workflow with texts and workflows in other files lowers to the plan in its folder."""
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


KNOWN = {"native": native, "rondoflow": rondoflow, "zenflow": zenflow}


@pytest.mark.parametrize("path", [one for name in KNOWN for one in cases(OTHERS / name / "valid")])
def test_a_dialect_knows_its_own(path: Path) -> None:
    """Of all dialects, the right one is the surest about a valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    sure = {name: dialect.recognise(document.value) for name, dialect in KNOWN.items()}
    assert max(sure, key=lambda name: sure[name]) == path.relative_to(OTHERS).parts[0]


@pytest.mark.parametrize("path", cases(CORPUS / "valid"))
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    jsonschema.Draft7Validator(zenflow.json_schema()).validate(document.value)
