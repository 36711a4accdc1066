"""The outline of a workflow as it was written: its graphs, steps, loops, and the files it names.

Built from the raw value before it is validated, so that rules between several values are checked in
the same report as the values themselves. Values of the wrong type are omitted here and left to
`surface.py`. A unit is one workflow file with its texts in other files and the workflows that it
includes. Files are only named; the caller reads them and passes them in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.dialects.zenflow.surface import prose_problem
from loopwright.syntax.document import Diagnostic, Document, Position, mapping
from loopwright.syntax.notations import path_inside
from loopwright.syntax.readers import read
from loopwright.syntax.step_references import needs_of

MAX_FILE_BYTES = 1_048_576

Path: TypeAlias = tuple[str | int, ...]


class ZenflowFileRequest(NamedTuple):
    """A file to read: `path` counts from the folder of the first file and stays inside of it."""

    path: str
    where: Position
    kind: Literal["text", "workflow"]
    limit: int = MAX_FILE_BYTES


class ZenflowFileProblem(Protocol):
    """Why a file could not be read."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


def is_reference(text: str) -> bool:
    """Whether a text is in a separate file: `@prompts/review.md`."""
    return text.startswith("@") and len(text) > 1 and "\n" not in text.strip()


def folder_of(path: str) -> str:
    """The folder of a file; empty for the first one."""
    return path.rpartition("/")[0]


Keys: TypeAlias = dict[str, object]


@dataclass(slots=True, eq=False)
class StepEntry:
    """One step of a graph."""

    path: Path
    value: Keys
    graph: "GraphEntry"
    id: str = ""
    needs: list[str] = field(default_factory=list)
    before: set[str] | None = None  # all steps before it, computed on first use
    loop: "LoopEntry | None" = None

    def has(self, key: str) -> bool:
        """Whether a key is there and says something."""
        return self.value.get(key) is not None


@dataclass(slots=True, eq=False)
class LoopEntry:
    """A loop; `depth` counts from 1, `graph` is what it repeats if that is more than a step."""

    path: Path
    value: Keys
    step: StepEntry
    depth: int
    graph: "GraphEntry | None" = None

    def has(self, key: str) -> bool:
        """Whether a key is there and says something."""
        return self.value.get(key) is not None


@dataclass(slots=True, eq=False)
class GraphEntry:
    """A list of steps: the workflow's own, or those of a loop."""

    path: Path
    around: StepEntry | None = None
    depth: int = 0
    steps: list[StepEntry] = field(default_factory=list)
    by_id: dict[str, StepEntry] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ZenflowOutline:
    """All of it, flat; the first graph is the workflow's own."""

    top: Keys
    agents: Keys
    includes: Keys
    graphs: list[GraphEntry] = field(default_factory=list)
    steps: list[StepEntry] = field(default_factory=list)
    loops: list[LoopEntry] = field(default_factory=list)


def outline(document: Document) -> ZenflowOutline:
    """The outline of a document, as far as it has the right types."""
    top = mapping(document.value)
    tree = ZenflowOutline(top, mapping(top.get("agents")), mapping(top.get("includes")))
    _graph(tree, GraphEntry(("steps",)), top.get("steps"))
    return tree


def _graph(tree: ZenflowOutline, graph: GraphEntry, written: object) -> None:
    tree.graphs.append(graph)
    for number, value in enumerate(written if isinstance(written, list) else ()):
        if isinstance(value, dict):
            _step(tree, StepEntry((*graph.path, number), value, graph))


def _step(tree: ZenflowOutline, step: StepEntry) -> None:
    graph, name = step.graph, step.value.get("id")
    tree.steps.append(step)
    graph.steps.append(step)
    if isinstance(name, str) and name:
        step.id = name
        graph.by_id.setdefault(name, step)
    step.needs = needs_of(step.value, "dependsOn")
    loop = step.value.get("loop")
    if isinstance(loop, dict):
        step.loop = LoopEntry((*step.path, "loop"), loop, step, graph.depth + 1)
        tree.loops.append(step.loop)
        if isinstance(loop.get("steps"), list):
            inner = GraphEntry((*step.loop.path, "steps"), step, step.loop.depth)
            step.loop.graph = inner
            _graph(tree, inner, loop["steps"])


