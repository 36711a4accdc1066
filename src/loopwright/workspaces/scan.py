"""Find what changed in a workspace since its index was written, and what to leave out."""

import asyncio
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from loopwright.model.sandbox import matches_any, pathspecs
from loopwright.workspaces.git import Git, GitResult, shown_path
from loopwright.workspaces.repositories import LastScan

_UNREADABLE = re.compile(
    rb"^warning: could not open directory '(.*?)/': ", re.MULTILINE | re.DOTALL
)
_FEW = 200  # paths that Git receives as patterns, each of which it tries on each file
_STATUS = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")


@dataclass(frozen=True, kw_only=True)
class SnapshotLimits:
    """Limits of one snapshot. Everything beyond is left out and named."""

    file_bytes: int = 50_000_000  # of one file
    total_bytes: int = 2_000_000_000  # of all files that are new or changed
    files: int = 200_000  # that are new or changed


@dataclass(slots=True)
class IndexChanges:
    """Changes of the index, as paths relative to the workspace."""

    update: list[bytes] = field(default_factory=list)
    remove: list[bytes] = field(default_factory=list)
    omitted: set[bytes] = field(default_factory=set)
    _bytes: int = 0

    def take(self, path: bytes, size: int, limits: SnapshotLimits) -> bool:
        """Enter a file unless a limit is reached."""
        fits = (
            size <= limits.file_bytes
            and self._bytes + size <= limits.total_bytes
            and len(self.update) < limits.files
        )
        if fits:
            self._bytes += size
            self.update.append(path)
        return fits


