"""Files that a workflow requests: commands, scripts and other workflows.

Files of the project come first, then those of the user. A path is relative to the folder of the
project; `~/` in front means the home directory of the user, and `@/` the folder of the
definition. For a request of kind `names` the reader returns the names in a folder, one per
line.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.model.record import JsonValue
from loopwright.syntax.document import Position, did_you_mean
from loopwright.syntax.readers import read

PROJECT_FOLDER = ".archon"
CONFIG_FILES = (".archon/config.yaml", "~/.archon/config.yaml")
"""The settings of the project and those of the person; the project's come first."""
MAX_FILE_BYTES = 1_048_576
MAX_WORKFLOW_BYTES = 262_144
BESIDE = "@/"
"""The prefix of a path that counts from the folder of the definition."""
_PLACES = ("", "~/")
_MOST_FOLDERS = 50
_UNKNOWN = {
    "command": "unknown-command",
    "script": "unknown-script",
    "workflow": "unknown-workflow",
}


class ArchonFileRequest(NamedTuple):
    """A file to read, or a folder to list."""

    path: str
    where: Position
    kind: Literal["text", "names"]
    limit: int = MAX_FILE_BYTES
    is_optional: bool = False  # settings that need not be there


class ArchonFileProblem(Protocol):
    """Why a file could not be read."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | ArchonFileProblem]


class NamedFile(NamedTuple):
    """A command, a script or a workflow by its name."""

    what: Literal["command", "script", "workflow"]
    name: str
    endings: tuple[str, ...]
    beside: str = BESIDE  # the folder of the workflow that names it
    limit: int = MAX_FILE_BYTES

    @property
    def folder(self) -> str:
        """The folder below the project's or the person's."""
        return f"{PROJECT_FOLDER}/{self.what}s"

    def paths(self, folder: str) -> list[str]:
        """Its possible paths in a folder."""
        return [f"{folder}/{self.name}{ending}" for ending in self.endings]

    def own_paths(self) -> list[str]:
        """Its possible paths in the folder of the workflow that names it."""
        folder = self.beside.rstrip("/")
        return self.paths(folder if self.what == "workflow" else f"{folder}/{self.what}s")


class FoundText(NamedTuple):
    """A file that was found."""

    path: str
    text: str


class MissingFile(NamedTuple):
    """Why there is none."""

    code: str
    message: str
    hint: str | None = None

    @property
    def is_absent(self) -> bool:
        """Whether there is no such file; any other reason is about an existing file."""
        return self.code in _UNKNOWN.values()


def command(name: str, beside: str = BESIDE) -> NamedFile:
    """A prompt in a file."""
    return NamedFile("command", name, ("",) if name.endswith(".md") else (".md",), beside)


def script(name: str, runtime: str, beside: str = BESIDE) -> NamedFile:
    """A script in a file; its ending follows from what runs it."""
    endings = (".py",) if runtime == "uv" else (".ts", ".js")
    return NamedFile("script", name, ("",) if name.endswith(endings) else endings, beside)


def workflow(name: str, beside: str = BESIDE) -> NamedFile:
    """Another workflow in a file."""
    endings = (".yaml", ".yml")
    kept = ("",) if name.endswith(endings) else endings
    return NamedFile("workflow", name, kept, beside, MAX_WORKFLOW_BYTES)


def read_config(path: str, files: Files) -> dict[str, JsonValue]:
    """The settings in a file; empty if it does not exist or cannot be read."""
    data = files.get(path)
    document = read(data, file=path, merge_keys=True)[0] if isinstance(data, bytes) else None
    value = document.value if document is not None else None
    return value if isinstance(value, dict) else {}


def config_text(files: Files, table: str, key: str) -> str:
    """A text in a table of the project's settings; empty if there is none."""
    inner = read_config(CONFIG_FILES[0], files).get(table)
    value = inner.get(key) if isinstance(inner, dict) else None
    return value.strip() if isinstance(value, str) else ""


def is_below(path: str) -> bool:
    """Whether a path names something below the project."""
    return bool(path) and not path.startswith(("/", "~", "@")) and ".." not in path.split("/")


def _command_folder(files: Files) -> str | None:
    """The further folder with commands that the settings of the project name."""
    folder = config_text(files, "commands", "folder").removeprefix("./").rstrip("/")
    known = f"{PROJECT_FOLDER}/commands"
    return folder if is_below(folder) and folder != known else None


def shown_path(path: str) -> str:
    """A path as a person writes it."""
    return path.removeprefix(BESIDE)


