"""The dialects by name, how the dialect of a definition is recognised, and packing for a server.

The dialect is recognised by the content of a definition, not by its name. The code of a dialect
is loaded when it is first needed. A definition that is sent to a server is packed with
the files that it names; there only those files count, so both sides read the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from loopwright.agents.files import FileProblem, read_regular
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue
from loopwright.operations.definition_files import (
    BESIDE,
    Places,
    RequestedFile,
    fetch,
    other_kind,
    project_of,
)
from loopwright.syntax.document import Diagnostic, Document, suggest
from loopwright.syntax.readers import read

if TYPE_CHECKING:
    from loopwright.dialects.aldo import events as aldo_events
    from loopwright.dialects.zenflow import events as zenflow_events

Files: TypeAlias = Mapping[str, bytes | FileProblem]


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """The files of a workspace, for a definition that came with a request: folders beside it need
    not be readable for the caller.
    """

    folder: Path


Source: TypeAlias = Path | WorkspaceFiles | Mapping[str, bytes] | None
"""The files that a definition may name: those of a folder, or these, or none."""

NO_VALUES: Mapping[str, JsonValue] = MappingProxyType({})
MAX_BYTES = 262_144
DEEPEST = 32  # files that name files
NAMES = ("native", "rondoflow", "zenflow", "archon", "aldo", "coqui")
ANY_MAPPING = 10
"""How sure the native dialect is of any mapping. A file with no more than that is something else,
unless its folder says what it is.
"""
DEFINITION_FOLDERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "/.archon/workflows/": ("archon", (".yaml", ".yml")),
    "/workspace/loops/": ("coqui", (".json",)),
    "/.loopwright/loops/": ("coqui", (".json",)),
}
"""Folders in which every file with such an ending is a definition of that dialect."""
PART_FOLDERS: Mapping[str, str] = {
    "/.archon/commands/": "command",
    "/.archon/scripts/": "script",
}
"""Folders of files that definitions use by name."""
SYSTEM_FOLDERS = (".archon", ".loopwright", ".zenflow", ".aldo", ".rondoflow", ".coqui")
"""Hidden folders in which systems keep definitions."""
MARKS: Mapping[str, str] = {
    "aldo": r"apiVersion[\"']?\s*:\s*[\"']?aldo-ai/",
    "archon": r"(?m)^nodes\s*:|\"nodes\"\s*:\s*\[",
    "coqui": r"\"termination_condition\"\s*:",
    "rondoflow": r"\"loop(Enabled|Criteria)\"\s*:",
    "zenflow": r"(?m)^steps\s*:(?s:.*)\b(dependsOn|instructions)\s*:",
    "native": r"(?m)^(repeat|goal)\s*:",
}
"""How a text looks that would be of a dialect if it could be read."""
OF_LOOPS = "coqui"
"""The dialect of definitions that are run by their name: those in folders of loops."""
FILLED = ("coqui",)
"""Dialects whose goals have places that inputs fill."""
ONE_AT_A_TIME = ("rondoflow",)
"""Dialects whose definition is one worker: it has at most one run under way."""

PORTABLE = ("archon",)
"""Dialects whose definitions name providers, models and options that a machine may not have."""

ASSISTANTS = "rondoflow"
"""The dialect whose definitions are assistants, which a server keeps and lets loop."""

THEIR_VARIABLES = "RONDOFLOW_"
"""How variables of the environment begin in that system; those about loops count here too."""

WITHOUT_MERGE_KEYS = ("native",)
"""Dialects whose definitions cannot use the merge keys (`<<`) of YAML."""

OFF = ("loop-disabled",)
"""Codes of warnings about definitions that are valid and switched off."""

EXIT_CODES: Mapping[str, Mapping[str, int]] = {
    "zenflow": {"failed": 1, "exhausted": 1, "cancelled": 1, "deadline": 124},
    # A limit is not a failure there; the shared budget of all runs is one.
    "aldo": {"failed": 1, "exhausted": 0, "cancelled": 1, "home_budget": 1},
}
"""Exit codes of the systems that dialects come from, by status, or by reason where it has one."""


class Dialect(Protocol):
    """What a dialect's folder exports."""

    NAME: str

    def recognise(self, value: JsonValue) -> int:
        """How sure a dialect is that a document is its own: 0 means no, larger is surer."""

    def lower(self, document: Document) -> tuple[Plan | None, list[Diagnostic]]:
        """The plan of a document, and everything that was found wrong."""

    def json_schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of the language."""


class ReadsFiles(Protocol):
    """What a dialect exports whose definitions name further files."""

    def requested_files(self, document: Document, files: Files) -> Sequence[RequestedFile]:
        """The files that are needed and not there yet."""

    def lower(self, document: Document, files: Files) -> tuple[Plan | None, list[Diagnostic]]:
        """The plan of a document and its files, and everything that was found wrong."""


class TakesValues(Protocol):
    """What a dialect exports whose definitions have places that are filled before a plan can be
    made of them, and whose goal has such places too.
    """

    def lower(
        self, document: Document, given: Mapping[str, JsonValue]
    ) -> tuple[Plan | None, list[Diagnostic]]:
        """The plan of a document with these values, and everything that was found wrong."""


class HasAssistants(Protocol):
    """What a dialect exports whose documents may have several assistants; an input chooses one."""

    def lower(
        self, document: Document, files: Files, given: Mapping[str, JsonValue]
    ) -> tuple[Plan | None, list[Diagnostic]]:
        """The plan of the assistant that runs, and everything that was found wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDefinition:
    """A definition that was read without an error."""

    plan: Plan
    dialect: str
    digest: str
    file: str
    warnings: tuple[Diagnostic, ...] = ()
    key: str | None = None  # at most one open run has it