@dataclass(frozen=True)
class Scanner:
    """Scans one workspace. `hidden` are folders of it that are not part of it, `include` are
    patterns of files that are part of it although they are ignored.
    """

    git: Git
    limits: SnapshotLimits
    hidden: Sequence[bytes] = ()
    include: Sequence[str] = ()
    _closed: dict[bytes, bool] = field(default_factory=dict)  # folders that are known

    async def status(self, *, refresh: bool) -> GitResult:
        """What Git reports about the workspace. With `refresh`, it may update the times in the
        index; otherwise it leaves the index unchanged (see `unnoticed`).
        """
        git = self.git if refresh else self.git.with_variables(GIT_OPTIONAL_LOCKS="0")
        return await git.run(*_STATUS)

    async def changes(
        self, status: GitResult, more: Iterable[bytes] = (), skip: frozenset[bytes] = frozenset()
    ) -> IndexChanges:
        """What differs from the index. `more` are files to check although they are ignored; those
        in `skip` are left out.
        """
        changes = IndexChanges()
        for code, path in _entries(status.out):
            if path.endswith(b"/"):
                for inner in await self._nested(path[:-1]):
                    self._classify("?", inner, changes, skip)
            elif not self._is_hidden(path):
                self._classify(code, path, changes, skip)
        for path in more:
            self._classify("?", path, changes, skip)
        for folder in _UNREADABLE.findall(status.errors):
            changes.omitted.add(folder + b"/")
            changes.remove += await self._indexed(folder)
        return changes

    async def unnoticed(self, last: LastScan, patterns: Sequence[str]) -> list[bytes]:
        """Files of the index whose content differs from it although Git sees no difference.

        Git compares times in whole seconds. A file that changed in the second of the last scan
        can change again in that second, with the same size, and then have its old time set.
        """
        specs: list[str | bytes] = [spec for one in patterns for spec in pathspecs(one)]
        if last.recent is not None and len(last.recent) <= _FEW:
            specs += [b":(literal)" + one for one in last.recent]
            return await asyncio.to_thread(self._differing, await self._ids(*specs))
        ids = await self._ids(":/")
        suspects = {one: ids[one] for one in last.recent or () if one in ids}
        if last.recent is None:
            changed = await asyncio.to_thread(self.changed_since, ids, last.at)
            suspects = {one: ids[one] for one in changed}
        return await asyncio.to_thread(self._differing, {**suspects, **await self._ids(*specs)})

    def changed_since(self, paths: Iterable[bytes], since: int) -> list[bytes]:
        """The files that changed at a time (in nanoseconds) or later, in content or attributes."""
        found: list[bytes] = []
        for path in paths:
            with suppress(OSError):
                if os.lstat(self._full(path)).st_ctime_ns >= since:
                    found.append(path)
        return found

    async def indexed(self) -> list[bytes]:
        """All files of the index."""
        return [one for one in (await self.git.run("ls-files", "-z")).out.split(b"\0") if one]

    def enter(self, paths: Iterable[bytes], changes: IndexChanges, skip: frozenset[bytes]) -> None:
        """Have files read again although Git sees no difference: their old entries are removed."""
        known = {*changes.update, *changes.remove}
        for path in paths:
            if path not in known:
                changes.remove.append(path)
                self._classify("?", path, changes, skip)

    async def _ids(self, *specs: str | bytes) -> dict[bytes, str]:
        """The files of the index that match, with the ids of their contents."""
        if not specs:
            return {}
        done = await self.git.run("ls-files", "-s", "-z", "--", *specs)
        entries = (one.partition(b"\t") for one in done.out.split(b"\0") if one)
        return {path: head.split(b" ")[1].decode() for head, _, path in entries}

    def _differing(self, ids: dict[bytes, str]) -> list[bytes]:
        found: list[bytes] = []
        for path, blob in ids.items():
            full = self._full(path)
            try:
                info = os.lstat(full)
                if not self._is_readable(path, info) or blob_id(full, info) != blob:
                    found.append(path)
            except FileNotFoundError:
                continue  # Git notices that
            except OSError:
                found.append(path)
        return found

    async def specials(self, folders: Iterable[bytes], *, deep: bool) -> set[bytes]:
        """Pipes, sockets and devices, which Git ignores silently."""
        found: set[bytes] = set()
        too_deep: set[bytes] = set()
        for folder in folders:
            for path, entry in self._walk(folder, deep=deep, unseen=too_deep):
                if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    found.add(path)
        return too_deep | (found - await self._ignored(found))

    async def ignored_in_index(self) -> list[bytes]:
        """Files of the index that the current rules ignore and that are not to be included."""
        done = await self.git.run("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
        found = [one for one in done.out.split(b"\0") if one]
        return [one for one in found if self._is_hidden(one) or not self._is_included(one)]

    async def ignored_matching(self) -> list[bytes]:
        """Files that the current rules ignore and that are to be included."""
        specs = [spec for one in self.include for spec in pathspecs(one)]
        if not specs:
            return []
        options = ("-z", "--others", "--ignored", "--exclude-standard")
        done = await self.git.run("ls-files", *options, "--", *specs)
        found: list[bytes] = []
        for path in done.out.split(b"\0"):
            if path.endswith(b"/"):  # a nested repository, which Git does not enter
                inside = self._walk(path[:-1], deep=True, unseen=set())
                found += sorted(one for one, _ in inside if self._is_included(one))
            elif path:
                found.append(path)
        return [one for one in found if not self._is_hidden(one)]

    def _is_included(self, path: bytes) -> bool:
        return matches_any(self.include, shown_path(path))

    def _classify(
        self, code: str, path: bytes, changes: IndexChanges, skip: frozenset[bytes]
    ) -> None:
        known = code != "?"
        info = None
        if code != "D":
            with suppress(OSError):
                info = os.lstat(self._full(path))
        if info is None or path in skip or b".git" in path.lower().split(b"/"):
            kept = False  # Git itself rejects names like .GIT
        elif stat.S_ISLNK(info.st_mode):
            kept = changes.take(path, info.st_size, self.limits)
        elif stat.S_ISREG(info.st_mode):
            readable = self._is_readable(path, info)
            kept = readable and changes.take(path, info.st_size, self.limits)
        else:
            kept = False
        if not kept and known:
            changes.remove.append(path)
        if not kept and info is not None and not stat.S_ISDIR(info.st_mode):
            changes.omitted.add(path)

    def _is_readable(self, path: bytes, info: os.stat_result) -> bool:
        """Whether programs of the run can read a file. Those of root have no capabilities in a
        sandbox, so permissions apply to root too; they may deny only what root itself has.
        """
        if not os.access(self._full(path), os.R_OK):
            return False
        if os.geteuid() != 0 or stat.S_ISLNK(info.st_mode):
            return True
        return not _denies_owner(info, stat.S_IRUSR) and not self._is_closed(os.path.dirname(path))

    def _is_closed(self, folder: bytes) -> bool:
        """Whether the owner of a folder, or of one above it in the workspace, cannot read it."""
        waiting = [folder]
        while waiting[-1] and waiting[-1] not in self._closed:
            waiting.append(os.path.dirname(waiting[-1]))
        needed, closed = stat.S_IRUSR | stat.S_IXUSR, False
        for one in reversed(waiting):
            if one not in self._closed:
                self._closed[one] = closed or self._denies(one, needed)
            closed = self._closed[one]
        return closed

    def _denies(self, folder: bytes, needed: int) -> bool:
        try:
            return _denies_owner(os.lstat(self._full(folder)), needed)
        except OSError:
            return True  # deleted, and the file with it

    async def _nested(self, folder: bytes) -> list[bytes]:
        """The files of a repository inside the workspace. They are stored like all others."""
        if self._is_hidden(folder):
            return []
        found = sorted(path for path, _ in self._walk(folder, deep=True, unseen=set()))
        ignored = await self._ignored(found)
        return [one for one in found if one not in ignored or self._is_included(one)]

    async def _indexed(self, folder: bytes) -> list[bytes]:
        done = await self.git.run("--literal-pathspecs", "ls-files", "-z", "--", folder)
        return [one for one in done.out.split(b"\0") if one]

    async def _ignored(self, paths: Iterable[bytes]) -> set[bytes]:
        feed = b"".join(path + b"\0" for path in paths)
        if not feed:
            return set()
        done = await self.git.run(
            "check-ignore", "-z", "--stdin", "--no-index", feed=feed, accept=(0, 1, 128)
        )
        return {one for one in done.out.split(b"\0") if one}

    def _walk(
        self, folder: bytes, *, deep: bool, unseen: set[bytes]
    ) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
        """Everything but folders. Folders whose path is too long for the system are `unseen`."""
        waiting = [folder]
        while waiting:
            inside = waiting.pop()
            try:
                entries = list(os.scandir(self._full(inside)))
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    unseen.add(inside)
                continue
            for entry in entries:
                path = inside + b"/" + entry.name if inside else entry.name
                if entry.name == b".git" or self._is_hidden(path):
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield path, entry
                elif deep:
                    waiting.append(path)

    def _full(self, path: bytes) -> bytes:
        root = os.fsencode(self.git.folder)
        return os.path.join(root, path) if path else root

    def _is_hidden(self, path: bytes) -> bool:
        return any(path == one or path.startswith(one + b"/") for one in self.hidden)


def _denies_owner(info: os.stat_result, needed: int) -> bool:
    """Whether a file or folder of the user of this process lacks a permission of its owner."""
    return info.st_uid == os.geteuid() and info.st_mode & needed != needed


def _entries(out: bytes) -> Iterator[tuple[str, bytes]]:
    """Code and path of what differs between index and files; `?` for files that are new."""
    for record in out.split(b"\0"):
        code = record[1:2].decode()
        if record and code != " ":
            yield code, record[3:]


def blob_id(path: bytes, info: os.stat_result) -> str:
    """The id that Git gives to the content of a file; empty for what it does not store."""
    if stat.S_ISLNK(info.st_mode):
        data = os.readlink(path)
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if not stat.S_ISREG(info.st_mode):
        return ""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
