"""Expressions: each is compiled when the workflow is read, with the steps that it may look at.

The evaluator takes its time to load, so it is loaded with the first expression that is met.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, TypeAlias, cast

from loopwright.dialects.zenflow.files import Path
from loopwright.dialects.zenflow.tree import GraphAt, StepAt, Tree
from loopwright.syntax import Diagnostic, Document, Position
from loopwright.syntax.graphs import ended_before

Wants: TypeAlias = Literal["bool", "list"]

_ID = re.compile(r"['\"]?([A-Za-z0-9_-]+)")


class _Problem(Protocol):
    """Why an expression is refused; `offset` counts characters of its text."""

    message: str
    offset: int
    code: str
    hint: str | None


class _Language(Protocol):
    """The module that knows the language of expressions."""

    def compile_cel(
        self, text: str, *, step_ids: Collection[str], wants: Wants
    ) -> object | list[_Problem]: ...


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a step, and the steps that it can look at."""

    step: StepAt
    path: Path
    text: str
    wants: Wants
    ids: frozenset[str]


def expressions(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """All that is wrong with the expressions of a workflow."""
    for step in tree.steps:
        for one in _of_step(step):
            language = cast(_Language, import_module("loopwright.syntax.cel"))
            made = language.compile_cel(one.text, step_ids=one.ids, wants=one.wants)
            for problem in made if isinstance(made, list) else ():
                yield _diagnostic(document, one, problem)


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
            yield Expression(step, path, text, wants, ids)


def _seen_from(step: StepAt) -> frozenset[str]:
    """What a step can look at: all that ended before it, or before a loop around it."""
    seen: frozenset[str] = frozenset()
    place: StepAt | None = step
    while place is not None:
        seen |= ended_before(place, place.graph.by_id)
        place = place.graph.around
    return seen


def _is_late(step: StepAt, name: str) -> bool:
    """Whether a step of that name is there, but may not have ended."""
    place: StepAt | None = step
    while place is not None:
        if name in place.graph.by_id:
            return name != step.id
        place = place.graph.around
    return False


def _diagnostic(document: Document, one: Expression, problem: _Problem) -> Diagnostic:
    line, column = _place(document, one, problem.offset)
    message, hint = problem.message, problem.hint
    named = _ID.match(one.text, problem.offset)
    if problem.code == "unknown-step" and named and _is_late(one.step, named[1]):
        message = f"{named[1]} may not have ended when this is looked at"
        hint = f"add dependsOn: [{named[1]}]"
    return Diagnostic(document.file, line, column, problem.code, message, hint)


def _place(document: Document, one: Expression, offset: int) -> Position:
    """Where a character of an expression stands, if the file has it the way it is read."""
    node, _ = document._walk(one.path)
    source, begin = document._source, node.offset
    before = one.text[:offset]
    row = one.text.split("\n")[before.count("\n")]
    if source.text[begin : begin + 1] in ("|", ">"):
        start = source.text.find(row, begin)
    else:
        quoted = source.text.startswith(("'", '"'), begin)
        start = source.text.find(row, begin + quoted, begin + quoted + len(row))
    if start < 0 or not row.strip():
        return document.at(one.path)
    return source.position(start + len(before) - (before.rfind("\n") + 1))
