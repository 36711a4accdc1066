"""Definitions that are run by name: of the project, of the user, and built in; files for `init`.

The nearest wins: `.loopwright/loops/` and `workspace/loops/` of the project, then `loops/` of
the data directory, then the built-in ones. An invalid file is listed with its errors, and
nothing else is run under its name. Deleting it reveals the file that it hid. A run under way
keeps the definition it was started with. `init` writes a commented definition, scripted answers
and the schema.
"""

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from loopwright.agents.files import FileProblem, read_regular
from loopwright.dialects.coqui import BUILTIN, described
from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotFound
from loopwright.model.record import JsonValue
from loopwright.operations.definition_checks import ENDINGS
from loopwright.operations.definition_files import project_folders
from loopwright.operations.dialects import (
    MAX_BYTES,
    NO_VALUES,
    OF_LOOPS,
    ParsedDefinition,
    dialect,
    parse_definition,
)
from loopwright.operations.settings_files import unusable
from loopwright.syntax.document import Diagnostic, suggest
from loopwright.syntax.readers import read

Source: TypeAlias = Literal["project", "user", "builtin"]

FOLDER = "loops"
ENDING = ".json"
NEW = "*"
"""Instead of a version: there must be none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryEntry:
    """A definition as a list shows it. One with problems cannot be run."""

    name: str
    source: Source
    file: str
    data: bytes
    version: str
    about: Mapping[str, JsonValue]
    problems: tuple[Diagnostic, ...] = ()
    hides: tuple[Source, ...] = ()  # where there are others of its name

    @property
    def is_valid(self) -> bool:
        return not any(one.severity == "error" for one in self.problems)

    @property
    def chain(self) -> str:
        """Its roles in their order."""
        stages = self.about.get("roles")
        listed = stages if isinstance(stages, list) else []
        return " → ".join(str(one["role"]) for one in listed if isinstance(one, dict))

    @property
    def termination(self) -> str:
        """What ends it, by its kind."""
        found = self.about.get("termination")
        return str(found["type"]) if isinstance(found, dict) else ""

    @property
    def parameter_names(self) -> set[str]:
        return {str(one["name"]) for one in self._parameters()}

    @property
    def required_parameters(self) -> list[str]:
        return [str(one["name"]) for one in self._parameters() if one.get("required")]

    def _parameters(self) -> list[dict[str, JsonValue]]:
        declared = self.about.get("parameters")
        listed = declared if isinstance(declared, list) else []
        return [one for one in listed if isinstance(one, dict)]

    def as_dict(self) -> dict[str, JsonValue]:
        return {
            **self.about,
            "name": self.name,
            "source": self.source,
            "builtin": self.source == "builtin",
            "file": self.file,
            "version": self.version,
            "valid": self.is_valid,
            "problems": [dict(one.as_dict()) for one in self.problems],
            "hides": list(self.hides),
        }


@dataclass(frozen=True, slots=True)
class DefinitionLibrary:
    """All definitions that have a name here."""

    home: Path
    cwd: Path

    @property
    def folders(self) -> dict[Source, list[Path]]:
        """Where a person writes definitions, the nearest first."""
        return {"project": project_folders(self.cwd, FOLDER), "user": [self.home / FOLDER]}

    def all(self) -> list[LibraryEntry]:
        """Every definition by name, the nearest of each name, and every file that is wrong."""
        found: dict[str, LibraryEntry] = {}
        wrong: list[LibraryEntry] = []
        hidden: dict[str, list[Source]] = {}
        for one in self._each():
            if one.name in found:
                hidden.setdefault(one.name, []).append(one.source)
                if not one.is_valid:
                    wrong.append(one)
            else:
                found[one.name] = one
        listed = [_hiding(one, hidden.get(name, [])) for name, one in found.items()]
        return sorted([*listed, *wrong], key=lambda one: one.name)

    def names(self) -> list[str]:
        """What can be run by its name."""
        return [one.name for one in self.all() if one.is_valid]

    def find(self, name: str) -> LibraryEntry | None:
        """The nearest definition of this name."""
        return next((one for one in self.all() if one.name == name), None)

    def get(self, name: str) -> LibraryEntry:
        """The same; NotFound names those that there are."""
        found = self.find(name)
        if found is None:
            names = self.names()
            near = suggest(name, names)
            known = f"there are {', '.join(names)}"
            hint = f"did you mean {near}? {known}" if near else known
            raise NotFound(f"no definition {name!r}", code="unknown-definition", hint=hint)
        return found

    def read(self, name: str, given: Mapping[str, JsonValue] = NO_VALUES) -> ParsedDefinition:
        """A definition, to be run with these parameters."""
        found = self.get(name)
        return parse_definition(found.data, file=found.file, force=OF_LOOPS, given=given)

    def builtin(self, name: str) -> LibraryEntry | None:
        """What is shipped under this name."""
        return next((one for one in _shipped() if one.name == name), None)

    def difference(self, name: str) -> str:
        """How a definition differs from the built-in one of its name; nothing if it does not."""
        mine, shipped = self.get(name), self.builtin(name)
        if shipped is None:
            hint = f"built in are {', '.join(one.name for one in _shipped())}"
            raise NotFound(f"nothing is built in that is called {name!r}", hint=hint)
        lines = unified_diff(
            shipped.data.decode().splitlines(keepends=True),
            mine.data.decode(errors="replace").splitlines(keepends=True),
            fromfile=f"{name} (built in)",
            tofile=mine.file,
        )
        return "".join(lines)

    # -- writing ---------------------------------------------------------------------------------

    def save(
        self, name: str, data: bytes, *, expected: str, noted: Callable[[], None] = lambda: None
    ) -> tuple[LibraryEntry, bool]:
        """Write a definition of the person's own; returns whether it is new. `expected` is the
        version it replaces, or `*` for none: a client that has seen another version has to read it
        again. `noted` is called when nothing prevents it, before it is written: a file and a record
        cannot change in one transaction, and no change may be without its record.
        """
        made = parse_definition(data, file=name, force=OF_LOOPS)
        if made.plan.name != name:
            message = f"the definition is called {made.plan.name!r}, and not {name!r}"
            raise LoopwrightError(message, code="bad-name", hint="give both the same name")
        known = next((one for one in self._in("user") if one.name == name), None)
        _check_version(name, known, expected)
        own = self.folders["user"][0] / f"{name}{ENDING}"
        place = Path(known.file) if known is not None else own
        noted()
        _write(place, data)
        return self.get(name), known is None

    def delete(
        self, name: str, *, expected: str | None = None, noted: Callable[[], None] = lambda: None
    ) -> None:
        """Delete a definition of the person's own; what it hid is back then."""
        known = next((one for one in self._in("user") if one.name == name), None)
        if known is None:
            self.get(name)
            message = f"{name} is not yours to delete"
            raise Conflict(message, code="not-yours", hint="only files in your own folder are")
        if expected is not None:
            _check_version(name, known, expected)
        noted()
        try:
            Path(known.file).unlink(missing_ok=True)
        except OSError as error:
            raise unusable(Path(known.file).parent, error) from error

    # -- reading ---------------------------------------------------------------------------------

    def _each(self) -> Iterator[LibraryEntry]:
        """All of them, the nearest first."""
        yield from self._in("project")
        yield from self._in("user")
        yield from _shipped()

    def _in(self, source: Source) -> list[LibraryEntry]:
        """The definitions of folders, the nearest first; of two with one name in the same folder,
        the second is wrong.
        """
        return [one for folder in self.folders[source] for one in _in_folder(folder, source)]


