"""Expressions: each is compiled when the workflow is read, with the steps that it may look at.

The evaluator takes its time to load, so it is loaded with the first expression that is met.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, TypeAlias, cast

from loopwright.dialects.zenflow.files import Path
from loopwright.dialects.zenflow.graphs import ended_before
from loopwright.dialects.zenflow.tree import GraphAt, StepAt, Tree
from loopwright.syntax import Diagnostic, Document, Position

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
    """An expression where it stands; `late` are steps that exist but may not have ended by then."""

    path: Path
    text: str
    wants: Wants
    ids: frozenset[str]
    late: frozenset[str]


def expressions(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """All that is wrong with the expressions of a workflow."""
    for one in found(tree):
        language = cast(_Language, import_module("loopwright.syntax.cel"))
        made = language.compile_cel(one.text, step_ids=one.ids, wants=one.wants)
        for problem in made if isinstance(made, list) else ():
            yield _diagnostic(document, one, problem)


def found(tree: Tree) -> Iterator[Expression]:
    """Every expression that says something, with what it can see."""
    for step in tree.steps:
        condition = step.value.get("condition")
        loop = step.loop
        until = loop.value.get("until") if loop else None
        items = loop.value.get("forEach") if loop else None
        if _says(condition):
            yield _seen_from(step, (*step.path, "condition"), condition, "bool")
        if loop is not None and _says(items):
            yield _seen_from(step, (*loop.path, "forEach"), items, "list")
        if loop is not None and _says(until):
            path = (*loop.path, "until")
            yield _seen_from(step, path, until, "bool", inner=loop.graph)


def _says(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _seen_from(
    step: StepAt, path: Path, text: object, wants: Wants, *, inner: GraphAt | None = None
) -> Expression:
    """What a step can look at: all that ended before it, or before a loop around it."""
    ended: set[str] = set(inner.by_id if inner else ())
    all_of_them: set[str] = set()
    place: StepAt | None = step
    while place is not None:
        ended |= ended_before(place).keys()
        all_of_them |= place.graph.by_id.keys()
        place = place.graph.around
    late = frozenset(all_of_them - ended - {step.id})
    return Expression(path, str(text), wants, frozenset(ended), late)


def _diagnostic(document: Document, one: Expression, problem: _Problem) -> Diagnostic:
    line, column = _place(document, one, problem.offset)
    message, hint = problem.message, problem.hint
    named = _ID.match(one.text, problem.offset)
    if problem.code == "unknown-step" and named and named[1] in one.late:
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
