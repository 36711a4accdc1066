"""Which files of a workspace patterns of protected files lead to: none at all, or through links;
and protected files that no snapshot has.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopwright.errors import LoopwrightError
from loopwright.model.file_patterns import NO_MATCH, is_protected, matches_any, may_match

_MOST_ENTRIES = 100_000  # of a workspace that are looked at
_ROUNDS = 4  # links that lead to links
_LONGEST_PATH = 4_095  # that the system opens
_READ_BYTES = 1_000_000
_SPECIAL = "pipe, socket or device"
TOO_LONG = "path too long"


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


# -- files that no snapshot has --------------------------------------------------------------------


def find_unrecorded(workspace: str, patterns: Sequence[str]) -> dict[str, str]:
    """Protected files that Git does not record, each with a state that changes whenever the file
    does: what is in folders `.git` below the workspace; pipes, sockets and devices; and folders
    whose path is too long for the system.
    """
    found: dict[str, str] = {}
    for folder in _starts(patterns):
        for name, entry in _all_files(workspace, folder):
            if entry is None:
                if may_match(patterns, f"{name}/"):
                    found[name] = TOO_LONG
            elif is_protected(patterns, name):
                state = _unrecorded_state(name, entry)
                if state:
                    found[name] = state
    return found


def _starts(patterns: Sequence[str]) -> list[str]:
    """The folders that protected files are in: the first part of each pattern without wildcards."""
    found = set()
    for pattern in patterns:
        parts = pattern.removeprefix("./").rstrip("/").split("/")
        count = next((n for n, one in enumerate(parts) if "*" in one or "?" in one), len(parts))
        # A pattern without a slash counts in every folder.
        found.add("/".join(parts[:count]) if len(parts) > 1 or pattern.startswith("./") else "")
    return [""] if "" in found else sorted(found)


def _all_files(root: str, start: str) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """All files below a folder except those of the repository itself, with their paths relative to
    the root; None in the place of a file whose path is too long.
    """
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError:
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if len(os.fsencode(os.path.join(root, name))) > _LONGEST_PATH:
                yield name, None
            elif not entry.is_dir(follow_symlinks=False):
                yield _shown(name), entry
            elif name != ".git":
                waiting.append(name)


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _unrecorded_state(name: str, entry: os.DirEntry[str]) -> str:
    """Empty for a file that snapshots have."""
    try:
        info = entry.stat(follow_symlinks=False)
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            return _SPECIAL
        parts = name.split("/")
        # Git itself writes its index whenever it looks at a repository.
        if ".git" not in parts[1:] or (parts[-1] == "index" and parts[-2] == ".git"):
            return ""
        if stat.S_ISLNK(info.st_mode):
            return f"link {os.readlink(entry.path)}"
        if info.st_size > _READ_BYTES:
            return f"{info.st_size} bytes, {info.st_ino}, {info.st_ctime_ns}"
        with open(entry.path, "rb") as file:
            return hashlib.sha256(file.read(_READ_BYTES + 1)).hexdigest()
    except OSError:
        return "not readable"
