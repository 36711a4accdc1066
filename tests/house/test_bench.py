"""The benchmark runs seldom; what it takes from the package must be there all the same."""

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source_tree import SRC

BENCH = SRC.parents[1] / "bench"
FILES = sorted(BENCH.rglob("*.py"))


def exists(module: str, name: str) -> bool:
    """Whether a module has this name, or a module of this name below it."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(BENCH)))
def test_what_is_measured_exists(file: Path) -> None:
    """Every name that is imported from the package is one of it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loopwright"):
            missing = [one.name for one in node.names if not exists(str(node.module), one.name)]
            assert missing == [], f"{node.module} has no {', '.join(missing)}"


def test_ours_runs_the_sequential_workload(tmp_path: Path) -> None:
    """The benchmark creates its own service, so it must pass every argument that one needs."""
    script = BENCH / "contenders" / "ours.py"
    command = [sys.executable, str(script), "sequential", "--n", "5", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["recorded"] == 5