def exit_codes(name: str) -> Mapping[str, int]:
    """How the system of a dialect tells the end of a run; nothing where it is not known."""
    return EXIT_CODES.get(name, {})


def rendering(
    plan: Plan, read: Callable[[JsonValue], str]
) -> "aldo_events.Rendering | zenflow_events.Rendering | None":
    """How the dialect of a plan tells a run; None when it has no events of its own."""
    match plan.dialect:
        case "aldo":
            from loopwright.dialects.aldo import events as aldo_events

            return aldo_events.Rendering(plan, read)
        case "zenflow":
            from loopwright.dialects.zenflow import events as zenflow_events

            return zenflow_events.Rendering(plan, read)
    return None


def assistant_key(agent_id: str) -> str:
    """What the loop of an assistant stores, whichever interface started it."""
    return f"{ASSISTANTS}/{agent_id}"


def dialect(name: str) -> Dialect:
    """A dialect by its name; its code is loaded when it is first used."""
    found = _dialect_package(name)
    if found is None:
        near = suggest(name, NAMES)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(NAMES)}"
        raise DefinitionError(f"unknown dialect {name!r} ({hint})")
    return cast(Dialect, found)


def _dialect_package(name: str) -> ModuleType | None:
    match name:
        case "native":
            from loopwright.dialects import native

            return native
        case "rondoflow":
            from loopwright.dialects import rondoflow

            return rondoflow
        case "zenflow":
            from loopwright.dialects import zenflow

            return zenflow
        case "archon":
            from loopwright.dialects import archon

            return archon
        case "aldo":
            from loopwright.dialects import aldo

            return aldo
        case "coqui":
            from loopwright.dialects import coqui

            return coqui
    return None


def definition_bytes(path: Path, shown: str | None = None) -> bytes:
    """A definition as its file contains it."""
    data = read_regular(path, MAX_BYTES)
    if isinstance(data, FileProblem):
        code = "too-large" if data.code == "file-too-large" else data.code
        raise _refused(shown or str(path), code, data.message)
    return data


def read_definition(
    path: Path,
    *,
    shown: str | None = None,
    force: str | None = None,
    given: Mapping[str, JsonValue] = NO_VALUES,
) -> ParsedDefinition:
    """Read a definition from a file."""
    file = shown or str(path)
    folder = path.absolute().parent
    data = definition_bytes(path, shown)
    return parse_definition(data, file=file, force=force, files=folder, given=given)


def parse_definition(
    data: bytes,
    *,
    file: str,
    force: str | None = None,
    files: Source = None,
    given: Mapping[str, JsonValue] = NO_VALUES,
) -> ParsedDefinition:
    """Read a definition from its bytes; every problem is in the one error that is raised. Files
    that it names are looked for in its folder or its project, and nowhere else, or among those that
    came with it. `given` are the inputs, as far as they are known.
    """
    document, found = read(data, file=file, limit=MAX_BYTES, merge_keys=True)
    if document is None:
        raise DefinitionError(f"{file} cannot be read", problems=found)
    kind = None if force else other_kind(document.value)
    if kind is not None:
        problem = document.error("not-a-definition", f"this is {kind.name}", hint=kind.hint)
        raise DefinitionError(f"{file} is {kind.name}, not a definition", problems=[problem])
    name = force or _recognised(document)
    return lower_document(document, found, name=name, files=files, given=given)


