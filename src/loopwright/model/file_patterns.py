"""Patterns of files in a workspace, as `protect` names them.

`*` and `?` match within a name, `**` any number of folders. A pattern with a slash counts from the
workspace on, one without matches at any depth. A pattern that names a folder matches all in it.

Caches that Python and its tools write next to sources are not protected, unless a pattern names
them: running the tests would count as a change of the tests.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import re2

NO_MATCH = "no file matches "
"""How the note about patterns begins that match nothing."""
_PARTS = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|[^*?]+")
_WRITTEN = {
    "**/": "(?:.*/)?",
    "/**": "/.*",
    "**": ".*",
    "*": "[^/]*",
    "?": r"(?:\\x[0-9a-f]{2}|[^/])",
}
# A byte of a name that is not UTF-8 is written as `\xNN`: `?` matches it as one character.
_CACHES = re.compile(
    r"(?:.*/)?(?:__pycache__/[^/]+\.pyc(?:\.\d+)?"
    r"|\.(?:pytest|ruff|mypy)_cache/(?:.*/)?"
    r"(?:README\.md|CACHEDIR\.TAG|\.gitignore|[^/.]+|[^/]+\.(?:json|ff|db)))",
    re.DOTALL,
)
_CACHE_NAMES = ("__pycache__", ".pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache")


def is_protected(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the patterns protects a file. A cache counts only where it is named."""
    if _CACHES.fullmatch(path):
        patterns = [one for one in patterns if any(name in one for name in _CACHE_NAMES)]
    return matches_any(patterns, path)


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Whether a path is a file that one of the patterns names."""
    return any(_is_match(pattern, path) for pattern in patterns)


def may_match(patterns: Sequence[str], path: str) -> bool:
    """Whether a pattern matches a file, or files of a folder, which ends with a slash."""
    if path.endswith("/"):
        return matches_any(patterns, path[:-1]) or matches_any(patterns, f"{path}file")
    return matches_any(patterns, path)


def pathspecs(pattern: str) -> tuple[str, str]:
    """The same pattern for Git."""
    plain = _plain(pattern).replace("[", "\\[")
    anywhere = "" if _has_slash(pattern) else "**/"
    return f":(glob){anywhere}{plain}", f":(glob){anywhere}{plain}/**"


def _has_slash(pattern: str) -> bool:
    return "/" in pattern.rstrip("/")


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./").rstrip("/")


def _is_match(pattern: str, path: str) -> bool:
    return _compiled(pattern).fullmatch(_encodable(path)) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re2._Regexp":
    """The pattern for an engine that needs time linear in the path. Python's `re` backtracks: a
    pattern of an author could keep the whole process busy for years. A pattern that is too large
    for the engine matches every file, so that no file loses its protection.
    """
    plain = _plain(_encodable(pattern))
    text = "".join(_WRITTEN.get(part) or re2.escape(part) for part in _PARTS.findall(plain))
    anywhere = "" if _has_slash(pattern) else "(?:.*/)?"
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(f"{anywhere}{text}(?:/.*)?", options)
    except re2.error:
        return re2.compile(".*", options)


def _encodable(text: str) -> str:
    """The text with halves of surrogate pairs, which the engine cannot read, written out."""
    return text.encode(errors="backslashreplace").decode()
