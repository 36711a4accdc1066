"""The outline of a workflow as it was written: its graphs, steps and loops.

Made from the raw value, before it is known to be right, so that rules between several values can
be checked in the same report as the values themselves. Whatever has the wrong type is left out
here: `surface.py` speaks of it.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from loopwright.dialects.zenflow.files import Path
from loopwright.syntax.document import Document
from loopwright.syntax.graphs import needs_of

Mapping: TypeAlias = dict[str, object]


@dataclass(slots=True, eq=False)
class StepAt:
    """One step of a graph."""

    path: Path
    value: Mapping
    graph: "GraphAt"
    id: str = ""
    needs: list[str] = field(default_factory=list)
    before: set[str] | None = None  # all steps before it, once somebody has asked
    loop: "LoopAt | None" = None

    def has(self, key: str) -> bool:
        """Whether a key is there and says something."""
        return self.value.get(key) is not None


@dataclass(slots=True, eq=False)
class LoopAt:
    """A loop; `depth` counts from 1, `graph` is what it repeats if that is more than a step."""

    path: Path
    value: Mapping
    step: StepAt
    depth: int
    graph: "GraphAt | None" = None

    def has(self, key: str) -> bool:
        """Whether a key is there and says something."""
        return self.value.get(key) is not None


@dataclass(slots=True, eq=False)
class GraphAt:
    """A list of steps: the workflow's own, or those of a loop."""

    path: Path
    around: StepAt | None = None
    depth: int = 0
    steps: list[StepAt] = field(default_factory=list)
    by_id: dict[str, StepAt] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Tree:
    """All of it, flat; the first graph is the workflow's own."""

    top: Mapping
    agents: Mapping
    includes: Mapping
    graphs: list[GraphAt] = field(default_factory=list)
    steps: list[StepAt] = field(default_factory=list)
    loops: list[LoopAt] = field(default_factory=list)


def outline(document: Document) -> Tree:
    """The outline of a document, as far as it has the right types."""
    top = mapping(document.value)
    tree = Tree(top, mapping(top.get("agents")), mapping(top.get("includes")))
    _graph(tree, GraphAt(("steps",)), top.get("steps"))
    return tree


def _graph(tree: Tree, graph: GraphAt, written: object) -> None:
    tree.graphs.append(graph)
    for number, value in enumerate(written if isinstance(written, list) else ()):
        if isinstance(value, dict):
            _step(tree, StepAt((*graph.path, number), value, graph))


def _step(tree: Tree, step: StepAt) -> None:
    graph, name = step.graph, step.value.get("id")
    tree.steps.append(step)
    graph.steps.append(step)
    if isinstance(name, str) and name:
        step.id = name
        graph.by_id.setdefault(name, step)
    step.needs = needs_of(step.value, "dependsOn")
    loop = step.value.get("loop")
    if isinstance(loop, dict):
        step.loop = LoopAt((*step.path, "loop"), loop, step, graph.depth + 1)
        tree.loops.append(step.loop)
        if isinstance(loop.get("steps"), list):
            inner = GraphAt((*step.loop.path, "steps"), step, step.loop.depth)
            step.loop.graph = inner
            _graph(tree, inner, loop["steps"])


def mapping(value: object) -> Mapping:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
