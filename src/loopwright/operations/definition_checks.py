"""Check, import and convert definition files without running them.

The import check covers a folder of other systems' files: they are recognised by content or by
their folder, and checked as for a run. Files that are not definitions are listed with the
reason. Conversion writes the native dialect as YAML that reads back to the same plan.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import yaml

from loopwright.agents.files import FileProblem, read_regular
from loopwright.dialects.native.export import NotExpressible, export
from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotFound
from loopwright.model.plan import Plan, unplaced
from loopwright.model.record import JsonValue
from loopwright.operations.agents.roles import bind_roles, find_roles
from loopwright.operations.definition_files import CODE as NOT_A_DEFINITION
from loopwright.operations.definition_files import other_kind
from loopwright.operations.dialects import (
    MARKS,
    MAX_BYTES,
    OFF,
    SYSTEM_FOLDERS,
    ParsedDefinition,
    dialect,
    expected_dialect,
    expected_part,
    lower_document,
    parse_definition,
    read_definition,
    recognise_file,
    used_files,
)
from loopwright.operations.preflight import missing_programs
from loopwright.syntax.document import Diagnostic, Document
from loopwright.syntax.readers import read

Result: TypeAlias = Literal["runs", "warnings", "refused"]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many files were checked, and how many there are."""

ENDINGS = (".yaml", ".yml", ".json")
LEFT_OUT = ("node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target")
"""Folders of tools and of installed packages: they are not searched."""
OTHER_FILES = (
    *("package.json", "package-lock.json", "tsconfig.json", "composer.json", "pnpm-lock.yaml"),
    *("docker-compose.yml", "docker-compose.yaml", "compose.yaml", "compose.yml"),
)
"""Files of other tools, which may use the words of a definition."""
MAX_FILES = 100_000
_PART = "part"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A definition and what was found in it."""

    file: str
    dialect: str | None
    name: str | None = None
    problems: tuple[Diagnostic, ...] = ()
    needs_agent: bool = False  # it names no agent of its own for some step
    needs_max: bool = False  # looping is off in it, so it runs only with `run --max N`
    used_by: tuple[str, ...] = ()

    @property
    def result(self) -> Result:
        if any(one.severity == "error" for one in self.problems):
            return "refused"
        return "warnings" if self.problems else "runs"

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "result": self.result,
            "dialect": self.dialect,
            "name": self.name,
            "messages": [{**one.as_dict(), "severity": one.severity} for one in self.problems],
            "needs_agent": self.needs_agent,
            "needs_max": self.needs_max,
            "used_by": list(self.used_by),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """A file that is not checked by itself, and why."""

    file: str
    code: str
    reason: str

    def as_dict(self) -> dict[str, object]:
        return {"file": self.file, "code": self.code, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What was found in a folder."""

    folder: str
    files: tuple[CheckedFile, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def totals(self) -> dict[str, int]:
        counts = Counter(one.result for one in self.files)
        return {
            "definitions": len(self.files),
            "runs": counts["runs"],
            "warnings": counts["warnings"],
            "refused": counts["refused"],
            "skipped": len(self.skipped),
        }

    @property
    def dialects(self) -> dict[str, dict[str, int]]:
        """The totals of each dialect."""
        found: dict[str, Counter[str]] = {}
        for one in self.files:
            found.setdefault(one.dialect or "unknown", Counter())[one.result] += 1
        results = ("runs", "warnings", "refused")
        return {name: {r: found[name][r] for r in results} for name in sorted(found)}

    @property
    def codes(self) -> dict[str, int]:
        """In how many files each code of a message occurs, the most frequent first."""
        counts = Counter(code for one in self.files for code in {p.code for p in one.problems})
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def as_dict(self) -> dict[str, object]:
        return {
            "folder": self.folder,
            "files": [one.as_dict() for one in self.files],
            "skipped": [one.as_dict() for one in self.skipped],
            "totals": self.totals,
            "dialects": self.dialects,
            "codes": self.codes,
        }


def check_folder(
    folder: Path,
    *,
    force: str | None = None,
    home: Path | None = None,
    progress: Progress = lambda _done, _all: None,
) -> ImportReport:
    """Check every file of a folder and of the folders in it, or one file. Roles are those of the
    data directory `home` and of the project of each file.
    """
    if force is not None:
        dialect(force)
    if not folder.exists():
        raise NotFound(f"no folder {str(folder)!r}", code="no-folder", hint="name an existing one")
    check = _FolderCheck(folder, force, home)
    paths = list(_walk(folder, check))
    for number, path in enumerate(paths, start=1):
        check.add(path)
        progress(number, len(paths))
    return check.report()


def _walk(folder: Path, check: "_FolderCheck") -> Iterator[Path]:
    """The files to look at, in order; links to folders are not followed."""
    if not folder.is_dir():
        yield folder
        return
    seen = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if check.is_searched(Path(place), name))
        for name in sorted(files):
            seen += 1
            if seen > MAX_FILES:
                raise LoopwrightError(
                    f"{folder} has more than {MAX_FILES} files",
                    code="too-many-files",
                    hint="name a folder in it that holds the definitions",
                )
            yield Path(place) / name


