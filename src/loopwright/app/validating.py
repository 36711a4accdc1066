"""Checking definitions without running them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.app.dialects import dialect, read_definition
from loopwright.errors import DefinitionError
from loopwright.syntax.diagnostic import Diagnostic

ENDINGS = (".yaml", ".yml", ".json")


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


def check_files(files: Sequence[Path], force: str | None, *, strict: bool = False) -> list[Checked]:
    """Read every file, and all definitions of a folder; none stops the others. With `strict` a
    warning is an error.
    """
    if force is not None:
        dialect(force)
    found = [_check(one, force) for file in files for one in _files(file)]
    return [_as_errors(one) for one in found] if strict else found


def _files(place: Path) -> list[Path]:
    """The file itself, or what looks like a definition in a folder."""
    if not place.is_dir():
        return [place]
    inside = sorted(file for ending in ENDINGS for file in place.rglob(f"*{ending}"))
    return [file for file in inside if not _is_left_out(file.relative_to(place))] or [place]


def _is_left_out(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts) or is_stub_file(file)


def is_stub_file(file: Path) -> bool:
    """Whether a file holds answers for a dry run of another system, beside its workflows."""
    return file.stem.endswith(".stubs")


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
