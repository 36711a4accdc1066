"""Steps that must exist: ids used twice, dependencies that are unknown or go in circles."""

from collections.abc import Iterator

from loopwright.dialects.zenflow.tree import GraphAt, StepAt, Tree
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.graphs import Wording, graph_problems, near_or_known

_WORDS = Wording("dependsOn", needs="depends on", twice="duplicate-step", unknown="missing-dep")


def graphs(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """All that is wrong with who waits for whom."""
    inner = {name: graph for graph in tree.graphs[1:] for name in graph.by_id}

    def advice(step: StepAt, need: str, others: list[str]) -> str | None:
        return _elsewhere(step, need, inner) or near_or_known(need, others)

    for graph in tree.graphs:
        yield from graph_problems(document, graph.steps, _WORDS, advice=advice)


def _elsewhere(step: StepAt, need: str, inner: dict[str, GraphAt]) -> str | None:
    """What to do about a step that is there, but on the other side of a loop."""
    around = step.graph.around
    if around is not None and _is_outside(around, need):
        return f"inside a loop, name steps of that loop; let {around.id} depend on {need}"
    holder = inner[need].around if need in inner else None
    if holder is not None and holder is not step:
        return f"it is inside the loop {holder.id}: depend on {holder.id}"
    return None


def _is_outside(around: StepAt | None, need: str) -> bool:
    while around is not None:
        if need in around.graph.by_id:
            return True
        around = around.graph.around
    return False