def _is_in_system_folder(place: Path) -> bool:
    """Whether a folder is one in which a system keeps definitions; a name there is the person's."""
    return any(part in SYSTEM_FOLDERS for part in place.parts)


@dataclass(slots=True)
class _FolderCheck:
    """The files of a folder as far as they were checked."""

    root: Path
    force: str | None
    home: Path | None = None
    checked: dict[Path, CheckedFile] = field(default_factory=dict)
    skipped: dict[Path, SkippedFile] = field(default_factory=dict)
    users: dict[Path, list[str]] = field(default_factory=dict)  # by the file that is used

    def is_searched(self, place: Path, name: str) -> bool:
        """Whether a folder is searched; if not, that is noted."""
        path = place / name
        if path.is_symlink():
            self._skip(path, "link", "link to a folder; links are not followed")
        elif name in LEFT_OUT and not _is_in_system_folder(place):
            self._skip(path, "folder-of-tools", "folder of installed packages or build results")
        elif name.startswith(".") and name not in SYSTEM_FOLDERS:
            self._skip(path, "hidden", "hidden folder")
        else:
            return True
        return False

    def add(self, path: Path) -> None:
        """Check one file."""
        part = expected_part(path.absolute())
        if part is not None:
            self._skip(path, _PART, f"{part} that workflows use by name")
        elif path.suffix.lower() not in ENDINGS:
            self._skip(path, "other-ending", "not a YAML or JSON file")
        elif path.name.startswith("."):
            self._skip(path, "hidden", "hidden file")
        elif path.name in OTHER_FILES or _is_stub_file(path):
            self._skip(path, NOT_A_DEFINITION, "file of another tool")
        else:
            self._read(path)

    def _read(self, path: Path) -> None:
        expected = self.force or expected_dialect(path.absolute())
        if path.is_symlink() and not _stays_inside(path, self.root):
            self._skip(path, "link", "link to a file outside of the folder")
            return
        data = read_regular(path, MAX_BYTES)
        if isinstance(data, FileProblem):
            if expected is None and data.code == "file-too-large":
                self._skip(path, data.code, f"not a definition: {data.message}")
            else:
                self._refuse(path, expected, [_problem(path, data.code, data.message)])
            return
        document, found = read(data, file=str(path), limit=MAX_BYTES, merge_keys=True)
        if document is None:
            guessed = expected or _marked(data)
            if guessed is None:
                self._skip(path, "unreadable", f"not a definition: {found[0].message}")
            else:
                self._refuse(path, guessed, found)
            return
        kind = None if expected else other_kind(document.value)
        name = self.force or recognise_file(document.value, path.absolute())
        if kind is not None:
            self._skip(path, NOT_A_DEFINITION, f"{kind.name}, not a definition; {kind.hint}")
        elif name is None:
            self._skip(path, NOT_A_DEFINITION, "no dialect recognises it as a definition")
        else:
            self._lower(path, document, found, name)

    def _lower(self, path: Path, document: Document, found: list[Diagnostic], name: str) -> None:
        folder = path.absolute().parent
        for used in used_files(document, name=name, folder=folder):
            self.users.setdefault(_real(used), []).append(str(path))
        try:
            read = lower_document(document, found, name=name, files=folder)
        except DefinitionError as error:
            self._refuse(path, name, [p for p in error.problems if isinstance(p, Diagnostic)])
            return
        self.checked[path] = CheckedFile(
            file=str(path),
            dialect=name,
            name=read.plan.name,
            problems=(
                *read.warnings,
                *_role_problems(path, read, self.home),
                *_missing_here(path, read),
            ),
            needs_agent=any(not agent.spec for agent in read.plan.agents.values()),
            needs_max=any(one.code in OFF for one in read.warnings),
        )

    def _refuse(self, path: Path, name: str | None, problems: Sequence[Diagnostic]) -> None:
        self.checked[path] = CheckedFile(file=str(path), dialect=name, problems=tuple(problems))

    def _skip(self, path: Path, code: str, reason: str) -> None:
        self.skipped[path] = SkippedFile(file=str(path), code=code, reason=reason)

    def report(self) -> ImportReport:
        """All of it. A file that only makes sense as a part of others that run is not refused."""
        for path, one in list(self.checked.items()):
            users = [user for user in self.users.get(_real(path), []) if user != str(path)]
            if users and one.result == "refused" and all(self._is_good(user) for user in users):
                del self.checked[path]
                self._skip(path, _PART, f"part of {users[0]}, with which it was checked")
            elif users:
                self.checked[path] = replace(one, used_by=tuple(users))
        for path, skipped in self.skipped.items():
            users = self.users.get(_real(path), [])
            if users and skipped.code != _PART:
                reason = f"part of {users[0]}, with which it was checked"
                self.skipped[path] = replace(skipped, code=_PART, reason=reason)
        return ImportReport(
            folder=str(self.root),
            files=tuple(self.checked[path] for path in sorted(self.checked)),
            skipped=tuple(self.skipped[path] for path in sorted(self.skipped)),
        )

    def _is_good(self, file: str) -> bool:
        found = self.checked.get(Path(file))
        return found is not None and found.result != "refused"


