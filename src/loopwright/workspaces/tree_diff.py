"""What differs between two trees, as Git says it."""

import re
from collections.abc import Sequence

from loopwright.errors import LoopwrightError, NotFound
from loopwright.kernel.fact_parts import DiffStat
from loopwright.ports import ChangeStatus, FileChange
from loopwright.workspaces.git import Git, GitFailed, shown_path

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

_ID = re.compile(r"[0-9a-f]{40}")
_MISSING = (b"bad object", b"unable to read", b"not a tree", b"bad tree", b"could not get object")
_STATUS: dict[str, ChangeStatus] = {
    "A": "added",
    "M": "modified",
    "D": "deleted",
    "R": "renamed",
    "T": "type_changed",
}


def checked_tree(tree: str) -> str:
    """The id of a tree; nothing stands for the empty one."""
    if not tree:
        return EMPTY_TREE
    if not _ID.fullmatch(tree):
        raise LoopwrightError(f"{tree!r} is not the id of a snapshot", code="bad-tree")
    return tree


async def read_trees(git: Git, *arguments: str | bytes, feed: bytes = b"") -> bytes:
    """Run a command that reads trees; one that is not there is an error with a plain message."""
    try:
        return (await git.run(*arguments, feed=feed)).out
    except GitFailed as error:
        if any(word in error.errors for word in _MISSING):
            raise _missing() from error
        raise


async def changes_between(git: Git, old: str, new: str) -> tuple[FileChange, ...]:
    """The files that differ. A renamed file counts once."""
    return (await compare_trees(git, [(old, new)]))[0]


async def compare_trees(git: Git, pairs: Sequence[tuple[str, str]]) -> list[tuple[FileChange, ...]]:
    """The files that differ between the trees of each pair, with one call of Git for all."""
    checked = [(checked_tree(old), checked_tree(new)) for old, new in pairs]
    wanted = list(dict.fromkeys((old, new) for old, new in checked if old != new))
    if not wanted:
        return [() for _ in pairs]
    options = ("-r", "-M", "-z", "--raw", "--numstat", "--no-ext-diff", "--no-textconv")
    headers = [f"{old} {new}\n".encode() for old, new in wanted]
    out = await read_trees(git, "diff-tree", "--stdin", *options, feed=b"".join(headers))
    parts: list[bytes] = []
    for header in reversed(headers):  # each part starts with the pair that it is about
        out, known, part = out.rpartition(header)
        if not known:
            raise _missing()
        parts.insert(0, part)
    found = {pair: _parsed(part.split(b"\0")) for pair, part in zip(wanted, parts, strict=True)}
    return [found.get(pair, ()) for pair in checked]


def count_changes(changes: Sequence[FileChange]) -> DiffStat:
    """How many files and lines."""
    return DiffStat(
        files=len(changes),
        insertions=sum(one.insertions for one in changes),
        deletions=sum(one.deletions for one in changes),
    )


def _missing() -> NotFound:
    return NotFound(
        "the snapshot is not in the data directory any more",
        code="snapshot-missing",
        hint="it was deleted, or its files are damaged",
    )


def _parsed(fields: list[bytes]) -> tuple[FileChange, ...]:
    """Read the raw lines (status and paths), then the counts, which come in the same order."""
    found: dict[bytes, tuple[ChangeStatus, bytes]] = {}
    changes: list[FileChange] = []
    waiting = iter(fields)
    for one in waiting:
        if one.startswith(b":"):
            letter = one.rsplit(b" ", 1)[1][:1].decode()
            path = next(waiting)
            old = b""
            if letter in ("R", "C"):
                old, path = path, next(waiting)
            found[path] = (_STATUS.get(letter, "modified"), old)
        elif one:
            added, deleted, path = one.split(b"\t", 2)
            if not path:
                next(waiting)
                path = next(waiting)
            status, old = found[path]
            changes.append(
                FileChange(
                    path=shown_path(path),
                    status=status,
                    insertions=_count(added),
                    deletions=_count(deleted),
                    binary=added == b"-",
                    old_path=shown_path(old),
                )
            )
    return tuple(changes)


def _count(text: bytes) -> int:
    return 0 if text == b"-" else int(text)
