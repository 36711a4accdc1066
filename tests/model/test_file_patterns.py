"""Patterns of protected files: the same meaning here and for Git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loopwright.model.file_patterns import is_protected, matches_any, pathspecs

FILES = [
    "a.py",
    "test.sh",
    "lib/test.sh",
    "tests/a.py",
    "tests/deep/b.py",
    "src/tests/c.py",
    "src/x[1].py",
    "tests-old/a.py",
]

CASES = [
    ("tests/**", ["tests/a.py", "tests/deep/b.py"]),
    ("tests", ["src/tests/c.py", "tests/a.py", "tests/deep/b.py"]),
    ("tests/", ["src/tests/c.py", "tests/a.py", "tests/deep/b.py"]),
    ("./tests/a.py", ["tests/a.py"]),
    ("./test.sh", ["test.sh"]),
    ("test.sh", ["lib/test.sh", "test.sh"]),
    ("*.py", ["a.py", "src/tests/c.py", "src/x[1].py", "tests-old/a.py", "tests/a.py",
              "tests/deep/b.py"]),
    ("tests/*", ["tests/a.py", "tests/deep/b.py"]),
    ("**/tests/**", ["src/tests/c.py", "tests/a.py", "tests/deep/b.py"]),
    ("src/x[1].py", ["src/x[1].py"]),
    ("?.py", ["a.py", "src/tests/c.py", "tests-old/a.py", "tests/a.py", "tests/deep/b.py"]),
    ("tests/**/b.py", ["tests/deep/b.py"]),
    ("nothing/**", []),
]  # fmt: skip


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(("pattern", "expected"), CASES, ids=[one for one, _ in CASES])
def test_patterns_name_files(pattern: str, expected: list[str]) -> None:
    """What a pattern matches."""
    assert sorted(one for one in FILES if matches_any([pattern], one)) == expected


def test_git_understands_the_same(tmp_path: Path) -> None:
    """The pathspecs of a pattern match the same files."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    for pattern, expected in CASES:
        command = ["git", "-C", str(tmp_path), "ls-files", "--others", "--", *pathspecs(pattern)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert sorted(listed.split()) == expected, pattern


def test_question_mark_matches_a_byte_that_is_not_utf8() -> None:
    """Such a byte is shown as four characters, and is one."""
    assert matches_any(["tests/?.py"], "tests/\\xff.py")
    assert not matches_any(["tests/?.py"], "tests/xff.py")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("tests/**", "tests/__pycache__/a.cpython-312.pyc", False),
        ("tests", "tests/sub/__pycache__/a.pyc.1234", False),
        ("tests/**", "tests/.pytest_cache/v/cache/lastfailed", False),
        ("tests/**", "tests/.mypy_cache/3.12/a.data.json", False),
        ("tests/**", "tests/.ruff_cache/0.6.1/123", False),
        ("tests/**", "tests/a.pyc", True),
        ("tests/**", "tests/__pycache__", True),
        ("tests/**", "tests/__pycache__/a.py", True),
        ("tests/**", "tests/.pytest_cache/conftest.py", True),
        ("tests/**/__pycache__/**", "tests/__pycache__/a.pyc", True),
        (".mypy_cache/**", ".mypy_cache/3.12/a.data.json", True),
        ("*.pyc", "tests/__pycache__/a.pyc", True),
    ],
)
def test_caches_of_python_are_protected_only_where_a_pattern_names_them(
    pattern: str, path: str, expected: bool
) -> None:
    """Anything in a cache folder that is not a cache is protected like other files."""
    assert is_protected([pattern], path) is expected