MAX_LOOPS = 3
MAX_INCLUDES = 5
MAX_CHAIN = 20
MAX_ALL_STEPS = 10_000


@dataclass(slots=True, eq=False)
class ZenflowUnit:
    """One workflow file. `height` counts the includes below it, `loops` the loops nested in it."""

    document: Document
    tree: ZenflowOutline
    folder: str
    texts: dict[Path, str] = field(default_factory=dict)
    included: dict[Path, "ZenflowUnit"] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    height: int = 0
    loops: int = 0
    size: int = 0


@dataclass(slots=True)
class ZenflowLoader:
    """Puts units together from the files that are there, and notes those that are not."""

    files: Mapping[str, bytes | ZenflowFileProblem]
    file: str  # the first one, as it is shown
    requests: dict[str, ZenflowFileRequest] = field(default_factory=dict)
    units: dict[str, ZenflowUnit] = field(default_factory=dict)  # the included ones, by path
    broken: list[Diagnostic] = field(default_factory=list)  # of files that are not workflows
    _open: list[str] = field(default_factory=list)

    def first(self, document: Document) -> ZenflowUnit:
        """The unit of the first file."""
        unit = self.load(document, path=self.file.rpartition("/")[2])
        for path, below in unit.included.items():
            if below.height >= MAX_INCLUDES:
                unit.problems.append(_too_deep(unit, (*path, "include")))
        if unit.size > MAX_ALL_STEPS:
            message = f"with all that is included there are more than {MAX_ALL_STEPS:,} steps"
            unit.problems.append(document.error("too-many-steps", message, at=("steps",)))
        return unit

    def load(self, document: Document, *, path: str) -> ZenflowUnit:
        """The unit of a document at `path`."""
        self._open.append(path)
        tree = outline(document)
        unit = ZenflowUnit(document, tree, folder_of(path), size=len(tree.steps))
        unit.loops = max((loop.depth for loop in tree.loops), default=0)
        for place, text in _texts(tree):
            self._text(unit, place, text)
        for key, target in tree.includes.items():
            if isinstance(target, str) and path_inside(unit.folder, target) is None:
                unit.problems.append(_outside(unit, target, ("includes", key)))
        for step in tree.steps:
            _check_context_files(unit, step)
            if isinstance(step.value.get("include"), str) and step.value["include"]:
                self._include(unit, step)
        self._open.pop()
        return unit

    # -- texts -------------------------------------------------------------------------------------

    def _text(self, unit: ZenflowUnit, place: Path, text: str) -> None:
        """Follow a reference until there is a text that is none."""
        seen: list[str] = []
        while is_reference(text):
            written = text.strip()[1:]
            path = path_inside(unit.folder, written)
            if path is None:
                message = f'"{written[:60]}" is not a file in the folder of the workflow'
                hint = "name a file beside it or below: '@prompts/review.md'"
                unit.problems.append(
                    unit.document.error("file-outside", message, at=place, hint=hint)
                )
                return
            if path in seen or len(seen) == MAX_CHAIN:
                trail = " → ".join([*seen[-3:], path])
                message = f"files that refer to one another: {trail}"
                unit.problems.append(unit.document.error("file-cycle", message, at=place))
                return
            seen.append(path)
            found = self._content(unit, place, path)
            if found is None:
                return
            text = found
        unit.texts[place] = text

    def _content(self, unit: ZenflowUnit, place: Path, path: str) -> str | None:
        data = self._file(unit, place, ZenflowFileRequest(path, unit.document.at(place), "text"))
        if data is None:
            return None
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            message = f"{path} is not UTF-8 at byte offset {error.start}"
            unit.problems.append(unit.document.error("encoding", message, at=place))
            return None
        hidden = prose_problem(text)
        if hidden:
            message = f"{path}: {hidden}"
            unit.problems.append(unit.document.error("hidden-character", message, at=place))
            return None
        return text

    def _file(self, unit: ZenflowUnit, place: Path, request: ZenflowFileRequest) -> bytes | None:
        data = self.files.get(request.path)
        if isinstance(data, bytes):
            if len(data) <= MAX_FILE_BYTES:
                return data
            message = f"{request.path} has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are read"
            unit.problems.append(unit.document.error("too-large", message, at=place))
        elif data is not None:
            unit.problems.append(
                unit.document.error(data.code, f"{request.path}: {data.message}", at=place)
            )
        else:
            self.requests.setdefault(request.path, request)
            message = f"there is no file {request.path}"
            unit.problems.append(unit.document.error("missing-file", message, at=place))
        return None

    # -- workflows ---------------------------------------------------------------------------------

    def _include(self, unit: ZenflowUnit, step: StepEntry) -> None:
        name = str(step.value["include"])
        listed = unit.tree.includes.get(name)
        place = (*step.path, "include")
        path = path_inside(unit.folder, listed if isinstance(listed, str) else name)
        if path is None:
            if not isinstance(listed, str):  # a listed one is reported where it is listed
                unit.problems.append(_outside(unit, name, place))
            return
        if path in self._open:
            trail = " → ".join([*self._open[self._open.index(path) :], path])
            message = f"workflows include one another: {trail}"
            unit.problems.append(unit.document.error("include-cycle", message, at=place))
            return
        if len(self._open) > MAX_INCLUDES:
            unit.problems.append(_too_deep(unit, place))
            return
        below = self.units.get(path) or self._below(unit, place, path)
        if below is not None:
            unit.included[step.path] = below
            _measure(unit, step, below)

    def _below(self, unit: ZenflowUnit, place: Path, path: str) -> ZenflowUnit | None:
        data = self._file(
            unit, place, ZenflowFileRequest(path, unit.document.at(place), "workflow")
        )
        if data is None:
            return None
        before = folder_of(self.file)
        shown = f"{before}/{path}" if before else path
        document, problems = read(data, file=shown, limit=MAX_FILE_BYTES, merge_keys=True)
        if document is None:
            self.broken += [one for one in problems if one not in self.broken]
            return None
        self.units[path] = self.load(document, path=path)
        return self.units[path]


