"""Files that a workflow asks for: named here, read by whoever holds the disk, handed back in."""

from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax.diagnostic import Position

MAX_FILE_BYTES = 1_048_576

Path: TypeAlias = tuple[str | int, ...]


class Wanted(NamedTuple):
    """A file to read: `path` counts from the folder of the first file and stays inside of it."""

    path: str
    where: Position
    kind: Literal["text", "workflow"]
    limit: int = MAX_FILE_BYTES


class FileProblem(Protocol):
    """Why a file could not be handed over."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


def is_reference(text: str) -> bool:
    """Whether a text stands in a file of its own: `@prompts/review.md`."""
    return text.startswith("@") and len(text) > 1 and "\n" not in text.strip()


def folder_of(path: str) -> str:
    """The folder in which a file stands; empty for the first one."""
    return path.rpartition("/")[0]