def _in_folder(folder: Path, source: Source) -> list[LibraryEntry]:
    listed: list[LibraryEntry] = []
    for place in sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else ():
        if place.name.startswith("."):
            continue
        found = _listed(place, source)
        twice = next((one for one in listed if one.name == found.name), None)
        listed.append(_twice(found, twice) if twice is not None else found)
    return listed


def _write(place: Path, data: bytes) -> None:
    """Write beside the place, then move there: all of it is there, or what was there before."""
    draft = place.with_name(f".{place.name}.new")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise unusable(place.parent, error) from error


def _check_version(name: str, known: LibraryEntry | None, expected: str) -> None:
    if expected == NEW:
        if known is not None:
            raise Conflict(f"{name} exists", code="version-conflict", hint=f"it is {known.version}")
        return
    if known is None:
        raise NotFound(f"{name} is not there to be replaced", code="unknown-definition")
    if known.version != expected:
        message = f"{name} has changed: it is {known.version}, and not {expected}"
        raise Conflict(message, code="version-conflict", hint="read it again")


def _hiding(listed: LibraryEntry, hides: list[Source]) -> LibraryEntry:
    return _with(listed, hides=tuple(hides)) if hides else listed


def _with(listed: LibraryEntry, **changes: object) -> LibraryEntry:
    fields = {name: getattr(listed, name) for name in LibraryEntry.__slots__}
    return LibraryEntry(**{**fields, **changes})


