"""Checking definitions without running them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwright.app.dialects import dialect, read_definition
from loopwright.errors import DefinitionError
from loopwright.syntax import Diagnostic


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


def check_files(files: Sequence[Path], force: str | None) -> list[Checked]:
    """Read every file; none stops the others."""
    if force is not None:
        dialect(force)
    return [_check(file, force) for file in files]


def _check(file: Path, force: str | None) -> Checked:
    try:
        read = read_definition(file, force=force)
    except DefinitionError as error:
        problems = tuple(p for p in error.problems if isinstance(p, Diagnostic))
        return Checked(file=str(file), dialect=None, name=None, problems=problems)
    return Checked(
        file=str(file), dialect=read.dialect, name=read.plan.name, problems=read.warnings
    )
