"""Paths that no agent writes to unless a person has said yes: they decide what runs later."""

import unicodedata
from collections.abc import Iterable
from fnmatch import fnmatchcase

from loopwright.tools.tree import Parts

PROTECTED: tuple[str, ...] = (
    ".git/**",
    ".loopwright/**",
    "loopwright.toml",
    "node_modules/**",
    ".env*",
    ".mcp.json",
    "Dockerfile",
    "docker-compose*",
    "package.json",
    "*.lock",
    "*.lockb",
    "bun.lock*",
    "go.sum",
    "npm-shrinkwrap.json",
    "package-lock.json",
    "pnpm-lock.yaml",
)


class Protection:
    """A list of patterns. `NAME/**` is a folder of that name at any depth, itself and all in it;
    `NAME` a file or folder of that name at any depth; a pattern with another slash is matched
    against the whole path. Case and look-alike forms of letters make no difference.
    """

    def __init__(self, patterns: Iterable[str] = PROTECTED) -> None:
        self._anywhere: list[str] = []
        self._whole: list[str] = []
        for pattern in map(_plain, patterns):
            bare = pattern.removesuffix("/**")
            (self._whole if "/" in bare else self._anywhere).append(bare)

    def covers(self, parts: Parts) -> bool:
        """Whether a place stands on the list, or inside something that does."""
        plain = [_plain(part) for part in parts]
        if any(fnmatchcase(part, pattern) for part in plain for pattern in self._anywhere):
            return True
        heads = ["/".join(plain[: end + 1]) for end in range(len(plain))]
        return any(fnmatchcase(head, pattern) for head in heads for pattern in self._whole)


def _plain(text: str) -> str:
    """As a forgiving file system would compare it: it may take `.GIT` or `.git ` for `.git`."""
    letters = (c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
    return "".join(letters).casefold().rstrip(" .") or text
