"""The corpus is the contract: what this dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`. To renew the plans after a change that is
meant, run the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand
in the file, one comment `# expect: CODE LINE:COLUMN` each; in a valid file they are warnings.
Commands and scripts stand in `project` and `home`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loopwright.dialects import archon
from loopwright.model.plan import decode_plan, encode_plan
from loopwright.syntax import read
from tests.dialects.archon.reading import CORPUS, lowered, places

RENEW = bool(os.environ.get("LOOPWRIGHT_RENEW_CORPUS"))


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(path, id=path.name)
        for path in sorted((CORPUS / kind).iterdir())
        if path.suffix in (".json", ".yaml") and not path.name.endswith(".plan.json")
    ]


def expected(path: Path) -> list[str]:
    """The findings that a file promises, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: ")]
    return [" ".join(reversed(line.split())) for line in found]


@pytest.mark.parametrize("path", cases("valid"))
def test_valid_workflows_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert places(problems) == expected(path)
    assert {one.severity for one in problems} <= {"warning"}
    assert plan is not None
    made = json.loads(encode_plan(plan))
    beside = path.with_name(f"{path.stem}.plan.json")
    if RENEW:
        text = json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False)
        beside.write_text(f"{text}\n", encoding="utf-8")
    assert made == json.loads(beside.read_text(encoding="utf-8"))
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("path", cases("invalid"))
def test_invalid_workflows_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    assert places(problems) == expected(path)
    assert "error" in {one.severity for one in problems}
    assert plan is None


@pytest.mark.parametrize("path", cases("valid"))
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    jsonschema.Draft7Validator(archon.json_schema()).validate(document.value)


@pytest.mark.parametrize("path", cases("valid"))
def test_the_dialect_knows_its_own(path: Path) -> None:
    """The dialect is sure about every valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    assert archon.recognise(document.value) == 100
