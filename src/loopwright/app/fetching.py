"""Files that a definition names, read for a dialect that may not read for itself.

A path counts from one folder and cannot lead out of it. One that begins with `~/` counts from the
person's own folder, and only what lies there in the dialect's own folder is read. Where the files
came with the definition, these count and no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loopwright.programs.files import FileProblem, leads_out, names_beneath, read_beneath

_PERSONS = "~/"
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


def project_of(folder: Path, own: str) -> Path:
    """The project that a folder belongs to: the nearest one around it that has the dialect's own
    folder, but none outside of its repository; without one, the folder itself.
    """
    for place in (folder, *folder.parents):
        if place.name == own:
            return place.parent
        if (place / own).is_dir():
            return place
        if (place / _REPOSITORY).exists():
            break
    return folder


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
    if wanted.kind != "names":
        return read_beneath(folder, path, wanted.limit)
    names = names_beneath(folder, path)
    return names if isinstance(names, FileProblem) else "\n".join(names).encode(errors="replace")


def _of_those(files: Mapping[str, bytes], wanted: Wanted) -> bytes | FileProblem:
    """The same, of files that came with a definition."""
    data = files.get(wanted.path)
    if data is None and wanted.kind == "names":
        beginning = f"{wanted.path}/"
        below = [path[len(beginning) :] for path in sorted(files) if path.startswith(beginning)]
        return "\n".join(name for name in below if "/" not in name).encode()
    if data is None:
        return FileProblem("cannot-read", _ABSENT)
    if len(data) > wanted.limit:
        return FileProblem("file-too-large", f"{len(data)} bytes, at most {wanted.limit} are read")
    return data
