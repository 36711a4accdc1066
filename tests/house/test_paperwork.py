"""The files around the code: decisions, locks, commands."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.source_tree import ROOT, shown

TARGETS = ["setup", "demo", "test", "test-deep", "test-agents", "check", "cover", "bench", "matrix"]
TARGETS += ["fmt", "lock", "test-soak"]

# A lock is the same for everyone: it names neither a place on the net nor one on a disk.
PLACES = re.compile(
    r"://|@ *file|--(extra-)?index-url|--find-links|--trusted-host"
    r"|\b[\w-]+\.(com|dev|io|net|org)\b|(^|\s)[/~][\w.]"
)


def lock_files() -> list[Path]:
    return sorted(
        path
        for folder, pattern in [("requirements", "*"), ("bench", "*require*")]
        for path in (ROOT / folder).glob(pattern)
        if path.is_file()
    )


def test_decisions_are_numbered_without_a_gap() -> None:
    """Files in docs/adr are named NNNN-title.md, counting from 0001."""
    files = [p for p in sorted((ROOT / "docs" / "adr").glob("*.md")) if p.name != "README.md"]
    numbers = [
        int(m[1]) if (m := re.match(r"(\d{4})-[a-z0-9-]+\.md$", p.name)) else p.name for p in files
    ]
    assert numbers
    assert numbers == list(range(1, len(files) + 1))


def test_locks_name_no_place() -> None:
    """No lock file contains a host, an address or a path of some machine."""
    assert ROOT / "requirements" / "dev.txt" in lock_files()
    named = {
        f"{shown(path)}:{number}: {line.strip()}"
        for path in lock_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if PLACES.search(line)
    }
    assert named == set()


@pytest.mark.parametrize(
    "line",
    [
        "--index-url somewhere",
        "# from https://host/simple",
        "thing @ file:thing.whl",
        "# mirror.example.org",
        "    # via -r /home/someone/dev.in",
    ],
)
def test_the_lock_rule_sees_a_planted_place(line: str) -> None:
    """Each kind of place is recognised."""
    assert PLACES.search(line)


def test_everything_in_the_lock_is_hashed() -> None:
    """Each pinned package of the lock carries at least one hash."""
    text = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+==\S+)([^\n]*)\n( *--hash)?", text, flags=re.MULTILINE)
    assert pinned
    assert [name for name, _, hashed in pinned if not hashed] == []


def test_bare_make_lists_the_targets() -> None:
    """`make` without a target prints one line per target."""
    make = shutil.which("make")
    assert make, "make is needed to work on this project"
    done = subprocess.run([make], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    listed = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {t for t in TARGETS if not listed.get(t)} == set()


def test_ci_runs_what_people_run() -> None:
    """`.ci/run` can be executed and calls the command that README names."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text(encoding="utf-8").splitlines()
    assert any(re.fullmatch(r"make .*\btest", line) for line in lines)


def test_no_file_has_a_conflict_of_a_merge() -> None:
    """Markers that Git writes into a file with a conflict are in no page and no source file."""
    folders = ["src", "tests", "docs", "examples", "bench", "scripts"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    marked = re.compile(rb"^(<<<<<<< |>>>>>>> )", re.MULTILINE)
    text = {".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
    found = [shown(p) for p in files if p.suffix in text and marked.search(p.read_bytes())]
    assert found == []
