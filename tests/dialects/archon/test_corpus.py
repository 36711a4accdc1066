"""The corpus is the contract: what this dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`. To renew the plans after a change that is
meant, run the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand
in the file, one comment `# expect: CODE LINE:COLUMN` each; in a valid file they are warnings.
Commands and scripts stand in `project` and `home`.
"""

from pathlib import Path

import jsonschema
import pytest

from loopwright.dialects import archon
from loopwright.syntax.readers import read
from tests.dialects.archon.reading import CORPUS, lowered
from tests.dialects.corpora import definitions, is_refused, makes_its_plan

VALID = definitions(CORPUS / "valid")


@pytest.mark.parametrize("path", VALID)
def test_valid_workflows_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    makes_its_plan(lowered(path.read_bytes(), file=path.name), path)


@pytest.mark.parametrize("path", definitions(CORPUS / "invalid"))
def test_invalid_workflows_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    plan, problems = lowered(path.read_bytes(), file=path.name)
    is_refused((plan, problems), path)
    assert "error" in {one.severity for one in problems}


@pytest.mark.parametrize("path", VALID)
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    jsonschema.Draft7Validator(archon.json_schema()).validate(document.value)


@pytest.mark.parametrize("path", VALID)
def test_the_dialect_knows_its_own(path: Path) -> None:
    """The dialect is sure about every valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    assert archon.recognise(document.value) == 100
