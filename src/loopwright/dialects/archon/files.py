"""Files that a workflow asks for: commands, scripts and other workflows; the project's come first,
then the person's.

A path counts from the project's folder, one that begins with `~/` from the person's own. Asked for
`names`, the reader answers with the names of the files in a folder, one on each line.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax import Position, did_you_mean

PROJECT_FOLDER = ".archon"
MAX_FILE_BYTES = 1_048_576
MAX_SCRIPT_CHARS = 100_000
MAX_WORKFLOW_BYTES = 262_144
_PLACES = ("", "~/")
_UNKNOWN = {
    "command": "unknown-command",
    "script": "unknown-script",
    "workflow": "unknown-workflow",
}


class Wanted(NamedTuple):
    """A file to read, or a folder whose names are asked for."""

    path: str
    where: Position
    kind: Literal["text", "names"]
    limit: int = MAX_FILE_BYTES


class FileProblem(Protocol):
    """Why a file could not be handed over."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | FileProblem]


class Named(NamedTuple):
    """A command, a script or a workflow by its name: where it may stand."""

    what: Literal["command", "script", "workflow"]
    name: str
    endings: tuple[str, ...]
    limit: int = MAX_FILE_BYTES

    @property
    def folder(self) -> str:
        """The folder below the project's or the person's."""
        return f"{PROJECT_FOLDER}/{self.what}s"

    def paths(self) -> list[str]:
        """Every place in which it is looked for, the first that has it wins."""
        return [
            f"{place}{self.folder}/{self.name}{ending}"
            for place in _PLACES
            for ending in self.endings
        ]


class FoundText(NamedTuple):
    """A file that was found."""

    path: str
    text: str


class NotFound(NamedTuple):
    """Why there is none."""

    code: str
    message: str
    hint: str | None = None


def command(name: str) -> Named:
    """A prompt in a file."""
    return Named("command", name, (".md",))


def script(name: str, runtime: str) -> Named:
    """A script in a file; its ending follows from what runs it."""
    endings = (".py",) if runtime == "uv" else (".ts", ".js")
    return Named("script", name, ("",) if name.endswith(endings) else endings)


def workflow(name: str) -> Named:
    """Another workflow in a file."""
    endings = (".yaml", ".yml")
    return Named("workflow", name, ("",) if name.endswith(endings) else endings, MAX_WORKFLOW_BYTES)


def missing(named: Named, files: Files, where: Position) -> Iterator[Wanted]:
    """What must still be read to find it, or to say what it may have been meant to be."""
    paths = named.paths()
    if any(isinstance(files.get(path), bytes) for path in paths):
        return
    unread = [Wanted(path, where, "text", named.limit) for path in paths if path not in files]
    folders = [f"{place}{named.folder}" for place in _PLACES]
    yield from unread or [Wanted(one, where, "names") for one in folders if one not in files]


def find(named: Named, files: Files) -> FoundText | NotFound:
    """The text of a file."""
    for path in named.paths():
        data = files.get(path)
        if isinstance(data, bytes):
            return _text(path, data)
        if data is not None and not _is_absent(path, data):
            return NotFound(data.code, f"{path}: {data.message}")
    known = sorted({name for place in _PLACES for name in _names(files, place, named)})
    shown = f"known are {', '.join(known[:12])}" if known else f"write {named.paths()[0]}"
    message = f"no {named.what} is called {named.name}"
    return NotFound(_UNKNOWN[named.what], message, did_you_mean(named.name, known) or shown)


def _is_absent(path: str, problem: FileProblem) -> bool:
    """Whether nothing stands there; a reader may leave the person's own folder alone."""
    if problem.code == "cannot-read":
        return problem.message.startswith("no such")
    if problem.code == "outside-workspace":
        return path.startswith("~/")
    return problem.code in ("not-found", "missing-file")


def _names(files: Files, place: str, named: Named) -> Iterator[str]:
    """The names there are, as they would be written."""
    data = files.get(f"{place}{named.folder}")
    for line in data.decode("utf-8", "replace").splitlines() if isinstance(data, bytes) else ():
        ending = next((one for one in named.endings if line.endswith(one)), None)
        if ending is not None:
            yield line.removesuffix(ending)


def _text(path: str, data: bytes) -> FoundText | NotFound:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return NotFound("encoding", f"{path} is not UTF-8", "save the file as UTF-8")
    if "\x00" in text:
        return NotFound("encoding", f"{path} holds a NUL", "save the file as UTF-8")
    if not text.strip():
        return NotFound("empty-definition", f"{path} is empty", "write something into it")
    return FoundText(path, text.replace("\r\n", "\n"))
