"""Trees of snapshots: compare two of them, and write one back into a folder.

Files are never written through a link and never over content that no snapshot contains.
"""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.event_parts import DiffStat
from loopwright.ports import ChangeStatus, FileChange
from loopwright.workspaces.git import Git, GitFailed, listed_paths, shown_path
from loopwright.workspaces.repositories import Store, WorkspaceIndex
from loopwright.workspaces.scan import blob_id

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
    """The id of a tree; an empty id is the empty tree."""
    if not tree:
        return EMPTY_TREE
    if not _ID.fullmatch(tree):
        raise LoopwrightError(f"{tree!r} is not the id of a snapshot", code="bad-tree")
    return tree


async def read_trees(git: Git, *arguments: str | bytes, feed: bytes = b"") -> bytes:
    """Run a command that reads trees; a missing tree is an error with a plain message."""
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
    for header in reversed(headers):  # each part starts with the pair that it belongs to
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


_HARMLESS = (errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)  # not empty, or behind a link


@dataclass(frozen=True)
class Restorer:
    """Restores one folder, whose index is locked and matches its files."""

    index: WorkspaceIndex
    fds: tuple[int, ...]

    async def restore(self, tree: str, actual: str, expected: str, *, force: bool) -> int:
        """Write what differs between the folder and the tree. Files that are not in `expected` are
        kept, whether the tree has them or not.
        """
        git = self.index.store.git(fds=self.fds)
        if expected and actual != expected and not force:
            raise unrecorded([path for _, path in await _names(git, expected, actual)])
        entries = await _names(git, actual, tree)
        wanted = [path for letter, path in entries if letter != "D"]
        gone = {path for letter, path in entries if letter == "D"}
        if not force:
            added = {path for letter, path in entries if letter == "A"}
            await self._refuse_unknown(git, tree, added)
        if expected and expected != actual:
            gone &= set(await _files(git, expected))
        elif not expected:
            gone = set()
        return await self._write(git, tree, wanted, sorted(gone), force=force)

    async def _refuse_unknown(self, git: Git, tree: str, added: set[bytes]) -> None:
        """Files that would be written, but exist with other content that is in no snapshot: they
        are ignored, or too large.
        """
        blobs = await _blobs(git, tree) if added else {}
        wanted = {path: blobs.get(path, "") for path in added}
        found = await asyncio.to_thread(_differing, self.index.workspace, wanted)
        if found:
            raise unrecorded(found, "files that no snapshot has would be overwritten")

    async def _write(
        self, git: Git, tree: str, wanted: list[bytes], gone: list[bytes], *, force: bool
    ) -> int:
        root = self.index.workspace
        if not force:
            blocked = await asyncio.to_thread(_blocked, root, wanted, set(gone))
            if blocked:
                raise unrecorded(blocked)
        for path in gone:
            await asyncio.to_thread(remove_file, root, path)
        if wanted:
            own = _with_index(self.index.git(fds=self.fds), self.index.path / "restore-index")
            (self.index.path / "restore-index").unlink(missing_ok=True)
            await own.run("read-tree", tree)
            feed = b"".join(path + b"\0" for path in wanted)
            await own.run("checkout-index", "-z", "-f", "-q", "--stdin", feed=feed)
            (self.index.path / "restore-index").unlink(missing_ok=True)
        return len(wanted) + len(gone)


async def checkout_all(store: Store, tree: str, target: Path, index: Path) -> None:
    """Write all files of a tree into an empty folder."""
    variables = {"GIT_DIR": str(store.path), "GIT_WORK_TREE": str(target)}
    git = _with_index(Git(folder=target, variables=variables), index)
    await read_trees(git, "read-tree", tree)
    await git.run("checkout-index", "--all", "-f", "-q")


def require_empty(folder: Path) -> Path:
    """The folder, created if it is missing; one that has files is refused."""
    if folder.is_symlink():
        raise LoopwrightError(f"{folder} is a link", code="not-empty", hint="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.scandir(folder) as entries:
            occupied = any(True for _ in entries)
    except NotADirectoryError:
        occupied = True
    except FileExistsError:
        occupied = True
    if occupied:
        raise LoopwrightError(
            f"{folder} is not an empty folder", code="not-empty", hint="name a new folder"
        )
    return folder.resolve()


def unrecorded(paths: list[bytes], what: str = "files changed after the last snapshot") -> Conflict:
    """The error for files that would be overwritten although no snapshot contains them."""
    return Conflict(
        f"{what}: {listed_paths(sorted(paths), most=5)}",
        code="unrecorded-changes",
        hint="save them first, or overwrite them with --force",
    )


def _with_index(git: Git, index: Path) -> Git:
    return replace(git, variables={**git.variables, "GIT_INDEX_FILE": str(index)})


async def _names(git: Git, old: str, new: str) -> list[tuple[str, bytes]]:
    out = await read_trees(git, "diff-tree", "-r", "-z", "--no-renames", "--name-status", old, new)
    fields = out.split(b"\0")
    return [(code.decode(), path) for code, path in zip(fields[::2], fields[1::2], strict=False)]


async def _files(git: Git, tree: str) -> list[bytes]:
    out = await read_trees(git, "ls-tree", "-r", "-z", "--name-only", tree)
    return [one for one in out.split(b"\0") if one]


async def _blobs(git: Git, tree: str) -> dict[bytes, str]:
    out = await read_trees(git, "ls-tree", "-r", "-z", tree)
    entries = (one.partition(b"\t") for one in out.split(b"\0") if one)
    return {path: head.split(b" ")[2].decode() for head, _, path in entries}


def _differing(root: Path, wanted: dict[bytes, str]) -> list[bytes]:
    """Those of the files that exist with another content. Folders are checked later, and the
    targets of links are outside.
    """
    found: list[bytes] = []
    top = os.fsencode(root)
    for path, blob in wanted.items():
        full = os.path.join(top, path)
        if os.path.realpath(os.path.dirname(full)) != os.path.dirname(full):
            continue
        try:
            info = os.lstat(full)
            if not stat.S_ISDIR(info.st_mode) and blob_id(full, info) != blob:
                found.append(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            found.append(path)
    return found


def _blocked(root: Path, wanted: list[bytes], gone: set[bytes]) -> list[bytes]:
    """Files that no snapshot contains and that are in the way of a file of the tree."""
    found: list[bytes] = []
    for path in wanted:
        full = os.path.join(os.fsencode(root), path)
        with suppress(OSError):
            if not stat.S_ISDIR(os.lstat(full).st_mode):
                continue
            for folder, _, files in os.walk(full):
                inside = (
                    os.path.relpath(os.path.join(folder, one), os.fsencode(root)) for one in files
                )
                found += [one for one in inside if one not in gone]
    return found


def remove_file(root: Path, path: bytes) -> None:
    """Delete a file and the folders that it leaves empty, without following a link."""
    *folders, name = path.split(b"/")
    descriptors = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for folder in folders:
            descriptors.append(os.open(folder, flags, dir_fd=descriptors[-1]))
        os.unlink(name, dir_fd=descriptors[-1])
        for folder, parent in zip(reversed(folders), reversed(descriptors[:-1]), strict=True):
            os.rmdir(folder, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        pass  # already deleted
    except OSError as error:
        if error.errno not in _HARMLESS and os.path.lexists(os.path.join(os.fsencode(root), path)):
            raise LoopwrightError(
                f"{shown_path(path)} cannot be removed: {error.strerror}", code="restore-failed"
            ) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
