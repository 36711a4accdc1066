"""Files that an agent asks for: its prompt, the schema of its answer, the agents it is made of.

They are named here, read by whoever holds the disk, and handed back in.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax import Position, check_text

MAX_FILE_BYTES = 1_048_576

Path: TypeAlias = tuple[str | int, ...]

_DRIVE = re.compile(r"[A-Za-z]:")


class Wanted(NamedTuple):
    """A file to read: `path` counts from the folder of the first file and stays inside of it."""

    path: str
    where: Position
    kind: Literal["text", "schema", "agent"]
    limit: int = MAX_FILE_BYTES


class FileProblem(Protocol):
    """Why a file could not be handed over."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | FileProblem]


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