def _twice(listed: LibraryEntry, first: LibraryEntry) -> LibraryEntry:
    message = f"{first.file} has the name {listed.name} too"
    problem = Diagnostic(
        file=listed.file, line=1, column=1, code="bad-id", message=message, hint="rename one"
    )
    return _with(listed, problems=(*listed.problems, problem))


def _listed(place: Path, source: Source) -> LibraryEntry:
    data = read_regular(place, MAX_BYTES)
    if isinstance(data, FileProblem):
        problem = Diagnostic(
            file=str(place), line=1, column=1, code=data.code, message=data.message
        )
        return LibraryEntry(
            name=place.stem,
            source=source,
            file=str(place),
            data=b"",
            version="",
            about={},
            problems=(problem,),
        )
    return _of(data, name=place.stem, source=source, file=str(place))


def _of(data: bytes, *, name: str, source: Source, file: str) -> LibraryEntry:
    document, found = read(data, file=file, limit=MAX_BYTES)
    version, about = "", dict[str, JsonValue]()
    if document is not None:
        version, about = document.digest[:16], described(document.value)
        found = _problems(data, file)
    written = about.get("name")
    is_valid = not any(one.severity == "error" for one in found)
    return LibraryEntry(
        name=written if is_valid and isinstance(written, str) else name,
        source=source,
        file=file,
        data=data,
        version=version,
        about=about,
        problems=tuple(found),
    )


def _problems(data: bytes, file: str) -> list[Diagnostic]:
    try:
        return list(parse_definition(data, file=file, force=OF_LOOPS).warnings)
    except DefinitionError as error:
        return [one for one in error.problems if isinstance(one, Diagnostic)]


def _shipped() -> list[LibraryEntry]:
    """What is built in."""
    folder = files(f"loopwright.dialects.{OF_LOOPS}").joinpath(BUILTIN)
    places = sorted(folder.iterdir(), key=lambda place: place.name)
    return [
        _of(
            place.read_bytes(),
            name=place.name.removesuffix(ENDING),
            source="builtin",
            file=f"(built in) {place.name}",
        )
        for place in places
    ]


DEFINITION = "loop.yaml"
REPLIES = "replies.yaml"
SCHEMA = "loop.schema.json"

