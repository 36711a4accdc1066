"""How the tests of this folder get from text, and from folders of files, to findings."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from loopwright.dialects import zenflow
from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read

CORPUS = Path(__file__).resolve().parents[2] / "corpus" / "zenflow"


class Refused(NamedTuple):
    """A file that whoever holds the disk would not hand over."""

    code: str
    message: str


def lowered(
    text: str | bytes,
    files: Mapping[str, bytes | Refused] | None = None,
    *,
    file: str = "flow.yaml",
) -> tuple[Plan | None, list[Diagnostic]]:
    """What the dialect makes of a text, with the findings of reading and of lowering."""
    data = text if isinstance(text, bytes) else text.encode()
    document, problems = read(data, file=file, limit=1_048_576)
    return zenflow.lower(document, files or {}) if document else (None, problems)


def plan_of(text: str, files: Mapping[str, bytes | Refused] | None = None) -> Plan:
    """The plan of a workflow that has nothing wrong with it."""
    plan, problems = lowered(text, files)
    assert problems == []
    assert plan is not None
    return plan


def codes(text: str) -> list[str]:
    """The codes of all findings, in order."""
    return [one.code for one in lowered(text)[1]]


def gathered(folder: Path) -> tuple[Plan | None, list[Diagnostic]]:
    """What the dialect makes of `main.yaml` with the files that it asks for, as they come."""
    document, problems = read((folder / "main.yaml").read_bytes(), file="main.yaml")
    if document is None:
        return None, problems
    files: dict[str, bytes | Refused] = {}
    while True:
        asked = [
            one for one in zenflow.requested_files(document, files) if (folder / one.path).is_file()
        ]
        if not asked:
            return zenflow.lower(document, files)
        files |= {one.path: (folder / one.path).read_bytes() for one in asked}
