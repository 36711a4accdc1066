"""Checking definitions without running them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.app.dialects import dialect, read_definition
from loopwright.app.file_kinds import CODE as NOT_A_DEFINITION
from loopwright.app.import_check import check_folder
from loopwright.errors import DefinitionError, NotFound
from loopwright.syntax.diagnostic import Diagnostic

_UNREADABLE = "unreadable"
"""Files that `import` skips but that are errors here: a definition with a mistake in its YAML must
not pass a check.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A file and what was found in it."""

    file: str
    dialect: str | None
    name: str | None
    problems: tuple[Diagnostic, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "dialect": self.dialect,
            "name": self.name,
            "warnings": [p.as_dict() for p in self.problems if p.severity == "warning"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The files that were checked, and files of checked folders that are not definitions."""

    files: tuple[Checked, ...]
    skipped: tuple[str, ...] = ()


def check_files(files: Sequence[Path], force: str | None, *, strict: bool = False) -> Validated:
    """Read every file, and all definitions of a folder; none stops the others. With `strict` a
    warning is an error.
    """
    if force is not None:
        dialect(force)
    chosen: list[Path] = []
    skipped: list[str] = []
    for file in files:
        if file.is_dir():
            definitions, others = _definitions_in(file, force)
            chosen += definitions
            skipped += others
        else:
            chosen.append(file)
    found = tuple(_check(one, force) for one in chosen)
    return Validated(
        files=tuple(_as_errors(one) for one in found) if strict else found,
        skipped=tuple(skipped),
    )


def _definitions_in(folder: Path, force: str | None) -> tuple[list[Path], list[str]]:
    """The definitions of a folder, found as `import` finds them, and its other YAML and JSON."""
    report = check_folder(folder, force=force)
    definitions = [Path(one.file) for one in report.files]
    definitions += [Path(one.file) for one in report.skipped if one.code == _UNREADABLE]
    if not definitions:
        raise NotFound(
            f"{folder} contains no definition",
            code="no-definition",
            hint="name a folder with definitions, or the file; `loopwright init` writes one",
        )
    others = [
        one.file for one in report.skipped if one.code in (NOT_A_DEFINITION, "file-too-large")
    ]
    return sorted(definitions), others


def _as_errors(checked: Checked) -> Checked:
    problems = tuple(replace(problem, severity="error") for problem in checked.problems)
    return replace(checked, problems=problems)


def _check(file: Path, force: str | None) -> Checked:
    try:
        read = read_definition(file, force=force)
    except DefinitionError as error:
        problems = tuple(p for p in error.problems if isinstance(p, Diagnostic))
        return Checked(file=str(file), dialect=None, name=None, problems=problems)
    return Checked(
        file=str(file), dialect=read.dialect, name=read.plan.name, problems=read.warnings
    )