def _is_stub_file(file: Path) -> bool:
    """Whether a file holds answers for a dry run of another system, beside its workflows."""
    return file.stem.endswith(".stubs")


def _stays_inside(path: Path, root: Path) -> bool:
    return _real(path).is_relative_to(_real(root))


def _real(path: Path) -> Path:
    """The file that a path leads to; of links in a circle, one of them (`resolve` raises then)."""
    return Path(os.path.realpath(path))


def _marked(data: bytes) -> str | None:
    """The dialect of a text that cannot be read but looks like a definition."""
    text = data.decode("utf-8", "replace")
    return next((name for name, mark in MARKS.items() if re.search(mark, text)), None)


def _missing_here(path: Path, definition: ParsedDefinition) -> Iterator[Diagnostic]:
    """What a run of the definition would miss on this machine."""
    for what in missing_programs(definition.plan, path.absolute().parent):
        yield _problem(path, "no-program", what, severity="warning")


def _role_problems(
    path: Path, definition: ParsedDefinition, home: Path | None
) -> Iterator[Diagnostic]:
    """The role that a run of the definition would refuse."""
    if not any(agent.role for agent in definition.plan.agents.values()):
        return
    try:
        bind_roles(definition.plan, find_roles(home, path.absolute().parent))
    except LoopwrightError as error:
        yield _problem(path, error.code, error.message, hint=error.hint)


def _problem(
    path: Path,
    code: str,
    message: str,
    *,
    severity: Literal["error", "warning"] = "error",
    hint: str | None = None,
) -> Diagnostic:
    return Diagnostic(str(path), 1, 1, code, message, hint, severity=severity)


_UNREADABLE = "unreadable"
"""Files that `import` skips but that are errors here: a definition with a mistake in its YAML must
not pass a check.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionCheck:
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

    files: tuple[DefinitionCheck, ...]
    skipped: tuple[str, ...] = ()


def check_files(
    files: Sequence[Path], force: str | None, *, strict: bool = False, home: Path | None = None
) -> Validated:
    """Read every file, and all definitions of a folder; none stops the others. With `strict` a
    warning is an error. `home` is the data directory, where a person keeps roles.
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
    found = tuple(_check(one, force, home) for one in chosen)
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


def _as_errors(checked: DefinitionCheck) -> DefinitionCheck:
    problems = tuple(replace(problem, severity="error") for problem in checked.problems)
    return replace(checked, problems=problems)


def _check(file: Path, force: str | None, home: Path | None) -> DefinitionCheck:
    try:
        read = read_definition(file, force=force)
    except DefinitionError as error:
        problems = tuple(p for p in error.problems if isinstance(p, Diagnostic))
        return DefinitionCheck(file=str(file), dialect=None, name=None, problems=problems)
    problems = (*read.warnings, *_role_problems(file, read, home))
    return DefinitionCheck(
        file=str(file), dialect=read.dialect, name=read.plan.name, problems=problems
    )


CONVERTED = "(converted)"


class _Dumper(yaml.SafeDumper):
    """Block style; texts of several lines stay readable, and nothing is an alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def native_text(definition: ParsedDefinition) -> str:
    """The definition as native YAML, or as JSON (which is YAML) where YAML would read otherwise.

    What is given back was read again and gave the same plan; anything else is an error that names
    what native YAML cannot express.
    """
    try:
        value: JsonValue = export(definition.plan)
    except NotExpressible as error:
        raise _refused(definition.file, error.message) from error
    written = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    problem = ""
    for text in (written, json.dumps(value, indent=2, ensure_ascii=False) + "\n"):
        problem = _conversion_problem(text, definition.plan)
        if not problem:
            return text
    raise _refused(definition.file, problem)


def _refused(file: str, why: str) -> LoopwrightError:
    return LoopwrightError(
        f"{file} cannot be converted: {why}",
        code="not-expressible",
        hint=f"change it there, or use `loopwright run {file}`, which needs no conversion",
    )


def _conversion_problem(text: str, plan: Plan) -> str:
    """Why a text does not say what the plan says; nothing if it does."""
    try:
        again = parse_definition(text.encode(), file=CONVERTED, force="native")
    except DefinitionError as error:
        first = next((one for one in error.problems if isinstance(one, Diagnostic)), None)
        return first.message if first else error.message
    return "" if again.plan == unplaced(plan) else "the native definition would mean something else"


def convert_file(
    file: Path, *, dialect: str | None, target: Path | None, force: bool
) -> tuple[ParsedDefinition, str]:
    """Convert a file, and write the result where that is asked for; nothing is overwritten."""
    definition = read_definition(file, force=dialect)
    text = native_text(definition)
    if target is not None:
        _write(target, text, force=force)
    return definition, text


def _write(target: Path, text: str, *, force: bool) -> None:
    try:
        with target.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise Conflict(f"{target} exists", code="exists", hint="give --force") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LoopwrightError(
            f"{target} cannot be written: {reason}", code="cannot-write", hint="name another file"
        ) from error
