"""Files that a definition names, read for a dialect that may not read for itself.

A path counts from one folder and cannot lead out of it. One that begins with `~/` counts from the
person's own folder, and only what lies there in the dialect's own folder is read. One that begins
with `@/` counts from the folder of the definition. For a dialect whose definitions name others by
name, one that begins with `@around/` counts from the folder above. Where the files came with the
definition, these count and no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loopwright.programs.files import FileProblem, leads_out, names_beneath, read_beneath

_PERSONS = "~/"
_HERE = "@here"
_AROUND = "@around"
BESIDE = "@/"
"""How a path begins that counts from the folder of the definition."""
_REPOSITORY = ".git"
_NO_NAMES = {"", ".", ".."}
_ABSENT = "no such file or directory"


class Wanted(Protocol):
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


def fetch(places: Places | Mapping[str, bytes], wanted: Wanted) -> bytes | FileProblem:
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


def _of_those(files: Mapping[str, bytes], wanted: Wanted) -> bytes | FileProblem:
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