def lower_document(
    document: Document,
    found: Sequence[Diagnostic],
    *,
    name: str,
    files: Source = None,
    given: Mapping[str, JsonValue] = NO_VALUES,
) -> ParsedDefinition:
    """The definition of a document that was read with these findings, in a dialect by name."""
    if name in WITHOUT_MERGE_KEYS:
        _refuse_merge_keys(document)
    plan, more = _lowered(dialect(name), document, files, given)
    found = [*found, *more]
    if plan is None or any(problem.severity == "error" for problem in found):
        raise DefinitionError(f"{document.file} is not a valid definition", problems=found)
    return ParsedDefinition(
        plan=plan,
        dialect=name,
        digest=document.digest,
        file=document.file,
        warnings=tuple(found),
        key=_key(name, plan, document.value, given) if name in ONE_AT_A_TIME else None,
    )


def _refuse_merge_keys(document: Document) -> None:
    if "<<" not in document.text:
        return
    again, found = read(document.text.encode(), file=document.file, limit=MAX_BYTES)
    if again is None:
        raise DefinitionError(f"{document.file} cannot be read", problems=found)


def used_files(document: Document, *, name: str, folder: Path) -> list[Path]:
    """The files of its folder or project that a definition uses, directly or through others."""
    language = dialect(name)
    if not hasattr(language, "requested_files"):
        return []
    places = _places(language, folder)
    gathered = _gathered(language, document, folder)
    named = [path for path, data in gathered.items() if isinstance(data, bytes)]
    found = [
        folder / path.removeprefix(BESIDE) if path.startswith(BESIDE) else places.folder / path
        for path in named
        if not path.startswith("~/")
    ]
    return [path for path in found if path.is_file()]


def check_startable(definition: ParsedDefinition) -> None:
    """Refuse a definition that is valid but says itself that it is not to be started."""
    off = [replace(one, severity="error") for one in definition.warnings if one.code in OFF]
    if off:
        raise DefinitionError(f"{definition.file}: {off[0].message}", problems=off)


def named_files(data: bytes, *, file: str, force: str | None, folder: Path) -> Files:
    """The files that a definition names, and what folders hold in which it looks for one that is
    missing. Its problems are reported when it is read.
    """
    document, _ = read(data, file=file, limit=MAX_BYTES, merge_keys=True)
    if document is None:
        return {}
    language = dialect(force or _recognised(document))
    if not hasattr(language, "requested_files"):
        return {}
    optional = {path for path, needed in _ask_languages(language, document) if not needed}
    gathered = _gathered(language, document, folder)
    return {
        path: data
        for path, data in gathered.items()
        if isinstance(data, bytes) or path not in optional
    }


def names_files(data: bytes, *, file: str, force: str | None) -> bool:
    """Whether a definition names files beside itself; none is looked for."""
    document, _ = read(data, file=file, limit=MAX_BYTES, merge_keys=True)
    if document is None:
        return False
    language = dialect(force or _recognised(document))
    if not hasattr(language, "requested_files"):
        return False
    return any(needed for _, needed in _ask_languages(language, document))


def _ask_languages(language: Dialect, document: Document) -> list[tuple[str, bool]]:
    """What a definition asks for as long as nothing was read, and whether it needs to be there."""
    wanted = cast(ReadsFiles, language).requested_files(document, {})
    return [(one.path, not getattr(one, "is_optional", False)) for one in wanted]


def _lowered(
    language: Dialect,
    document: Document,
    files: Source,
    given: Mapping[str, JsonValue] = NO_VALUES,
) -> tuple[Plan | None, list[Diagnostic]]:
    """Lower a document, with the files that it and they name in turn, and with the inputs."""
    if hasattr(language, "assistant_id"):
        beside = _gathered(language, document, files)
        return cast(HasAssistants, language).lower(document, beside, given)
    if hasattr(language, "filled"):
        return cast(TakesValues, language).lower(document, given)
    if not hasattr(language, "requested_files"):
        return language.lower(document)
    return cast(ReadsFiles, language).lower(document, _gathered(language, document, files))


def _gathered(language: Dialect, document: Document, source: Source) -> Files:
    """The files that a document and they name in turn, by the paths that they are asked for by."""
    reading = cast(ReadsFiles, language)
    files: dict[str, bytes | FileProblem] = {}
    places: Places | Mapping[str, bytes] | None
    if isinstance(source, Path):
        places = _places(language, source)
    elif isinstance(source, WorkspaceFiles):
        places = _places(language, source.folder, confined=True)
    else:
        places = source
    for _ in range(DEEPEST):
        missing = [one for one in reading.requested_files(document, files) if one.path not in files]
        if not missing or places is None:
            break
        for one in missing:
            files[one.path] = fetch(places, one)
    return files


def _places(language: Dialect, folder: Path, *, confined: bool = False) -> Places:
    """Where the files are that a definition names: beside it, or, for a dialect that keeps them in
    a folder of its own, in that folder of the project and of the person.
    """
    own: str | None = getattr(language, "PROJECT_FOLDER", None)
    if own is None:
        around = getattr(language, "LOOKS_AROUND", False)
        return Places(folder, around=around, confined=confined)
    return Places(project_of(folder, own), own=own, home=Path.home(), beside=folder)


