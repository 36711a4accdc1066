"""Nodes that depend on one another: ids used twice, unknown names, circles."""

from collections.abc import Iterable, Iterator

from loopwright.dialects.archon.outline import NodeAt, Outline
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.graphs import Wording, graph_problems, near_or_known

_WORDS = Wording("depends_on", twice="bad-id", unknown="unknown-step", step="node")


def graphs(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """All that is wrong with the edges of the graphs."""
    for graph in made.graphs:
        yield from graph_problems(document, graph.nodes, _WORDS, advice=_advice)


def meant(word: str, names: Iterable[str]) -> str:
    """The hint for a name that nothing has."""
    return near_or_known(word, list(names)) or "there are no others"


def _advice(node: NodeAt, need: str, others: list[str]) -> str:
    hint = meant(need, others)
    if node.graph.owner is not None:
        hint = f"{hint}; nodes of a group depend on nodes of the same group only"
    return hint
