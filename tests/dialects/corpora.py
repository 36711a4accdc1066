"""What the corpora of the dialects share: files with what they promise, and how that is held."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from loopwright.model.plan import Plan, decode_plan, encode_plan
from loopwright.syntax.document import Diagnostic

RENEW = bool(os.environ.get("LOOPWRIGHT_RENEW_CORPUS"))

Lowered: TypeAlias = tuple[Plan | None, Sequence[Diagnostic]]


def definitions(folder: Path, *, below: Path | None = None) -> list[Any]:
    """Every definition of a folder as a case, named from `below` on where that is given."""
    return [
        pytest.param(path, id=path.relative_to(below or folder).as_posix())
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".yaml") and not path.name.endswith(".plan.json")
    ]


def folders(corpus: Path, kind: str) -> list[Any]:
    """Every folder of files that belong together as a case."""
    found = sorted((corpus / "files" / kind).iterdir())
    return [pytest.param(path, id=path.name) for path in found]


def expected(path: Path) -> list[str]:
    """The findings that a file promises, in order."""
    if path.suffix == ".json":
        sidecar = path.with_suffix(".expect")
        lines = sidecar.read_text(encoding="utf-8").splitlines() if sidecar.exists() else []
    else:
        rows = path.read_text(encoding="utf-8").splitlines()
        lines = [row.removeprefix("# expect: ") for row in rows if row.startswith("# expect: ")]
    return [" ".join(reversed(line.split())) for line in lines]


def makes_its_plan(lowered: Lowered, path: Path) -> None:
    """Exactly the plan beside the file, with exactly the warnings that it names."""
    plan, problems = lowered
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert {one.severity for one in problems} <= {"warning"}
    is_the_plan(plan, path.with_name(f"{path.stem}.plan.json"))


def is_refused(lowered: Lowered, path: Path) -> None:
    """Exactly the findings that the file names, each in its place, and no plan."""
    plan, problems = lowered
    assert [f"{one.line}:{one.column} {one.code}" for one in problems] == expected(path)
    assert plan is None


def makes_one_plan(gathered: Lowered, folder: Path) -> None:
    """Files that belong together make the plan in their folder, and nothing is wrong with them."""
    plan, problems = gathered
    assert list(problems) == []
    is_the_plan(plan, folder / "plan.json")


def is_refused_by_file(gathered: Lowered, folder: Path) -> None:
    """Each finding names the file it is about, and the first file comes first."""
    plan, problems = gathered
    found = [f"{one.file}:{one.line}:{one.column} {one.code}" for one in problems]
    assert found == expected(folder / "main.yaml")
    assert plan is None


def is_the_plan(plan: Plan | None, beside: Path) -> None:
    """The plan is the one that stands in a file, and survives being written down."""
    assert plan is not None
    if RENEW:
        made = json.loads(encode_plan(plan))
        text = json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False)
        beside.write_text(f"{text}\n", encoding="utf-8")
    # A default may be written out or left out, so plans are compared and not their texts.
    assert plan == decode_plan(beside.read_bytes())
    assert decode_plan(encode_plan(plan)) == plan
