"""Where things are, and how the house rules read them. Shared by the tests of this folder."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "loopwright"
TESTS = ROOT / "tests"

PURE_ROOMS = ("agents", "dialects", "kernel", "model", "syntax")


def source_files() -> list[Path]:
    """Every Python file of the product."""
    return sorted(SRC.rglob("*.py"))


def pure_room_tests() -> list[Path]:
    """Every Python file under the test folders of the pure rooms."""
    return sorted(path for room in PURE_ROOMS for path in (TESTS / room).rglob("*.py"))


def shown(path: Path) -> str:
    """The path as people write it, from the root of the project."""
    return path.relative_to(ROOT).as_posix()


def nodes(path: Path) -> Iterator[ast.AST]:
    """All syntax nodes of a file."""
    return ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))


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
