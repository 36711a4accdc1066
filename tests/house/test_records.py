"""Records are small, and a match over one of our unions handles every class of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.house.source_tree import SRC, dotted, nodes, source_files, tree

MOST_FIELDS = 20

OPEN_ENDED = {"AnyEvent"}
"""Unions of which a reader may handle some classes: whoever reads a log looks for some events."""


def test_record_with_many_fields_is_divided() -> None:
    """A record with very many fields contains several concepts."""
    found = {
        f"{path.relative_to(SRC).as_posix()}:{name}": count
        for path in source_files()
        if path.name != "surface.py"
        for name, count in records_in(nodes(path))
        if count > MOST_FIELDS
    }
    assert not found


def test_match_over_a_union_ends_in_assert_never() -> None:
    """A class that is added to a union is a type error wherever it is not handled."""
    unions = our_unions()
    found = {
        path.relative_to(SRC).as_posix(): count
        for path in source_files()
        if (count := len(partial_matches(nodes(path), unions)))
    }
    assert not found


def records_in(found: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Every class of a module, with the number of its own fields."""
    for node in found:
        if isinstance(node, ast.ClassDef):
            fields = (one for one in node.body if isinstance(one, ast.AnnAssign))
            yield node.name, sum("ClassVar" not in ast.unparse(one.annotation) for one in fields)


def our_unions(folders: tuple[str, ...] = ("model", "kernel")) -> dict[str, frozenset[str]]:
    """The closed unions of classes, with the names of their classes."""
    aliases: dict[str, set[str]] = {}
    for folder in folders:
        for path in (SRC / folder).rglob("*.py"):
            for node in tree(path).body:
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                    names = _union(node.value)
                    if names and isinstance(node.target, ast.Name):
                        aliases[node.target.id] = names
    return {
        name: frozenset(_flat(name, aliases))
        for name in aliases
        if name not in OPEN_ENDED and len(_flat(name, aliases)) > 1
    }


def _union(node: ast.expr | None) -> set[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _union(node.left), _union(node.right)
        return left | right if left and right else set()
    return {node.id} if isinstance(node, ast.Name) and node.id[0].isupper() else set()


def _flat(name: str, aliases: dict[str, set[str]]) -> set[str]:
    if name not in aliases:
        return {name}
    return {one for part in aliases[name] for one in _flat(part, aliases)}


def partial_matches(
    nodes_of_file: Iterable[ast.AST], unions: dict[str, frozenset[str]]
) -> list[int]:
    """The lines of matches over a union of which some classes may not be handled."""
    found: list[int] = []
    for node in nodes_of_file:
        if isinstance(node, ast.Match):
            named = {name for case in node.cases for name in _classes(case.pattern)}
            if any(named and named <= classes for classes in unions.values()) and not _ends(node):
                found.append(node.lineno)
    return found


def _classes(pattern: ast.pattern) -> Iterator[str]:
    match pattern:
        case ast.MatchClass(cls=cls):
            yield dotted(cls)
        case ast.MatchOr(patterns=patterns):
            for one in patterns:
                yield from _classes(one)
        case ast.MatchAs(pattern=inner) if inner is not None:
            yield from _classes(inner)
        case _:
            return


def _ends(node: ast.Match) -> bool:
    """Whether the last case calls `assert_never`."""
    calls = (one for part in node.cases[-1].body for one in ast.walk(part))
    return any(isinstance(one, ast.Call) and dotted(one.func) == "assert_never" for one in calls)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        pytest.param("match x:\n    case A():\n        pass\n", [1], id="no other case"),
        pytest.param(
            "match x:\n    case A() | B():\n        y()\n    case _:\n        z()\n", [1], id="or"
        ),
        pytest.param(
            "match x:\n    case A(n=n):\n        y()\n    case _:\n        assert_never(x)\n",
            [],
            id="never",
        ),
        pytest.param("match x:\n    case Other():\n        y()\n", [], id="another class"),
        pytest.param("match x:\n    case 'a':\n        y()\n", [], id="a value"),
    ],
)
def test_match_when_planted_is_found(source: str, lines: list[int]) -> None:
    """The rule sees matches over a union, with and without the last case."""
    assert partial_matches(ast.walk(ast.parse(source)), {"AB": frozenset({"A", "B"})}) == lines


def test_fields_when_planted_are_counted() -> None:
    """Class variables and methods are no fields."""
    source = "class A:\n    a: int\n    b: ClassVar[int]\n    c: str = ''\n    def d(self): ...\n"
    assert list(records_in(ast.walk(ast.parse(source)))) == [("A", 2)]