def missing(named: NamedFile, files: Files, where: Position) -> Iterator[ArchonFileRequest]:
    """What must still be read to find it, or to suggest an existing name. Everything that is known
    by now is requested at once.
    """
    for paths, folders in _stages(named, files):
        if any(isinstance(files.get(path), bytes) for path in paths):
            return
        unread = [
            ArchonFileRequest(path, where, "text", named.limit)
            for path in paths
            if path not in files
        ]
        unlisted = [ArchonFileRequest(one, where, "names") for one in folders if one not in files]
        if unread or unlisted:
            yield from (*unread, *unlisted)
            return


def _stages(named: NamedFile, files: Files) -> Iterator[tuple[list[str], list[str]]]:
    """The places to search, in the order of precedence: the paths, and the folders whose names must
    be known before the next stage. Folders are searched one level deep, workflows two, since a
    workflow may have a folder of its own in a folder of workflows.
    """
    own, project = named.own_paths(), named.paths(named.folder)
    first = [*project, *own] if named.what == "workflow" else [*own, *project]
    yield first, [named.folder]
    for place in _PLACES:
        root = f"{place}{named.folder}"
        if place:
            yield named.paths(root), [root]
        below = [f"{root}/{name}" for name in _subfolders(files, root)]
        deeper = below if named.what == "workflow" else []
        yield [path for one in below for path in named.paths(one)], deeper
        last = [f"{one}/{name}" for one in deeper for name in _subfolders(files, one)]
        yield [path for one in last for path in named.paths(one)], []
        further = _command_folder(files) if named.what == "command" and not place else None
        if further is not None:
            yield named.paths(further), [further]


def _subfolders(files: Files, folder: str) -> list[str]:
    """What may be folders in a folder: names without an ending."""
    data = files.get(folder)
    names = data.decode("utf-8", "replace").splitlines() if isinstance(data, bytes) else []
    return [name for name in names if "." not in name][:_MOST_FOLDERS]


def find(named: NamedFile, files: Files) -> FoundText | MissingFile:
    """The text of a file."""
    for paths, _ in _stages(named, files):
        for path in paths:
            data = files.get(path)
            if isinstance(data, bytes):
                return _text(path, data)
            if data is not None and not _is_absent(path, data):
                return MissingFile(data.code, f"{shown_path(path)}: {data.message}")
    known = sorted({name for place in _PLACES for name in _names(files, place, named)})
    further = _command_folder(files) if named.what == "command" else None
    places = [f"{place}{named.folder}" for place in _PLACES]
    folders = " or ".join([*places[:1], *([further] if further else []), *places[1:]])
    message = f"no {named.what} is called {named.name} in {folders}"
    return MissingFile(_UNKNOWN[named.what], message, _absence_hint(named, known))


def _absence_hint(named: NamedFile, known: list[str]) -> str:
    """A hint for a name without a file."""
    near = did_you_mean(named.name, known)
    if near:
        return near
    path = named.paths(named.folder)[0]
    place = f"write {path}, or copy the file that comes with Archon to ~/{named.folder}"
    return f"{place}; known are {', '.join(known[:12])}" if known else place


def _is_absent(path: str, problem: ArchonFileProblem) -> bool:
    """Whether nothing exists there; a reader may skip the person's own folder."""
    if problem.code == "cannot-read":
        return problem.message.startswith(("no such", "not a directory"))
    if problem.code == "outside-workspace":
        return path.startswith("~/")
    return problem.code in ("not-found", "missing-file")


def _names(files: Files, place: str, named: NamedFile) -> Iterator[str]:
    """The names that exist, as they would be written."""
    root = f"{place}{named.folder}"
    for folder in (root, *(f"{root}/{one}" for one in _subfolders(files, root))):
        data = files.get(folder)
        for line in data.decode("utf-8", "replace").splitlines() if isinstance(data, bytes) else ():
            ending = next((one for one in named.endings if one and line.endswith(one)), None)
            if ending is not None:
                yield line.removesuffix(ending)


def _text(path: str, data: bytes) -> FoundText | MissingFile:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return MissingFile("encoding", f"{path} is not UTF-8", "save the file as UTF-8")
    if "\x00" in text:
        return MissingFile("encoding", f"{path} holds a NUL", "save the file as UTF-8")
    if not text.strip():
        return MissingFile("empty-definition", f"{path} is empty", "write something into it")
    return FoundText(path, text.replace("\r\n", "\n"))
