"""How the tests of this folder get from text to findings; files stand beside the corpus."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from loopwright.dialects import archon
from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read

CORPUS = Path(__file__).resolve().parents[2] / "corpus" / "archon"


class Problem(NamedTuple):
    """What a reader of files says."""

    code: str
    message: str


def fetch(wanted: archon.ArchonFileRequest) -> bytes | Problem:
    """A file of the project or of the person, or the names in a folder."""
    own = wanted.path.startswith("~/")
    path = CORPUS / ("home" if own else "project") / wanted.path.removeprefix("~/")
    if wanted.kind == "names":
        return "\n".join(
            sorted(one.name for one in (path.iterdir() if path.is_dir() else ()))
        ).encode()
    return path.read_bytes() if path.is_file() else Problem("not-found", "no such file")


def lower_with_files(document: Document) -> tuple[Plan | None, list[Diagnostic]]:
    """Lower a document as its caller does: with the files that it asks for."""
    files: dict[str, bytes | Problem] = {}
    while missing := archon.requested_files(document, files):
        files |= {one.path: fetch(one) for one in missing}
    return archon.lower(document, files)


def lowered(text: str | bytes, *, file: str = "flow.yaml") -> tuple[Plan | None, list[Diagnostic]]:
    """What becomes of a text, with the findings of reading and of lowering."""
    document, problems = read(text if isinstance(text, bytes) else text.encode(), file=file)
    return (None, problems) if document is None else lower_with_files(document)


def lowered_with(
    text: str, others: Mapping[str, str], *, file: str = "flow.yaml"
) -> tuple[Plan | None, list[Diagnostic]]:
    """What becomes of a workflow beside these others, by their names."""
    document, problems = read(text.encode(), file=file)
    assert document is not None
    assert problems == []
    there = {f".archon/workflows/{name}.yaml": text.encode() for name, text in others.items()}
    files: dict[str, bytes | Problem] = {}
    while missing := archon.requested_files(document, files):
        absent = Problem("not-found", "no such file")
        files |= {one.path: there.get(one.path, absent) for one in missing}
    return archon.lower(document, files)


def flow(*nodes: str, head: str = "") -> str:
    """A workflow with these nodes, each a line of YAML from line 4 on."""
    lines = ["name: x", "description: y", *([head] if head else []), "nodes:"]
    return "\n".join([*lines, *(f"  - {node}" for node in nodes)]) + "\n"


def plan_of(text: str) -> Plan:
    """The plan of a workflow that has nothing wrong with it."""
    plan, problems = lowered(text)
    assert problems == []
    assert plan is not None
    return plan


def places(problems: list[Diagnostic]) -> list[str]:
    """`line:column code` of each finding."""
    return [f"{one.line}:{one.column} {one.code}" for one in problems]
