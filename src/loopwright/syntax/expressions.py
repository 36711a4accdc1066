"""Expressions inside of a document: compiled when it is read, each problem in its place.

The evaluator takes its time to load, so it is loaded with the first expression that is met.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, TypeAlias, cast

from loopwright.syntax.diagnostic import Diagnostic, Position
from loopwright.syntax.document import Document

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression and where it stands. `ids` are the steps that it can look at, `late` those
    that are there but may not have ended; `waiting` is the key that makes a step wait for them.
    """

    path: Sequence[str | int]
    text: str
    wants: Wants
    ids: frozenset[str]
    late: Collection[str] = ()
    waiting: str = "needs"


def expression_problems(document: Document, one: Expression) -> Iterator[Diagnostic]:
    """All that is wrong with an expression."""
    language = cast(_Language, import_module("loopwright.syntax.cel"))
    made = language.compile_cel(one.text, step_ids=one.ids, wants=one.wants)
    for problem in made if isinstance(made, list) else ():
        yield _diagnostic(document, one, problem)


def _diagnostic(document: Document, one: Expression, problem: _Problem) -> Diagnostic:
    line, column = place_in_text(document, one.path, one.text, problem.offset)
    message, hint = problem.message, problem.hint
    named = _ID.match(one.text, problem.offset)
    if problem.code == "unknown-step" and named and named[1] in one.late:
        message = f"{named[1]} may not have ended when this is looked at"
        hint = f"add {one.waiting}: [{named[1]}]"
    return Diagnostic(document.file, line, column, problem.code, message, hint)


def place_in_text(
    document: Document, path: Sequence[str | int], text: str, offset: int
) -> Position:
    """Where a character of a text stands, if the file has the text the way it is read."""
    node, _ = document._walk(path)
    source, begin = document._source, node.offset
    before = text[:offset]
    row = text.split("\n")[before.count("\n")]
    if source.text[begin : begin + 1] in ("|", ">"):
        start = source.text.find(row, begin)
    else:
        quoted = source.text.startswith(("'", '"'), begin)
        start = source.text.find(row, begin + quoted, begin + quoted + len(row))
    if start < 0 or not row.strip():
        return document.at(path)
    return source.position(start + len(before) - (before.rfind("\n") + 1))
