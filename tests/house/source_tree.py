"""Where files are, and how the tests of this folder read them. Shared by the tests of this
folder."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "loopwright"
TESTS = ROOT / "tests"

PURE_PACKAGES = ("agents/clis", "dialects", "kernel", "model", "prompts", "syntax")


def source_files() -> list[Path]:
    """Every Python file of the product."""
    return sorted(SRC.rglob("*.py"))


def pure_package_tests() -> list[Path]:
    """Every Python file under the test folders of the pure packages."""
    return sorted(path for package in PURE_PACKAGES for path in (TESTS / package).rglob("*.py"))


def shown(path: Path) -> str:
    """The path as people write it, from the root of the project."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file, which is parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All syntax nodes of a file."""
    return tuple(ast.walk(tree(path)))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a name or a chain of attributes, an empty string for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}".lstrip(".")
        case _:
            return ""


def project_settings() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
