"""The packages and the contracts that keep them apart agree with each other.

`lint-imports` enforces the contracts; these tests make sure that no package is left out of one.
"""

import ast
import importlib
from typing import Any

import pytest

from tests.house.source_tree import PURE_PACKAGES, SRC, project_settings

PACKAGES = sorted(p.parent.name for p in SRC.glob("*/__init__.py"))


def contract(name_starts: str) -> dict[str, Any]:
    contracts = project_settings()["tool"]["importlinter"]["contracts"]
    [found] = [c for c in contracts if c["name"].startswith(name_starts)]
    assert isinstance(found, dict)
    return found


def layer_of(package: str) -> list[str]:
    lines = [[n.strip(" ()") for n in line.split("|")] for line in contract("Layers")["layers"]]
    [found] = [line for line in lines if package in line]
    return found


def test_every_adapter_package_is_protected() -> None:
    """Packages beside the engine hold adapters, except views; only operations import them."""
    adapters = {package for package in layer_of("engine") if package not in ("engine", "views")}
    protected = {name.split(".")[1] for name in contract("Only operations")["protected_modules"]}
    assert adapters & set(PACKAGES) <= protected <= adapters


def test_every_pure_package_is_kept_pure() -> None:
    """The purity contract covers each pure package, and the errors they all raise."""
    pure = {
        name.removeprefix("loopwright.").replace(".", "/")
        for name in contract("Pure packages")["source_modules"]
    }
    assert pure == {*PURE_PACKAGES, "errors"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_docstring_for_readers(package: str) -> None:
    """It says in a few lines what the package is for; the file holds only imports."""
    source = (SRC / package / "__init__.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    doc = ast.get_docstring(tree) or ""
    assert 4 <= len(doc.splitlines()) <= 12, "say what it is, what it may import, where to start"
    code = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.With)
    assert [type(node).__name__ for node in tree.body if isinstance(node, code)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_can_be_imported_alone(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Importing a package prints nothing."""
    importlib.import_module(f"loopwright.{package}")
    assert capsys.readouterr() == ("", "")
