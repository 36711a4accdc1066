"""The outline of a workflow as it was written: its graphs, steps, loops, and the files it names.

Built from the raw value before it is validated, so that rules between several values are checked in
the same report as the values themselves. Values of the wrong type are omitted here and left to
`surface.py`. Files are only named; the caller reads them and passes them in.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax.document import Document, Position, mapping
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


Mapping: TypeAlias = dict[str, object]


@dataclass(slots=True, eq=False)
class StepEntry:
    """One step of a graph."""

    path: Path
    value: Mapping
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
    value: Mapping
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

    top: Mapping
    agents: Mapping
    includes: Mapping
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
