"""Expressions: each is compiled when the workflow is read, with the steps that it may look at."""

from collections.abc import Iterator

from loopwright.dialects.zenflow.files import Path
from loopwright.dialects.zenflow.tree import GraphAt, StepAt, Tree
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.expressions import Expression, Wants, expression_problems
from loopwright.syntax.graphs import ended_before


def expressions(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """All that is wrong with the expressions of a workflow."""
    for step in tree.steps:
        for one in _of_step(step):
            yield from expression_problems(document, one)


def _of_step(step: StepAt) -> Iterator[Expression]:
    """The expressions of a step that say something."""
    written: list[tuple[Path, object, Wants, GraphAt | None]] = [
        ((*step.path, "condition"), step.value.get("condition"), "bool", None)
    ]
    if step.loop is not None:
        path, value = step.loop.path, step.loop.value
        written.append(((*path, "forEach"), value.get("forEach"), "list", None))
        written.append(((*path, "until"), value.get("until"), "bool", step.loop.graph))
    for path, text, wants, inner in written:
        if isinstance(text, str) and text.strip():
            ids = _seen_from(step).union(inner.by_id if inner else ())
            yield Expression(
                path=path,
                text=text,
                wants=wants,
                ids=ids,
                late=_late(step),
                waiting="dependsOn",
            )


def _seen_from(step: StepAt) -> frozenset[str]:
    """What a step can look at: all that ended before it, or before a loop around it."""
    seen: frozenset[str] = frozenset()
    place: StepAt | None = step
    while place is not None:
        seen |= ended_before(place, place.graph.by_id)
        place = place.graph.around
    return seen


def _late(step: StepAt) -> set[str]:
    """The steps that are there, whether they may have ended or not."""
    found: set[str] = set()
    place: StepAt | None = step
    while place is not None:
        found |= place.graph.by_id.keys()
        place = place.graph.around
    return found - {step.id}
