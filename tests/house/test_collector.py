"""The garbage collector belongs to the process, not to Loopwright."""

import ast

import pytest

from tests.house.source_tree import dotted, nodes, shown, source_files

CHANGES = {"collect", "disable", "enable", "freeze", "set_debug", "set_threshold", "unfreeze"}


def changes_the_collector(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name) if name in CHANGES:
            return dotted(node) == f"gc.{name}"
        case ast.Import(names=names):
            return any(alias.name == "gc" and alias.asname for alias in names)
        case ast.ImportFrom(module="gc"):
            return True
        case _:
            return False


@pytest.mark.item("bnd-m2")
def test_no_source_file_changes_the_collector() -> None:
    """Nothing in src starts, stops or tunes the collector, or freezes objects."""
    found = {
        f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        for path in source_files()
        for node in nodes(path)
        if changes_the_collector(node)
    }
    assert found == set(), "remove the references in circles where they arise instead"


@pytest.mark.parametrize(
    "code",
    [
        "import gc\ngc.freeze()",
        "import gc\ngc.set_threshold(50_000)",
        "import gc\nstop = gc.disable",
        "import gc as collector",
        "from gc import collect",
    ],
)
def test_the_rule_sees_a_planted_case(code: str) -> None:
    """Each way to change the collector is recognised."""
    assert any(changes_the_collector(node) for node in ast.walk(ast.parse(code)))