def _measure(unit: ZenflowUnit, step: StepEntry, below: ZenflowUnit) -> None:
    """What an included workflow adds to the one that includes it."""
    unit.height = max(unit.height, below.height + 1)
    unit.size = min(unit.size + below.size, MAX_ALL_STEPS + 1)
    loops = step.graph.depth + below.loops
    if below.loops <= MAX_LOOPS < loops:
        message = f"with the loops of this workflow, loops are nested more than {MAX_LOOPS} deep"
        place = (*step.path, "include")
        unit.problems.append(unit.document.error("too-nested", message, at=place))
    unit.loops = max(unit.loops, loops)


def _texts(tree: ZenflowOutline) -> Iterator[tuple[Path, str]]:
    """Texts that may be in a separate file."""
    for name, entry in tree.agents.items():
        prompt = entry.get("prompt") if isinstance(entry, dict) else None
        if isinstance(prompt, str):
            yield ("agents", name, "prompt"), prompt
    for step in tree.steps:
        instructions = step.value.get("instructions")
        if isinstance(instructions, str):
            yield (*step.path, "instructions"), instructions


def _check_context_files(unit: ZenflowUnit, step: StepEntry) -> None:
    """Files that an agent is shown are beside the first workflow file or below."""
    named = step.value.get("contextFiles")
    for number, written in enumerate(named if isinstance(named, list) else ()):
        if isinstance(written, str) and written and path_inside(unit.folder, written) is None:
            message = f'"{written[:60]}" is not a file in the folder of the workflow'
            hint = "name it from the folder of this file on: docs/notes.md"
            at = (*step.path, "contextFiles", number)
            unit.problems.append(
                unit.document.error("outside-workspace", message, at=at, hint=hint)
            )


def _outside(unit: ZenflowUnit, target: str, place: Path) -> Diagnostic:
    message = f'"{target[:60]}" is not a file in the folder of the workflow'
    hint = "name a file beside it or below: parts/review.yaml"
    return unit.document.error("include-outside", message, at=place, hint=hint)


def _too_deep(unit: ZenflowUnit, place: Path) -> Diagnostic:
    message = f"workflows are included more than {MAX_INCLUDES} deep"
    return unit.document.error("include-too-deep", message, at=place)
