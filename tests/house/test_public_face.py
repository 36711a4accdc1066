"""What `import loopwright` gives and what it costs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loopwright
from tests.house.source_tree import SRC, project_settings

# The public face. A change here is a change of the product: say so in CHANGELOG.md.
PUBLIC = ["__version__"]

# Runs in a fresh interpreter: importing must do nothing but define names.
PROBE = """
import json, sys, time
opened, before = [], set(sys.modules)
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
started = time.process_time()
import loopwright
cpu = time.process_time() - started
seen = list(opened)
names = [n for n in vars(loopwright) if not n.startswith("_")]
loaded = sorted(set(sys.modules) - before)
print(json.dumps({"cpu": cpu, "opened": seen, "names": names, "loaded": loaded}))
"""


def probe() -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", PROBE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *printed, last = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(last)
    return report, "\n".join(printed) + done.stderr


def test_public_names_are_pinned() -> None:
    """`__all__` holds exactly the promised names, and the package has no other public ones."""
    report, _ = probe()
    assert loopwright.__all__ == PUBLIC
    assert report["names"] == [n for n in PUBLIC if not n.startswith("_")]


def test_importing_opens_no_file_and_prints_nothing() -> None:
    """Only the package's own module is read, no room is loaded, nothing is printed."""
    report, printed = probe()
    # The compiled form is looked for too, whether or not it exists.
    own = (f"{SRC}/__init__.", f"{SRC}/__pycache__/__init__.")
    assert [p for p in report["opened"] if not str(Path(p).resolve()).startswith(own)] == []
    assert report["loaded"] == ["loopwright"]
    assert printed == ""


def test_importing_is_cheap() -> None:
    """Importing takes under 150 ms of CPU; the best of three, because machines are noisy."""
    assert min(probe()[0]["cpu"] for _ in range(3)) < 0.150


def packages() -> list[str]:
    found = (p.parent.relative_to(SRC.parent) for p in SRC.rglob("__init__.py"))
    return sorted(".".join(p.parts) for p in found)


@pytest.mark.parametrize("name", packages())
def test_a_package_exports_what_it_lists(name: str) -> None:
    """Every name in a package's `__all__` exists, once. (Their order is ruff's RUF022.)"""
    package = importlib.import_module(name)
    exported: list[str] = getattr(package, "__all__", [])
    assert len(set(exported)) == len(exported)
    assert [n for n in exported if not hasattr(package, n)] == []


def test_the_package_is_typed_and_has_its_commands() -> None:
    """`py.typed` ships, and both commands start the same function."""
    assert (SRC / "py.typed").is_file()
    scripts = project_settings()["project"]["scripts"]
    assert scripts == {"loopwright": "loopwright.cli.main:main", "lw": "loopwright.cli.main:main"}
