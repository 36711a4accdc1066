"""Patterns of protected files: the same meaning here and for Git."""

from __future__ import annotations

import subprocess
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopwright.model.sandbox import is_protected, matches_any, pathspecs

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


HOSTILE = ["*a*a*a*a*a*a*a*a*ab", "**/a/" * 12 + "b", "?*" * 40 + "b", "**a" * 20 + "b"]


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize("path", ["a" * 120, "a/" * 100 + "a", "\\xff" * 200])
def test_pattern_with_many_wildcards_is_matched_in_linear_time(pattern: str, path: str) -> None:
    """An editor's `protect` cannot keep the server busy."""
    start = time.perf_counter()
    assert not matches_any([pattern], path)
    assert time.perf_counter() - start < 1


def test_pattern_that_is_too_large_protects_every_file() -> None:
    """The engine refuses it: then no file loses its protection."""
    assert matches_any(["?" * 100_000], "a.py")
    assert not matches_any(["?" * 1_000], "a.py")


def test_half_of_a_surrogate_pair_is_matched_like_another_character() -> None:
    """A definition in JSON can have one; the engine cannot read it."""
    assert matches_any(["a\ud800*"], "a\ud800b")
    assert not matches_any(["a\ud800"], "a.py")


@given(
    st.text("ab*?/.", min_size=1, max_size=8).filter(lambda one: "***" not in one),
    st.text("ab/.", min_size=1, max_size=8),
)
@example("a/**", "a/")
@example("**", "a/b")
@example("a**/b", "ab/b")
def test_patterns_match_like_a_simple_matcher(pattern: str, path: str) -> None:
    """A matcher that tries every possibility finds the same."""
    plain = pattern.removeprefix("./").rstrip("/")
    wanted = plain if "/" in pattern.rstrip("/") else f"**/{plain}"
    ends = [path, *(path[:at] for at, one in enumerate(path) if one == "/")]
    assert matches_any([pattern], path) == any(_fits(wanted, one) for one in ends)


def _fits(pattern: str, path: str) -> bool:
    """The rules of the module in their simplest form, without regard to time."""
    if not pattern:
        return not path
    if pattern.startswith("**/"):
        starts = [0, *(at + 1 for at, one in enumerate(path) if one == "/")]
        return any(_fits(pattern[3:], path[at:]) for at in starts)
    if pattern.startswith("**"):
        return any(_fits(pattern[2:], path[at:]) for at in range(len(path) + 1))
    if pattern.startswith("*"):
        longest = len(path.partition("/")[0])
        return any(_fits(pattern[1:], path[at:]) for at in range(longest + 1))
    is_same = path[:1] == pattern[0] or (pattern[0] == "?" and path[:1] not in ("", "/"))
    return is_same and _fits(pattern[1:], path[1:])


def test_fnmatch_of_python_needs_little_time_for_hostile_patterns() -> None:
    """`fs.search`, `ls --name` and protected paths of tools use it: it must not backtrack."""
    start = time.perf_counter()
    for pattern in ("*a" * 60 + "b", "*[a]" * 60 + "b", "*?a" * 60 + "b"):
        assert not fnmatchcase("a" * 250, pattern)
    assert time.perf_counter() - start < 1