def filled(name: str, text: str, values: Mapping[str, JsonValue]) -> str:
    """The goal of a run with the inputs that it speaks of, in dialects that fill them in."""
    if name not in FILLED:
        return text
    from loopwright.dialects import coqui

    return coqui.filled(text, values)


def stage_turns(name: str) -> tuple[int, int] | None:
    """How many turns a stage has whose role does not say it, and how many at most; None for a
    dialect without such numbers.
    """
    from loopwright.dialects import coqui

    return coqui.STAGE_TURNS if name == OF_LOOPS else None


def _key(name: str, plan: Plan, value: JsonValue, given: Mapping[str, JsonValue]) -> str:
    """What names the worker of a definition: its id, else what it is called."""
    from loopwright.dialects import rondoflow

    own = rondoflow.assistant_id(value, given)
    return f"{name}/{own or plan.name}"


def recognise(value: JsonValue) -> str:
    """The dialect whose own words a document uses most; the native one when none is sure."""
    best, score = _best_match(value)
    return best if score > 0 else "native"


def _best_match(value: JsonValue) -> tuple[str, int]:
    scores: Mapping[str, int] = {name: int(dialect(name).recognise(value)) for name in NAMES}
    best = max(NAMES, key=lambda name: scores[name])
    return best, scores[best]


def _recognised(document: Document) -> str:
    """The dialect of a document: by its words, and where they say nothing, by its folder."""
    _, score = _best_match(document.value)
    expected = expected_dialect(PurePath(document.file)) if score <= ANY_MAPPING else None
    return expected or recognise(document.value)


def recognise_file(value: JsonValue, path: PurePath) -> str | None:
    """The dialect of a file that may be something else: by its own words, or by the folder in
    which a system keeps its definitions. None if it is not a definition.
    """
    best, score = _best_match(value)
    expected = expected_dialect(path)
    if score > ANY_MAPPING and (best != "native" or expected or _uses_native_words(value)):
        return best
    if expected is not None:
        return expected
    steps = value.get("steps") if isinstance(value, dict) else None
    if not isinstance(steps, list) or not steps:
        return None
    return "native" if all(isinstance(one, dict) and "id" in one for one in steps) else None


def _uses_native_words(value: JsonValue) -> bool:
    """Whether most keys of a document are words of native definitions, which are common ones."""
    return isinstance(value, dict) and 2 * len(value.keys() & _native_words()) > len(value)


@cache
def _native_words() -> frozenset[str]:
    known = dialect("native").json_schema().get("properties")
    return frozenset(known) if isinstance(known, dict) else frozenset()


def expected_dialect(path: PurePath) -> str | None:
    """The dialect that a file must have because of the folder that it is in."""
    folder = f"/{path.parent.as_posix()}/"
    kept = DEFINITION_FOLDERS.items()
    return next((n for part, (n, ending) in kept if part in folder and path.suffix in ending), None)


def expected_part(path: PurePath) -> str | None:
    """What a file of a project is that definitions use by name, because of its folder."""
    folder = f"/{path.parent.as_posix()}/"
    return next((what for part, what in PART_FOLDERS.items() if part in folder), None)


def _refused(file: str, code: str, message: str) -> DefinitionError:
    problem = Diagnostic(file=file, line=1, column=1, code=code, message=message)
    return DefinitionError(f"{file}: {message}", problems=[problem])


MOST_FILES = 200
MOST_BYTES = 1_000_000
_HERE = "start it on that machine"


def packed(
    definition: bytes, *, file: str, dialect: str | None, folder: Path
) -> dict[str, str] | None:
    """The files that a definition names; None if it names none. One that cannot be read is reported
    here, unless it is not needed.
    """
    named = named_files(definition, file=file, force=dialect, folder=folder)
    if not named:
        return None
    found = {path: data for path, data in named.items() if isinstance(data, bytes)}
    if len(found) < len(named):
        parse_definition(definition, file=file, force=dialect, files=folder)
    size = sum(map(len, found.values()))
    if len(found) > MOST_FILES or size > MOST_BYTES:
        raise LoopwrightError(
            f"{file} names {len(found)} files with {size:,} bytes: at most {MOST_FILES} with "
            f"{MOST_BYTES:,} are sent",
            code="too-large",
            hint=_HERE,
        )
    return {path: _text(path, data) for path, data in found.items()}


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LoopwrightError(
            f"{path} is not UTF-8 at byte offset {error.start}", code="encoding", hint=_HERE
        ) from error
