"""The rooms and the contracts that keep them apart agree with each other.

`lint-imports` enforces the contracts; these tests see to it that no room is left out of one.
"""

import ast
import importlib
from typing import Any

import pytest

from tests.house.source_tree import PURE_ROOMS, SRC, project_settings

ROOMS = sorted(p.parent.name for p in SRC.glob("*/__init__.py"))


def contract(name_starts: str) -> dict[str, Any]:
    contracts = project_settings()["tool"]["importlinter"]["contracts"]
    [found] = [c for c in contracts if c["name"].startswith(name_starts)]
    assert isinstance(found, dict)
    return found


def line_of_ladder(room: str) -> list[str]:
    lines = [[n.strip(" ()") for n in line.split("|")] for line in contract("Ladder")["layers"]]
    [found] = [line for line in lines if room in line]
    return found


def test_every_adapter_room_is_protected() -> None:
    """Rooms beside the runtime hold adapters; each that exists may be named by app alone."""
    adapters = {room for room in line_of_ladder("runtime") if room != "runtime"}
    protected = {name.rpartition(".")[2] for name in contract("Only app")["protected_modules"]}
    assert adapters & set(ROOMS) <= protected <= adapters


def test_every_pure_room_is_kept_pure() -> None:
    """The purity contract covers each pure room, and the errors they all raise."""
    pure = {name.rpartition(".")[2] for name in contract("Pure rooms")["source_modules"]}
    assert pure == {*PURE_ROOMS, "errors"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_a_door_plate(room: str) -> None:
    """A room's docstring says in a few lines what lives there; the file holds only imports."""
    source = (SRC / room / "__init__.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    doc = ast.get_docstring(tree) or ""
    assert 4 <= len(doc.splitlines()) <= 12, "five to ten lines: what, may import what, start where"
    code = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.With)
    assert [type(node).__name__ for node in tree.body if isinstance(node, code)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_can_be_imported_alone(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Importing a room prints nothing."""
    importlib.import_module(f"loopwright.{room}")
    assert capsys.readouterr() == ("", "")
