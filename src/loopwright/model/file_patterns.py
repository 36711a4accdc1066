"""Patterns of files in a workspace, as `protect` names them.

`*` and `?` match within a name, `**` any number of folders. A pattern with a slash counts from the
workspace on, one without matches at any depth. A pattern that names a folder matches all in it.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

_PARTS = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|[^*?]+")
_WRITTEN = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matches_any(patterns: Iterable[str], path: str) -> bool:
    """Whether a path is a file that one of the patterns names."""
    return any(_compiled(pattern).fullmatch(path) for pattern in patterns)


def pathspecs(pattern: str) -> tuple[str, str]:
    """The same pattern for Git."""
    plain = _plain(pattern).replace("[", "\\[")
    anywhere = "" if "/" in plain else "**/"
    return f":(glob){anywhere}{plain}", f":(glob){anywhere}{plain}/**"


def _plain(pattern: str) -> str:
    return pattern.removeprefix("./").rstrip("/")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re.Pattern[str]":
    plain = _plain(pattern)
    text = "".join(_WRITTEN.get(part) or re.escape(part) for part in _PARTS.findall(plain))
    anywhere = "" if "/" in plain else "(?:.*/)?"
    return re.compile(f"{anywhere}{text}(?:/.*)?", re.DOTALL)
