"""The corpus is the contract: what the dialect takes, what it makes of it, what it refuses.

`valid/X.yaml` has its plan beside it in `X.plan.json`; a folder in `files/valid` begins at
`main.yaml` and has its plan in `plan.json`. To renew the plans after a change that is meant, run
the tests once with LOOPWRIGHT_RENEW_CORPUS=1 and review the difference. Findings stand in the
file, one comment `# expect: CODE LINE:COLUMN` each (with the file before the line where there are
several), or for JSON in `X.expect`. In a valid file they are warnings.
"""

from pathlib import Path

import jsonschema
import pytest

from loopwright.dialects import native, rondoflow, zenflow
from loopwright.syntax.readers import read
from tests.dialects.corpora import (
    definitions,
    folders,
    is_refused,
    is_refused_by_file,
    makes_its_plan,
    makes_one_plan,
)
from tests.dialects.zenflow.cases import CORPUS, gathered, lowered

OTHERS = CORPUS.parent
VALID = definitions(CORPUS / "valid", below=OTHERS)


@pytest.mark.parametrize("path", VALID)
def test_valid_workflows_make_their_plan(path: Path) -> None:
    """A valid file lowers to exactly the plan beside it, with exactly the warnings it names."""
    makes_its_plan(lowered(path.read_bytes(), file=path.name), path)


@pytest.mark.parametrize("path", definitions(CORPUS / "invalid", below=OTHERS))
def test_invalid_workflows_are_refused_as_promised(path: Path) -> None:
    """An invalid file gives exactly the findings that it names, each in its place, and no plan."""
    is_refused(lowered(path.read_bytes(), file=path.name), path)


@pytest.mark.parametrize("path", folders(CORPUS, "valid"))
def test_files_that_belong_together_make_one_plan(path: Path) -> None:
    """A workflow with texts and workflows in other files lowers to the plan in its folder."""
    makes_one_plan(gathered(path), path)


@pytest.mark.parametrize("path", folders(CORPUS, "invalid"))
def test_files_that_do_not_fit_are_refused_as_promised(path: Path) -> None:
    """Each finding names the file it is about, and the first file comes first."""
    is_refused_by_file(gathered(path), path)


KNOWN = {"native": native, "rondoflow": rondoflow, "zenflow": zenflow}


KNOWN_FILES = [one for name in KNOWN for one in definitions(OTHERS / name / "valid", below=OTHERS)]


@pytest.mark.parametrize("path", KNOWN_FILES)
def test_a_dialect_knows_its_own(path: Path) -> None:
    """Of all dialects, the right one is the surest about a valid file."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    sure = {name: dialect.recognise(document.value) for name, dialect in KNOWN.items()}
    assert max(sure, key=lambda name: sure[name]) == path.relative_to(OTHERS).parts[0]


@pytest.mark.parametrize("path", VALID)
def test_the_json_schema_accepts_valid_files(path: Path) -> None:
    """What lowers also fits the JSON Schema that editors use."""
    document, _ = read(path.read_bytes(), file=path.name)
    assert document is not None
    jsonschema.Draft7Validator(zenflow.json_schema()).validate(document.value)
