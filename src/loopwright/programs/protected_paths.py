"""Which files of a workspace patterns of protected files lead to: none at all, or through links."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopwright.errors import LoopwrightError
from loopwright.model.file_patterns import NO_MATCH, matches_any

_MOST_ENTRIES = 100_000  # of a workspace that are looked at
_ROUNDS = 4  # links that lead to links


def unmatched_patterns(workspace: Path, patterns: Sequence[str]) -> list[str]:
    """The patterns that no file of the workspace matches."""
    left = list(patterns)
    for path, _ in _entries(workspace) if left else ():
        left = [one for one in left if not matches_any([one], path)]
        if not left:
            break
    return left


def unmatched_note(workspace: Path, patterns: Sequence[str]) -> str:
    """`no file matches test/**`; empty where every pattern matches some file."""
    left = unmatched_patterns(workspace, patterns)
    return f"{NO_MATCH}{', '.join(left)}" if left else ""


def with_link_targets(workspace: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns, and one for each file or folder that a protected link leads to. A link that
    leads out of the workspace is refused: what it leads to is in no snapshot.
    """
    found = dict.fromkeys(patterns)
    root = Path(os.path.realpath(workspace))
    new = list(found)
    for _ in range(_ROUNDS):
        targets = [one for pattern in new for one in _targets(root, pattern)]
        new = [one for one in dict.fromkeys(targets) if one not in found]
        found.update(dict.fromkeys(new))
        if not new:
            break
    return tuple(found)


def _targets(root: Path, pattern: str) -> Iterator[str]:
    parts = pattern.removeprefix("./").rstrip("/").split("/")
    for count in range(1, len(parts) + 1):
        inside = "/".join(parts[:count])
        if "*" in inside or "?" in inside:
            break
        if (root / inside).is_symlink():
            rest = "/".join(parts[count:])
            target = _target(root, inside)
            yield f"{target}/{rest}" if rest else _anchored(target)
            return
    for path, is_link in _entries(root):
        if is_link and matches_any([pattern], path):
            yield _anchored(_target(root, path))


def _anchored(path: str) -> str:
    """A pattern for exactly this path: one without a slash would match at any depth."""
    return path if "/" in path else f"./{path}"


def _target(root: Path, link: str) -> str:
    real = Path(os.path.realpath(root / link))
    if real != root and real.is_relative_to(root):
        return str(real.relative_to(root))
    raise LoopwrightError(
        f"{link} is a link to {os.readlink(root / link)}, outside the workspace, and cannot be "
        "protected",
        code="outside-workspace",
        hint="replace the link by a copy, or do not protect it",
    )


def _entries(root: Path) -> Iterator[tuple[str, bool]]:
    """Files and links of a workspace, each with whether it is a link."""
    seen = 0
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one != ".git"]
        for name in (*files, *folders):
            full = os.path.join(folder, name)
            is_link = os.path.islink(full)
            if is_link or name not in folders:
                shown = os.fsencode(os.path.relpath(full, root))
                yield shown.decode("utf-8", "backslashreplace"), is_link
            seen += 1
            if seen > _MOST_ENTRIES:
                return