_PLAIN = re.compile(r"[\w./:-]+")  # needs no quotes in YAML
_DEFINITION_TEXT = """\
# yaml-language-server: $schema=./loop.schema.json
#
# A loop: one agent, the same goal, again and again until the checks pass.
# Run it:      loopwright run loop.yaml
# Check it:    loopwright validate loop.yaml

name: haiku

# What runs the agent. This one reads its answers from a file, so nothing has to be
# installed. A program of yours reads the prompt from stdin and answers on stdout:
#   agent: command:./my-agent
agent: script:replies.yaml

# What the agent is asked. A message on the command line takes its place:
#   loopwright run loop.yaml "Write about the sea"
goal: |
  Write a haiku about loops, three lines, with the word "again" in it.
  When you are content with it, put DONE alone on the last line.

repeat:
  # Never more passes than this. When they are used up, the run ends as exhausted (exit code 4).
  max: 5

  # The run is done when all of these hold in the same pass. Other checks: {contains: text},
  # {command: [pytest, -q]} (a program that succeeds), {judge: {prompt: Is it good?}} (an agent
  # says so), {person: true} (a person approves).
  until:
    all:
      - signal: DONE
      - regex: '(?i)again'

  # What an iteration learns from earlier ones: progress-log, previous-output, session or none.
  memory: progress-log

# Whatever is used up first ends the run.
budget:
  time: 10m
"""

_REPLIES_TEXT = """\
# The answers of a scripted agent, used one after the other. `loop.yaml` names this file.
replies:
  - text: |
      The wheel turns once more
      nothing learned and nothing lost
      it stops at the end
    usage: {input_tokens: 120, output_tokens: 30, usd: 0.0005}
  - text: |
      The wheel turns again
      what failed is written in chalk
      a small line is straight

      DONE
    usage: {input_tokens: 210, output_tokens: 34, usd: 0.0008}
"""


@dataclass(frozen=True, slots=True)
class InitFiles:
    """What is written where. The answers are those of one definition, the schema fits all."""

    folder: Path
    definition: str = DEFINITION

    @property
    def replies(self) -> str:
        return REPLIES if self.definition == DEFINITION else f"{_stem(self.definition)}.{REPLIES}"

    def texts(self) -> dict[str, str]:
        """Each file and what it says, the definition first."""
        text = _DEFINITION_TEXT.replace(DEFINITION, shlex.quote(self.definition))
        agent = f"script:{self.replies}"
        return {
            self.definition: text.replace(
                f"script:{REPLIES}", agent if _PLAIN.fullmatch(agent) else json.dumps(agent)
            ),
            self.replies: _REPLIES_TEXT.replace(DEFINITION, self.definition),
            SCHEMA: json.dumps(dialect("native").json_schema(), indent=2) + "\n",
        }


def names_for(place: str) -> InitFiles:
    """What a person means who names a place: a folder, or a definition by its ending."""
    path = Path(place)
    if not place.strip() or not place.isprintable():
        hint = "name a folder, or a file that ends in .yaml"
        raise LoopwrightError(f"{place!r} cannot be written", code="bad-name", hint=hint)
    if path.suffix.lower() not in ENDINGS or path.is_dir():
        return InitFiles(path)
    if path.suffix.lower() == ".json":
        raise LoopwrightError(
            f"{place} cannot be written: JSON has no comments",
            code="bad-name",
            hint=f"name it {path.with_suffix('.yaml')}",
        )
    return InitFiles(path.parent, path.name)


def write_files(names: InitFiles, *, force: bool = False) -> list[Path]:
    """Write the files into a folder; nothing is overwritten unless that is asked for."""
    folder, texts = names.folder, names.texts()
    taken = [name for name, text in texts.items() if _is_taken(folder / name, text)]
    if taken and not force:
        raise Conflict(
            f"{', '.join(taken)} in {folder} would be overwritten",
            code="exists",
            hint="name another place, or give --force",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoopwrightError(
            f"{folder} cannot be written: {(error.strerror or str(error)).lower()}",
            code="cannot-write",
            hint="name another folder",
        ) from error
    return [folder / name for name in texts]


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _is_taken(file: Path, text: str) -> bool:
    """Whether there is something that would be lost; the schema may be there from another time."""
    if file.is_symlink():
        return True
    try:
        return file.exists() and (file.name != SCHEMA or file.read_text(encoding="utf-8") != text)
    except (OSError, UnicodeDecodeError):
        return True
