"""Conditions of nodes: the small grammar, its precedence, and what it does not understand."""

import pytest

from loopwright.dialects.archon.variables import clauses, condition
from loopwright.model.actions import Compare, EveryOf, SomeOf
from loopwright.model.record import Ref

A = Ref(of="output", name="a")
N = Ref(of="result", name="a", field="n")


def same(ref: Ref, value: object, op: str = "==") -> Compare:
    return Compare(ref=ref, op=op, value=value)  # type: ignore[arg-type]


def broken(text: str) -> Compare:
    return Compare(ref=Ref(of="run"), op="<", value=f"unreadable: {text}")


ONE = [
    ("$a.output == 'x'", same(A, "x")),
    ("$a.output=='x'", same(A, "x")),
    ("  $a.output != ''  ", same(A, "", "!=")),
    ("$a.output.n == '5'", same(N, "5")),
    ("$a.n == 'x'", same(N, "x")),
    ("$a.n == 5", same(N, 5)),
    ("$a.n == 5.50", same(N, 5.5)),
    ("$a.n != true", same(N, True, "!=")),
    ("$a.n == false", same(N, False)),
    ("$a.output < 5", same(A, 5, "<")),
    ("$a.output >= '5'", same(A, 5, ">=")),
    ("$a.output <= ' -1.5e3 '", same(A, -1500.0, "<=")),
    ("$a.output > .5", same(A, 0.5, ">")),
    ("$INPUTS.mode == 'fast'", same(Ref(of="input", name="mode"), "fast")),
    ("$my-node.output == 'x'", same(Ref(of="output", name="my-node"), "x")),
    ("$a.output == 'a && b || c'", same(A, "a && b || c")),
]


@pytest.mark.item("archon-54")
@pytest.mark.parametrize(("text", "made"), ONE, ids=[text for text, _ in ONE])
def test_one_comparison(text: str, made: Compare) -> None:
    """Equality compares texts or bare values, an order needs a number on the right."""
    assert condition(text) == made


@pytest.mark.item("archon-54")
def test_and_binds_tighter_than_or() -> None:
    """`a && b || c && d` is (a and b) or (c and d), without parentheses."""
    x, y = same(A, "x"), same(A, "y")
    made = condition("$a.output == 'x' && $a.output == 'y' || $a.output == 'y'")
    assert made == SomeOf(parts=(EveryOf(parts=(x, y)), y))
    assert condition("$a.output == 'x' && $a.output == 'y'") == EveryOf(parts=(x, y))
    assert condition("$a.output == 'x' || $a.output == 'y'") == SomeOf(parts=(x, y))


BAD = [
    "",
    "true",
    "$a.output",
    "a == 'x'",
    "$a == 'x'",
    "$a.output = 'x'",
    "$a.output == x",
    '$a.output == "x"',
    "$a.output == 'x",
    "($a.output == 'x')",
    "!$a.output == 'x'",
    "$a.output.n.m == 'x'",
    "$a.output < 'x'",
    "$a.output > true",
    "$LOOP_PREV.a.output == 'x'",
]


@pytest.mark.item("archon-54")
@pytest.mark.parametrize("text", BAD)
def test_what_is_not_understood(text: str) -> None:
    """A clause without a meaning becomes one that can never be evaluated, and says why."""
    assert condition(text) == broken(text)
    ((clause,),) = clauses(text)
    assert clause.problem


@pytest.mark.item("archon-54")
def test_a_bad_clause_stays_behind_the_good_one() -> None:
    """The first clause may decide before the bad one is looked at."""
    made = condition("$a.output == 'x' || nonsense")
    assert made == SomeOf(parts=(same(A, "x"), broken("nonsense")))


def test_clauses_know_their_place() -> None:
    """Every clause remembers where it begins."""
    found = clauses("$a.output == 'x' &&  $b.n > 3 || bad")
    assert [[one.at for one in every] for every in found] == [[0, 21], [33]]


def test_the_item_of_a_list() -> None:
    """It is compared as a whole or by a field; without a list its name is that of a node."""
    assert condition("$it == 'x'", "it") == same(Ref(of="item"), "x")
    assert condition("$it.n > 3", "it") == same(Ref(of="item", field="n"), 3, ">")
    assert condition("$it-x.n == 3", "it") == same(Ref(of="result", name="it-x", field="n"), 3)
    assert condition("$it.n == 3") == same(Ref(of="result", name="it", field="n"), 3)


def test_a_node_that_is_not_there_is_nothing_to_compare() -> None:
    """Where the nodes are known, a field of no node cannot be evaluated, whatever is asked."""
    assert condition("$a.n != 'x'", known=["a"]) == same(N, "x", "!=")
    assert "unreadable: $a.n != 'x'" in str(condition("$a.n != 'x'", known=["b"]))
    assert condition("$a.output != 'x'", known=["b"]) == same(A, "x", "!=")
