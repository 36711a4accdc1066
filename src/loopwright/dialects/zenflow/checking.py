"""Everything that is wrong with one workflow file, in one report."""

from collections.abc import Iterator
from dataclasses import dataclass

from loopwright.dialects.zenflow.expressions import expressions
from loopwright.dialects.zenflow.graphs import graphs
from loopwright.dialects.zenflow.judges import agents
from loopwright.dialects.zenflow.rules import structure
from loopwright.dialects.zenflow.surface import Workflow
from loopwright.dialects.zenflow.tool_steps import tool_steps
from loopwright.dialects.zenflow.units import Unit
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic, in_order
from loopwright.syntax.validation import validate


@dataclass(frozen=True, slots=True)
class Checked:
    """A unit after all rules."""

    flow: Workflow | None
    problems: list[Diagnostic]


def check(unit: Unit) -> Checked:
    """The workflow of a unit, and all that is wrong with it."""
    flow, problems = validate(Workflow, unit.document)
    problems += unit.problems
    if isinstance(unit.document.value, dict):
        for rule in (structure, graphs, agents, expressions, tool_steps):
            problems += _first(rule(unit.document, unit.tree))
    return Checked(flow, in_order(problems))


def _first(found: Iterator[Diagnostic]) -> Iterator[Diagnostic]:
    """As many as a person will read; finding near misses for thousands would take its time."""
    errors = 0
    for one in found:
        yield one
        errors += one.severity == "error"
        if errors == MAX_PROBLEMS:
            return
