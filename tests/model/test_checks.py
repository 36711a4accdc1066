"""Checks as a tree: the order of its leaves is their number."""

from __future__ import annotations

from hypothesis import given

from loopwright.model.checks import AllOf, AnyOf, Cap, Check, Regex, Signal, leaves
from tests.model.plans import ANY_LEAF, check_trees


def test_leaves_come_in_the_order_they_are_written() -> None:
    """Trees are read from left to right, whatever their depth."""
    tree = AnyOf(
        parts=(Signal(word="a"), AllOf(parts=(Regex(pattern="b"), Cap())), Signal(word="c"))
    )
    assert leaves(tree) == (Signal(word="a"), Regex(pattern="b"), Cap(), Signal(word="c"))


@given(tree=check_trees(ANY_LEAF))
def test_a_tree_has_as_many_leaves_as_its_parts(tree: Check) -> None:
    """Numbers of parts add up, so that each leaf has a number of its own."""
    if isinstance(tree, AnyOf | AllOf):
        assert leaves(tree) == tuple(leaf for part in tree.parts for leaf in leaves(part))
    else:
        assert leaves(tree) == (tree,)
