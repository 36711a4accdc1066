"""Files that a definition names, and files of other systems that are not definitions.

Dialects must not read files themselves. A path is relative to one folder and cannot leave it.
`~/` means the user's home, where only the dialect's own folder is read; `@/` means the folder
of the definition; `@around/` means the folder above, for dialects whose definitions name each
other. If files were sent with the definition, only those are used.

Files of other systems that contain words of a definition (`agent`, `nodes`) are recognised,
because a dialect would otherwise claim them and report errors about a file that was never meant
to run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from loopwright.agents.files import FileProblem, leads_out, names_beneath, read_beneath
from loopwright.errors import InputError
from loopwright.model.record import JsonValue
from loopwright.syntax.document import check_text

_PERSONS = "~/"
_HERE = "@here"
_AROUND = "@around"
BESIDE = "@/"
"""How a path begins that counts from the folder of the definition."""
_REPOSITORY = ".git"
_NO_NAMES = {"", ".", ".."}
_ABSENT = "no such file or directory"


class RequestedFile(Protocol):
    """A file to read, or a folder whose names are asked for."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def limit(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Places:
    """Where files are looked for."""

    folder: Path
    own: str | None = None
    home: Path | None = None
    around: bool = False  # also in the folders beside it
    confined: bool = False  # but in none outside of it
    beside: Path | None = None  # the folder of the definition


def project_of(folder: Path, own: str, *, holding: str = "") -> Path:
    """The project that a folder belongs to: the nearest one around it that has the dialect's own
    folder (with `holding` in it), but none outside of its repository; without one, the folder
    itself.
    """
    for place in (folder, *folder.parents):
        if place.name == own and (place / holding).is_dir():
            return place.parent
        if (place / own / holding).is_dir():
            return place
        if (place / _REPOSITORY).exists():
            break
    return folder


OWN_FOLDER = ".loopwright"
FOREIGN_FOLDERS = ("workspace", ".workspace")
"""How the system that loops of roles come from calls its folder in a project."""


def project_folders(folder: Path, name: str) -> list[Path]:
    """Where a project keeps its loops or roles (`name`), the nearest first."""
    owns = (OWN_FOLDER, *FOREIGN_FOLDERS)
    return [project_of(folder, own, holding=name) / own / name for own in owns]


def is_path(path: str) -> bool:
    """Whether a file below a folder, or below the person's own, may be called so."""
    below = path.removeprefix(_PERSONS)
    return not leads_out(below) and _NO_NAMES.isdisjoint(below.split("/"))


def fetch(places: Places | Mapping[str, bytes], wanted: RequestedFile) -> bytes | FileProblem:
    """A file's content, or the names in a folder, one on each line."""
    if not isinstance(places, Places):
        return _of_those(places, wanted)
    folder, path = places.folder, wanted.path
    if path.startswith(_PERSONS) and places.home is not None:
        folder, path = places.home, path.removeprefix(_PERSONS)
        if places.own is None or not path.startswith(f"{places.own}/"):
            return FileProblem("outside-workspace", f"{wanted.path!r} is none of the dialect's")
    elif path.startswith(BESIDE) and places.beside is not None:
        folder, path = places.beside, path.removeprefix(BESIDE)
    if places.around:
        if places.confined and path.partition("/")[0] == _AROUND:
            return FileProblem("cannot-read", _ABSENT)
        folder, path = _around(folder, path)
    if wanted.kind != "names":
        return read_beneath(folder, path, wanted.limit)
    names = names_beneath(folder, path)
    return names if isinstance(names, FileProblem) else "\n".join(names).encode(errors="replace")


def _around(folder: Path, path: str) -> tuple[Path, str]:
    """The folder that a path counts from, and the rest of it; a folder itself is `.`."""
    first, _, rest = path.partition("/")
    if first == _AROUND:
        return folder.parent, rest or "."
    return (folder, rest or ".") if first == _HERE else (folder, path)


def _of_those(files: Mapping[str, bytes], wanted: RequestedFile) -> bytes | FileProblem:
    """The same, of files that came with a definition."""
    data = files.get(wanted.path)
    if data is None and wanted.kind == "names":
        beginning = f"{wanted.path}/"
        below = [path[len(beginning) :] for path in sorted(files) if path.startswith(beginning)]
        return "\n".join(dict.fromkeys(name.partition("/")[0] for name in below)).encode()
    if data is None:
        return FileProblem("cannot-read", _ABSENT)
    if len(data) > wanted.limit:
        return FileProblem("file-too-large", f"{len(data)} bytes, at most {wanted.limit} are read")
    return data


CODE = "not-a-definition"


class FileKind(NamedTuple):
    """What a file is, and what can be done with it."""

    name: str
    hint: str


SUITE = FileKind("an evaluation suite", "`loopwright eval FILE` reads files of cases")
CATALOG = FileKind("a list of models", "models and their prices are in the settings")
CANVAS = FileKind(
    "a template of a canvas with several assistants",
    "run the assistants that it was made into: export the workspace, or take one assistant",
)


def other_kind(value: JsonValue) -> FileKind | None:
    """What a document is that is not a definition; None if it may be one."""
    if not isinstance(value, dict):
        return None
    if _is_suite(value):
        return SUITE
    if value.get("kind") == "ModelCatalog" and isinstance(value.get("models"), list):
        return CATALOG
    return CANVAS if _is_canvas(value) else None


def _is_suite(value: dict[str, JsonValue]) -> bool:
    """Cases with an input and what is expected of the answer."""
    cases = value.get("cases")
    return isinstance(cases, list) and any(
        isinstance(one, dict) and "input" in one and ("expect" in one or "evaluators" in one)
        for one in cases
    )


def _is_canvas(value: dict[str, JsonValue]) -> bool:
    """Cards with a place on a canvas, and lines between them."""
    nodes = value.get("nodes")
    return (
        isinstance(value.get("edges"), list)
        and isinstance(nodes, list)
        and bool(nodes)
        and all(
            isinstance(one, dict) and {"key", "type", "position"} <= one.keys() for one in nodes
        )
    )


LONGEST_PATH = 500
OUTSIDE = "outside-workspace"


def sent_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """The files that came with a definition; refused if one has no path below a folder."""
    for path in files:
        _check_sent_path(path)
    return {path: text.encode() for path, text in files.items()}


def _check_sent_path(path: str) -> None:
    shown = f"files: {path[:80]!a}"
    hidden = "a line end or a tab" if "\n" in path or "\t" in path else check_text(path)
    if hidden:
        raise InputError(f"{shown} holds {hidden}", code="bad-character")
    if not is_path(path):
        hint = "name files as the definition does: prompts/review.md"
        raise InputError(f"{shown} is not a path below a folder", code=OUTSIDE, hint=hint)
    if len(path) > LONGEST_PATH:
        message = f"{shown}: a path has at most {LONGEST_PATH} characters"
        raise InputError(message, code=OUTSIDE)
