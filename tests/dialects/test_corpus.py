"""The corpus is the contract of each dialect: what it takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`. To renew the plans after a change that is
meant, run the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference.
Findings stand in the file, one comment `# expect: CODE LINE:COLUMN` each, or for JSON in
`X.expect`. In a valid file they are warnings.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import coqui, native, rondoflow
from loopwright.model.plan import Plan, decode_plan, encode_plan
from loopwright.syntax.document import Document
from loopwright.syntax.readers import read
from tests.dialects.reading import LOWER, lowered, places

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
RENEW = bool(os.environ.get("LOOPWRIGHT_RENEW_CORPUS"))
DEFINITIONS = (".json", ".yaml")
DIALECTS = {native.NAME: native, rondoflow.NAME: rondoflow, coqui.NAME: coqui}


def cases(kind: str, *dialects: str) -> list[Any]:
    return [
        pytest.param(path, id=path.relative_to(CORPUS).as_posix())
        for dialect in dialects or tuple(LOWER)
        for path in sorted((CORPUS / dialect / kind).iterdir())
        if path.suffix in DEFINITIONS and not path.name.endswith(".plan.json")
    ]


def expected(path: Path) -> list[str]:
    """The findings that a file promises, in order."""
    if path.suffix == ".json":
        sidecar = path.with_suffix(".expect")
        lines = sidecar.read_text(encoding="utf-8").splitlines() if sidecar.exists() else []
    else:
        text = path.read_text(encoding="utf-8")
        lines = [
            line.removeprefix("# expect: ")
            for line in text.splitlines()
            if line.startswith("# expect: ")
        ]
    return [" ".join(reversed(line.split())) for line in lines]


def dialect_of(path: Path) -> str:
    return path.relative_to(CORPUS).parts[0]


def result(path: Path) -> tuple[Plan | None, list[str], set[str]]:
    plan, problems = lowered(path.read_bytes(), dialect=dialect_of(path), file=path.name)
    return plan, places(problems), {one.severity for one in problems}


@pytest.mark.parametrize("path", cases("valid"))
def test_valid_definitions_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    plan, found, severities = result(path)
    assert found == expected(path)
    assert severities <= {"warning"}
    assert plan is not None
    made = json.loads(encode_plan(plan))
    beside = path.with_name(f"{path.stem}.plan.json")
    if RENEW:
        text = json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False)
        beside.write_text(f"{text}\n", encoding="utf-8")
    assert made == json.loads(beside.read_text(encoding="utf-8"))
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("path", cases("invalid"))
def test_invalid_definitions_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    plan, found, severities = result(path)
    assert found == expected(path)
    assert "error" in severities
    assert plan is None


@pytest.mark.parametrize("path", cases("valid"))
def test_a_dialect_knows_its_own(path: Path) -> None:
    """Of all dialects, the right one is the surest about a valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    sure = {name: dialect.recognise(document.value) for name, dialect in DIALECTS.items()}
    assert max(sure, key=lambda name: sure[name]) == dialect_of(path)


@pytest.mark.parametrize("path", cases("valid"))
def test_plans_survive_export(path: Path) -> None:
    """Exported to native and lowered again, a plan of any dialect is the same plan."""
    plan, _, _ = result(path)
    assert plan is not None
    again, problems = native.lower(Document.plain(native.export(plan), file="exported"))
    assert [one for one in problems if one.severity == "error"] == []
    assert again == plan


@pytest.mark.parametrize("path", cases("valid"))
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    schema = DIALECTS[dialect_of(path)].json_schema()
    jsonschema.Draft7Validator(schema).validate(document.value)
