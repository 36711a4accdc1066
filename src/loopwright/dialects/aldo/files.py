"""Files that an agent requests: its prompt, the schema of its answer, its subagents.

They are only named here. The caller reads them and passes them in.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax.document import Position, check_text

MAX_FILE_BYTES = 1_048_576
MAX_FOLDERS = 50

Path: TypeAlias = tuple[str | int, ...]

_DRIVE = re.compile(r"[A-Za-z]:")


LOOKS_AROUND = True
"""Agents are named by name, and teams keep theirs in folders side by side."""

HERE = "@here"
AROUND = "@around"
"""The folder of the first file, and the one above it: beginnings of paths, and names of both."""

Kind: TypeAlias = Literal["text", "schema", "agent", "names"]


class AldoFileRequest(NamedTuple):
    """A file to read, or a folder to list: `path` counts from the folder of the first file and
    stays inside it, except for agents in the folders beside it.
    """

    path: str
    where: Position
    kind: Kind
    limit: int = MAX_FILE_BYTES


class AldoFileProblem(Protocol):
    """Why a file could not be handed over."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | AldoFileProblem]


def folder_of(path: str) -> str:
    """The folder of a file, with a slash at its end; nothing for that of the first file."""
    return path.rpartition("/")[0] + "/" if "/" in path else ""


def folders_in(names: str) -> list[str]:
    """The names of a folder that may be folders with agents in them."""
    plain = (name for name in names.splitlines() if "." not in name and name != "node_modules")
    return [name for name in plain if not check_text(name)][:MAX_FOLDERS]


def inside(written: str) -> str | None:
    """A path from the folder of the first file on, or None when it leads out of that folder."""
    if not written or written.startswith(("/", "~")) or "\\" in written or "://" in written:
        return None
    if _DRIVE.match(written) or check_text(written) or "\n" in written:
        return None
    parts: list[str] = []
    for part in written.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or None
