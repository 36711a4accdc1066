"""Tests of pure packages need neither patching nor waiting: all they use is passed in."""

import ast
from pathlib import Path

import pytest

from tests.house.source_tree import dotted, nodes, pure_package_tests, shown

PATCHING_NAMES = {"MagicMock", "MonkeyPatch", "mocker", "monkeypatch"}
PATCHING_MODULES = {"mock", "pytest_mock", "unittest.mock"}


def patches(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name in PATCHING_MODULES for alias in names)
        case ast.ImportFrom(module=module, names=names):
            return module in PATCHING_MODULES or any(
                f"{module}.{alias.name}" in PATCHING_MODULES or alias.name in PATCHING_NAMES
                for alias in names
            )
        case ast.arg(arg=name):
            return name in PATCHING_NAMES
        case _:
            return dotted(node).rpartition(".")[2] in PATCHING_NAMES


def sleeps(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "sleep"


def found(rule: str, files: list[Path]) -> set[str]:
    broken = {"patching": patches, "sleeping": sleeps}[rule]
    return {
        f"{shown(path)}:{getattr(node, 'lineno', 0)}"
        for path in files
        for node in nodes(path)
        if broken(node)
    }


@pytest.mark.parametrize("rule", ["patching", "sleeping"])
def test_pure_packages_are_tested_plainly(rule: str) -> None:
    """No test of a pure package patches anything or sleeps."""
    assert found(rule, pure_package_tests()) == set()


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        pytest.param("from unittest import mock", "patching", id="mock from unittest"),
        pytest.param("from unittest.mock import patch", "patching", id="patch"),
        pytest.param("import unittest.mock as m", "patching", id="mock under another name"),
        pytest.param("def test_x(monkeypatch): ...", "patching", id="monkeypatch fixture"),
        pytest.param("pytest.MonkeyPatch()", "patching", id="MonkeyPatch by hand"),
        pytest.param("import time\ntime.sleep(1)", "sleeping", id="time.sleep"),
        pytest.param("async def f(): await sleep(0)", "sleeping", id="bare sleep"),
    ],
)
def test_the_rule_sees_a_planted_case(code: str, rule: str) -> None:
    """Each way around the rule is recognised."""
    broken = {"patching": patches, "sleeping": sleeps}[rule]
    assert any(broken(node) for node in ast.walk(ast.parse(code)))
